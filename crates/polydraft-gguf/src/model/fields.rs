//! Keys of an architecture, with ranges.

use crate::error::Fault;
use crate::metadata::Metadata;
use crate::model::Architecture;
use crate::value::Value;
use crate::{Error, Gguf, Result};

/// Keys that begin with the architecture's name.
pub(super) struct Fields<'g> {
    pub architecture: Architecture,
    pub gguf: &'g Gguf,
    metadata: &'g Metadata,
}

impl<'g> Fields<'g> {
    pub fn new(gguf: &'g Gguf) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let metadata = gguf.metadata();
        let name = metadata.str(KEY)?;
        let known = Architecture::ALL;
        let Some(architecture) = known.into_iter().find(|known| known.name() == name) else {
            let names = known.map(Architecture::name).join(", ");
            return Err(metadata.wrong(KEY, format!("one of {names}"), crate::error::shown(name)));
        };
        Ok(Self { architecture, gguf, metadata })
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn wrong(&self, key: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
        self.metadata.wrong(&self.key(key), expected, got)
    }

    pub fn has(&self, key: &str) -> bool {
        self.metadata.has(&self.key(key))
    }

    /// What none of the architectures here has.
    pub fn refuse_others(&self) -> Result<()> {
        for key in ["expert_count", "expert_used_count", "nextn_predict_layers"] {
            let count = self.number_or(key, 0)?;
            if count > 0 {
                return Err(self.wrong(
                    key,
                    "none: such models are not supported",
                    count.to_string(),
                ));
            }
        }
        let causal = self.metadata.optional(&self.key("attention.causal"), Metadata::bool)?;
        if causal == Some(false) {
            let expected = "true: a model that writes from left to right";
            return Err(self.wrong("attention.causal", expected, "false"));
        }
        Ok(())
    }

    pub fn number_or(&self, key: &str, default: u64) -> Result<u64> {
        Ok(self.metadata.optional(&self.key(key), Metadata::u64)?.unwrap_or(default))
    }

    /// A size from 1 to `most` that must be given.
    pub fn size(&self, key: &str, most: usize) -> Result<usize> {
        let value = self.metadata.u64(&self.key(key))?;
        self.in_range(key, value, most)
    }

    pub fn size_or(&self, key: &str, default: usize, most: usize) -> Result<usize> {
        let value = self.number_or(key, default as u64)?;
        self.in_range(key, value, most)
    }

    fn in_range(&self, key: &str, value: u64, most: usize) -> Result<usize> {
        match usize::try_from(value).ok().filter(|value| (1..=most).contains(value)) {
            Some(value) => Ok(value),
            None => Err(self.wrong(key, format!("a number from 1 to {most}"), value.to_string())),
        }
    }

    /// A size that may be given for each layer, if it is the same for all.
    pub fn per_layer(&self, key: &str, layers: usize, most: usize) -> Result<usize> {
        let full = self.key(key);
        let Some(Value::Array(array)) = self.metadata.get(&full) else {
            return self.size(key, most);
        };
        let values = self.metadata.i32s(&full)?;
        match values.first() {
            Some(first)
                if values.len() >= layers
                    && values[..layers].iter().all(|value| value == first) =>
            {
                self.in_range(key, u64::try_from(*first).unwrap_or(0), most)
            }
            _ => Err(self.wrong(
                key,
                format!("one number for all {layers} layers"),
                Value::Array(array).to_string(),
            )),
        }
    }

    /// An array of truth values, one for each layer at least.
    pub fn bools(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let full = self.key(key);
        let Some(Value::Array(_)) = self.metadata.get(&full) else { return Ok(None) };
        let mut values = self.metadata.bools(&full)?;
        if values.len() < layers {
            return Err(self.wrong(
                key,
                format!("{layers} values, one a layer"),
                values.len().to_string(),
            ));
        }
        values.truncate(layers);
        Ok(Some(values))
    }

    pub fn finite_or(&self, key: &str, default: f64) -> Result<f64> {
        let value = self.metadata.optional(&self.key(key), Metadata::f64)?.unwrap_or(default);
        match value.is_finite() {
            true => Ok(value),
            false => Err(self.wrong(key, "a finite number", value.to_string())),
        }
    }

    /// A number above 0 that must be given.
    pub fn positive(&self, key: &str) -> Result<f64> {
        let value = self.metadata.f64(&self.key(key))?;
        self.above_zero(key, value)
    }

    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64> {
        let value = self.finite_or(key, default)?;
        self.above_zero(key, value)
    }

    fn above_zero(&self, key: &str, value: f64) -> Result<f64> {
        match value.is_finite() && value > 0.0 {
            true => Ok(value),
            false => Err(self.wrong(key, "a positive number", value.to_string())),
        }
    }

    pub fn text_or(&self, key: &str, default: &'g str) -> Result<&'g str> {
        Ok(self.metadata.optional(&self.key(key), Metadata::str)?.unwrap_or(default))
    }

    /// Rows of the embedding, which must be the tokenizer's tokens where it has any, as llama.cpp
    /// asks.
    pub fn vocabulary(&self) -> Result<usize> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let rows = self.gguf.tensor("token_embd.weight")?.rows();
        match self.metadata.optional(TOKENS, Metadata::array)? {
            Some(tokens) if tokens.len() != rows => {
                let expected = format!("{} rows, those of {TOKENS}", tokens.len());
                let fault = Fault::tensor("token_embd.weight", expected, rows.to_string());
                Err(fault.at(self.metadata.path()))
            }
            _ => Ok(rows),
        }
    }
}
