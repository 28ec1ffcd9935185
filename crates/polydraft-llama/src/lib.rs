//! Language models for polydraft on llama.cpp: any GGUF file that it runs, as target or draft.
//!
//! [`load`] checks the file's header with [`polydraft_gguf`] and hands it to llama.cpp. The tokenizer and the chat template are
//! [`polydraft_text`]'s, so that text is the same with every backend. The model is a
//! [`Model`](polydraft_engine::Model) like any other: many texts in one cache, a tree behind each scored in one pass.
//!
//! What differs from a model on candle: a row's logits depend, in their last bits, on how many rows are in its pass, because
//! llama.cpp picks its products by that number. So a text at temperature 0 is plain decoding's up to ties within that
//! rounding, and a seed gives the same text again only in the same company.
//!
//! llama.cpp is C++ and ends the process where it finds itself wrong (`GGML_ASSERT`, an exception in a pass). What of that can
//! be seen beforehand is checked; `docs/models.md` says what is left.
//!
//! Without the feature `native` there is no C++ here: [`load`] says how to build it.

mod error;
mod load;
mod options;

#[cfg(feature = "native")]
mod model;
#[cfg(feature = "native")]
mod native;

pub use error::{Error, Result};
pub use load::{Description, load};
pub use options::{BUILT, CacheType, FlashAttention, LlamaOptions, Split};

#[cfg(feature = "native")]
pub use load::load_model;
#[cfg(feature = "native")]
pub use model::LlamaModel;
#[cfg(feature = "native")]
pub use native::quantise;
