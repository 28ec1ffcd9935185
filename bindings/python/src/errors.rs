//! Errors, as exceptions of `polydraft.errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Result with the binding's [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

/// Failure: an exception raised by Python, or an error of the library with its exception class.
#[derive(Debug)]
pub enum Failure {
    /// Raised by Python code that was called.
    Python(PyErr),
    /// Said by the library: the exception's name and the message.
    Library(&'static str, String),
}

impl Failure {
    /// Input that makes no sense.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Library("InvalidInput", message.into())
    }

    /// A combination that is not supported.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::Library("Unsupported", message.into())
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<polydraft::Error> for Failure {
    fn from(error: polydraft::Error) -> Self {
        use polydraft::Error;
        let class = match error {
            Error::Unsupported { .. } => "Unsupported",
            Error::TooLarge { .. } => "TooLarge",
            Error::Solver { .. } => "SolverError",
            _ => "InvalidInput",
        };
        Self::Library(class, error.to_string())
    }
}

impl From<polydraft_engine::Error> for Failure {
    fn from(error: polydraft_engine::Error) -> Self {
        use polydraft_engine::Error;
        match error {
            Error::Core(error) => error.into(),
            Error::PromptTooLong { .. }
            | Error::EmptyPrompt
            | Error::Setting { .. }
            | Error::Table { .. } => Self::input(error.to_string()),
            error => Self::Library("ModelError", error.to_string()),
        }
    }
}

impl From<polydraft_reference::trace::Error> for Failure {
    fn from(error: polydraft_reference::trace::Error) -> Self {
        match error {
            polydraft_reference::trace::Error::Library(error) => error.into(),
            polydraft_reference::trace::Error::Tree { .. } => Self::unsupported(error.to_string()),
            error => Self::input(error.to_string()),
        }
    }
}

#[cfg(feature = "models")]
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let message = polydraft_runtime::explain(&error, polydraft_runtime::message::keyword);
        if error.is::<polydraft_runtime::Usage>() {
            return Self::input(message);
        }
        match error.downcast::<polydraft_engine::Error>() {
            Ok(error) => error.into(),
            Err(_) => Self::Library("ModelError", message),
        }
    }
}

#[cfg(feature = "models")]
impl From<polydraft_text::Error> for Failure {
    fn from(error: polydraft_text::Error) -> Self {
        Self::Library("ModelError", error.to_string())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Python(error) => error,
            Failure::Library(class, message) => Python::attach(|py| {
                let class = py.import("polydraft.errors").and_then(|errors| errors.getattr(class));
                match class.and_then(|class| class.call1((&message,))) {
                    Ok(exception) => PyErr::from_value(exception),
                    // Without its Python part there is no class to raise.
                    Err(_) => PyRuntimeError::new_err(message),
                }
            }),
        }
    }
}

/// A lock that a panic has not spoilt: what it holds is checked or made anew with every use.
pub fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The error of a value that is none of what an argument can be.
pub fn wrong_type(argument: &str, expected: &str, got: &Bound<'_, PyAny>) -> Failure {
    let got =
        got.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string());
    Failure::input(format!("{argument}: expected {expected}, got {got}"))
}
