//! Options of llama.cpp's and vLLM's programs, answered with ours.

use std::ffi::OsString;

/// Options of other programs, and what to give instead.
const OPTIONS: [(&[&str], &str); 17] = [
    (&["-m", "--model-path"], "give the model as the first argument, or with --target"),
    (&["-hf", "--hf-repo", "-hfr"], "give OWNER/NAME or OWNER/NAME:FILE as the model"),
    (&["-md", "--model-draft", "--speculative-config"], "--draft MODEL"),
    (&["-c", "--ctx-size", "--max-model-len"], "--context N"),
    (&["-np", "--max-num-seqs"], "--parallel N"),
    (&["-a", "--alias", "--served-model-name"], "--name NAME"),
    (&["-tb", "--threads-batch"], "--batch-threads N"),
    (&["--n-predict", "--predict"], "--max-tokens N"),
    (&["--temp"], "--temperature T"),
    (&["--draft-max", "--draft-n", "--draft"], "--tree paths:1,N"),
    (&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], "--cache-type TYPE"),
    (
        &["-ngl", "--gpu-layers", "--n-gpu-layers", "--tensor-parallel-size"],
        "--gpu-layers N, in a build with llama.cpp; else leave it out: models run on the CPU",
    ),
    (&["-fa", "--flash-attn"], "leave it out: attention is never computed in another way"),
    (&["--mmproj"], "leave it out: of models that read images only the text part is computed"),
    (
        &["--jinja", "--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"],
        "leave it out: calls and reasoning are read in the form of the model's chat template",
    ),
    (&["--n-gram", "--spec-type"], "--draft ngram"),
    (&["--reasoning-budget"], "thinking_token_budget in a request, or in --request-defaults"),
];

/// Advice for the first option of another program in a command line that was refused.
pub fn advice(line: impl IntoIterator<Item = OsString>, names: &[String]) -> Option<String> {
    line.into_iter().find_map(|word| {
        let word = word.into_string().ok()?;
        let name = word.split('=').next().unwrap_or_default();
        if names.iter().any(|own| own == name) {
            return None;
        }
        let (_, ours) = OPTIONS.iter().find(|(others, _)| others.contains(&name))?;
        Some(format!("instead of {name}: {ours}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_our_option_for_another_programs() {
        let advised = |line: &str| {
            let own = ["--draft".to_owned()];
            advice(line.split(' ').map(OsString::from), &own)
        };
        assert_eq!(advised("serve -np 2").as_deref(), Some("instead of -np: --parallel N"));
        assert_eq!(
            advised("serve x --ctx-size=512").as_deref(),
            Some("instead of --ctx-size: --context N")
        );
        assert_eq!(advised("serve x --draft y"), None);
    }
}
