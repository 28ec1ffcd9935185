//! EXAONE 3 and 3.5: Llama under other names of fields and tensors.
//!
//! Source: LG AI Research 2024.

use polydraft_text::Fields;
use serde_json::Value;

use super::common::{Family, Result, llama_biases, llama_like};
use crate::config::Config;
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "ExaoneForCausalLM", read };

const NAMES: Names = Names {
    embedding: "transformer.wte",
    layers: "transformer.h",
    query_key_value: &["attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"],
    attention_output: "attn.attention.out_proj",
    attention_norms: ["ln_1", ""],
    mlp_norms: ["ln_2", ""],
    mlp_in: &["mlp.c_fc_0", "mlp.c_fc_1"],
    mlp_out: "mlp.c_proj",
    norm: "transformer.ln_f",
    ..LLAMA_NAMES
};

/// Names of fields in published files, with Llama's.
const FIELDS: [(&str, &str); 3] = [
    ("num_layers", "num_hidden_layers"),
    ("layer_norm_epsilon", "rms_norm_eps"),
    ("activation_function", "hidden_act"),
];

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut renamed = fields.to_value();
    for (published, known) in FIELDS {
        if let (Some(value), Some(all)) = (fields.get::<Value>(published)?, renamed.as_object_mut())
        {
            all.entry(known).or_insert(value);
        }
    }
    let fields = Fields::new(&renamed)?;
    let mut config = llama_like(family, &fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.biases = llama_biases(&fields)?;
    config.names = &NAMES;
    Ok(config)
}
