//! Directories and files of draft heads.

use std::path::Path;

use anyhow::{Context, Result};
use polydraft::{PolicyKind, VerifierKind};
use polydraft_engine::{Drafter, Engine, Limits, Request, Speculation};
use polydraft_models::{
    HeadOptions, LoadOptions, is_block_head, is_head, load, load_block_head, load_head,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::{read, repository, write};
use crate::mutation::{self, Dice};

const HEADS: [(&str, &str); 12] = [
    ("eagle1", "model.safetensors"),
    ("original", "pytorch_model.bin"),
    ("specforge", "model.safetensors"),
    ("speculators", "model.safetensors"),
    ("speculators-qwen3", "model.safetensors"),
    ("whole", "model.safetensors"),
    ("assistant", "model.safetensors"),
    ("dflash", "model.safetensors"),
    ("dflash-windows", "model.safetensors"),
    ("dspark", "model.safetensors"),
    ("dspark-speculators", "model.safetensors"),
    ("dflash2", "model.safetensors"),
];

/// Loads a draft head with one changed file, and drafts for an unchanged target.
pub fn directory(dice: &mut Dice, folder: &Path) -> Result<()> {
    let fixtures = "crates/polydraft-models/tests/heads";
    let (head, weights) = HEADS[dice.below(HEADS.len())];
    let folder = folder.join("head");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).context("cannot make a folder")?;
    let is_file = dice.one_in(3);
    if let (true, Ok(mut bytes)) = (is_file, read(&format!("{fixtures}/{head}/model.gguf"))) {
        // Mostly in the header, which describes the head, rather than in the weights.
        mutation::bytes(dice, &mut bytes, 4_000);
        let file = folder.join("model.gguf");
        write(&file, &bytes)?;
        return used(head, &file);
    }
    let mut config: Value =
        serde_json::from_slice(&read(&format!("{fixtures}/{head}/config.json"))?)?;
    let mut tensors = read(&format!("{fixtures}/{head}/{weights}"))?;
    let spoilt = dice.below(5);
    if spoilt < 3 {
        mutation::json(dice, &mut config);
    } else if weights.ends_with(".bin") {
        mutation::bytes(dice, &mut tensors, usize::MAX);
    } else {
        mutation::safetensors(dice, &mut tensors);
    }
    write(&folder.join("config.json"), &mutation::written(dice, &config))?;
    write(&folder.join(weights), &tensors)?;
    used(head, &folder)
}

/// Loads `found` as a draft head with this name, and drafts with it.
fn used(head: &str, found: &Path) -> Result<()> {
    let path = repository(match head {
        "assistant" => "crates/polydraft-models/tests/fixtures/gemma4",
        _ => "crates/polydraft-models/tests/heads/target",
    });
    let mut target = load(&path, LoadOptions::default())?;
    is_head(found);
    let options = HeadOptions::default();
    let head: Box<dyn Drafter> = match is_block_head(found) {
        true => Box::new(load_block_head(found, &mut target.model, &path, &options)?),
        false => Box::new(load_head(found, &mut target.model, &options)?),
    };
    let verifier = "nested-priority".parse::<VerifierKind>()?.build()?;
    let request = Request::new([3, 4])
        .speculation(Speculation::new(verifier, PolicyKind::paths(2, 2).build()?)?)
        .limits(Limits::tokens(4))
        .rng(ChaCha8Rng::seed_from_u64(1));
    Engine::new(Box::new(target.model), Some(head)).generate(request, &mut |_| true)?;
    Ok(())
}
