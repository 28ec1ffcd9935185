//! Numbers of members of an object: `minProperties` and `maxProperties`.

use serde_json::{Map, Value, json};

/// Maximum choices of properties that one object is written as.
const MAX_CHOICES: usize = 64;
const MAX_LEFT_OUT: usize = 16;

/// A whole number, which may be written with a point.
fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    value.as_u64().or_else(|| float().map(|number| number as u64))
}

/// Moves the limits of the parts that all hold into a schema that lists properties itself: they
/// count the same members.
pub(super) fn gather_counts(schema: &mut Map<String, Value>) {
    if !schema.contains_key("properties") {
        return;
    }
    let (mut least, mut most): (Option<u64>, Option<u64>) = (None, None);
    for part in schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(part) = part.as_object_mut() else { continue };
        let mut take = |keyword: &str| {
            let count = part.get(keyword).and_then(whole)?;
            part.remove(keyword).map(|_| count)
        };
        least = least.max(take("minProperties"));
        most = take("maxProperties").into_iter().chain(most).min();
    }
    if let Some(least) = least.max(schema.get("minProperties").and_then(whole)) {
        schema.insert("minProperties".to_owned(), least.into());
    }
    let most = schema.get("maxProperties").and_then(whole).into_iter().chain(most).min();
    if let Some(most) = most {
        schema.insert("maxProperties".to_owned(), most.into());
    }
}

/// Replaces the limits on an object's members where some of those that are listed are optional,
/// which the library cannot count: by the choices of optional ones that must or may be there.
/// Members that are not listed are not counted, so that the schema allows no more than before.
///
/// # Errors
/// Too many choices, or none.
pub(super) fn expand_counts(schema: &mut Map<String, Value>) -> Result<(), String> {
    let count = |keyword: &str| whole(schema.get(keyword)?);
    let (least, most) = (count("minProperties").unwrap_or(0), count("maxProperties"));
    let required: Vec<Value> =
        schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
        && !schema.contains_key("patternProperties");
    if least > 1 && !is_closed && schema.get("properties").is_none() {
        // The library would count the same name twice.
        return Err("more than one property is supported of listed properties only".to_owned());
    }
    for (keyword, count) in [("minProperties", Some(least)), ("maxProperties", most)] {
        if let (Some(count), true) = (count, schema.contains_key(keyword)) {
            schema.insert(keyword.to_owned(), count.into());
        }
    }
    let Some(Value::Object(listed)) = schema.get("properties") else { return Ok(()) };
    let optional = listed.keys().filter(|name| !required.contains(&json!(name)));
    let optional: Vec<String> = optional.cloned().collect();
    if optional.is_empty() || (least == 0 && most.is_none()) {
        return Ok(());
    }
    let missing = (least as usize).saturating_sub(required.len());
    // Without this many of the optional ones the maximum is kept.
    let absent = most.map_or(0, |most| {
        let most = (most as usize).saturating_sub(required.len());
        optional.len().saturating_sub(most)
    });
    if missing > optional.len() && !is_closed {
        return Err("more properties than are listed are not supported".to_owned());
    }
    let is_less = |most: u64| (most as usize) < required.len() || most < least;
    if missing > optional.len() || most.is_some_and(is_less) {
        return Err("no object has so many properties".to_owned());
    }
    let closes = absent > 0 || most.is_some_and(|_| !is_closed);
    let needed = choices(&optional, missing)
        .map(|all| all.into_iter().map(|chosen| json!({ "required": chosen })).collect::<Vec<_>>());
    // Each of these repeats all properties, which the library's parser cannot hold for many.
    let left_out = choices(&optional, absent).filter(|all| all.len() <= MAX_LEFT_OUT);
    let left_out = left_out.map(|all| {
        let without = |chosen: Vec<&String>| {
            let none = chosen.into_iter().map(|name| (name.clone(), Value::Bool(false)));
            json!({ "properties": none.collect::<Map<_, _>>() })
        };
        all.into_iter().map(without).collect::<Vec<_>>()
    });
    let (Some(needed), Some(left_out)) = (needed, left_out) else {
        return Err("so many choices of properties are not supported".to_owned());
    };
    schema.remove("minProperties");
    schema.remove("maxProperties");
    if closes {
        schema.insert("additionalProperties".to_owned(), false.into());
        schema.remove("patternProperties");
    }
    let cases = [(missing, needed), (absent, left_out)].into_iter().filter(|(count, _)| *count > 0);
    let cases: Vec<Value> = cases.map(|(_, cases)| json!({ "anyOf": cases })).collect();
    if !cases.is_empty() {
        match schema.entry("allOf").or_insert_with(|| json!([])) {
            Value::Array(all) => all.extend(cases),
            other => *other = cases.into(),
        }
    }
    Ok(())
}

/// All choices of so many names; `None` if there are more than allowed.
fn choices(names: &[String], count: usize) -> Option<Vec<Vec<&String>>> {
    let mut all: Vec<Vec<&String>> = vec![vec![]];
    // By the last name chosen: every choice of `length` names ends before the ones added to it.
    for length in 0..count {
        let mut longer = Vec::new();
        for chosen in &all {
            let from = chosen.last().map_or(0, |last| {
                1 + names.iter().position(|name| name == *last).unwrap_or_default()
            });
            for name in names.get(from..names.len() - (count - length - 1)).into_iter().flatten() {
                longer.push([chosen.as_slice(), &[name]].concat());
            }
        }
        all = longer;
        if all.len() > MAX_CHOICES {
            return None;
        }
    }
    Some(all)
}

/// Numbers of members that an object may have.
pub(super) struct Counts {
    /// `minProperties`
    pub(super) least: u64,
    /// `maxProperties`
    pub(super) most: Option<u64>,
}

impl Counts {
    /// Highest number of listed members to be told apart, of so many: as many, or more where it
    /// makes no difference.
    pub(super) fn highest(&self, listed: usize) -> usize {
        match self.most {
            Some(_) => listed,
            None => usize::try_from(self.least.max(1)).map_or(listed, |least| least.min(listed)),
        }
    }

    /// Members that are not listed, after so many others; `None` if no number of them is allowed.
    pub(super) fn others(
        &self,
        so_far: u64,
        other: Option<&str>,
        separator: &str,
    ) -> Option<String> {
        let least = self.least.saturating_sub(so_far);
        let most = match self.most {
            Some(most) => Some(most.checked_sub(so_far).filter(|most| *most >= least)?),
            None => None,
        };
        let Some(other) = other.filter(|_| most != Some(0)) else {
            return (least == 0).then(|| "\"\"".to_owned());
        };
        let repeated = |least: u64, most: Option<u64>| {
            if most == Some(0) {
                return "\"\"".to_owned();
            }
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            format!("({separator} {other}){{{least},{most}}}")
        };
        if so_far > 0 {
            return Some(repeated(least, most));
        }
        let all =
            format!("{other} {}", repeated(least.saturating_sub(1), most.map(|most| most - 1)));
        Some(if least == 0 { format!("({all})?") } else { all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(schema: Value) -> Result<Value, String> {
        let Value::Object(mut schema) = schema else { panic!("an object") };
        expand_counts(&mut schema).map(|()| Value::Object(schema))
    }

    #[test]
    fn limits_become_choices_of_optional_properties() {
        let three = json!({ "a": {}, "b": {}, "c": {} });
        let schema = json!({ "properties": three, "required": ["b"], "minProperties": 2 });
        let written = expanded(schema).unwrap();
        let cases = json!([{ "required": ["a"] }, { "required": ["c"] }]);
        assert_eq!(written["allOf"], json!([{ "anyOf": cases }]));
        assert!(
            written.get("minProperties").is_none() && written.get("additionalProperties").is_none()
        );
        let schema = json!({ "properties": three, "maxProperties": 1 });
        let written = expanded(schema).unwrap();
        let left_out = written["allOf"][0]["anyOf"].as_array().unwrap();
        assert_eq!(left_out.len(), 3);
        assert_eq!(left_out[0], json!({ "properties": { "a": false, "b": false } }));
        assert_eq!(written["additionalProperties"], json!(false));
        // Without effect, and impossible.
        let schema = json!({ "properties": three, "required": ["b"], "minProperties": 1 });
        assert!(expanded(schema).unwrap().get("allOf").is_none());
        assert!(expanded(json!({ "properties": three, "minProperties": 4 })).is_err());
        let many: Map<String, Value> = (0..40).map(|n| (n.to_string(), json!({}))).collect();
        assert!(expanded(json!({ "properties": many, "minProperties": 20 })).is_err());
        let parts = json!([{ "minProperties": 2 }, { "maxProperties": 3 }, true]);
        let schema = json!({ "properties": three, "maxProperties": 4, "allOf": parts });
        let Value::Object(mut schema) = schema else { panic!("an object") };
        gather_counts(&mut schema);
        assert_eq!((&schema["minProperties"], &schema["maxProperties"]), (&json!(2), &json!(3)));
        assert_eq!(schema["allOf"], json!([{}, {}, true]));
        assert_eq!(choices(&["a", "b", "c"].map(str::to_owned), 2).unwrap().len(), 3);
    }
}
