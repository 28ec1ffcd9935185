//! The drafts of an engine, as Python names them.

use std::path::PathBuf;

use polydraft_engine::{Drafter, DrafterKind, Model, ModelDrafter, ModelInfo, CombinedDrafter};
use pyo3::prelude::*;

use crate::errors::{Failure, Result, wrong_type};
use crate::models::{self, Drafts, Language, Options};
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

impl DraftArgument<'_> {
    /// Whether one is given as a table.
    pub fn has_table(&self) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Names(all) => all.iter().any(|draft| table(draft).is_some()),
            Self::Other(value) => table(value).is_some(),
        }
    }

    /// Whether some of them have files.
    pub fn has_files(&self) -> bool {
        let is_kind =
            |name: &str| matches!(name, "auto" | "none") || DrafterKind::named(name).is_some();
        match self {
            Self::Name(name) => !is_kind(name),
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
            Self::Name(name) if name == "auto" => Drafts::Auto,
            Self::Name(name) if name == "none" => Drafts::None,
            Self::Name(name) => Drafts::Named(vec![name]),
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
    let draft = match draft {
        DraftArgument::Name(name) if name == "auto" || name == "none" => return Ok(None),
        DraftArgument::Name(name)
            if name == "mtp" || name == "self" || name.starts_with("self:") =>
        {
            return Err(Failure::unsupported(format!(
                "draft {name}: expected a target with weights and no tables, got a table"
            )));
        }
        DraftArgument::Name(name) => match DrafterKind::named(name) {
            Some(kind) => return Ok(Some(kind.build(target)?)),
            None => name.into_pyobject(py).map_err(PyErr::from)?.into_any(),
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
        DraftArgument::Other(value) => value.clone(),
    };
    let model = match table(&draft) {
        Some(table) => table,
        None => one("draft", py, &draft, how.draft_dtype.as_ref().or(how.dtype.as_ref()), how)?.0,
    };
    Ok(Some(Box::new(ModelDrafter::new(model, &target.vocabulary)?)))
}

/// Refuses a list of drafts of which one is none or is to be chosen.
fn stand_beside_others(all: &[Bound<'_, PyAny>]) -> Result<()> {
    if all.is_empty() {
        return Err(Failure::input("draft=: expected at least one draft, got an empty list"));
    }
    let named = all.iter().filter_map(|draft| draft.extract::<String>().ok());
    match named.into_iter().find(|name| name == "auto" || name == "none") {
        Some(name) => Err(Failure::input(format!(
            "draft={name:?} stands alone: expected drafts by their names in a list"
        ))),
        None => Ok(()),
    }
}

/// A model by its path, in this weight type if there is one.
pub fn one(
    role: &'static str,
    py: Python<'_>,
    value: &Bound<'_, PyAny>,
    dtype: Option<&String>,
    how: &Options,
) -> Result<(Box<dyn Model>, Option<Language>)> {
    let path = path_of(role, value)?;
    let (model, language) = work(py, || models::load_one(&path, dtype, how))?;
    Ok((model, Some(language)))
}

/// Reads the name of a file, or of a model on the hub.
pub fn path_of(role: &'static str, value: &Bound<'_, PyAny>) -> Result<PathBuf> {
    value.extract().map_err(|_| wrong_type(role, "a path or a TableModel", value))
}
