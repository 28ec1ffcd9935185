//! Rejection of tokenizers that make a prompt grow without bound.
//!
//! Problem: a normalizer may replace a space by any text. With a file of 15 kB a prompt of a few
//! thousand spaces took ten seconds.
//! Source: ours; the mutation harness found it.
//! Complexity: linear in the size of the serialized steps around the tokenizer's model, which are
//! small.

use serde::Serialize;
use serde_json::Value;
use tokenizers::Tokenizer as HfTokenizer;

/// Maximum length in bytes of a replacement text: published tokenizers need three.
const MAX_REPLACEMENT: usize = 256;

/// Checks the replacement texts of all steps around the model.
///
/// # Errors
/// Fails if one is too long; the error names the step.
pub(super) fn check(tokenizer: &HfTokenizer) -> Result<(), String> {
    walk("normalizer", &to_json(tokenizer.get_normalizer()))?;
    walk("pre_tokenizer", &to_json(tokenizer.get_pre_tokenizer()))?;
    walk("decoder", &to_json(tokenizer.get_decoder()))
}

/// Serializes a step; null if it cannot be serialized.
fn to_json(step: Option<&impl Serialize>) -> Value {
    step.and_then(|step| serde_json::to_value(step).ok()).unwrap_or_default()
}

fn walk(step: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, inner)| match inner {
            Value::String(text) if ["content", "prepend"].contains(&&name[..]) => {
                match text.len() > MAX_REPLACEMENT {
                    true => Err(format!(
                        "{step}: {name}: expected at most {MAX_REPLACEMENT} bytes, got {}",
                        text.len()
                    )),
                    false => Ok(()),
                }
            }
            inner => walk(step, inner),
        }),
        Value::Array(all) => all.iter().try_for_each(|inner| walk(step, inner)),
        _ => Ok(()),
    }
}
