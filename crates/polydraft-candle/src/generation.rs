//! `generation_config.json`: where a model's texts end, and how its makers would sample.

use std::path::Path;

use serde_json::Value;

use crate::config::EndTokens;
use crate::config::fields::Fields;
use crate::special::read_object;
use crate::{Error, Result};

/// How a model's makers would sample. Nothing here is applied by loading: it is for a program to offer as a default.
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
    /// Settings that change the law of the text in ways that polydraft does not have, with their values.
    pub unsupported: Vec<String>,
}

/// The end tokens of the file, none if it has none, and the sampling.
pub(crate) fn read(directory: &Path) -> Result<(Vec<u32>, PublishedSampling)> {
    const NAME: &str = "generation_config.json";
    let object = Value::Object(read_object(directory, NAME)?);
    parse(&object).map_err(|problem| Error::File { path: directory.join(NAME), problem })
}

fn parse(object: &Value) -> std::result::Result<(Vec<u32>, PublishedSampling), String> {
    let fields = Fields::of(object)?;
    let end_tokens = fields.get::<EndTokens>("eos_token_id")?.unwrap_or_default().into_vec();
    let mut sampling = PublishedSampling::default();
    // Without it the makers' default is the likeliest token, and the rest of no meaning.
    if fields.flag("do_sample", false)? {
        sampling.temperature = fields.get("temperature")?;
        // 0 is transformers' way to say that there is none.
        sampling.top_k = fields.get("top_k")?.filter(|k| *k > 0);
        sampling.top_p = fields.get("top_p")?;
        sampling.min_p = fields.get("min_p")?;
    }
    for (field, neutral) in
        [("repetition_penalty", 1.0), ("encoder_repetition_penalty", 1.0), ("no_repeat_ngram_size", 0.0)]
    {
        if let Some(value) = fields.get::<f64>(field)?.filter(|v| *v != neutral) {
            sampling.unsupported.push(format!("{field} {value}"));
        }
    }
    Ok((end_tokens, sampling))
}
