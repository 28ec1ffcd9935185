//! `generation_config.json`: end tokens, and the published sampling settings.

use std::path::Path;

use polydraft::Token;
use serde_json::Value;

use crate::files::read_object;
use crate::{Error, Fields, Result, fields};

/// Sampling settings recommended by a model's makers. Loading does not apply them; a program may
/// use them as defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PublishedSampling {
    /// Divisor of the logits; 0 selects the most probable token.
    pub temperature: Option<f64>,
    /// Maximum number of most probable tokens.
    pub top_k: Option<usize>,
    /// Minimum total probability of the most probable tokens.
    pub top_p: Option<f64>,
    /// Minimum probability of a token relative to the most probable one.
    pub min_p: Option<f64>,
    /// Published settings with an effect on the output that polydraft does not support, with their
    /// values.
    pub unsupported: Vec<String>,
}

/// Contents of `generation_config.json`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Published {
    /// End tokens; empty if none are listed.
    pub end_tokens: Vec<Token>,
    /// Sampling settings.
    pub sampling: PublishedSampling,
}

impl Published {
    /// Reads `generation_config.json` of a model directory; the default if the file is missing.
    ///
    /// # Errors
    /// Fails if the file cannot be read (a dangling link, for instance), is not a JSON object, or
    /// has fields of other types.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join("generation_config.json");
        let object = Value::Object(read_object(&path)?);
        parse(&object).map_err(|problem| Error::File { path, problem })
    }
}

/// Unsupported settings that affect only sampling, with their neutral values; no value of `top_h`
/// is neutral.
const SAMPLING_ONLY: [(&str, f64); 4] =
    [("typical_p", 1.0), ("epsilon_cutoff", 0.0), ("eta_cutoff", 0.0), ("top_h", f64::NAN)];
/// Unsupported settings that also affect greedy decoding.
const ALWAYS_ACTIVE: [(&str, f64); 5] = [
    ("repetition_penalty", 1.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("min_new_tokens", 0.0),
];
/// Unsupported settings with lists or objects as values.
const LISTS: [&str; 4] =
    ["bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"];

/// Returns the settings that differ from their neutral values.
fn changed_numbers(
    fields: &Fields,
    known: &[(&str, f64)],
) -> std::result::Result<Vec<String>, String> {
    let mut all = Vec::new();
    for (field, neutral) in known {
        if let Some(value) = fields.get::<f64>(field)?.filter(|value| value != neutral) {
            all.push(format!("{field} {value}"));
        }
    }
    Ok(all)
}

fn parse(object: &Value) -> std::result::Result<Published, String> {
    let fields = Fields::new(object)?;
    let end_tokens = fields::end_tokens(&fields)?;
    let mut sampling = PublishedSampling::default();
    // Without `do_sample` the makers recommend greedy decoding, and the other settings have no
    // effect.
    if fields.flag("do_sample", false)? {
        // As in transformers, what is left out is neutral.
        let (mut invalid, neutral) = (Vec::new(), 1.0);
        let mut valid = |name: &str, least: f64, most: f64| {
            let value = fields.get::<f64>(name)?;
            let is_valid = |value: &f64| (least..=most).contains(value);
            invalid.extend(value.filter(|v| !is_valid(v)).map(|v| format!("{name} {v}")));
            Ok::<_, String>(value.filter(is_valid))
        };
        sampling.temperature = Some(valid("temperature", 0.0, f64::MAX)?.unwrap_or(neutral));
        // Disabled by 0 in transformers, by -1 elsewhere.
        sampling.top_k =
            fields.get::<i64>("top_k")?.and_then(|k| usize::try_from(k).ok()).filter(|k| *k > 0);
        sampling.top_p = valid("top_p", 0.0, 1.0)?;
        // As in transformers, the likeliest token always remains.
        if sampling.top_p == Some(0.0) {
            (sampling.top_p, sampling.top_k) = (None, Some(1));
        }
        sampling.min_p = valid("min_p", 0.0, 1.0)?;
        sampling.unsupported = changed_numbers(&fields, &SAMPLING_ONLY)?;
        sampling.unsupported.extend(invalid);
    }
    sampling.unsupported.extend(changed_numbers(&fields, &ALWAYS_ACTIVE)?);
    for field in LISTS {
        let value = fields.get::<Value>(field)?.map_or(String::new(), |value| value.to_string());
        if !matches!(value.as_str(), "" | "[]" | "{}") {
            sampling
                .unsupported
                .push(format!("{field} {}", value.chars().take(60).collect::<String>()));
        }
    }
    Ok(Published { end_tokens, sampling })
}
