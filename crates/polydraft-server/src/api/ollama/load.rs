//! Requests without a prompt, with which clients load or unload a model. It is loaded when the
//! request arrives, and stays loaded as long as the server's settings say, or is unloaded when no
//! request uses it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::reply::time;
use crate::LoadedModel;
use crate::api::shared::answering::Direct;
use crate::api::shared::error::Problem;

/// Looks at a request of `/api/generate`; answers one without a prompt.
///
/// # Errors
/// A time that is none.
pub fn generate(model: &LoadedModel, body: &Value) -> Result<Direct, Problem> {
    let is_empty = |name: &str| match body.get(name) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty),
    };
    let is_all = ["prompt", "images", "suffix"].iter().all(|name| is_empty(name));
    look(model, body, is_all.then(|| ("response", "".into())))
}

/// Looks at a request of `/api/chat`; answers one without messages.
///
/// # Errors
/// A time that is none.
pub fn chat(model: &LoadedModel, body: &Value) -> Result<Direct, Problem> {
    let is_empty = match body.get("messages") {
        None | Some(Value::Null) => true,
        Some(messages) => messages.as_array().is_some_and(Vec::is_empty),
    };
    let message = || json!({ "role": "assistant", "content": "" });
    look(model, body, is_empty.then(|| ("message", message())))
}

/// Looks at a request, which is answered with `output` if it is given.
fn look(
    model: &LoadedModel,
    body: &Value,
    output: Option<(&str, Value)>,
) -> Result<Direct, Problem> {
    let unloads = unloads(body.get("keep_alive"))?;
    let body = output.map(|(field, output)| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let name = body.get("model").and_then(Value::as_str).unwrap_or(model.name());
        let reason = if unloads { "unload" } else { "load" };
        json!({ "model": name, "created_at": time(now), field: output, "done": true,
            "done_reason": reason })
    });
    Ok(Direct { body, unloads })
}

/// Whether a model is unloaded after the request, by how long it is to stay: seconds, or numbers
/// with units such as `1h30m`; negative ones stand for ever.
fn unloads(keep_alive: Option<&Value>) -> Result<bool, Problem> {
    let seconds = match keep_alive {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::Number(seconds)) => seconds.as_f64(),
        Some(Value::String(time)) => seconds(time),
        Some(_) => None,
    };
    let problem = || {
        let got = keep_alive.unwrap_or_default();
        let problem = format!(r#"keep_alive: expected seconds or a time such as "5m", got {got}"#);
        Problem::invalid(problem).with_param("keep_alive")
    };
    Ok(seconds.ok_or_else(problem)? == 0.0)
}

/// Seconds of a time such as `1h30m`, `-1`, `0` or `1.5s`.
fn seconds(time: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 7] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let (sign, mut rest) = match time.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, time.strip_prefix('+').unwrap_or(time)),
    };
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '.');
    if digits(rest).is_none() {
        return rest.parse::<f64>().ok().map(|seconds| sign * seconds);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(digits(rest)?);
        let length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(length);
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum += number.parse::<f64>().ok()? * seconds;
        rest = after;
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_unload_where_they_are_nothing() {
        let unloads = |time: Value| unloads(Some(&time)).ok();
        for time in [json!(0), json!("0"), json!("0s"), json!("0h0m"), json!(0.0), json!("-0")] {
            assert_eq!(unloads(time.clone()), Some(true), "{time}");
        }
        for time in [json!(-1), json!("5m"), json!("1h30m"), json!("-1s"), json!("1.5ms"), json!(3)]
        {
            assert_eq!(unloads(time.clone()), Some(false), "{time}");
        }
        for time in [json!("soon"), json!(""), json!("5x"), json!("m"), json!(true), json!("5m3")] {
            assert_eq!(unloads(time.clone()), None, "{time}");
        }
    }
}
