//! OpenAI's interface, and others that are translated into it: requests and answers.

mod alternatives;
mod answer;
pub mod anthropic;
mod calls;
pub mod chat;
pub mod completions;
mod conversation;
pub mod error;
pub mod format;
pub mod llama;
mod messages;
pub mod ollama;
pub mod openapi;
mod params;
mod part;
mod read;
mod reasoning;
pub mod responses;
mod rest;
pub mod speculation;
mod steps;
pub mod texts;
mod timings;
mod tokens;
mod tools;
mod usage;

use std::fmt;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::grammar::Form;
use crate::worker::{Event, RequestParams};
use error::Problem;

/// A valid request.
pub struct Prepared<A = Box<dyn Reply>> {
    /// For the engine, prompt by prompt.
    pub asked: Vec<RequestParams>,
    /// The form that all its outputs must have: its grammar is still to be built.
    pub form: Option<Form>,
    /// How its answer looks.
    pub answer: A,
    /// Whether it is sent as it is decided.
    pub stream: bool,
    /// Parameters that it had and that nothing was done about.
    pub ignored: Vec<String>,
}

/// An answer as it grows, in the form of its route.
pub trait Reply: Send {
    /// Takes an event; returns the number of its sequence.
    ///
    /// # Errors
    /// The request failed.
    fn take(&mut self, event: Event) -> Result<usize, Problem>;

    /// Whether all its sequences are complete.
    fn is_complete(&self) -> bool;

    /// All of it, written.
    fn whole(self: Box<Self>) -> Response;

    /// What a stream begins with.
    fn begin(&mut self) -> Vec<Sent> {
        Vec::new()
    }

    /// What is new of one sequence.
    fn more(&mut self, text: usize) -> Vec<Sent>;

    /// What a stream ends with.
    fn end(&mut self) -> Vec<Sent>;

    /// What a stream that failed ends with: its status was sent before.
    fn broken(&mut self, problem: &Problem) -> Vec<Sent>;
}

/// One event of a stream.
pub struct Sent {
    /// Its name, on routes whose events have one.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: String,
}

impl Sent {
    /// One without a name.
    pub fn data(data: impl ToString) -> Self {
        Self { name: None, data: data.to_string() }
    }
}

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                log::error!("an answer could not be written: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// The object of a body. A name that occurs twice in it, or in any object in it, is an error: it is
/// ambiguous.
///
/// # Errors
/// No JSON, no object, a name that occurs twice.
pub fn parse(body: &[u8]) -> Result<Value, Problem> {
    let read: Result<Strict, _> = serde_json::from_slice(body);
    let wrong =
        |error| Problem::invalid(format_args!("the body: {}", polydraft_files::in_words(error)));
    match read.map_err(wrong)? {
        Strict(object @ Value::Object(_)) => Ok(object),
        Strict(_) => Err(Problem::invalid("the body: expected a JSON object")),
    }
}

/// JSON in whose objects all names are different.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Strict)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(value)) = access.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!(
                    "expected each name once, got {name:?} twice"
                )));
            }
            let Strict(value) = access.next_value()?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
