//! Tokenizers that make a prompt grow without end are refused.
//!
//! Problem: a normalizer may put any text in the place of a blank. A file of 15 kB made a prompt of
//! a few thousand blanks take ten seconds.
//! Source: ours; the mutation harness found it.
//! Complexity: that of writing down the steps around the tokenizer's model, which are small.

use serde::Serialize;
use serde_json::Value;
use tokenizers::Tokenizer as HfTokenizer;

/// Bytes that one step may put in the place of another text: published ones put three.
const MOST: usize = 256;

/// That no step around the model puts in more.
///
/// # Errors
/// The step that does, and how much it is.
pub(super) fn check(tokenizer: &HfTokenizer) -> Result<(), String> {
    walk("normalizer", &written(tokenizer.get_normalizer()))?;
    walk("pre_tokenizer", &written(tokenizer.get_pre_tokenizer()))?;
    walk("decoder", &written(tokenizer.get_decoder()))
}

/// What cannot be written down has nothing to look at.
fn written(step: Option<&impl Serialize>) -> Value {
    step.and_then(|step| serde_json::to_value(step).ok()).unwrap_or_default()
}

fn walk(step: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, inner)| match inner {
            Value::String(text) if ["content", "prepend"].contains(&&name[..]) => {
                match text.len() > MOST {
                    true => Err(format!(
                        "{step}: {name}: expected at most {MOST} bytes, got {}",
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
