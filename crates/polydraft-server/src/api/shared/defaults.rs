//! Default parameters of requests, described for clients.

use serde_json::{Map, Value, json};

use crate::LoadedModel;
use crate::loaded_model::Defaults;

/// Sampling parameters of which one in a request replaces all defaults of conversations.
const SAMPLING: [&str; 4] = ["temperature", "top_k", "top_p", "min_p"];

/// Returns the sampling settings and the token limit of a request without any of its own; a limit
/// of `null` is the end of the context.
pub fn default_params(model: &LoadedModel, defaults: &Defaults) -> Map<String, Value> {
    let given = &model.options.defaults;
    let gives_any = SAMPLING.iter().any(|name| given.contains_key(*name));
    let sampling = defaults.sampling_for(gives_any).target();
    let params = json!({ "temperature": sampling.temperature,
        "top_k": sampling.top_k.unwrap_or(0), "top_p": sampling.top_p, "min_p": sampling.min_p,
        "max_tokens": defaults.max_tokens });
    let Value::Object(mut params) = params else { return Map::new() };
    for (name, value) in &mut params {
        let name = match name.as_str() {
            "max_tokens" if given.contains_key("max_completion_tokens") => "max_completion_tokens",
            name => name,
        };
        if let Some(given) = given.get(name) {
            *value = given.clone();
        }
    }
    params
}
