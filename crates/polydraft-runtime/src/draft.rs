//! Drafts: what a name stands for, decided once.
//!
//! Descriptions name drafts as users type them. [`Draft::resolve`] is the one place where such a name
//! is told apart: by what it says, or by the files that it leads to.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use polydraft_models::{HeadKind, Precision, head_kind};

use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::model_files::locate;
use crate::tables;
use crate::usage::{Advice, Usage};

/// A draft, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Draft {
    /// Nothing is drafted.
    None,
    /// A model with the target's vocabulary.
    Model(DraftFiles),
    /// A head that drafts one token after the other from the target's hidden states.
    Head(DraftFiles),
    /// A head that drafts several tokens at once.
    BlockHead(DraftFiles),
    /// A small model that reads the target's KV cache.
    Assistant(DraftFiles),
    /// The target's own layer that predicts further tokens.
    Mtp,
    /// The target's own weights in fewer bits; none is the best type that is small enough.
    SelfDraft(Option<Precision>),
    /// N-grams of the sequence itself, and of more text.
    Ngrams(Ngrams),
    /// Several, each of which draws a path of its own.
    Several(Vec<Draft>),
}

/// The files of a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftFiles {
    /// The name that was typed; the demo pair's draft has none.
    pub name: Option<String>,
    /// The directory or the file.
    pub path: PathBuf,
}

/// N-grams that draft besides those of the sequence itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ngrams {
    /// Text, or a table that was learned.
    pub corpus: Option<Corpus>,
    /// A table that learns from the target's output.
    pub learn: Option<PathBuf>,
}

/// A file of n-grams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Corpus {
    /// Text, to be tokenized.
    Text(PathBuf),
    /// A table.
    Table(PathBuf),
}

impl Corpus {
    /// Tells text and tables apart.
    pub fn from_file(file: PathBuf) -> Self {
        if tables::is_table(&file) { Self::Table(file) } else { Self::Text(file) }
    }

    /// The file.
    pub fn file(&self) -> &Path {
        match self {
            Self::Text(file) | Self::Table(file) => file,
        }
    }
}

/// The name of the draft that needs no files, and costs next to nothing.
pub const NGRAM: &str = "ngram";
/// The name of the target's own layer as a draft.
const MTP: &str = "mtp";
/// The name of plain decoding.
pub const NONE: &str = "none";
/// The name of the quantised self-draft.
const SELF: &str = "self";

impl Draft {
    /// Finds the draft of this name: a word, or files, downloaded if they are on the hub.
    ///
    /// # Errors
    /// [`Usage`] for a weight type that makes no self-draft; a name that leads nowhere.
    pub fn resolve(name: &str, offline: bool, listener: &dyn Listener) -> Result<Self> {
        match name.split_once(':') {
            None if name == NONE => return Ok(Self::None),
            None if name == MTP => return Ok(Self::Mtp),
            None if name == NGRAM => return Ok(Self::Ngrams(Ngrams::default())),
            None if name == SELF => return Ok(Self::SelfDraft(None)),
            Some((SELF, kind)) => return self_draft(kind),
            _ => {}
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
                 or self, self:TYPE, mtp, ngram or none, got nothing there",
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

    /// The name for people and records; none for the demo pair's draft, and where nothing drafts.
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

    /// The files, where there are such.
    pub fn files(&self) -> Option<&DraftFiles> {
        match self {
            Self::Model(files)
            | Self::Head(files)
            | Self::BlockHead(files)
            | Self::Assistant(files) => Some(files),
            _ => None,
        }
    }

    /// Whether it reads the target's hidden states or KV cache and has no vocabulary of its own.
    pub fn is_head(&self) -> bool {
        matches!(self, Self::Head(_) | Self::BlockHead(_) | Self::Assistant(_))
    }

    /// Whether it needs a target on the native backend, or makes that the better one.
    pub(crate) fn is_native(&self) -> bool {
        self.is_head() || matches!(self, Self::Mtp | Self::SelfDraft(_))
    }

    /// The drafts that it is made of.
    pub fn each(&self) -> &[Self] {
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
            Self::Several(all) => {
                let names: Vec<String> = all.iter().map(Self::to_string).collect();
                f.write_str(&names.join(" + "))
            }
        }
    }
}

/// The self-draft of this weight type.
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

/// Checks that a weight type makes a copy.
pub(crate) fn check_copy(kind: Precision) -> Result<()> {
    match kind {
        Precision::File | Precision::F32 => Err(Usage::unknown(
            OptionName::Draft,
            message![
                OptionName::Draft.with(format_args!("self:{kind}")),
                ": that would be the target again; name a type of fewer bits",
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
    fn words_are_drafts() -> Result<()> {
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
    fn wrong_names_are_refused_with_what_there_is() {
        for (name, expected) in [
            ("self:q9", "--draft self:TYPE: expected one of f16, bf16, q8_0, "),
            ("self:f32", "--draft self:f32: that would be the target again"),
            ("self:file", "--draft self:file: that would be the target again"),
            ("/nowhere/at/all", "--draft /nowhere/at/all: expected a model directory"),
        ] {
            let error = explain(&find(name).unwrap_err(), command_line);
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn files_tell_what_a_draft_is() -> Result<()> {
        let demo = crate::model_files::demo_folder()?;
        let model = demo.join("draft").display().to_string();
        assert!(matches!(find(&model)?, Draft::Model(files) if files.name == Some(model.clone())));
        let head = demo.join("smollm2-head").display().to_string();
        assert!(matches!(find(&head)?, Draft::Head(_)));
        assert_eq!(find(&head)?.label(), Some(head));
        Ok(())
    }
}
