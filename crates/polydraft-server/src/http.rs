//! Web side: routes, access control, pages and connections.

pub mod guard;
mod pages;
mod routes;
pub mod server;
