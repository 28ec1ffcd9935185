//! Multimodal models: only the text part is loaded, which belongs to one of the families. Its
//! fields are in `text_config` or at the top level; its tensors have a prefix.

use serde_json::{Map, Value, json};

use super::common::Result;
use super::qwen_moe;
use crate::names::{ExpertNames, Layout, Names};

/// A model around a text part.
pub(super) struct Wrapper {
    /// Name of the architecture in `config.json`.
    pub architecture: &'static str,
    /// Default of the text part's `model_type`.
    pub text: &'static str,
}

const QWEN3_VL_MOE: &str = "Qwen3VLMoeForConditionalGeneration";

const TRANSPOSED_EXPERTS: Names = Names {
    experts: ExpertNames {
        mlp_in: &["mlp.experts.gate_up_proj"],
        mlp_out: "mlp.experts.down_proj",
        layout: Layout::ColumnsInHalves,
        ..qwen_moe::NAMES.experts
    },
    ..qwen_moe::NAMES
};

impl Wrapper {
    /// Names of the tensors, if they are not those of the text part's family.
    pub fn names(&self) -> Option<&'static Names> {
        (self.architecture == QWEN3_VL_MOE).then_some(&TRANSPOSED_EXPERTS)
    }
}

pub(super) const WRAPPERS: &[Wrapper] = &[
    Wrapper { architecture: "Gemma3ForConditionalGeneration", text: "gemma3_text" },
    Wrapper { architecture: "Gemma4ForConditionalGeneration", text: "gemma4_text" },
    Wrapper { architecture: "Gemma4UnifiedForConditionalGeneration", text: "gemma4_unified_text" },
    Wrapper { architecture: "Mistral3ForConditionalGeneration", text: "mistral" },
    Wrapper { architecture: "Qwen2VLForConditionalGeneration", text: "qwen2_vl_text" },
    Wrapper { architecture: "Qwen2_5_VLForConditionalGeneration", text: "qwen2_5_vl_text" },
    Wrapper { architecture: "Qwen3VLForConditionalGeneration", text: "qwen3_vl_text" },
    Wrapper { architecture: QWEN3_VL_MOE, text: "qwen3_vl_moe_text" },
    Wrapper { architecture: "Qwen3_5ForConditionalGeneration", text: "qwen3_5_text" },
    Wrapper { architecture: "Qwen3_5MoeForConditionalGeneration", text: "qwen3_5_moe_text" },
    Wrapper { architecture: "Lfm2VlForConditionalGeneration", text: "lfm2" },
    Wrapper { architecture: "Lfm3VlForConditionalGeneration", text: "lfm3" },
    Wrapper { architecture: "LlavaForConditionalGeneration", text: "llama" },
    Wrapper { architecture: "InternVLForConditionalGeneration", text: "qwen2" },
    Wrapper { architecture: "Cohere2VisionForConditionalGeneration", text: "cohere2" },
    Wrapper { architecture: "SmolVLMForConditionalGeneration", text: "llama" },
    Wrapper { architecture: "Idefics3ForConditionalGeneration", text: "llama" },
];

/// Assistants: drafters that are published with a model and read its KV cache.
pub(super) const ASSISTANTS: &[Wrapper] = &[
    Wrapper { architecture: "Gemma4AssistantForCausalLM", text: "gemma4_text" },
    Wrapper { architecture: "Gemma4UnifiedAssistantForCausalLM", text: "gemma4_unified_text" },
];

/// Architectures of text parts by their `model_type`.
const TEXT_ARCHITECTURES: &[(&str, &str)] = &[
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("ministral3", "Ministral3ForCausalLM"),
    ("mistral4", "Mistral4ForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen2_vl_text", "Qwen2ForCausalLM"),
    ("qwen2_5_vl_text", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_vl_text", "Qwen3ForCausalLM"),
    ("qwen3_vl_moe_text", "Qwen3MoeForCausalLM"),
    ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    ("lfm2", "Lfm2ForCausalLM"),
    ("lfm2_moe", "Lfm2MoeForCausalLM"),
    ("lfm3", "Lfm3ForCausalLM"),
    ("gemma3_text", "Gemma3ForCausalLM"),
    ("gemma4_text", "Gemma4ForCausalLM"),
    ("gemma4_unified_text", "Gemma4UnifiedForCausalLM"),
    ("cohere2", "Cohere2ForCausalLM"),
];

/// Models that are tied if their own field or that of the text part says so. In all others their
/// own field decides. Source: transformers 5.24.
const TIED_BY_EITHER: [&str; 3] = [
    "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
];

/// Fields of the text part that published files omit, by its `model_type`.
fn defaults(model_type: &str) -> Value {
    match model_type {
        "gemma3_text" => json!({
            "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "max_position_embeddings": 131_072,
        }),
        "gemma4_text" | "gemma4_unified_text" => json!({
            "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4,
            "max_position_embeddings": if model_type == "gemma4_text" { 131_072 } else { 262_144 },
        }),
        "mistral" | "llama" => json!({ "vocab_size": 32_000, "num_attention_heads": 32 }),
        _ => json!({}),
    }
}

/// Architecture and fields of the text part.
pub(super) fn text_config(
    wrapper: &Wrapper,
    outer: &Map<String, Value>,
) -> Result<(String, Value)> {
    let inner = match outer.get("text_config") {
        Some(Value::Object(inner)) => inner,
        Some(Value::Null) | None => outer,
        Some(other) => return Err(format!("text_config: expected an object, got {other}")),
    };
    // At the top level, `model_type` is that of the multimodal model.
    let model_type = inner.get("model_type").and_then(Value::as_str).filter(|_| inner != outer);
    let kind = model_type.unwrap_or(wrapper.text);
    let Some((_, architecture)) = TEXT_ARCHITECTURES.iter().find(|(known, _)| *known == kind)
    else {
        let known: Vec<&str> = TEXT_ARCHITECTURES.iter().map(|(known, _)| *known).collect();
        return Err(format!(
            "text_config: model_type: expected one of {}, got {kind:?}; llama.cpp may run a GGUF \
             file of it (a build with --features llama, and the backend llama)",
            known.join(", ")
        ));
    };
    let mut fields = defaults(kind).as_object().cloned().unwrap_or_default();
    for shared in ["eos_token_id", "tie_word_embeddings", "vocab_size"] {
        if let Some(value) = outer.get(shared) {
            fields.insert(shared.to_owned(), value.clone());
        }
    }
    let given = inner.iter().filter(|(_, value)| !value.is_null());
    fields.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    let is_tied =
        |fields: &Map<String, Value>| fields.get("tie_word_embeddings").and_then(Value::as_bool);
    if let Some(of_model) = is_tied(outer) {
        let either = TIED_BY_EITHER.contains(&wrapper.architecture);
        let tied = of_model || either && is_tied(inner) == Some(true);
        fields.insert("tie_word_embeddings".to_owned(), json!(tied));
    }
    Ok(((*architecture).to_owned(), Value::Object(fields)))
}

/// Name of a tensor of the text part in its family.
pub(crate) fn rename_text_tensor(name: &str) -> String {
    const PREFIXES: [(&str, &str); 5] = [
        ("language_model.model.", "model."),
        ("model.language_model.", "model."),
        ("model.text_model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("language_model.", "model."),
    ];
    let found = PREFIXES.iter().find_map(|(from, to)| Some((name.strip_prefix(from)?, to)));
    found.map_or(name.to_owned(), |(rest, to)| format!("{to}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As transformers 5.24 ties the output matrix: for each pair of fields, the model's own and
    /// that of its text part.
    #[test]
    fn own_field_ties_or_in_some_models_either() {
        for wrapper in WRAPPERS {
            let either = TIED_BY_EITHER.contains(&wrapper.architecture);
            for (own, of_text, expected) in [
                (json!(true), json!(true), true),
                (json!(true), json!(false), true),
                (json!(true), json!(null), true),
                (json!(false), json!(true), either),
                (json!(false), json!(false), false),
                (json!(null), json!(true), true),
                (json!(null), json!(false), false),
            ] {
                let mut outer = Map::new();
                outer.insert("tie_word_embeddings".to_owned(), own.clone());
                outer.insert("text_config".to_owned(), json!({ "tie_word_embeddings": of_text }));
                let (_, fields) = text_config(wrapper, &outer).unwrap();
                let case = format!("{}: {own}, {of_text}", wrapper.architecture);
                assert_eq!(fields["tie_word_embeddings"], expected, "{case}");
            }
        }
    }
}
