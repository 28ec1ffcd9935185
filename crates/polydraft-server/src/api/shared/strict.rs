//! Bodies of requests as JSON, read strictly: no name may occur twice in an object.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::Problem;

/// The object of a body. A name that occurs twice in it, or in any object in it, is an error: it is
/// ambiguous.
///
/// # Errors
/// No JSON, no object, a name that occurs twice.
pub fn parse(body: &[u8]) -> Result<Value, Problem> {
    let read: Result<Strict, _> = serde_json::from_slice(body);
    let wrong = |error| Problem::invalid(format_args!("the body: {}", error));
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
