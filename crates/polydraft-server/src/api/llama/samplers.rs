//! `samplers`: llama.cpp's list of filters in their order.
//!
//! A filter that the list does not name is turned off, whatever else the request sets. The order is
//! fixed: penalties, temperature, top-k, top-p and min-p, as in OpenAI's interface and Hugging Face
//! transformers. llama.cpp applies the temperature last by default.

use serde_json::{Map, Value, json};

use crate::api::shared::error::Problem;

pub(super) const NAME: &str = "samplers";

/// Names of a filter, its letter, and the parameters that turn it off.
struct Sampler {
    names: &'static [&'static str],
    letter: char,
    off: &'static [(&'static str, f64)],
}

/// Supported filters, in the fixed order of application.
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

/// Takes `samplers` out of a request and turns off the filters that it does not name. Returns
/// whether it names them in an order other than the fixed one.
///
/// # Errors
/// A value that is neither a list of names nor a string of letters.
pub(super) fn apply(body: &mut Map<String, Value>) -> Result<bool, Problem> {
    let index_of_name = |name: &str| SAMPLERS.iter().position(|known| known.names.contains(&name));
    let index_of_letter = |letter: char| SAMPLERS.iter().position(|known| known.letter == letter);
    let named: Option<Vec<Option<usize>>> = match body.remove(NAME) {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::String(letters)) => Some(letters.chars().map(index_of_letter).collect()),
        Some(Value::Array(names)) => {
            names.iter().map(|name| name.as_str().map(index_of_name)).collect()
        }
        Some(_) => None,
    };
    let Some(named) = named else {
        let problem = "expected a list of names such as [\"top_k\", \"temperature\"], or letters";
        return Err(Problem::invalid(problem).with_param(NAME));
    };
    // An alias: keep only one name, so that it can be overridden.
    if let Some(penalty) = body.remove("repeat_penalty") {
        body.insert("repetition_penalty".to_owned(), penalty);
    }
    // Unknown filters are skipped; their own parameters are rejected where they are set.
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
        let order_differs = apply(&mut body);
        (Value::Object(body), order_differs)
    }

    #[test]
    fn turns_off_samplers_that_are_not_named() {
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
    fn reports_an_order_other_than_the_fixed_one() {
        for order in [json!(["top_k", "temperature"]), json!("kpt"), json!("edskypmxt")] {
            assert_eq!(applied(order).1.ok(), Some(true));
        }
        for invalid in [json!(3), json!([3]), json!({ "top_k": 1 })] {
            assert!(applied(invalid).1.is_err());
        }
    }
}
