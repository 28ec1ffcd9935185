//! From a description of models, verifier and sampling to something that runs.
//!
//! The program, the server, the Python package and the laboratory all open their models here, so
//! that a model, a draft or a tree means the same everywhere. [`Run::open`] is the entry point.
#![forbid(unsafe_code)]

mod as_text;
mod backend;
mod copies;
pub mod costs;
mod drafters;
mod hub;
mod identity;
mod keeper;
mod listen;
mod load;
mod machine;
mod models;
pub mod places;
mod process;
mod requests;
mod resolve;
mod run;
mod sampling;
mod self_draft;
mod speculation;
pub mod tables;
mod tree;
mod usage;

pub use backend::{Backend, BackendOptions, CacheType, FlashAttention, Split};
pub use keeper::TableKeeper;
pub use listen::{Listener, SPEAKS, Silent};
pub use machine::{available_memory, machine, threads, threads_or_all, use_threads};
pub use models::{ModelOptions, Models, TemplateOptions, advise, default_precision};
pub use polydraft_models::{give_back_memory, keep_memory};
pub use process::{compute_for_others, has_ended, host, leave, llama_is_built};
pub use requests::{SeededRng, Settings, random, seeded};
pub use run::{Description, Run, published};
pub use sampling::SamplingOptions;
pub use self_draft::SelfDraft;
pub use speculation::{Speculation, SpeculationOptions};
pub use tree::{AcceptanceFile, TreeName, supports};
pub use usage::{Usage, explain};
