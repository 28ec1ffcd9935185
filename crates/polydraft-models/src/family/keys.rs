//! Translation of the metadata keys of a GGUF file to the fields of `config.json`.

use polydraft_gguf::{Gguf, Metadata, Value as Key};
use serde_json::{Map, Value, json};

use super::common::Result;

/// Metadata keys with the prefix of an architecture. Methods take keys without the prefix.
pub(super) struct Keys<'g> {
    gguf: &'g Gguf,
    name: &'static str,
}

/// Keys with a single number, and the fields that they are translated to.
const COMMON: [(&str, &[&str]); 20] = [
    ("embedding_length", &["hidden_size"]),
    ("context_length", &["max_position_embeddings"]),
    ("feed_forward_length", &["intermediate_size"]),
    ("attention.head_count", &["num_attention_heads"]),
    ("attention.head_count_kv", &["num_key_value_heads"]),
    ("attention.key_length", &["head_dim"]),
    ("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]),
    ("attention.layer_norm_epsilon", &["layer_norm_eps"]),
    ("expert_count", &["num_local_experts", "num_experts", "n_routed_experts"]),
    ("expert_used_count", &["num_experts_per_tok"]),
    ("expert_feed_forward_length", &["moe_intermediate_size"]),
    ("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
    ("expert_shared_count", &["n_shared_experts"]),
    ("expert_group_count", &["n_group"]),
    ("expert_group_used_count", &["topk_group"]),
    ("expert_weights_scale", &["routed_scaling_factor"]),
    ("leading_dense_block_count", &["first_k_dense_replace"]),
    ("nextn_predict_layers", &["num_nextn_predict_layers"]),
    ("rope.freq_base", &["rope_theta"]),
    ("attention.sliding_window", &["sliding_window"]),
];

impl<'g> Keys<'g> {
    pub fn new(gguf: &'g Gguf, name: &'static str) -> Self {
        Self { gguf, name }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// Value of a key, if present.
    fn get<T>(
        &self,
        key: &str,
        read: impl Fn(&'g Metadata, &str) -> polydraft_gguf::Result<T>,
    ) -> Result<Option<T>> {
        let (metadata, key) = (self.gguf.metadata(), self.key(key));
        match metadata.has(&key) {
            true => read(metadata, &key).map(Some).map_err(|e| e.to_string()),
            false => Ok(None),
        }
    }

    /// Non-negative integer for all layers. In a list with an entry per layer, all entries other
    /// than 0 must be equal.
    pub fn size(&self, key: &str) -> Result<Option<u64>> {
        let full = self.key(key);
        if let Some(Key::Array(_)) = self.gguf.metadata().get(&full) {
            let all = self.get(key, |metadata, key| metadata.i32s(key))?.unwrap_or_default();
            let first = all.iter().copied().find(|value| *value != 0).unwrap_or(0);
            return match all.iter().find(|value| ![first, 0].contains(value)) {
                Some(other) => Err(format!("key {full}: expected {first} in all, got {other}")),
                None => Ok(Some(u64::try_from(first).unwrap_or(0))),
            };
        }
        self.get(key, |metadata, key| metadata.u64(key))
    }

    /// Like [`size`](Self::size), for a key that must be present.
    pub fn required(&self, key: &str) -> Result<u64> {
        let value = self.size(key)?;
        value.ok_or_else(|| format!("key {}: expected a number, got no such key", self.key(key)))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, |metadata, key| metadata.f64(key))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, |metadata, key| metadata.bool(key))
    }

    pub fn text(&self, key: &str) -> Result<Option<&'g str>> {
        self.get(key, |metadata, key| metadata.str(key))
    }

    /// List of integers, if present.
    pub fn list(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.get(key, |metadata, key| metadata.i32s(key))
    }

    /// List of flags with an entry per layer, if present.
    pub fn bools(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(Key::Array(_)) = self.gguf.metadata().get(&self.key(key)) else {
            return Ok(None);
        };
        let mut all = self.get(key, |metadata, key| metadata.bools(key))?.unwrap_or_default();
        if all.len() < layers {
            let (key, got) = (self.key(key), all.len());
            return Err(format!("key {key}: expected {layers} values, one per layer, got {got}"));
        }
        all.truncate(layers);
        Ok(Some(all))
    }

    /// For each entry of a list with an entry per layer, whether it is zero, if the key is present.
    pub fn zeros(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(Key::Array(_)) = self.gguf.metadata().get(&self.key(key)) else {
            return Ok(None);
        };
        Ok(Some(self.sizes(key, layers)?.into_iter().map(|value| value == 0).collect()))
    }

    /// An integer per layer, from a list or from one number for all layers.
    pub fn sizes(&self, key: &str, layers: usize) -> Result<Vec<u64>> {
        let Some(Key::Array(_)) = self.gguf.metadata().get(&self.key(key)) else {
            return Ok(vec![self.required(key)?; layers]);
        };
        let all = self.get(key, |metadata, key| metadata.i32s(key))?.unwrap_or_default();
        if all.len() != layers {
            let (key, got) = (self.key(key), all.len());
            return Err(format!("key {key}: expected {layers} values, one per layer, got {got}"));
        }
        let size = |value: i32| {
            let key = self.key(key);
            u64::try_from(value).map_err(|_| format!("key {key}: expected sizes, got {value}"))
        };
        all.into_iter().map(size).collect()
    }

    pub fn has_tensor(&self, name: &str) -> bool {
        self.gguf.find(name).is_some()
    }

    /// Positive values of a small tensor, such as divisors of RoPE frequencies, if present.
    pub fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        const MAX_LENGTH: usize = 1 << 14;
        let Some(tensor) = self.gguf.find(tensor) else { return Ok(None) };
        if tensor.columns() > MAX_LENGTH || tensor.rows() != 1 {
            let got = format!("shape {:?}", tensor.shape());
            return Err(format!("tensor {}: expected a vector, got {got}", tensor.name()));
        }
        let numbers = tensor.dequantize().map_err(|e| e.to_string())?;
        match numbers.iter().find(|number| !(number.is_finite() && **number > 0.0)) {
            None => Ok(Some(numbers)),
            Some(got) => {
                Err(format!("tensor {}: expected positive numbers, got {got}", tensor.name()))
            }
        }
    }

    /// Width of a head.
    pub fn head(&self) -> Result<u64> {
        Ok(match self.size("attention.key_length")? {
            Some(head) => head.max(1),
            None => {
                self.required("embedding_length")? / self.required("attention.head_count")?.max(1)
            }
        })
    }

    /// Rejects features that no decoder here supports.
    pub fn reject_unsupported(&self) -> Result<()> {
        if self.flag("attention.causal")? == Some(false) {
            return Err(format!("key {}: expected true, got false", self.key("attention.causal")));
        }
        Ok(())
    }

    /// Rejects features that no draft head here supports.
    pub fn reject_unsupported_in_head(&self) -> Result<()> {
        let head = self.head()?;
        let usual = (head.max(1) as f64).powf(-0.5);
        for (key, expected) in [("attention.scale", usual), ("attention.value_scale", 1.0)] {
            if let Some(got) =
                self.number(key)?.filter(|got| (got - expected).abs() > 1e-6 * expected)
            {
                return Err(format!(
                    "key {}: expected {expected} or none, got {got}",
                    self.key(key)
                ));
            }
        }
        for (key, expected) in [("rope.dimension_count", head), ("hyper_connection.count", 0)] {
            if let Some(got) = self.size(key)?.filter(|got| *got != expected) {
                return Err(format!(
                    "key {}: expected {expected} or none, got {got}",
                    self.key(key)
                ));
            }
        }
        Ok(())
    }

    /// Translates the keys that all families have, except those in `excluded`.
    pub fn common(&self, excluded: &[&str]) -> Result<Map<String, Value>> {
        self.common_with_vocabulary(excluded, self.vocabulary()?)
    }

    /// Like [`common`](Self::common), for files whose embedding may be missing.
    pub fn common_with_vocabulary(
        &self,
        excluded: &[&str],
        vocabulary: usize,
    ) -> Result<Map<String, Value>> {
        let mut fields = Map::new();
        for (key, names) in COMMON.into_iter().filter(|(key, _)| !excluded.contains(key)) {
            let value =
                match key.ends_with("epsilon") || key.ends_with("scale") || key.contains("base") {
                    true => self.number(key)?.map(|number| json!(number)),
                    false => self.size(key)?.map(|size| json!(size)),
                };
            for name in names {
                fields.extend(value.clone().map(|value| ((*name).to_owned(), value)));
            }
        }
        let extra = self.size("nextn_predict_layers")?.unwrap_or(0);
        let layers = self.required("block_count")?;
        fields.insert("num_hidden_layers".into(), json!(layers.saturating_sub(extra)));
        fields.insert("vocab_size".into(), json!(vocabulary));
        fields.entry("rope_theta").or_insert(json!(10_000.0));
        // If all layers have experts, the dense width may be missing.
        if let (None, Some(width)) =
            (fields.get("intermediate_size"), fields.get("moe_intermediate_size").cloned())
        {
            fields.insert("intermediate_size".into(), width);
        }
        if let Some(normed) = self.flag("expert_weights_norm")? {
            fields.insert("norm_topk_prob".into(), json!(normed));
        }
        let tied = !self.has_tensor("output.weight");
        fields.insert("tie_word_embeddings".into(), json!(tied));
        if let Some(scaling) = self.scaling()? {
            fields.insert("rope_scaling".into(), scaling);
        }
        Ok(fields)
    }

    fn vocabulary(&self) -> Result<usize> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let tensor = self.gguf.tensor("token_embd.weight").map_err(|e| e.to_string())?;
        let rows = tensor.rows();
        match self.gguf.metadata().array(TOKENS) {
            Ok(tokens) if tokens.len() != rows => Err(format!(
                "tensor token_embd.weight: expected {} rows, those of {TOKENS}, got {rows}",
                tokens.len()
            )),
            _ => Ok(rows),
        }
    }

    /// Translates the RoPE scaling, except LongRoPE's, which is in tensors.
    fn scaling(&self) -> Result<Option<Value>> {
        let factor = self.number("rope.scaling.factor")?.filter(|factor| *factor != 0.0);
        let mut scaling = Map::new();
        match (self.text("rope.scaling.type")?, factor) {
            (None | Some("none" | "longrope"), _) | (Some("linear"), None | Some(1.0)) => {
                return Ok(None);
            }
            (Some("linear"), Some(factor)) => {
                scaling.insert("rope_type".into(), json!("linear"));
                scaling.insert("factor".into(), json!(factor));
            }
            (Some("yarn"), factor) => {
                scaling.insert("rope_type".into(), json!("yarn"));
                scaling.insert("factor".into(), json!(factor.unwrap_or(1.0)));
                for (key, field) in [
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                    ("rope.scaling.yarn_attn_factor", "attention_factor"),
                ] {
                    let value = self.number(key)?;
                    scaling.extend(value.map(|value| (field.to_owned(), json!(value))));
                }
                let original = self.size("rope.scaling.original_context_length")?;
                scaling.insert("original_max_position_embeddings".into(), json!(original));
            }
            (Some(other), _) => {
                let key = self.key("rope.scaling.type");
                return Err(format!(
                    "key {key}: expected none, linear, yarn or longrope, got {other:?}"
                ));
            }
        }
        Ok(Some(Value::Object(scaling)))
    }
}
