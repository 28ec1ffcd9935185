//! The protocols: requests and answers of OpenAI's, Anthropic's, Ollama's and llama.cpp's
//! interfaces.
//!
//! Each has a folder with its routes and the types of its requests and answers; Anthropic's and
//! Ollama's requests are translated into OpenAI's conversations, and llama.cpp's into OpenAI's
//! completions. What several protocols use is in `shared`, which uses none of them.
//!
//! From its body to its session a request has five forms:
//! 1. the body's parameters, typed as its protocol has them: OpenAI's `Common` with `Chat`,
//!    `Completion` or `Responses`, and their like in the folders of the others;
//! 2. [`Prepared`], which the web side hands over: [`RequestParams`] for every prompt, with the
//!    verifiers and trees of all sequences built, beside how the answer looks;
//! 3. the `Job` in the queue of the engine's thread: the [`RequestParams`] of one prompt, moved
//!    there, and where their events go;
//! 4. the engine's `Request`, of one sequence;
//! 5. the running `Session`.

pub mod anthropic;
pub mod llama;
pub mod ollama;
pub mod openai;
pub mod shared;

use axum::response::Response;

use crate::grammar::Form;
use crate::worker::{Event, RequestParams};
use shared::error::Problem;

/// A request that was checked, ready for the engine.
pub struct Prepared<A> {
    /// Parameters for the engine, prompt by prompt.
    pub requests: Vec<RequestParams>,
    /// The form that all its outputs must have: its grammar is still to be built.
    pub form: Option<Form>,
    /// How its answer looks.
    pub answer: A,
    /// Whether it is sent as it is decided.
    pub stream: bool,
    /// Parameters that it had and that nothing was done about.
    pub ignored: Vec<String>,
}

impl<A> Prepared<A> {
    /// The same with its answer in another form.
    pub fn map_answer<B>(self, change: impl FnOnce(A) -> B) -> Prepared<B> {
        let Self { requests, form, answer, stream, ignored } = self;
        Prepared { requests, form, answer: change(answer), stream, ignored }
    }
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
