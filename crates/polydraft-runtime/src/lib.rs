//! Opens models from a description, and decodes with them.
//!
//! The command line, the server, the Python package and the lab all open their models here, so that
//! a model, a draft or a tree has the same meaning everywhere. [`Run::open`] is the entry point:
//!
//! 1. A [`Description`] is plain data, made from a command line or from a server's settings.
//! 2. A plan resolves the target and each [`Draft`] to files, and rejects contradictions
//!    ([`Usage`]).
//! 3. A backend loads the models and attaches the drafters: [`Models`].
//! 4. [`Run::session`] generates outputs: it measures the costs of steps, corrects them by measured
//!    times, and stores learned n-grams.
#![forbid(unsafe_code)]

mod backend;
mod copies;
pub mod costs;
mod draft;
mod drafters;
mod hub;
mod identity;
mod listen;
mod load;
mod machine;
pub mod message;
pub mod model_files;
mod models;
mod plan;
mod process;
pub mod remote;
mod requests;
mod run;
mod sampling;
mod serde_display;
mod session;
mod sidecars;
mod speculation;
mod table_saver;
pub mod tables;
mod target;
mod translation;
mod tree;
mod usage;

pub use backend::{BackendKind, BackendOptions, CacheType, FlashAttention, Split};
pub use draft::{Corpus, Draft, DraftFiles, Ngrams};
pub use listen::{Listener, PROGRESS_INTERVAL, Silent};
pub use machine::{available_memory, machine, threads, threads_or_all, use_threads};
pub use models::{LanguageModel, ModelOptions, Models, TemplateOptions, advise, default_precision};
pub use plan::check_self_draft;
pub use polydraft::policy::TreeName;
pub use polydraft_engine::Limits;
pub use polydraft_models::{release_freed_memory, retain_freed_memory};
pub use process::{GgufDescription, describe_gguf, has_ended, has_llama, host, leave, serve_rpc};
pub use requests::{SeededRng, Settings, random, seeded};
pub use run::{Description, Run, with_published_sampling};
pub use sampling::SamplingOptions;
pub use session::{OutputOptions, RunSession};
pub use speculation::{Speculation, SpeculationOptions};
pub use table_saver::TableSaver;
pub use target::ResolvedTarget;
pub use translation::{Translated, translate};
pub use tree::{AcceptanceFile, check_draft_count, explain_incompatible};
pub use usage::{Advice, Usage, explain};
