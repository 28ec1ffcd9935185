//! Writes a trained model in the layout that Hugging Face uses.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Tensor};
use serde_json::json;

use crate::model::Decoder;

/// The model was not trained to talk: what it is told becomes a comment, and what it says to that
/// is code.
const CHAT_TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' \
    %}{{ m.content + '\n\n' }}\
                             {% else %}{{ '/// ' + m.content | replace('\n', '\n/// ') + '\n' }}{% \
                             endif %}{% endfor %}";
const END: &str = "<|endoftext|>";

/// `config.json`, `generation_config.json`, `tokenizer_config.json`, `tokenizer.json` and
/// `model.safetensors` (bf16) in `folder`.
pub fn export(model: &Decoder, tokenizer: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut config = serde_json::to_value(model.shape)?;
    let fixed = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": false,
        "mlp_bias": false,
        "hidden_act": "silu",
        "tie_word_embeddings": true,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    });
    if let (Some(config), Some(fixed)) = (config.as_object_mut(), fixed.as_object()) {
        config.extend(fixed.clone());
    }
    fs::write(folder.join("config.json"), serde_json::to_string_pretty(&config)? + "\n")?;
    let generation =
        json!({ "bos_token_id": 0, "eos_token_id": 0, "do_sample": true, "temperature": 1.0 });
    fs::write(
        folder.join("generation_config.json"),
        serde_json::to_string_pretty(&generation)? + "\n",
    )?;
    let special = json!({ "bos_token": END, "eos_token": END, "chat_template": CHAT_TEMPLATE });
    fs::write(
        folder.join("tokenizer_config.json"),
        serde_json::to_string_pretty(&special)? + "\n",
    )?;
    fs::copy(tokenizer, folder.join("tokenizer.json"))?;
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    for (name, var) in &model.parameters {
        tensors.insert(name.clone(), var.to_dtype(DType::BF16)?);
    }
    // The format's own metadata entry, without which some readers refuse a file.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(&tensors, Some(metadata), &folder.join("model.safetensors"))?;
    Ok(())
}
