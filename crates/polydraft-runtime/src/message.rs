//! Messages that contain option names, which each caller writes in its own syntax: the command line
//! `--draft-dtype`, Python `draft_dtype=`, the server `speculation.tree`.

use std::borrow::Cow;
use std::fmt;

/// Defines the options of descriptions with their names.
macro_rules! options {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// An option of a [`Description`](crate::Description).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum OptionName { $($(#[$doc])* $variant,)* }

        impl OptionName {
            /// All options.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name, with hyphens between words.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

options! {
    /// `ModelOptions::target`.
    Target = "target",
    /// `ModelOptions::drafts`.
    Draft = "draft",
    /// `ModelOptions::corpus`.
    Corpus = "corpus",
    /// `ModelOptions::learn`.
    Learn = "learn",
    /// `ModelOptions::mix_ngrams`.
    MixNgrams = "mix-ngrams",
    /// `ModelOptions::draft_vocabulary`.
    DraftVocabulary = "draft-vocabulary",
    /// `ModelOptions::draft_layers`.
    DraftLayers = "draft-layers",
    /// `ModelOptions::dtype`.
    Dtype = "dtype",
    /// `ModelOptions::draft_dtype`.
    DraftDtype = "draft-dtype",
    /// `ModelOptions::copies`.
    Copies = "copies",
    /// `ModelOptions::cache_type`.
    CacheType = "cache-type",
    /// `ModelOptions::offline`.
    Offline = "offline",
    /// `BackendOptions::backend`.
    Backend = "backend",
    /// `BackendOptions::draft_backend`.
    DraftBackend = "draft-backend",
    /// `BackendOptions::context`.
    Context = "context",
    /// `BackendOptions::cache_tokens`.
    CacheTokens = "cache-tokens",
    /// `BackendOptions::flash_attention`.
    FlashAttention = "flash-attention",
    /// `BackendOptions::rpc`.
    Rpc = "rpc",
    /// `BackendOptions::gpu_layers`.
    GpuLayers = "gpu-layers",
    /// `BackendOptions::main_gpu`.
    MainGpu = "main-gpu",
    /// `BackendOptions::split`.
    Split = "split",
    /// `BackendOptions::batch_threads`.
    BatchThreads = "batch-threads",
    /// Number of compute threads.
    Threads = "threads",
    /// `SpeculationOptions::verifier`.
    Verifier = "verifier",
    /// `SpeculationOptions::paths`.
    Paths = "paths",
    /// `SpeculationOptions::depth`.
    Depth = "depth",
    /// `SpeculationOptions::tree`.
    Tree = "tree",
    /// `SpeculationOptions::stop_below`.
    StopBelow = "stop-below",
    /// `SpeculationOptions::drafting`.
    Drafting = "drafting",
    /// `SpeculationOptions::acceptance`.
    Acceptance = "acceptance",
    /// `SpeculationOptions::costs`.
    Costs = "costs",
    /// `SamplingOptions::draft_temperature`.
    DraftTemperature = "draft-temperature",
    /// `SamplingOptions::draft_top_k`.
    DraftTopK = "draft-top-k",
    /// `SamplingOptions::draft_top_p`.
    DraftTopP = "draft-top-p",
    /// `SamplingOptions::draft_min_p`.
    DraftMinP = "draft-min-p",
}

impl OptionName {
    /// Returns the option with a value, as a part of a message.
    pub fn with(self, value: impl fmt::Display) -> Part {
        Part::Option(self, Some(value.to_string()))
    }
}

/// A part of a [`Message`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Plain text.
    Text(Cow<'static, str>),
    /// An option, with an optional value.
    Option(OptionName, Option<String>),
}

impl From<&'static str> for Part {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<OptionName> for Part {
    fn from(option: OptionName) -> Self {
        Self::Option(option, None)
    }
}

/// Formats an option with an optional value as callers type it.
pub type Wording = fn(OptionName, Option<&str>) -> String;

/// Formats options as on the command line: `--tree auto`.
pub fn command_line(option: OptionName, value: Option<&str>) -> String {
    let name = option.name();
    value.map_or_else(|| format!("--{name}"), |value| format!("--{name} {value}"))
}

/// Formats options as Python keywords: `tree="auto"`.
pub fn keyword(option: OptionName, value: Option<&str>) -> String {
    let name = option.name().replace('-', "_");
    value.map_or_else(|| format!("{name}="), |value| format!("{name}={}", literal(option, value)))
}

/// Formats options as fields of a request's `speculation`: `speculation.tree "auto"`.
pub fn field(option: OptionName, value: Option<&str>) -> String {
    let name = option.name().replace('-', "_");
    value.map_or_else(
        || format!("speculation.{name}"),
        |value| format!("speculation.{name} {}", literal(option, value)),
    )
}

/// Formats a value as a literal: a number, a list of numbers, or a string.
fn literal(option: OptionName, value: &str) -> String {
    let lists = [OptionName::DraftTemperature, OptionName::DraftLayers];
    match value.parse::<f64>() {
        Ok(_) => value.to_owned(),
        Err(_) if lists.contains(&option) => format!("[{}]", value.replace(',', ", ")),
        Err(_) => format!("{value:?}"),
    }
}

/// A message for users, in which options are data.
///
/// ```
/// use polydraft_runtime::message::{Message, OptionName, command_line, keyword};
///
/// let parts = [OptionName::Tree.with("auto"), " chooses ".into(), OptionName::Depth.into()];
/// let message = Message::new(parts);
/// assert_eq!(message.render(command_line), "--tree auto chooses --depth");
/// assert_eq!(message.render(keyword), "tree=\"auto\" chooses depth=");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message(Vec<Part>);

impl Message {
    /// Creates a message from its parts.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Formats the message with the caller's option syntax.
    pub fn render(&self, wording: Wording) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.to_string(),
            Part::Option(option, value) => wording(*option, value.as_deref()),
        };
        self.0.iter().map(part).collect()
    }

    /// Joins parts with commas.
    pub fn list(options: impl IntoIterator<Item = Part>) -> Vec<Part> {
        let mut parts = Vec::new();
        for option in options {
            if !parts.is_empty() {
                parts.push(Part::from(", "));
            }
            parts.push(option);
        }
        parts
    }

    /// Appends another message.
    pub fn join(self, other: Self) -> Self {
        self.and(other.0)
    }

    /// Appends parts.
    pub fn and(mut self, more: impl IntoIterator<Item = Part>) -> Self {
        self.0.extend(more);
        self
    }
}

impl fmt::Display for Message {
    /// Formats options by their names only.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let plain = |option: OptionName, value: Option<&str>| match value {
            None => option.name().to_owned(),
            Some(value) => format!("{} {value}", option.name()),
        };
        f.write_str(&self.render(plain))
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self(vec![text.into()])
    }
}

impl From<&'static str> for Message {
    fn from(text: &'static str) -> Self {
        Self(vec![text.into()])
    }
}

/// Makes a [`Message`] of strings and options.
macro_rules! message {
    ($($part:expr),* $(,)?) => {
        $crate::message::Message::new([$($crate::message::Part::from($part)),*])
    };
}
pub(crate) use message;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_options_for_each_caller() {
        let message = message![OptionName::DraftDtype, " and ", OptionName::Tree.with("2,2")];
        assert_eq!(message.render(command_line), "--draft-dtype and --tree 2,2");
        assert_eq!(message.render(keyword), "draft_dtype= and tree=\"2,2\"");
        assert_eq!(message.render(field), "speculation.draft_dtype and speculation.tree \"2,2\"");
        assert_eq!(message.to_string(), "draft-dtype and tree 2,2");
    }

    #[test]
    fn option_names_are_distinct() {
        let names: std::collections::BTreeSet<_> =
            OptionName::ALL.iter().map(|option| option.name()).collect();
        assert_eq!(names.len(), OptionName::ALL.len());
    }
}
