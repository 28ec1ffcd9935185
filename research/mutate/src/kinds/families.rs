//! Models of 2024 to 2026 with one changed file.

use std::path::Path;

use anyhow::Result;
use polydraft_models::{HeadOptions, LoadOptions, load, load_mtp};
use serde_json::Value;

use super::{models, read, write};
use crate::mutation::{self, Dice};

/// Fixtures, one per family. Most have a GGUF file as well, written by llama.cpp's converter.
const MODELS: [&str; 64] = [
    "fixtures/smollm3",
    "fixtures/granite",
    "fixtures/olmo2",
    "fixtures/olmo3",
    "fixtures/phi3",
    "fixtures/phi4",
    "fixtures/glm4",
    "fixtures/ministral3",
    "fixtures/cohere2",
    "fixtures/exaone4",
    "fixtures/seed-oss",
    "fixtures/arcee",
    "fixtures/qwen2-vl",
    "fixtures/mistral3",
    "fixtures/gemma3-nested",
    "fixtures/mixtral",
    "fixtures/qwen2-moe",
    "fixtures/qwen3-moe",
    "fixtures/olmoe",
    "fixtures/glm4-moe",
    "fixtures/gpt-oss",
    "fixtures/deepseek-v2",
    "fixtures/deepseek-v3",
    "fixtures/granite-moe-shared",
    "heads/mtp-glm",
    "heads/mtp-deepseek",
    "fixtures/qwen3-next",
    "fixtures/qwen3-next-moe",
    "fixtures/qwen3-5",
    "fixtures/qwen3-5-nested",
    "fixtures/qwen3-5-moe",
    "heads/mtp-qwen",
    "heads/mtp-mimo",
    "heads/mtp-nemotron",
    "fixtures/lfm2",
    "fixtures/lfm2-moe",
    "fixtures/granite-hybrid",
    "fixtures/granite-hybrid-moe",
    "fixtures/granite-hybrid-attention",
    "fixtures/nemotron-h",
    "fixtures/nemotron-h-moe",
    "fixtures/nemotron-h-latent",
    "fixtures/gemma4",
    "fixtures/gemma4-moe",
    "fixtures/gemma4-nested",
    "fixtures/gemma4-unified",
    "fp8/blocks",
    "fp8/edges",
    "fp8/scales",
    "fp8/stacked",
    "packed/ct-group",
    "packed/ct-bytes",
    "packed/ct-experts",
    "packed/gptq",
    "packed/gptq-v2",
    "packed/gptq-symmetric",
    "packed/awq",
    "packed/nvfp4",
    "packed/nvfp4-modelopt",
    "packed/mxfp4",
    "packed/mxfp8",
    "packed/bnb-nf4",
    "packed/bnb-fp4",
    "packed/bnb-int8",
];

pub fn model(dice: &mut Dice, folder: &Path) -> Result<()> {
    let model = MODELS[dice.below(MODELS.len())];
    let seed = |name: &str| read(&format!("crates/polydraft-models/tests/{model}/{name}"));
    let is_file = dice.one_in(2);
    if let (true, Ok(mut bytes)) = (is_file, seed("model.gguf")) {
        // Mostly in the header, which describes the model, rather than in the weights.
        mutation::bytes(dice, &mut bytes, 6_000);
        let path = folder.join("model.gguf");
        write(&path, &bytes)?;
        models::used(&path, dice)?;
        return further(model, &path);
    }
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let mut contents = seed(name)?;
        match (name, dice.one_in(3)) {
            ("config.json", false) => {
                let mut document: Value = serde_json::from_slice(&contents)?;
                mutation::json(dice, &mut document);
                contents = mutation::written(dice, &document);
            }
            ("model.safetensors", true) => mutation::safetensors(dice, &mut contents),
            _ => {}
        }
        write(&folder.join(name), &contents)?;
    }
    models::used(folder, dice)?;
    further(model, folder)
}

/// Loads the model's MTP layer, if it is a fixture that has one.
fn further(model: &str, path: &Path) -> Result<()> {
    if model.starts_with("heads") {
        let options = LoadOptions { memory: Some(64 << 20), ..LoadOptions::default() };
        let mut target = load(path, options)?.model;
        load_mtp(path, &mut target, &HeadOptions::default())?;
    }
    Ok(())
}
