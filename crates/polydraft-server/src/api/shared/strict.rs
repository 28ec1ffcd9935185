//! Strict JSON bodies: duplicate keys are errors.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::Problem;

/// Parses the object of a body. A duplicate key in any object is an error, because it is ambiguous.
///
/// # Errors
/// Invalid JSON; not an object; a duplicate key.
pub fn parse(body: &[u8]) -> Result<Value, Problem> {
    let read: Result<StrictJson, _> = serde_json::from_slice(body);
    let invalid = |error| Problem::invalid(format_args!("the body: {}", error));
    match read.map_err(invalid)? {
        StrictJson(Value::Object(members)) => {
            let members = members.into_iter().map(|(name, value)| (name, as_integer(value)));
            Ok(Value::Object(members.collect()))
        }
        StrictJson(_) => Err(Problem::invalid("the body: expected a JSON object")),
    }
}

/// A parameter's value, as an integer if it is a whole number: some clients write `40.0`.
fn as_integer(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| match value {
                Value::Number(_) => (name, as_integer(value)),
                other => (name, other),
            });
            Value::Object(members.collect())
        }
        Value::Number(number) => match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 && whole.abs() < 1e15 => {
                Value::from(whole as i64)
            }
            _ => Value::Number(number),
        },
        other => other,
    }
}

/// JSON without duplicate keys.
struct StrictJson(Value);

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(StrictJson)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
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
        while let Some(StrictJson(value)) = access.next_element()? {
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
            let StrictJson(value) = access.next_value()?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
