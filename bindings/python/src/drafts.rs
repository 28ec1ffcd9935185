//! The drafts of an engine, as Python names them.

use std::path::PathBuf;

use polydraft_engine::{CombinedDrafter, Drafter, DrafterKind, Model, ModelDrafter, ModelInfo};
use pyo3::prelude::*;

use crate::errors::{Failure, Result, wrong_type};
use crate::models::{self, Drafts, Options};
use crate::names::NONE;
use crate::tables::PyTableModel;
use crate::threads::work;

/// A model that is given as a table.
pub fn table(value: &Bound<'_, PyAny>) -> Option<Box<dyn Model>> {
    let table = value.cast::<PyTableModel>().ok()?;
    Some(Box::new((*table.get().model).clone()))
}

/// The argument `draft`.
#[derive(FromPyObject)]
pub enum DraftArgument<'py> {
    /// A name or a path.
    Name(String),
    /// Several of them.
    Names(Vec<Bound<'py, PyAny>>),
    /// A path, or a table.
    Other(Bound<'py, PyAny>),
}

/// Draft named by a word instead of files. Other names are resolved where models are loaded.
enum Word {
    /// The default of the program.
    Auto,
    /// Nothing.
    None,
    /// A drafter without a model.
    Kind(DrafterKind),
}

impl Word {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            NONE => Some(Self::None),
            name => DrafterKind::named(name).map(Self::Kind),
        }
    }
}

impl DraftArgument<'_> {
    /// Returns whether one of them is a table.
    pub fn has_table(&self) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Names(all) => all.iter().any(|draft| table(draft).is_some()),
            Self::Other(value) => table(value).is_some(),
        }
    }

    /// Returns whether some of them have files.
    pub fn has_files(&self) -> bool {
        match self {
            Self::Name(name) => Word::from_name(name).is_none(),
            Self::Names(all) => all.iter().any(|draft| {
                draft.extract::<DraftArgument<'_>>().is_ok_and(|draft| draft.has_files())
            }),
            Self::Other(value) => table(value).is_none(),
        }
    }

    /// Drafts that are found by their names.
    pub fn names(self) -> Result<Drafts> {
        let path = |value: &Bound<'_, PyAny>| {
            path_of("draft", value).map(|path| path.to_string_lossy().into_owned())
        };
        Ok(match self {
            Self::Name(name) => match Word::from_name(&name) {
                Some(Word::Auto) => Drafts::Auto,
                Some(Word::None) => Drafts::None("\"none\""),
                _ => Drafts::Named(vec![name]),
            },
            Self::Names(all) => {
                stand_beside_others(&all)?;
                Drafts::Named(all.iter().map(path).collect::<Result<_>>()?)
            }
            Self::Other(value) => Drafts::Named(vec![path(&value)?]),
        })
    }
}

/// The draft for a table, or a table as the draft; none where nothing is to draft.
pub fn drafter(
    py: Python<'_>,
    target: &ModelInfo,
    draft: &DraftArgument<'_>,
    how: &Options,
) -> Result<Option<Box<dyn Drafter>>> {
    let model = match draft {
        DraftArgument::Name(name) => match Word::from_name(name) {
            Some(Word::Auto | Word::None) => return Ok(None),
            Some(Word::Kind(kind)) => return Ok(Some(kind.build(target)?)),
            None => work(py, || models::load_draft(name, how))?,
        },
        DraftArgument::Names(all) => {
            stand_beside_others(all)?;
            let drafter = |draft: &Bound<'_, PyAny>| {
                let draft: DraftArgument<'_> = draft.extract()?;
                drafter(py, target, &draft, how)
            };
            let all = all.iter().map(drafter).collect::<Result<Vec<_>>>()?;
            let mut all: Vec<_> = all.into_iter().flatten().collect();
            return Ok(match all.len() {
                1 => all.pop(),
                _ => Some(Box::new(CombinedDrafter::new(all)?)),
            });
        }
        DraftArgument::Other(value) => match table(value) {
            Some(table) => table,
            None => {
                let path = path_of("draft", value)?;
                work(py, || models::load_draft(&path.to_string_lossy(), how))?
            }
        },
    };
    Ok(Some(Box::new(ModelDrafter::new(model, &target.vocabulary)?)))
}

/// Refuses a list of drafts of which one is none or is to be chosen.
fn stand_beside_others(all: &[Bound<'_, PyAny>]) -> Result<()> {
    if all.is_empty() {
        return Err(Failure::input("draft=: expected at least one draft, got an empty list"));
    }
    let mut named = all.iter().filter_map(|draft| draft.extract::<String>().ok());
    match named.find(|name| matches!(Word::from_name(name), Some(Word::Auto | Word::None))) {
        Some(name) => Err(Failure::input(format!(
            "draft={name:?} stands alone: expected drafts by their names in a list"
        ))),
        None => Ok(()),
    }
}

/// Reads the name of a file, or of a model on the hub.
pub fn path_of(role: &'static str, value: &Bound<'_, PyAny>) -> Result<PathBuf> {
    let path: PathBuf =
        value.extract().map_err(|_| wrong_type(role, "a path or a TableModel", value))?;
    match path.as_os_str().is_empty() {
        true => {
            Err(Failure::input(format!("{role}: expected a path or a hub id, got an empty one")))
        }
        false => Ok(path),
    }
}
