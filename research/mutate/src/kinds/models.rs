//! Model directories with one changed file.

use std::path::Path;

use anyhow::Result;
use polydraft_engine::{Engine, Limits, Request};
use polydraft_models::{Description, LoadOptions, Precision, load};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{read, write};
use crate::mutation::{self, Dice};

/// Small models, one per family.
const MODELS: [&str; 7] = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "opt", "opt-post-norm"];

pub fn directory(dice: &mut Dice, folder: &Path) -> Result<()> {
    let model = MODELS[dice.below(MODELS.len())];
    let seed = |name: &str| read(&format!("crates/polydraft-models/tests/fixtures/{model}/{name}"));
    let generation = json!({"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.7,
        "top_k": 5, "top_p": 0.9});
    let settings = json!({
        "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true,
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    });
    let files = [
        ("config.json", seed("config.json")?),
        ("tokenizer.json", seed("tokenizer.json")?),
        ("model.safetensors", seed("model.safetensors")?),
        ("generation_config.json", generation.to_string().into_bytes()),
        ("tokenizer_config.json", settings.to_string().into_bytes()),
    ];
    let spoilt = [0, 0, 0, 0, 1, 2, 2, 2, 3, 4][dice.below(10)];
    for (number, (name, contents)) in files.iter().enumerate() {
        let mut contents = contents.clone();
        if number == spoilt {
            match serde_json::from_slice::<Value>(&contents) {
                Ok(mut document) => {
                    mutation::json(dice, &mut document);
                    contents = mutation::written(dice, &document);
                }
                Err(_) => mutation::safetensors(dice, &mut contents),
            }
        }
        write(&folder.join(name), &contents)?;
    }
    // Sometimes sharded.
    let index = folder.join("model.safetensors.index.json");
    let _ = std::fs::remove_file(&index);
    if dice.one_in(10) {
        std::fs::rename(folder.join("model.safetensors"), folder.join("a.safetensors"))?;
        let mut document =
            json!({"metadata": {}, "weight_map": {"model.norm.weight": "a.safetensors"}});
        mutation::json(dice, &mut document);
        write(&index, &mutation::written(dice, &document))?;
    }
    used(folder, dice)
}

/// Prints a model's description, loads it, and generates a few tokens.
pub fn used(path: &Path, dice: &mut Dice) -> Result<()> {
    let read = Description::read(path).map(drop);
    let precision = Precision::ALL[dice.below(Precision::ALL.len())];
    let copy = dice.one_in(4).then_some(Precision::Q8_0);
    let loaded = load(
        path,
        LoadOptions {
            precision,
            self_draft: copy,
            memory: Some(64 << 20),
            ..LoadOptions::default()
        },
    )?;
    read?;
    let text = &loaded.language.tokenizer;
    let prompt = text.encode_within("hi ho", 100)?;
    let request = Request::new(&prompt[..])
        .limits(Limits::tokens(3))
        .detokenizer(text.stream(&prompt))
        .rng(ChaCha8Rng::seed_from_u64(1));
    Engine::new(Box::new(loaded.model), None).generate(request, &mut |_| true)?;
    Ok(())
}
