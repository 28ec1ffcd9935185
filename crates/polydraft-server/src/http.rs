//! The web side: routes, and what stands before them.

pub mod guard;
mod pages;
mod routes;
pub mod server;
