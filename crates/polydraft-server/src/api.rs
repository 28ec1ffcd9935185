//! Protocols: requests and answers of the interfaces of OpenAI, Anthropic, Ollama and llama.cpp.
//!
//! Each has a folder with its routes and the types of its requests and answers. Requests of
//! Anthropic and Ollama are translated into OpenAI's conversations, and those of llama.cpp into
//! OpenAI's completions. `shared` has the parts that several protocols use; it uses none of them.
//!
//! A request takes five forms between its body and its session:
//! 1. the parameters of the body, typed as its protocol defines them: OpenAI's `Common` with
//!    `Chat`, `Completion` or `Responses`, and their counterparts in the other folders;
//! 2. [`Prepared`], which the web side submits: [`RequestParams`] for every prompt, with the
//!    verifiers and trees of all sequences built, and the form of the answer;
//! 3. the `Job` in the queue of the engine thread: the [`RequestParams`] of one prompt, and the
//!    channel of its events;
//! 4. the engine's `Request` of one sequence;
//! 5. the running `Session`.

pub mod anthropic;
mod default_params;
pub mod draft;
pub mod llama;
pub mod ollama;
pub mod openai;
pub mod shared;

use axum::response::Response;
pub use default_params::check_defaults;

use crate::grammar::Form;
use crate::worker::{Event, RequestParams};
use shared::error::Problem;

/// A checked request, ready for the engine.
pub struct Prepared<A> {
    /// Parameters for the engine, one entry per prompt.
    pub requests: Vec<RequestParams>,
    /// Form of all outputs; its grammar is not built yet.
    pub form: Option<Form>,
    /// The answer, in the form of its route.
    pub answer: A,
    /// Whether to stream the answer.
    pub stream: bool,
    /// Names of parameters that were ignored.
    pub ignored: Vec<String>,
}

impl<A> Prepared<A> {
    /// Converts the answer.
    pub fn map_answer<B>(self, change: impl FnOnce(A) -> B) -> Prepared<B> {
        let Self { requests, form, answer, stream, ignored } = self;
        Prepared { requests, form, answer: change(answer), stream, ignored }
    }
}

/// An answer that grows with events, in the form of its route.
pub trait Reply: Send {
    /// Applies an event. Returns the number of its sequence.
    ///
    /// # Errors
    /// The request failed.
    fn apply(&mut self, event: Event) -> Result<usize, Problem>;

    /// Whether all sequences are complete.
    fn is_complete(&self) -> bool;

    /// Returns the full answer as one response.
    fn full_response(self: Box<Self>) -> Response;

    /// First events of a stream.
    fn stream_start(&mut self) -> Vec<StreamEvent> {
        Vec::new()
    }

    /// Events for the new output of one sequence.
    fn stream_events(&mut self, sequence: usize) -> Vec<StreamEvent>;

    /// Last events of a stream.
    fn stream_end(&mut self) -> Vec<StreamEvent>;

    /// Last events of a stream that failed after its status was sent.
    fn stream_error(&mut self, problem: &Problem) -> Vec<StreamEvent>;
}

/// One event of a stream.
pub struct StreamEvent {
    /// Name of the event, on routes that name their events.
    pub name: Option<&'static str>,
    /// Data.
    pub data: String,
}

impl StreamEvent {
    /// Creates an event without a name.
    pub fn unnamed(data: impl ToString) -> Self {
        Self { name: None, data: data.to_string() }
    }
}
