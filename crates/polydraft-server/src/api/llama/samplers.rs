//! `samplers`: which of the filters llama.cpp's clients want, and in which order.
//!
//! A filter that is not named is off, whatever else the request says of it. The order is fixed
//! here: temperature, then top-k, top-p and min-p, as in OpenAI's interface and in Hugging Face
//! transformers. llama.cpp truncates before the temperature unless it is told otherwise.

use serde_json::{Map, Value, json};

use crate::api::shared::error::Problem;

pub(super) const NAME: &str = "samplers";

/// A filter's names, its letter, and the fields that turn it off.
struct Sampler {
    names: &'static [&'static str],
    letter: char,
    off: &'static [(&'static str, f64)],
}

/// In the order in which they are applied here.
const SAMPLERS: [Sampler; 5] = [
    Sampler {
        names: &["penalties"],
        letter: 'e',
        off: &[("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)],
    },
    Sampler { names: &["temperature", "temp"], letter: 't', off: &[("temperature", 1.0)] },
    Sampler { names: &["top_k", "top-k"], letter: 'k', off: &[("top_k", 0.0)] },
    Sampler { names: &["top_p", "top-p", "nucleus"], letter: 'p', off: &[("top_p", 1.0)] },
    Sampler { names: &["min_p", "min-p"], letter: 'm', off: &[("min_p", 0.0)] },
];

/// Takes `samplers` out of a request and turns off what it leaves out; whether it names an order
/// that is not the one here.
///
/// # Errors
/// What is neither a list of names nor a text of letters.
pub(super) fn apply(body: &mut Map<String, Value>) -> Result<bool, Problem> {
    let place = |name: &str| SAMPLERS.iter().position(|known| known.names.contains(&name));
    let of_letter = |letter: char| SAMPLERS.iter().position(|known| known.letter == letter);
    let named: Option<Vec<Option<usize>>> = match body.remove(NAME) {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::String(letters)) => Some(letters.chars().map(of_letter).collect()),
        Some(Value::Array(names)) => names.iter().map(|name| name.as_str().map(place)).collect(),
        Some(_) => None,
    };
    let Some(named) = named else {
        let problem = "expected a list of names such as [\"top_k\", \"temperature\"], or letters";
        return Err(Problem::invalid(problem).of(NAME));
    };
    // One thing has two names.
    if let Some(penalty) = body.remove("repeat_penalty") {
        body.insert("repetition_penalty".to_owned(), penalty);
    }
    // Those that are not computed here are refused where they are set.
    let named: Vec<usize> = named.into_iter().flatten().collect();
    for (number, sampler) in SAMPLERS.iter().enumerate() {
        if !named.contains(&number) {
            for (field, value) in sampler.off {
                let value = if value.fract() == 0.0 { json!(*value as i64) } else { json!(value) };
                body.insert((*field).to_owned(), value);
            }
        }
    }
    Ok(!named.is_sorted())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(samplers: Value) -> (Value, Result<bool, Problem>) {
        let mut body = Map::from_iter([
            ("top_k".to_owned(), json!(3)),
            ("temperature".to_owned(), json!(0.5)),
            (NAME.to_owned(), samplers),
        ]);
        let is_other = apply(&mut body);
        (Value::Object(body), is_other)
    }

    #[test]
    fn what_is_not_named_is_off() {
        let all = json!(["penalties", "temperature", "top_k", "top_p", "min_p"]);
        let (body, order) = applied(all);
        assert_eq!((body, order.ok()), (json!({ "top_k": 3, "temperature": 0.5 }), Some(false)));
        for only_temperature in [json!(["temp"]), json!("t"), json!(["dry", "temperature"])] {
            let (body, order) = applied(only_temperature);
            assert_eq!(order.ok(), Some(false));
            assert_eq!((&body["top_k"], &body["temperature"]), (&json!(0), &json!(0.5)));
            assert_eq!((&body["top_p"], &body["min_p"]), (&json!(1), &json!(0)));
            assert_eq!(
                (&body["repetition_penalty"], &body["presence_penalty"]),
                (&json!(1), &json!(0))
            );
        }
        let (body, _) = applied(json!([]));
        assert_eq!((&body["top_k"], &body["temperature"]), (&json!(0), &json!(1)));
        let (body, _) = applied(json!(null));
        assert_eq!(body, json!({ "top_k": 3, "temperature": 0.5 }));
    }

    #[test]
    fn another_order_is_said() {
        for other in [json!(["top_k", "temperature"]), json!("kpt"), json!("edskypmxt")] {
            assert_eq!(applied(other).1.ok(), Some(true));
        }
        for wrong in [json!(3), json!([3]), json!({ "top_k": 1 })] {
            assert!(applied(wrong).1.is_err());
        }
    }
}
