//! Errors for clients: OpenAI's error object.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::json::Json;
use crate::worker::{Failure, Refusal};

/// An answer that is none.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Problem {
    /// What is wrong.
    pub error: Detail,
    #[serde(skip)]
    status: StatusCode,
}

/// What is wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Detail {
    /// For people.
    pub message: String,
    /// The kind of fault: the client's, the server's, or too many requests.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The parameter at fault.
    pub param: Option<String>,
    /// For programs.
    pub code: Option<&'static str>,
}

/// Seconds after which a refused client may try again.
const RETRY_AFTER: &str = "1";

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl ToString) -> Self {
        let error = Detail { message: message.to_string(), kind, param: None, code: None };
        Self { error, status }
    }

    /// An invalid request.
    pub fn invalid(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// What cannot be done now.
    pub fn unavailable(message: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("unavailable")
    }

    /// A fault of the server's. Its log says which.
    pub fn internal() -> Self {
        let message = "the server failed; what happened is in its log";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Of this parameter.
    pub fn of(mut self, param: &str) -> Self {
        self.error.param = Some(param.to_owned());
        self
    }

    /// Of a field of this parameter, which is an object.
    pub fn within(mut self, param: &str) -> Self {
        self.error.message = match self.error.param {
            Some(_) => format!("{param}.{}", self.error.message),
            None => format!("{param}: {}", self.error.message),
        };
        self.of(param)
    }

    /// With a name for programs.
    pub fn code(mut self, code: &'static str) -> Self {
        self.error.code = Some(code);
        self
    }

    /// With another status.
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

/// Whose interface a route has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Problem {
    /// As Anthropic's clients read it.
    pub fn for_anthropic(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let message = match &self.error.param {
            Some(param) if !self.error.message.contains(param.as_str()) => {
                format!("{param}: {}", self.error.message)
            }
            _ => self.error.message.clone(),
        };
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    /// As Ollama's clients read it.
    pub fn for_ollama(&self) -> Value {
        json!({ "error": self.for_anthropic()["error"]["message"] })
    }

    /// As clients of this interface read it.
    pub fn response(self, dialect: Dialect) -> Response {
        let header = match self.status {
            StatusCode::TOO_MANY_REQUESTS => Some((header::RETRY_AFTER, RETRY_AFTER)),
            StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, "10")),
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
            _ => None,
        };
        let headers: [(HeaderName, &str); 1] = match header {
            Some(header) => [header],
            None => [(header::CACHE_CONTROL, "no-store")],
        };
        let body = match dialect {
            Dialect::OpenAi => json!(self),
            Dialect::Anthropic => self.for_anthropic(),
            Dialect::Ollama => self.for_ollama(),
        };
        (self.status, headers, Json(body)).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response(Dialect::OpenAi)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => {
                let message = "the queue is full; try again later";
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
                    .code("queue_full")
            }
            Refusal::Stopping => Failure::Stopping.into(),
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        use polydraft_engine::Error;
        match failure {
            Failure::Stopping => {
                let message = "the server is being stopped";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("stopping")
            }
            Failure::Behind => {
                let message =
                    "the answer was read too slowly: more of it waits than the server buffers";
                Self::invalid(message).code("too_slow")
            }
            Failure::Form { param, problem } => {
                Self::invalid(format!("{param}: {problem}")).of(param)
            }
            Failure::Engine(error @ Error::PromptTooLong { .. }) => {
                Self::invalid(error).code("context_length_exceeded")
            }
            Failure::Engine(
                error @ (Error::EmptyPrompt
                | Error::Setting { .. }
                | Error::EmittedDistribution(polydraft::Error::Token { .. })),
            ) => Self::invalid(error),
            Failure::Engine(error) => {
                log::error!("a request failed: {error}");
                Self::internal()
            }
            Failure::Panic => {
                log::error!("a request broke the engine; others go on");
                Self::internal()
            }
        }
    }
}

impl From<polydraft::Error> for Problem {
    fn from(error: polydraft::Error) -> Self {
        match &error {
            polydraft::Error::Setting { setting, .. } => Self::invalid(&error).of(setting),
            _ => Self::invalid(error),
        }
    }
}

impl From<polydraft_text::Error> for Problem {
    /// Without the path of a file.
    fn from(error: polydraft_text::Error) -> Self {
        use polydraft_text::Error;
        match &error {
            Error::TooLong { .. } | Error::TooManyBytes { .. } => {
                Self::invalid(error).code("context_length_exceeded")
            }
            Error::NoTemplate { .. } => {
                Self::invalid("this model was not trained for conversations").of("messages")
            }
            Error::Template { problem, .. } => {
                Self::invalid(format!("the model's chat template refused the messages: {problem}"))
                    .of("messages")
            }
            Error::Tokenizing { problem, .. } => {
                Self::invalid(format!("the model's tokenizer refused the text: {problem}"))
            }
            _ => {
                log::error!("a text could not be tokenized: {error}");
                Self::internal()
            }
        }
    }
}
