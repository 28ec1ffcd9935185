//! Parameters that a route does not support: rejected if they would change the output, else
//! reported as ignored.

use serde_json::{Map, Value};

use super::error::Problem;

/// Unsupported parameters of other servers that change the output, and their values without effect.
const CHANGING: [(&str, &[&str]); 51] = [
    ("adaptive_target", &["-1", "-1.0"]),
    ("add_generation_prompt", &["true"]),
    ("add_special_tokens", &["true"]),
    ("audio", &[]),
    ("background", &["false"]),
    ("bad_words", &["[]"]),
    ("best_of", &["1"]),
    ("chat_template", &[]),
    ("continue_final_message", &["false"]),
    ("conversation", &[]),
    ("documents", &["[]"]),
    ("dry_multiplier", &["0", "0.0"]),
    ("dynatemp_range", &["0", "0.0"]),
    ("early_stopping", &["false"]),
    ("function_call", &[r#""none""#]),
    ("functions", &["[]"]),
    ("grammar", &[r#""""#]),
    ("guided_choice", &[]),
    ("guided_grammar", &[]),
    ("guided_json", &[]),
    ("guided_regex", &[]),
    ("include_stop_str_in_output", &["false"]),
    ("input", &[]),
    ("json_schema", &["{}"]),
    ("length_penalty", &["1", "1.0"]),
    ("logits_processors", &["[]"]),
    ("lora", &["[]"]),
    ("messages", &[]),
    ("mirostat", &["0"]),
    ("modalities", &[r#"["text"]"#]),
    ("n_keep", &["0"]),
    ("no_repeat_ngram_size", &["0"]),
    ("previous_response_id", &[]),
    ("prompt", &[]),
    ("prompt_embeds", &["[]"]),
    ("prompt_logprobs", &[]),
    ("samplers", &[]),
    ("skip_special_tokens", &["true"]),
    ("suffix", &[r#""""#]),
    ("tfs_z", &["1", "1.0"]),
    ("tool_choice", &[r#""none""#]),
    ("tools", &["[]"]),
    ("top_a", &["0", "0.0"]),
    ("top_logprobs", &["0"]),
    ("top_n_sigma", &["-1", "-1.0", "0", "0.0"]),
    ("typical", &["1", "1.0"]),
    ("typical_p", &["1", "1.0"]),
    ("use_beam_search", &["false"]),
    ("web_search_options", &[]),
    ("xtc_probability", &["0", "0.0"]),
    ("xtc_threshold", &["0", "0.0"]),
];

/// Substitutes for some of them.
const INSTEAD: [(&str, &str); 4] = [
    ("chat_template", "start the server with --chat-template FILE"),
    ("conversation", "send previous_response_id, or the conversation in the input"),
    ("function_call", "send tool_choice"),
    ("functions", "send tools"),
];

/// Parameters without effect here, and their values that are not even reported as ignored.
const HARMLESS: [(&str, &[&str]); 8] = [
    ("include", &["[]"]),
    ("max_tool_calls", &[]),
    ("parallel_tool_calls", &["true", "false"]),
    ("reasoning", &["{}"]),
    ("service_tier", &[r#""auto""#, r#""default""#]),
    ("store", &["false"]),
    ("truncation", &[r#""disabled""#]),
    ("verbosity", &[]),
];

/// Names of the parameters that are ignored, because they have no effect or are unknown.
///
/// # Errors
/// The first unsupported parameter that would change the output; with `strict` also the first that
/// would be ignored.
pub fn ignored_params(rest: &Map<String, Value>, strict: bool) -> Result<Vec<String>, Problem> {
    let mut ignored = Vec::new();
    for (name, value) in rest.iter().filter(|(_, value)| !value.is_null()) {
        let neutral_values = |known: &[(&str, &'static [&'static str])]| {
            known.iter().find(|(known, _)| known == name).map(|(_, neutral)| *neutral)
        };
        let (changing, harmless) = (neutral_values(&CHANGING), neutral_values(&HARMLESS));
        let neutral = changing.or(harmless).unwrap_or_default();
        if neutral.contains(&value.to_string().as_str()) {
            continue;
        }
        if changing.is_some() || (strict && harmless.is_some()) {
            let hint = INSTEAD.iter().find(|(known, _)| known == name);
            let hint = hint.map(|(_, instead)| format!(": {instead}")).unwrap_or_default();
            let problem = format!("the parameter {name:?} is not supported{hint}");
            let problem = Problem::invalid(problem);
            return Err(problem.with_param(name).with_code("unsupported_parameter"));
        }
        if strict {
            let problem = Problem::invalid(format_args!("unknown parameter {name:?}"));
            return Err(problem.with_param(name).with_code("unknown_parameter"));
        }
        ignored.push(name.clone());
    }
    Ok(ignored)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ignored_names(value: Value, strict: bool) -> Result<Vec<String>, Option<String>> {
        let rest = value.as_object().expect("an object");
        ignored_params(rest, strict).map_err(|problem| problem.error.code.map(str::to_owned))
    }

    #[test]
    fn names_harmless_and_unknown_parameters() {
        let rest = json!({ "store": true, "cache_prompt": true, "verbosity": "low", "x": null,
            "best_of": 1, "truncation": "disabled" });
        let found = ignored_names(rest.clone(), false).expect("nothing that changes the output");
        assert_eq!(found, ["store", "cache_prompt", "verbosity"]);
        assert!(ignored_names(rest, true).is_err());
        let unknown = Some("unknown_parameter".to_owned());
        assert_eq!(ignored_names(json!({ "cache_prompt": true }), true), Err(unknown));
    }

    #[test]
    fn rejects_parameters_that_would_change_the_output() {
        for (name, neutral) in CHANGING {
            let unsupported = Err(Some("unsupported_parameter".to_owned()));
            assert_eq!(ignored_names(json!({ name: "some value" }), false), unsupported, "{name}");
            for value in neutral {
                let value: Value = serde_json::from_str(value).expect("a value");
                assert_eq!(ignored_names(json!({ name: value }), true), Ok(Vec::new()), "{name}");
            }
        }
    }
}
