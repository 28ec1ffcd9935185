//! `generation_config.json`: where a model's output ends, and how its makers would sample.

use std::path::Path;

use polydraft::Token;
use serde_json::Value;

use crate::files::read_object;
use crate::{Error, Fields, Result, fields};

/// How a model's makers would sample. Nothing here is applied by loading: it is for a program to
/// offer as a default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PublishedSampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: Option<f64>,
    /// Only so many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Only tokens at least so many times as likely as the likeliest.
    pub min_p: Option<f64>,
    /// Settings that change the distribution of the output in ways that polydraft does not have,
    /// with their values.
    pub unsupported: Vec<String>,
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Published {
    /// Tokens that end a sequence; empty if none are named.
    pub end_tokens: Vec<Token>,
    /// How to sample.
    pub sampling: PublishedSampling,
}

impl Published {
    /// Reads `generation_config.json` of a model directory; nothing is published if there is none.
    ///
    /// # Errors
    /// A file that cannot be read (a link to nowhere, for instance), is no JSON object, or has
    /// fields of other types.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join("generation_config.json");
        let object = Value::Object(read_object(&path)?);
        parse(&object).map_err(|problem| Error::File { path, problem })
    }
}

/// Settings of the distribution that tokens are drawn from, with the values that change nothing.
const OF_DRAWS: [(&str, f64); 3] =
    [("typical_p", 1.0), ("epsilon_cutoff", 0.0), ("eta_cutoff", 0.0)];
/// Those that also hold where the likeliest token is taken.
const OF_ALL: [(&str, f64); 5] = [
    ("repetition_penalty", 1.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("min_new_tokens", 0.0),
];
/// Those that are lists or objects.
const LISTS: [&str; 4] =
    ["bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"];

/// The numbers that change something, with their values.
fn numbers(fields: &Fields, known: &[(&str, f64)]) -> std::result::Result<Vec<String>, String> {
    let mut all = Vec::new();
    for (field, neutral) in known {
        if let Some(value) = fields.get::<f64>(field)?.filter(|value| value != neutral) {
            all.push(format!("{field} {value}"));
        }
    }
    Ok(all)
}

fn parse(object: &Value) -> std::result::Result<Published, String> {
    let fields = Fields::of(object)?;
    let end_tokens = fields::end_tokens(&fields)?;
    let mut sampling = PublishedSampling::default();
    // Without it the makers' default is the likeliest token, and the rest of no meaning.
    if fields.flag("do_sample", false)? {
        sampling.temperature = fields.get("temperature")?;
        // 0 is transformers' way to say that there is none, -1 that of others.
        sampling.top_k =
            fields.get::<i64>("top_k")?.and_then(|k| usize::try_from(k).ok()).filter(|k| *k > 0);
        sampling.top_p = fields.get("top_p")?;
        sampling.min_p = fields.get("min_p")?;
        sampling.unsupported = numbers(&fields, &OF_DRAWS)?;
    }
    sampling.unsupported.extend(numbers(&fields, &OF_ALL)?);
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
