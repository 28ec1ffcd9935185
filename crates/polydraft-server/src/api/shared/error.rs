//! Errors for clients, as OpenAI's error object.

use axum::Extension;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::json::Json;
use crate::worker::{Failure, Refusal};

/// Error answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Problem {
    /// The error.
    pub error: Detail,
    #[serde(skip)]
    status: StatusCode,
}

/// Description of an error.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Detail {
    /// Message for people.
    pub message: String,
    /// Kind of error: invalid request, server failure, or too many requests.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Invalid parameter.
    pub param: Option<String>,
    /// Code for programs.
    pub code: Option<&'static str>,
}

/// Message of a [`Problem`] with its place in the request, attached to its response for the log.
#[derive(Debug, Clone)]
pub struct Reason(pub String);

/// Seconds after which a client may retry when the queue is full.
const RETRY_AFTER: &str = "1";

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl ToString) -> Self {
        let error = Detail { message: message.to_string(), kind, param: None, code: None };
        Self { error, status }
    }

    /// Creates the error of an invalid request.
    pub fn invalid(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Creates the error of a temporary failure.
    pub fn unavailable(message: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).with_code("unavailable")
    }

    /// Creates the error of a server failure, described in the server's log.
    pub fn internal() -> Self {
        let message = "internal error; see the server's log";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Sets the parameter.
    pub fn with_param(mut self, param: &str) -> Self {
        self.error.param = Some(param.to_owned());
        self
    }

    /// Prefixes the parameter with the object that contains it.
    pub fn in_object(mut self, param: &str) -> Self {
        self.error.message = match self.error.param {
            Some(_) => format!("{param}.{}", self.error.message),
            None => format!("{param}: {}", self.error.message),
        };
        self.with_param(param)
    }

    /// Sets the code for programs.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.error.code = Some(code);
        self
    }

    /// Sets the status.
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

/// Protocol of a route.
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
    /// Body in Anthropic's form.
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
        let message = self.located_message();
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    /// Message with the parameter, where it does not name it.
    pub fn located_message(&self) -> String {
        match &self.error.param {
            Some(param) if !self.error.message.contains(param.as_str()) => {
                format!("{param}: {}", self.error.message)
            }
            _ => self.error.message.clone(),
        }
    }

    /// Body in Ollama's form.
    pub fn for_ollama(&self) -> Value {
        json!({ "error": self.for_anthropic()["error"]["message"] })
    }

    /// Response in the form of a protocol.
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
            Dialect::OpenAi => json!(&self),
            Dialect::Anthropic => self.for_anthropic(),
            Dialect::Ollama => self.for_ollama(),
        };
        let reason = Extension(Reason(self.located_message()));
        (self.status, headers, reason, Json(body)).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response(Dialect::OpenAi)
    }
}

impl Problem {
    /// A prompt that does not fit the context. Clients look for these words, and for the numbers,
    /// to shorten the conversation.
    fn prompt_too_long(tokens: usize, context: usize) -> Self {
        let problem = format!(
            "prompt is too long: {tokens} tokens > {context} maximum: this model's maximum context \
             length is {context} tokens, and an answer needs at least one"
        );
        Self::invalid(problem).with_code("context_length_exceeded")
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => {
                let message = "the queue is full; try again later";
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
                    .with_code("queue_full")
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
                let message = "the server is stopping";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
                    .with_code("stopping")
            }
            Failure::TooSlow => {
                let message =
                    "the answer was read too slowly: more of it waits than the server buffers";
                Self::invalid(message).with_code("too_slow")
            }
            Failure::Form { param, problem } => {
                Self::invalid(format!("{param}: {problem}")).with_param(param)
            }
            Failure::Engine(Error::PromptTooLong { prompt, context }) => {
                Self::prompt_too_long(prompt, context)
            }
            Failure::Engine(
                error @ (Error::EmptyPrompt
                | Error::Setting { .. }
                | Error::Core(polydraft::Error::Token { .. })),
            ) => Self::invalid(error),
            Failure::Engine(error) => {
                log::error!("a request failed: {error}");
                Self::internal()
            }
            Failure::Panic => {
                log::error!("the engine panicked on a request; other requests continue");
                Self::internal()
            }
        }
    }
}

impl From<polydraft::Error> for Problem {
    fn from(error: polydraft::Error) -> Self {
        match &error {
            polydraft::Error::Setting { setting, .. } => Self::invalid(&error).with_param(setting),
            _ => Self::invalid(error),
        }
    }
}

impl From<polydraft_text::Error> for Problem {
    /// Converts an error, without file paths.
    fn from(error: polydraft_text::Error) -> Self {
        use polydraft_text::Error;
        match &error {
            Error::TooLong { least, most } => Self::prompt_too_long(*least, *most),
            Error::TooManyBytes { bytes, most, .. } => {
                let problem = format!(
                    "prompt is too long: {bytes} bytes, but this model's maximum context length is \
                     {most} tokens"
                );
                Self::invalid(problem).with_code("context_length_exceeded")
            }
            Error::NoTemplate { .. } => Self::invalid(
                "this model has no chat template; start the server with --chat-template FILE",
            )
            .with_param("messages"),
            Error::Template { problem, .. } => {
                Self::invalid(format!("the model's chat template rejected the messages: {problem}"))
                    .with_param("messages")
            }
            Error::Tokenizing { problem, .. } => {
                Self::invalid(format!("the model's tokenizer rejected the text: {problem}"))
            }
            _ => {
                log::error!("cannot tokenize a text: {error}");
                Self::internal()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_in_the_log_name_the_place_of_the_problem() {
        let problem = Problem::invalid("expected a string").with_param("messages[2].content");
        let Some(Reason(reason)) = problem.response(Dialect::OpenAi).extensions_mut().remove()
        else {
            panic!("no reason");
        };
        assert_eq!(reason, "messages[2].content: expected a string");
        let named = Problem::invalid("top_k: expected a number").with_param("top_k");
        assert_eq!(named.located_message(), "top_k: expected a number");
    }
}
