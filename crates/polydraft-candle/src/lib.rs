//! Language models for polydraft on candle.
//!
//! [`load`] reads a directory in Hugging Face layout. The forward pass is our own: the models of candle-transformers
//! build their masks inside, take scalar positions and keep private caches, so they can neither score a tree nor take
//! tokens back.

mod cache;
mod config;
mod decoder;
mod error;
mod linear;
mod load;
mod model;
mod product;
mod text;
mod weights;

pub use config::{ARCHITECTURES, Config};
pub use error::{Error, Result};
pub use linear::Precision;
pub use load::{LoadOptions, Loaded, load};
pub use model::CandleModel;
pub use text::{Stream, Text};
