//! Polydraft as a server with OpenAI's interface. One pass of the target serves many requests; each
//! keeps exactly the distribution, and with a seed exactly the output, that it has alone.
//!
//! The server has two sides that never block each other: one thread owns the models and steps all
//! sequences in a batch (`worker`); the web side (`http`, `api`) parses requests, submits them, and
//! forwards the events.
#![forbid(unsafe_code)]

mod api;
mod grammar;
mod http;
mod loaded_model;
mod models;
mod options;
mod request_log;
mod serve;
mod telemetry;
mod worker;

pub use http::server::Server;
pub use loaded_model::{Defaults, ServedModel};
pub use log::LevelFilter as LogLevel;
pub use options::{OfferedModel, ServerOptions};
pub use request_log::LogFormat;
pub use serve::{is_valid_key, parse_origin, serve};
pub use worker::Capacity;

pub(crate) use loaded_model::LoadedModel;
