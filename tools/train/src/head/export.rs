//! Writes a head in the layout that EAGLE-3's authors publish theirs in.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use polydraft::Token;
use polydraft_models::TransformerModel;
use serde_json::json;

use super::net::Net;

/// `config.json` and `model.safetensors` (bf16) in `folder`. With `output` the target's rows that
/// the head borrows are written too, for programs that do not take them from there.
pub fn export(
    net: &Net,
    model: &TransformerModel,
    tokens: &[Token],
    output: bool,
    folder: &Path,
) -> Result<()> {
    fs::create_dir_all(folder)?;
    let target = model.config();
    let mut config = serde_json::to_value(&net.shape)?;
    let fixed = json!({
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "attention_bias": false,
        "mlp_bias": false,
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "vocab_size": target.vocabulary,
        "draft_vocab_size": tokens.len(),
        "max_position_embeddings": target.context,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    });
    if let (Some(config), Some(fixed)) = (config.as_object_mut(), fixed.as_object()) {
        config.extend(fixed.clone());
    }
    fs::write(folder.join("config.json"), serde_json::to_string_pretty(&config)? + "\n")?;
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    for (name, var) in &net.parameters {
        tensors.insert(name.clone(), var.to_dtype(DType::BF16)?);
    }
    let offsets: Vec<i64> =
        (0..).zip(tokens).map(|(j, token): (i64, _)| i64::from(*token) - j).collect();
    tensors.insert("d2t".to_owned(), Tensor::new(offsets, &Device::Cpu)?);
    if output {
        let rows = Tensor::from_vec(
            model.output_rows(tokens)?,
            (tokens.len(), target.hidden),
            &Device::Cpu,
        )?;
        tensors.insert("lm_head.weight".to_owned(), rows.to_dtype(DType::BF16)?);
    }
    // The format's own metadata entry, without which some readers refuse a file.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = folder.join("model.safetensors");
    safetensors::serialize_to_file(&tensors, Some(metadata), &path)?;
    Ok(())
}
