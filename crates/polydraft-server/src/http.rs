//! Web side: routes, access control, pages and connections.

pub mod guard;
mod logging;
mod pages;
mod routes;
pub mod server;
