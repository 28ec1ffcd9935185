//! Language models for polydraft on candle.
//!
//! [`load`] reads a directory in Hugging Face layout, of any family in [`architectures`]. The forward pass is our own:
//! the models of candle-transformers build their masks inside, take scalar positions and keep private caches, so they
//! can neither score a tree nor take tokens back.

mod cache;
mod chat;
mod config;
mod decoder;
mod device;
mod error;
mod family;
mod generation;
mod linear;
mod load;
mod model;
mod packed;
mod special;
mod text;
mod weights;

pub use chat::{ChatTemplate, Message};
pub use config::{
    Activation, Attention, Biases, Config, FeedForward, Frequencies, NormKind, NormOrder, Positions, Rope,
    Scaling,
};
pub use device::{DeviceName, available_memory};
pub use error::{Bytes, Error, Result};
pub use family::architectures;
pub use generation::PublishedSampling;
pub use linear::Precision;
pub use load::{Description, LoadOptions, Loaded, load};
pub use model::CandleModel;
#[doc(hidden)]
pub use packed::ProductProbe;
pub use text::{Stream, Text};
