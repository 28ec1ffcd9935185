//! polydraft as a server with OpenAI's interface: many requests in one pass of the target, each
//! with exactly the law, and with a seed exactly the text, that it has alone.
//!
//! Two sides that never wait for each other: one thread owns the models and steps all texts
//! together (`worker`); the web side (`http`, `api`) reads requests, hands them over, and passes on
//! what it is told.
#![forbid(unsafe_code)]

mod api;
mod app;
mod grammar;
mod http;
mod serve;
mod telemetry;
mod worker;

pub use app::{Defaults, ServedModel, Settings};
pub use http::server::Server;
pub use serve::{Serving, is_key, origin, serve};
pub use tracing::Level as LogLevel;
pub use worker::Capacity;

pub(crate) use app::App;
