//! Arguments whose errors name them and what they can be.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyTuple};

use crate::errors::{Failure, Result, wrong_type};

const MAX_TOKENS: &str = "at least 0, or None or -1 for no limit but the context";

/// Defines the type of an integer argument: its name, and what it can be.
macro_rules! integer {
    ($(#[$doc:meta])* $type:ident($inner:ty): $name:literal, $expected:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $type(pub $inner);

        impl<'py> FromPyObject<'_, 'py> for $type {
            type Error = PyErr;

            fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
                value.extract().map(Self).map_err(|_| match value.is_instance_of::<PyInt>() {
                    true => {
                        let got = &*value;
                        Failure::input(format!("{}: expected {}, got {got}", $name, $expected))
                            .into()
                    }
                    false => unexpected($name, $expected, &value),
                })
            }
        }
    };
}

integer!(
    /// Seed of random decisions.
    Seed(u64): "seed", "an integer from 0 to 2^64 - 1"
);
integer!(
    /// Maximum number of tokens of an output; -1 for no limit.
    MaxTokens(isize): "max_tokens", MAX_TOKENS
);

impl MaxTokens {
    /// Returns the limit; `None` for -1.
    pub fn limit(self) -> Result<Option<usize>> {
        if self.0 == -1 {
            return Ok(None);
        }
        let negative =
            |_| Failure::input(format!("max_tokens: expected {MAX_TOKENS}, got {}", self.0));
        usize::try_from(self.0).map(Some).map_err(negative)
    }
}

/// Strings at which an output ends: one, or a list of them.
#[derive(Default)]
pub struct Stops(pub Vec<String>);

impl<'py> FromPyObject<'_, 'py> for Stops {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_none() {
            return Ok(Self::default());
        }
        match text("stop", &value)? {
            Some(only) => Ok(Self(vec![only])),
            None => value
                .extract()
                .map(Self)
                .map_err(|_| unexpected("stop", "text, or a list of texts", &value)),
        }
    }
}

integer!(
    /// Number of the likeliest tokens that are kept.
    TopK(usize): "top_k", "at least 1, or None for all tokens"
);
#[cfg(feature = "models")]
integer!(
    /// Number of threads.
    Threads(usize): "threads", "from 1 to 1024"
);

/// Error of an argument whose value has an unexpected type.
fn unexpected(name: &str, expected: &str, got: &Bound<'_, PyAny>) -> PyErr {
    let kind = got.get_type().name().map_or_else(|_| "another type".into(), |n| n.to_string());
    PyTypeError::new_err(format!("{name}: expected {expected}, got {kind}"))
}

/// Reads text; `None` for a value of another type.
pub fn text(what: &str, value: &Bound<'_, PyAny>) -> Result<Option<String>> {
    let Ok(string) = value.cast::<PyString>() else { return Ok(None) };
    match string.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(error) => Err(Failure::input(format!(
            "{what}: expected text that UTF-8 can encode, got a lone surrogate ({}); \
             text.encode('utf-8', 'replace').decode() replaces it",
            error.value(value.py())
        ))),
    }
}

/// Returns whether a value is a list that begins with a message.
pub fn is_message(value: &Bound<'_, PyAny>) -> bool {
    let first = value.cast::<PyList>().ok().and_then(|list| list.get_item(0).ok());
    first.is_some_and(|first| first.is_instance_of::<PyDict>())
}

/// Reads the role and the content of each message: pairs, or dictionaries as in OpenAI's interface.
pub fn messages(value: &Bound<'_, PyAny>) -> Result<Vec<(String, String)>> {
    let expected = "a list of messages, each (role, content) or {\"role\": .., \"content\": ..}";
    if !value.is_instance_of::<PyList>() && !value.is_instance_of::<PyTuple>() {
        return Err(wrong_type("messages", expected, value));
    }
    let part = |part: Option<Bound<'_, PyAny>>, name: &str| match part {
        None => {
            Err(Failure::input(format!("messages: expected {expected}, got one without {name}")))
        }
        Some(part) => text(&format!("messages: {name}"), &part)?
            .ok_or_else(|| wrong_type(&format!("messages: {name}"), "text", &part)),
    };
    value
        .try_iter()?
        .map(|message| {
            let message = message?;
            if let Ok(fields) = message.cast::<PyDict>() {
                let other = fields.keys().iter().find(|key| {
                    !["role", "content"].iter().any(|known| key.eq(known).unwrap_or(false))
                });
                if let Some(other) = other {
                    return Err(Failure::input(format!(
                        "messages: expected the keys role and content, got {}",
                        other.repr()?
                    )));
                }
                let get = |name: &str| fields.get_item(name);
                return Ok((part(get("role")?, "role")?, part(get("content")?, "content")?));
            }
            match message.cast::<PyTuple>() {
                Ok(pair) if pair.len() == 2 => {
                    let get = |index| pair.get_item(index).ok();
                    Ok((part(get(0), "role")?, part(get(1), "content")?))
                }
                _ => Err(wrong_type("messages", expected, &message)),
            }
        })
        .collect()
}

/// Names of keywords in other libraries, and here.
const OTHER_NAMES: [(&str, &str); 5] = [
    ("max_new_tokens", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("eos_token_id", "end_tokens"),
    ("stop_strings", "stop"),
    ("stop_token_ids", "end_tokens"),
];

/// Keywords of `session` and `generate`.
pub const OPTIONS: [&str; 8] =
    ["verifier", "tree", "sampling", "draft_sampling", "max_tokens", "end_tokens", "stop", "seed"];
/// Keywords that belong to `Sampling`.
const SAMPLING: [&str; 4] = ["temperature", "top_k", "top_p", "min_p"];

/// Refuses keywords that a method does not have, with what it has instead.
pub fn check_keywords(
    method: &str,
    given: Option<&Bound<'_, PyDict>>,
    known: &[&str],
) -> Result<()> {
    let names = given.into_iter().flat_map(|given| given.keys());
    for name in names {
        let name: String = name.extract()?;
        if known.contains(&name.as_str()) {
            continue;
        }
        let own = OTHER_NAMES.iter().find(|(other, _)| *other == name);
        let hint = match (own, SAMPLING.contains(&name.as_str())) {
            (Some((_, own)), _) => format!("its name here is {own}"),
            (None, true) => format!("give it in sampling=Sampling({name}=..)"),
            (None, false) => format!("expected one of {}", OPTIONS.join(", ")),
        };
        let message =
            format!("Engine.{method}() got an unexpected keyword argument '{name}': {hint}");
        return Err(PyTypeError::new_err(message).into());
    }
    Ok(())
}
