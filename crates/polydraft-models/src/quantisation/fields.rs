//! Fields of `config.json` about quantisation.
//!
//! Source: compressed-tensors' configurations, as transformers reads them.

use serde_json::Value;

/// Quantisation object of the model, or of its text model.
pub(super) fn quantization_config(config: &Value) -> Option<&Value> {
    let text = config.get("text_config");
    [Some(config), text]
        .into_iter()
        .flatten()
        .flat_map(|config| ["quantization_config", "compression_config"].map(|key| config.get(key)))
        .flatten()
        .find(|value| value.is_object())
}

/// Value of the first of these fields that is present and not null.
pub(super) fn field<'a>(object: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().filter_map(|name| object.get(name)).find(|value| !value.is_null())
}

/// Value of the first of these fields that is present, if it is a string.
pub(super) fn string<'a>(object: &'a Value, names: &[&str]) -> Option<&'a str> {
    field(object, names).and_then(Value::as_str)
}

/// Groups of compressed-tensors, each with its own scheme.
pub(super) fn groups(quantization: &Value) -> impl Iterator<Item = &Value> {
    quantization
        .get("config_groups")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|all| all.values())
}

/// Weight scheme of a group.
pub(super) fn group_weights(group: &Value) -> Option<&Value> {
    field(group, &["weights"])
}

/// Storage format of a group's weights.
pub(super) fn weight_format(quantization: &Value, group: &Value) -> String {
    let format = string(group, &["format"]).or_else(|| string(quantization, &["format"]));
    format.unwrap_or("no format").to_owned()
}
