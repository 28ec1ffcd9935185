//! polydraft as a server with OpenAI's interface: many requests in one pass of the target, each
//! with exactly the distribution, and with a seed exactly the output, that it has alone.
//!
//! Two sides that never wait for each other: one thread owns the models and steps all sequences
//! together (`worker`); the web side (`http`, `api`) parses requests, hands them over, and passes
//! on the events.
#![forbid(unsafe_code)]

mod api;
mod app;
mod fleet;
mod grammar;
mod http;
mod options;
mod serve;
mod telemetry;
mod worker;

pub use app::{Defaults, ServedModel};
pub use http::server::Server;
pub use log::LevelFilter as LogLevel;
pub use options::{Offered, ServerOptions};
pub use serve::{is_key, origin, serve};
pub use worker::{Capacity, CostsToUse};

pub(crate) use app::App;
