//! The families of models: how each one's `config.json` is read, and what its tensors are called.
//!
//! A new family is a file here and an entry in [`FAMILIES`]; the decoder itself knows none of them
//! by name.

mod arcee;
mod cohere2;
pub(crate) mod common;
mod deepseek;
mod exaone4;
pub(crate) mod gguf;
pub(crate) mod mtp;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod keys;
mod lfm2;
mod llama;
mod ministral;
mod mistral;
mod mixtral;
mod nemotron_h;
pub(crate) mod multimodal;
mod olmo2;
mod olmoe;
mod opt;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_next;
mod qwen_moe;
mod seed_oss;
mod smollm3;
mod state_spaces;

use std::path::Path;

use polydraft_text::Fields;
use serde_json::Value;

use crate::config::Config;
use crate::error::{Error, Result};
use common::Family;
use multimodal::{ASSISTANTS, WRAPPERS, Wrapper, text_config};
use state_spaces::with_words_for_numbers;

/// Every family that can be loaded.
pub(crate) const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen2::MIMO,
    qwen3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma4::FAMILY,
    gemma4::UNIFIED,
    opt::FAMILY,
    smollm3::FAMILY,
    granite::FAMILY,
    olmo2::FAMILY,
    olmo2::OLMO3,
    phi3::FAMILY,
    glm4::GLM,
    glm4::FAMILY,
    ministral::FAMILY,
    ministral::MINISTRAL3,
    cohere2::FAMILY,
    exaone4::FAMILY,
    seed_oss::FAMILY,
    arcee::FAMILY,
    mixtral::FAMILY,
    qwen_moe::QWEN2,
    qwen_moe::QWEN3,
    olmoe::FAMILY,
    glm4_moe::FAMILY,
    gpt_oss::FAMILY,
    deepseek::V2,
    deepseek::V3,
    granite_moe::FAMILY,
    granite_moe::SHARED,
    granite_hybrid::FAMILY,
    nemotron_h::FAMILY,
    qwen3_next::NEXT,
    qwen3_next::DENSE,
    qwen3_next::MOE,
    lfm2::FAMILY,
    lfm2::MOE,
];

/// The architectures that can be loaded, as `config.json` names them: of models that only write.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.architecture)
}

/// Those of models that see or hear too, of which the text part can be loaded.
pub fn multimodal_architectures() -> impl Iterator<Item = &'static str> {
    WRAPPERS.iter().map(|wrapper| wrapper.architecture)
}

impl Config {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// A file that is missing or no such JSON; an architecture or a feature that is not known;
    /// sizes that are absurd or contradict each other. The field is named.
    pub fn read(path: &Path) -> Result<Self> {
        let text = polydraft_files::read_text(path, polydraft_files::FileKind::CONFIG)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problem| Error::File { path: path.to_owned(), problem })
    }

    /// Whether a file's fields are those of a drafter that reads its target's KV cache.
    pub(crate) fn is_assistant(said: &Value) -> bool {
        assistant(said).is_some()
    }

    /// The layers of such a drafter.
    ///
    /// # Errors
    /// As of [`read`](Self::read), with what such a drafter cannot have.
    pub(crate) fn from_assistant(said: &Value) -> std::result::Result<Self, String> {
        let (Some(wrapper), Some(outer)) = (assistant(said), said.as_object()) else {
            return Err("architectures: expected an assistant's".to_owned());
        };
        let (own, mut text) = text_config(wrapper, outer)?;
        // All layers are without keys and values, which is no model.
        text["num_kv_shared_layers"] = 0.into();
        let family = FAMILIES.iter().find(|family| family.architecture == own);
        let family = family.ok_or_else(|| format!("{own}: expected a known family"))?;
        let mut config = (family.read)(family, &Fields::new(&text)?)?;
        config.check()?;
        for (field, is_there) in [
            ("hidden_size_per_layer_input", config.per_layer.is_some()),
            ("enable_moe_block", config.experts.is_some()),
            ("use_double_wide_mlp", config.double_wide_mlp),
        ] {
            if is_there {
                return Err(format!("{field}: expected none in an assistant, got some"));
            }
        }
        config.attention.shared_kv_layers = config.layers;
        // Of its own token nothing is cached: that one is not counted.
        config.attention.window = config.attention.window.map(|window| window.saturating_add(1));
        Ok(config)
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let text = with_words_for_numbers(text);
        let value: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        // The architecture first: another one's fields may be missing or mean something else.
        let known = || {
            let names: Vec<_> = architectures().chain(multimodal_architectures()).collect();
            format!("architectures: expected one of the known architectures ({})", names.join(", "))
        };
        let name = value.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("{}, got none", known()))?;
        if Self::is_assistant(&value) {
            return Err(format!(
                "architectures: expected a model, got the assistant {name:?}, which drafts for \
                 the model that it came with"
            ));
        }
        let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.architecture == name);
        let (own, text) = match (wrapper, value.as_object()) {
            (Some(wrapper), Some(outer)) => text_config(wrapper, outer)?,
            _ => (name.to_owned(), value.clone()),
        };
        let family = FAMILIES.iter().find(|family| family.architecture == own);
        let family = family.ok_or_else(|| {
            format!(
                "{}, got {name:?}; llama.cpp may run a GGUF file of it (a build with --features \
                 llama, and the backend llama), and polydraft's Python package the transformers \
                 model itself",
                known()
            )
        })?;
        let mut config = (family.read)(family, &Fields::new(&text)?)?;
        if let Some(wrapper) = wrapper {
            config.architecture = wrapper.architecture;
            config.is_multimodal = true;
        }
        config.check()?;
        Ok(config)
    }
}

fn assistant(said: &Value) -> Option<&'static Wrapper> {
    let name = said.get("architectures").and_then(|all| all.get(0)).and_then(Value::as_str)?;
    ASSISTANTS.iter().find(|wrapper| wrapper.architecture == name)
}
