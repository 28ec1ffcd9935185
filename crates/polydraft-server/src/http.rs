//! The web side: routes, and what stands before them.

mod guard;
mod pages;
mod routes;
pub mod server;
mod stream;
