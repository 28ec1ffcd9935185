//! Objects with a name that users type: the name, or a dictionary with settings.

use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::pyclass_init::PyClassInitializer;
use serde_json::Value;

use crate::errors::{Failure, Result};

/// The name of no draft, and of no verifier.
pub const NONE: &str = "none";

/// A name, or something else that says what is meant.
#[derive(FromPyObject)]
pub enum Named<'py> {
    /// Name as users type it.
    Name(String),
    /// Settings, or the thing itself.
    Other(Bound<'py, PyAny>),
}

impl From<&str> for Named<'_> {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl<'py> Named<'py> {
    /// Returns whether it is the verifier `none`: plain decoding.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Name(name) if name == NONE)
    }

    /// The description that is meant; a dictionary is read as the JSON of the library's records, or
    /// if it has nothing but the name, by its `tag`, as that name.
    pub fn described<T>(
        self,
        tag: &str,
        by_name: impl FnOnce(&str) -> Result<T>,
        from_json: impl FnOnce(Value) -> serde_json::Result<T>,
    ) -> Result<T> {
        match self {
            Self::Name(name) => by_name(&name),
            Self::Other(settings) => {
                let json = settings.py().import("json")?.call_method1("dumps", (&settings,));
                let json: String = json?.extract()?;
                let wrong = |error| Failure::input(format!("settings {json}: {error}"));
                let settings: Value = serde_json::from_str(&json).map_err(wrong)?;
                let alone = settings.as_object().filter(|all| all.len() == 1);
                match alone.and_then(|all| all.get(tag)?.as_str()) {
                    Some(name) => by_name(name),
                    None => from_json(settings).map_err(wrong),
                }
            }
        }
    }

    /// Returns the Python object.
    pub fn object(self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        match self {
            Self::Name(name) => Ok(name.into_pyobject(py).map_err(PyErr::from)?.into_any()),
            Self::Other(object) => Ok(object),
        }
    }
}

/// A thing that has a name, or what names it.
pub fn given<'py, T>(
    value: &Bound<'py, PyAny>,
    make: impl FnOnce(Named<'py>) -> Result<T>,
) -> Result<Bound<'py, T>>
where
    T: PyClass + Into<PyClassInitializer<T>>,
{
    match value.cast::<T>() {
        Ok(thing) => Ok(thing.clone()),
        Err(_) => Ok(Bound::new(value.py(), make(value.extract()?)?)?),
    }
}
