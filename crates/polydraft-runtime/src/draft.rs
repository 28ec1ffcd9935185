//! Drafts, resolved from the names that users type.
//!
//! [`Draft::resolve`] is the only place where such a name is interpreted: as a keyword, or by the
//! files that it refers to.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use polydraft_models::{HeadKind, Precision, head_kind};

use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::model_files::locate;
use crate::remote;
use crate::tables;
use crate::usage::{Advice, Usage};

/// A resolved draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Draft {
    /// No draft: plain decoding.
    None,
    /// A model with the target's vocabulary.
    Model(DraftFiles),
    /// A head that drafts one token at a time from the target's hidden states.
    Head(DraftFiles),
    /// A head that drafts several tokens at once.
    BlockHead(DraftFiles),
    /// A small model that reads the target's KV cache.
    Assistant(DraftFiles),
    /// The target's own multi-token prediction (MTP) layer.
    Mtp,
    /// The target's own weights with fewer bits; `None` chooses the best type that is small enough.
    SelfDraft(Option<Precision>),
    /// N-grams of the sequence itself, and of a corpus or table.
    Ngrams(Ngrams),
    /// The model of a server at this address.
    Remote(String),
    /// Several drafts, each of which draws its own path.
    Several(Vec<Draft>),
}

/// Files of a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftFiles {
    /// Name that the user typed; `None` for the demo pair's draft.
    pub name: Option<String>,
    /// Directory or file.
    pub path: PathBuf,
}

/// Sources of n-grams in addition to the sequence itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ngrams {
    /// A text, or a table.
    pub corpus: Option<Corpus>,
    /// A table that learns from the target's output.
    pub learn: Option<PathBuf>,
}

/// A file of n-grams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Corpus {
    /// A text, to be tokenized.
    Text(PathBuf),
    /// A table.
    Table(PathBuf),
}

impl Corpus {
    /// Detects whether a file is a text or a table.
    pub fn from_file(file: PathBuf) -> Self {
        if tables::is_table(&file) { Self::Table(file) } else { Self::Text(file) }
    }

    /// Returns the file.
    pub fn file(&self) -> &Path {
        match self {
            Self::Text(file) | Self::Table(file) => file,
        }
    }
}

/// Name of n-gram drafts, which need no files.
pub const NGRAM: &str = "ngram";
/// Name of the target's own MTP layer as a draft.
const MTP: &str = "mtp";
/// Name of plain decoding.
pub const NONE: &str = "none";
/// Name of the quantised self-draft.
const SELF: &str = "self";

impl Draft {
    /// Resolves the name of a draft: a keyword, or files, downloaded if they are on the hub.
    ///
    /// # Errors
    /// [`Usage`] for a weight type that self-drafts do not support; a name that is neither a
    /// keyword nor the name of existing files.
    pub fn resolve(name: &str, offline: bool, listener: &dyn Listener) -> Result<Self> {
        match name.split_once(':') {
            None if name == NONE => return Ok(Self::None),
            None if name == MTP => return Ok(Self::Mtp),
            None if name == NGRAM => return Ok(Self::Ngrams(Ngrams::default())),
            None if name == SELF => return Ok(Self::SelfDraft(None)),
            Some((SELF, kind)) => return self_draft(kind),
            _ => {}
        }
        if remote::is_url(name) {
            return Ok(Self::Remote(remote::base_url(name)?));
        }
        if tables::is_table(Path::new(name)) {
            let corpus = Some(Corpus::Table(name.into()));
            return Ok(Self::Ngrams(Ngrams { corpus, learn: None }));
        }
        let path = locate(name, offline, listener)?;
        if !path.exists() {
            bail!(Advice(message![
                OptionName::Draft.with(name),
                ": expected a model directory, a .gguf file, a draft head or a table of n-grams, \
                 the URL of a server, or self, self:TYPE, mtp, ngram or none, got nothing there",
            ]));
        }
        let files = DraftFiles { name: Some(name.to_owned()), path };
        Ok(match head_kind(&files.path) {
            None => Self::Model(files),
            Some(HeadKind::Autoregressive) => Self::Head(files),
            Some(HeadKind::Block) => Self::BlockHead(files),
            Some(HeadKind::Assistant) => Self::Assistant(files),
        })
    }

    /// Returns the name for messages and records; `None` for the demo pair's draft and for plain
    /// decoding.
    pub fn label(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Model(files)
            | Self::Head(files)
            | Self::BlockHead(files)
            | Self::Assistant(files) => files.name.clone(),
            _ => Some(self.to_string()),
        }
    }

    /// Returns the draft's files, if it has any.
    pub fn files(&self) -> Option<&DraftFiles> {
        match self {
            Self::Model(files)
            | Self::Head(files)
            | Self::BlockHead(files)
            | Self::Assistant(files) => Some(files),
            _ => None,
        }
    }

    /// Returns whether the draft reads the target's hidden states or KV cache and has no vocabulary
    /// of its own.
    pub fn is_head(&self) -> bool {
        matches!(self, Self::Head(_) | Self::BlockHead(_) | Self::Assistant(_))
    }

    /// Returns whether the draft needs, or works better with, a target on the native backend.
    pub(crate) fn is_native(&self) -> bool {
        self.is_head() || matches!(self, Self::Mtp | Self::SelfDraft(_))
    }

    /// Returns the component drafts of several drafts, otherwise the draft itself.
    pub fn components(&self) -> &[Self] {
        match self {
            Self::Several(all) => all,
            one => std::slice::from_ref(one),
        }
    }
}

impl fmt::Display for Draft {
    /// Writes the name that users type.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::None => f.write_str(NONE),
            Self::Model(files)
            | Self::Head(files)
            | Self::BlockHead(files)
            | Self::Assistant(files) => match &files.name {
                Some(name) => f.write_str(name),
                None => write!(f, "{}", files.path.display()),
            },
            Self::Mtp => f.write_str(MTP),
            Self::SelfDraft(None) => f.write_str(SELF),
            Self::SelfDraft(Some(kind)) => write!(f, "{SELF}:{kind}"),
            Self::Ngrams(_) => f.write_str(NGRAM),
            Self::Remote(url) => f.write_str(url),
            Self::Several(all) => {
                let names: Vec<String> = all.iter().map(Self::to_string).collect();
                f.write_str(&names.join(" + "))
            }
        }
    }
}

/// Parses the weight type of a self-draft.
fn self_draft(kind: &str) -> Result<Draft> {
    let precision: Precision = kind.parse().map_err(|_| {
        let copies = Precision::ALL.into_iter().filter(|kind| check_copy(*kind).is_ok());
        let copies: Vec<_> = copies.map(|kind| kind.to_string()).collect();
        let text = format!(": expected one of {}, got {kind:?}", copies.join(", "));
        Usage::unknown(OptionName::Draft, message![OptionName::Draft.with("self:TYPE"), text])
    })?;
    check_copy(precision)?;
    Ok(Draft::SelfDraft(Some(precision)))
}

/// Checks that a weight type is suitable for a quantised copy.
pub(crate) fn check_copy(kind: Precision) -> Result<()> {
    match kind {
        Precision::File | Precision::F32 => Err(Usage::unknown(
            OptionName::Draft,
            message![
                OptionName::Draft.with(format_args!("self:{kind}")),
                ": this would be the target itself; give a type with fewer bits",
            ],
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::message::command_line;
    use crate::usage::explain;

    fn find(name: &str) -> Result<Draft> {
        Draft::resolve(name, true, &Silent)
    }

    #[test]
    fn resolves_keywords() -> Result<()> {
        assert_eq!(find("none")?, Draft::None);
        assert_eq!(find("mtp")?, Draft::Mtp);
        assert_eq!(find("ngram")?, Draft::Ngrams(Ngrams::default()));
        assert_eq!(find("self")?, Draft::SelfDraft(None));
        assert_eq!(find("self:q5_1")?, Draft::SelfDraft(Some(Precision::Q5_1)));
        for name in ["none", "mtp", "ngram", "self", "self:q4_1"] {
            assert_eq!(find(name)?.to_string(), name);
        }
        Ok(())
    }

    #[test]
    fn resolves_addresses_of_servers() -> Result<()> {
        for (name, base) in [
            ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
            ("https://drafts.local/llm", "https://drafts.local/llm"),
        ] {
            assert_eq!(find(name)?, Draft::Remote(base.to_owned()));
            assert_eq!(find(name)?.to_string(), base);
        }
        for name in ["http://", "http:///a", "http://me:secret@there", "http://a?b", "http://a b"] {
            let error = explain(&find(name).unwrap_err(), command_line);
            assert!(error.contains("--draft URL: expected an address such as"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn rejects_unknown_names_with_the_valid_ones() {
        for (name, expected) in [
            ("self:q9", "--draft self:TYPE: expected one of f16, bf16, q8_0, "),
            ("self:f32", "--draft self:f32: this would be the target itself"),
            ("self:file", "--draft self:file: this would be the target itself"),
            ("/nowhere/at/all", "--draft /nowhere/at/all: expected a model directory"),
        ] {
            let error = explain(&find(name).unwrap_err(), command_line);
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn resolves_drafts_by_their_files() -> Result<()> {
        let demo = crate::model_files::demo_folder()?;
        let model = demo.join("draft").display().to_string();
        assert!(matches!(find(&model)?, Draft::Model(files) if files.name == Some(model.clone())));
        let head = demo.join("smollm2-head").display().to_string();
        assert!(matches!(find(&head)?, Draft::Head(_)));
        assert_eq!(find(&head)?.label(), Some(head));
        Ok(())
    }
}
