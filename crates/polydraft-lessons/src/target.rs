//! The parts of the target that a head's training needs: its shape, and the matrices that the head
//! shares.

use std::path::Path;

use anyhow::{Result, ensure};
use half::bf16;
use polydraft::Token;
use polydraft_models::{Config, Loaded, Positions};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::kinds::Kind;
use crate::origin::write_file;
use crate::shard::GROUP;

/// Rows read from a matrix at a time.
const ROWS: usize = 4096;

/// Returns the default layers whose inputs a head reads: the second, the middle one and the third
/// from the end, as in EAGLE-3; fewer for a model with few layers.
pub(crate) fn default_layers(layers: usize) -> Vec<usize> {
    let mut read = vec![2.min(layers), layers / 2, layers.saturating_sub(3).max(1)];
    read.sort_unstable();
    read.dedup();
    read
}

/// Writes `model.json`, and `model.safetensors` if it does not exist.
pub(crate) fn describe(folder: &Path, loaded: &Loaded, layers: &[usize]) -> Result<()> {
    let config = loaded.model.config();
    let Positions::Rotary(rope) = &config.positions else {
        anyhow::bail!("expected a target with rotary positions, got learned positions")
    };
    ensure!(
        config.embedding == config.hidden,
        "expected a target whose embeddings have the width of its layers"
    );
    let language = &loaded.language;
    let tokens = language.vocabulary.size();
    let info = json!({
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_dim,
        "rope_theta": rope.theta,
        "rms_norm_eps": config.norm_epsilon as f32,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "logit_scale": config.logit_scale,
        "logit_softcap": config.logit_softcap,
        "tokens": tokens,
        "tied": config.tied,
        "end_tokens": language.answer_end_tokens(),
        "layers": layers,
        "group": GROUP,
        "kinds": Kind::ALL.map(Kind::name),
    });
    let matrices = folder.join("model.safetensors");
    if !matrices.exists() {
        let embedding = rows(config, tokens, &|tokens| Ok(loaded.model.embedding_rows(tokens)?))?;
        let output = match config.tied {
            true => Vec::new(),
            false => rows(config, tokens, &|tokens| Ok(loaded.model.output_rows(tokens)?))?,
        };
        let norm = loaded.model.last_norm().unwrap_or_default();
        let norm: Vec<u8> = norm.iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape = vec![tokens, config.hidden];
        let mut tensors =
            vec![("embedding", TensorView::new(Dtype::BF16, shape.clone(), &embedding)?)];
        if !output.is_empty() {
            tensors.push(("output", TensorView::new(Dtype::BF16, shape, &output)?));
        }
        if !norm.is_empty() {
            tensors.push(("norm", TensorView::new(Dtype::F32, vec![config.hidden], &norm)?));
        }
        write_file(&matrices, &safetensors::serialize(tensors, None)?)?;
    }
    write_file(&folder.join("model.json"), &serde_json::to_vec_pretty(&info)?)
}

fn rows(
    config: &Config,
    tokens: usize,
    read: &dyn Fn(&[Token]) -> Result<Vec<f32>>,
) -> Result<Vec<u8>> {
    let all: Vec<Token> = (0..tokens as Token).collect();
    let mut bytes = Vec::with_capacity(tokens * config.hidden * 2);
    for chunk in all.chunks(ROWS) {
        bytes.extend(read(chunk)?.into_iter().flat_map(|x| bf16::from_f32(x).to_le_bytes()));
    }
    Ok(bytes)
}
