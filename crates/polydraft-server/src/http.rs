//! The web side: routes, and what stands before them.

mod answering;
pub mod guard;
mod models;
mod pages;
mod routes;
pub mod server;
mod stream;
mod texts;
