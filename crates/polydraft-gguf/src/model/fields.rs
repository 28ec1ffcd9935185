//! Keys of an architecture, with checks of their ranges.

use crate::error::Fault;
use crate::metadata::Metadata;
use crate::model::Architecture;
use crate::value::Value;
use crate::{Error, Gguf, Result};

/// Access to keys with the architecture's prefix.
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
            return Err(metadata.invalid_key(
                KEY,
                format!("one of {names}"),
                crate::error::shown(name),
            ));
        };
        Ok(Self { architecture, gguf, metadata })
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn invalid_key(
        &self,
        key: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Error {
        self.metadata.invalid_key(&self.key(key), expected, got)
    }

    pub fn has(&self, key: &str) -> bool {
        self.metadata.has(&self.key(key))
    }

    /// Rejects features that none of the architectures here supports.
    pub fn reject_unsupported(&self) -> Result<()> {
        for key in ["expert_count", "expert_used_count", "nextn_predict_layers"] {
            let count = self.number_or(key, 0)?;
            if count > 0 {
                return Err(self.invalid_key(
                    key,
                    "0 (such models are not supported)",
                    count.to_string(),
                ));
            }
        }
        let causal = self.metadata.optional(&self.key("attention.causal"), Metadata::bool)?;
        if causal == Some(false) {
            let expected = "true (only causal models are supported)";
            return Err(self.invalid_key("attention.causal", expected, "false"));
        }
        Ok(())
    }

    pub fn number_or(&self, key: &str, default: u64) -> Result<u64> {
        Ok(self.metadata.optional(&self.key(key), Metadata::u64)?.unwrap_or(default))
    }

    /// Returns a required size from 1 to `max`.
    pub fn size(&self, key: &str, max: usize) -> Result<usize> {
        let value = self.metadata.u64(&self.key(key))?;
        self.check_size(key, value, max)
    }

    pub fn size_or(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        let value = self.number_or(key, default as u64)?;
        self.check_size(key, value, max)
    }

    fn check_size(&self, key: &str, value: u64, max: usize) -> Result<usize> {
        match usize::try_from(value).ok().filter(|value| (1..=max).contains(value)) {
            Some(value) => Ok(value),
            None => {
                Err(self.invalid_key(key, format!("a number from 1 to {max}"), value.to_string()))
            }
        }
    }

    /// Returns a size that may be an array by layer, if it is the same for all layers.
    pub fn per_layer(&self, key: &str, layers: usize, max: usize) -> Result<usize> {
        let full = self.key(key);
        let Some(Value::Array(array)) = self.metadata.get(&full) else {
            return self.size(key, max);
        };
        let values = self.metadata.i32s(&full)?;
        match values.first() {
            Some(first)
                if values.len() >= layers
                    && values[..layers].iter().all(|value| value == first) =>
            {
                self.check_size(key, u64::try_from(*first).unwrap_or(0), max)
            }
            _ => Err(self.invalid_key(
                key,
                format!("one number for all {layers} layers"),
                Value::Array(array).to_string(),
            )),
        }
    }

    /// Returns an array of Booleans with at least one per layer.
    pub fn bools(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let full = self.key(key);
        let Some(Value::Array(_)) = self.metadata.get(&full) else { return Ok(None) };
        let mut values = self.metadata.bools(&full)?;
        if values.len() < layers {
            return Err(self.invalid_key(
                key,
                format!("{layers} values, one per layer"),
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
            false => Err(self.invalid_key(key, "a finite number", value.to_string())),
        }
    }

    /// Returns a required positive number.
    pub fn positive(&self, key: &str) -> Result<f64> {
        let value = self.metadata.f64(&self.key(key))?;
        self.check_positive(key, value)
    }

    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64> {
        let value = self.finite_or(key, default)?;
        self.check_positive(key, value)
    }

    fn check_positive(&self, key: &str, value: f64) -> Result<f64> {
        match value.is_finite() && value > 0.0 {
            true => Ok(value),
            false => Err(self.invalid_key(key, "a positive number", value.to_string())),
        }
    }

    pub fn str_or(&self, key: &str, default: &'g str) -> Result<&'g str> {
        Ok(self.metadata.optional(&self.key(key), Metadata::str)?.unwrap_or(default))
    }

    /// Returns the number of rows of the embedding. It must be the number of the tokenizer's
    /// tokens, if there is a tokenizer, as in llama.cpp.
    pub fn vocabulary(&self) -> Result<usize> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let rows = self.gguf.tensor("token_embd.weight")?.rows();
        match self.metadata.optional(TOKENS, Metadata::array)? {
            Some(tokens) if tokens.len() != rows => {
                let expected = format!("{} rows, as many as {TOKENS}", tokens.len());
                let fault = Fault::tensor("token_embd.weight", expected, rows.to_string());
                Err(fault.at(self.metadata.path()))
            }
            _ => Ok(rows),
        }
    }
}
