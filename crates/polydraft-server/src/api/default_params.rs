//! Check of the default parameters of requests when a server starts.

use anyhow::bail;
use serde_json::{Value, json};

use super::openai::{chat, completions, responses};
use super::shared::answering::set_defaults;
use super::shared::error::Problem;
use super::{Prepared, anthropic, llama};
use crate::LoadedModel;

/// Names of parameters that a request with the defaults would ignore, or why it would be refused.
type Outcome = Result<Vec<String>, Problem>;

fn ignored<A>(prepared: Result<Prepared<A>, Problem>) -> Outcome {
    prepared.map(|prepared| prepared.ignored)
}

/// Checks that each default parameter is read by at least one route, and valid there.
///
/// # Errors
/// The first parameter that no route takes.
pub fn check_defaults(model: &LoadedModel) -> anyhow::Result<()> {
    let defaults = &model.options.defaults;
    let body = |mut body: Value| {
        set_defaults(defaults, &mut body);
        body
    };
    let messages = json!([{ "role": "user", "content": "a" }]);
    let outcomes = [
        ignored(completions::prepare(model, body(json!({ "prompt": "a", "stream": true })))),
        ignored(chat::prepare(model, body(json!({ "messages": messages, "stream": true })))),
        ignored(responses::prepare(model, body(json!({ "input": "a", "stream": true })))),
        ignored(llama::completion::prepare(model, body(json!({ "prompt": "a" })))),
        ignored(anthropic::request::prepare(
            model,
            body(json!({ "messages": messages, "max_tokens": 1 })),
        )),
    ];
    for (name, value) in defaults {
        let is_read =
            |outcome: &Outcome| outcome.as_ref().is_ok_and(|ignored| !ignored.contains(name));
        if outcomes.iter().any(is_read) {
            continue;
        }
        let mut problems = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let names_it = |problem: &&Problem| match &problem.error.param {
            // If every route refuses the defaults, another of them may be the reason.
            Some(param) if outcomes.iter().all(Outcome::is_err) => defaults.contains_key(param),
            param => param.as_ref() == Some(name),
        };
        match problems.find(names_it) {
            Some(problem) => bail!("default parameters of requests: {}", problem.error.message),
            None => bail!("default parameters of requests: unknown parameter {name:?}: {value}"),
        }
    }
    Ok(())
}
