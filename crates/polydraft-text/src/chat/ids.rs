//! Ids of calls as Mistral's templates require them: nine letters and digits.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

/// Number of characters of an id.
const LENGTH: usize = 9;

/// Replaces the ids of a message's calls, and of the call that it answers, by short ones. The same
/// id becomes the same one in every message.
pub(super) fn shorten(message: &mut Value) {
    let Value::Object(members) = message else { return };
    if let Some(id) = members.get_mut("tool_call_id") {
        shorten_id(id);
    }
    let calls = members.get_mut("tool_calls").and_then(Value::as_array_mut);
    for id in calls.into_iter().flatten().filter_map(|call| call.get_mut("id")) {
        shorten_id(id);
    }
}

fn shorten_id(id: &mut Value) {
    let Some(given) = id.as_str() else { return };
    if given.len() == LENGTH && given.chars().all(|c| c.is_ascii_alphanumeric()) {
        return;
    }
    let mut hasher = DefaultHasher::new();
    given.hash(&mut hasher);
    let number = hasher.finish();
    *id = (0..LENGTH as u32)
        .filter_map(|digit| char::from_digit((number / 36_u64.pow(digit) % 36) as u32, 36))
        .collect::<String>()
        .into();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shortens_long_ids_alike_and_keeps_short_ones() {
        let mut call = json!({ "tool_calls": [{ "id": "call_0123456789" }, { "id": "abcDEF123" }] });
        let mut result = json!({ "tool_call_id": "call_0123456789" });
        shorten(&mut call);
        shorten(&mut result);
        let short = result["tool_call_id"].as_str().expect("a string");
        assert_eq!(call["tool_calls"][0]["id"], short);
        assert!(short.len() == 9 && short.chars().all(|c| c.is_ascii_alphanumeric()), "{short}");
        assert_eq!(call["tool_calls"][1]["id"], "abcDEF123");
    }
}
