//! Where `config.json` says how weights were quantised.
//!
//! Source: compressed-tensors' configurations, as transformers reads them.

use serde_json::Value;

/// The object itself, of the whole model or of its text part.
pub(super) fn said(config: &Value) -> Option<&Value> {
    let text = config.get("text_config");
    [Some(config), text]
        .into_iter()
        .flatten()
        .flat_map(|config| ["quantization_config", "compression_config"].map(|key| config.get(key)))
        .flatten()
        .find(|value| value.is_object())
}

/// What is given and not null, under the first of these names that is.
pub(super) fn given<'a>(said: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().filter_map(|name| said.get(name)).find(|value| !value.is_null())
}

/// A text of one of these names.
pub(super) fn text<'a>(said: &'a Value, names: &[&str]) -> Option<&'a str> {
    given(said, names).and_then(Value::as_str)
}

/// What compressed-tensors quantised in one way each.
pub(super) fn groups(said: &Value) -> impl Iterator<Item = &Value> {
    said.get("config_groups").and_then(Value::as_object).into_iter().flat_map(|all| all.values())
}

pub(super) fn weights_of(group: &Value) -> Option<&Value> {
    given(group, &["weights"])
}

/// The format that a group's weights are stored in.
pub(super) fn format_of(said: &Value, group: &Value) -> String {
    let format = text(group, &["format"]).or_else(|| text(said, &["format"]));
    format.unwrap_or("no format").to_owned()
}
