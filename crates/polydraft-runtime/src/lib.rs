//! From a description of models, verifier and sampling to something that runs.
//!
//! The program, the server, the Python package and the laboratory all open their models here, so
//! that a model, a draft or a tree means the same everywhere. [`Run::open`] is the entry point:
//!
//! 1. a [`Description`] is data, as a command line or a server's start gives it;
//! 2. its options become a plan: the target and each [`Draft`] are found, told apart by their
//!    files, and contradictions refused ([`Usage`]);
//! 3. a backend loads them, and drafters are attached: [`Models`];
//! 4. [`Run::session`] generates outputs: it measures what steps cost, corrects that by the clock,
//!    and stores what was learned.
#![forbid(unsafe_code)]

mod as_text;
mod backend;
mod copies;
pub mod costs;
mod draft;
mod drafters;
mod hub;
mod identity;
mod keeper;
mod listen;
mod load;
mod machine;
pub mod message;
pub mod model_files;
mod models;
mod plan;
mod process;
mod requests;
mod run;
mod sampling;
mod session;
mod speculation;
pub mod tables;
mod target;
mod tree;
mod usage;

pub use backend::{BackendKind, BackendOptions, CacheType, FlashAttention, Split};
pub use draft::{Corpus, Draft, DraftFiles, Ngrams};
pub use keeper::TableSaver;
pub use listen::{Listener, PROGRESS_INTERVAL, Silent};
pub use machine::{available_memory, machine, threads, threads_or_all, use_threads};
pub use models::{LanguageModel, ModelOptions, Models, TemplateOptions, advise, default_precision};
pub use plan::check_self_draft;
pub use polydraft::policy::TreeName;
pub use polydraft_models::{release_freed_memory, retain_freed_memory};
pub use process::{GgufDescription, describe_gguf, has_ended, has_llama, host, leave, serve_rpc};
pub use requests::{SeededRng, Settings, random, seeded};
pub use run::{Description, Run, with_published_sampling};
pub use sampling::SamplingOptions;
pub use session::{OutputOptions, RunSession};
pub use speculation::{Speculation, SpeculationOptions};
pub use target::ResolvedTarget;
pub use tree::{AcceptanceFile, check_draft_count, explain_incompatible};
pub use usage::{Advice, Usage, explain};
