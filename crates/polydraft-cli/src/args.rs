//! Options shared by commands, and their conversion to descriptions.

mod backend;
mod chat;
mod ends;
mod models;
mod probability;
mod sampling;
mod speculation;
mod template;

pub use chat::{ChatArgs, opening_messages};
pub use ends::{EndArgs, TokenLimit, token_limit};
pub use models::{ModelArgs, RunModelArgs};
pub use probability::probability;
pub use sampling::{SamplingArgs, seed};
pub use speculation::{SpeculationArgs, with_rules};
pub use template::{TemplateArgs, object};
