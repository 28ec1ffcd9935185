//! Answers to command lines that other programs would take: options of llama.cpp's and vLLM's, a
//! model or a prompt where none is expected.

use std::ffi::OsString;
use std::path::Path;

/// Options of other programs, and what to give instead.
const OPTIONS: [(&[&str], &str); 35] = [
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
    (
        &["--no-mmap", "--mlock", "-mmp"],
        "leave it out: files are mapped, and read where that is not possible",
    ),
    (
        &["-b", "-ub", "--batch-size", "--ubatch-size", "--max-num-batched-tokens"],
        "leave it out: prompts are read in batches of the best measured size",
    ),
    (
        &["-cb", "--cont-batching", "--enable-prefix-caching", "--cache-prompt", "--swap-space"],
        "leave it out: requests are batched as they come, and share beginnings (--cache-memory)",
    ),
    (&["--gpu-memory-utilization"], "--cache-memory MIB, for what is kept of prompts"),
    (&["--trust-remote-code"], "leave it out: code of models is never run"),
    (&["--chat-template-file"], "--chat-template FILE"),
    (&["--kv-cache-dtype"], "--cache-type TYPE"),
    (
        &["--quantization", "--device", "-dev"],
        "leave it out: files are computed in their own types, on the CPU",
    ),
    (&["--metrics", "--slots", "--props"], "leave it out: metrics are on (--no-metrics)"),
    (&["--n-gram", "--spec-type"], "--draft ngram"),
    (
        &["--draft-min", "--draft-n-min", "--draft-p-min"],
        "leave it out: lengths of drafts are chosen by measured costs and acceptance",
    ),
    (&["--no-webui"], "leave it out, or serve the page behind a proxy: it is part of the server"),
    (&["--webui"], "leave it out: the page is at the server's address"),
    (
        &["--lora", "--lora-scaled", "--enable-lora", "--lora-modules"],
        "leave it out: merge adapters into the weights first; adapters are not applied",
    ),
    (
        &["--embeddings", "--embedding", "--rerank", "--reranking", "--pooling"],
        "leave it out: the server generates text, and computes no embeddings",
    ),
    (&["--models-dir", "--models-preset"], "--model NAME=PATH for each model of serve"),
    (&["--sleep-idle-seconds"], "--unload-after MINUTES"),
    (&["--enforce-eager"], "leave it out: nothing is captured or compiled at the start"),
    (
        &["--repeat-penalty", "--repetition-penalty", "--presence-penalty", "--frequency-penalty"],
        "give it in a request to the server; generate and chat have no penalties",
    ),
    (&["--reasoning-budget"], "thinking_token_budget in a request, or in --request-defaults"),
];

/// Commands of other programs, and what to give instead.
const COMMANDS: [(&[&str], &str); 4] = [
    (
        &["run"],
        "'polydraft chat MODEL' to talk, 'polydraft generate MODEL --prompt TEXT' for a text",
    ),
    (&["pull", "download"], "leave it out: a hub id is downloaded by the first command with it"),
    (&["ls", "ps"], "models are files, folders and hub ids: 'polydraft inspect MODEL'"),
    (&["show", "info"], "'polydraft inspect MODEL'"),
];

/// Advice for a command line that was refused, or taken for a request for help because `-hf` begins
/// with `-h`. It begins with the program's name; `names` are the options of this program.
pub fn advice(
    line: impl IntoIterator<Item = OsString>,
    names: &[String],
    is_refused: bool,
) -> Option<String> {
    let words: Vec<String> = line.into_iter().filter_map(|word| word.into_string().ok()).collect();
    let advice = option_advice(&words, names);
    advice.or_else(|| place_advice(words.get(1..).filter(|_| is_refused)?))
}

/// Advice for a model without a command, and for a prompt that is no option.
fn place_advice(words: &[String]) -> Option<String> {
    let is_model =
        |word: &String| word.ends_with(".gguf") || Path::new(word).join("config.json").exists();
    let quoted = |words: &[String]| words.join(" ").replace('\'', "'\\''");
    match words {
        [model, ..] if is_model(model) => Some(format!(
            "to use {model}: 'polydraft generate {model} --prompt TEXT', 'polydraft chat {model}' \
             or 'polydraft serve {model}'"
        )),
        [command, options @ ..]
            if command == "chat" && options.iter().any(|word| word == "--prompt") =>
        {
            let one = "to answer one message: 'polydraft generate MODEL --chat --prompt TEXT'";
            Some(one.to_owned())
        }
        [command, _, prompt @ ..]
            if matches!(&**command, "generate" | "chat")
                && !prompt.is_empty()
                && !words.iter().any(|word| word.starts_with('-')) =>
        {
            Some(match command.as_str() {
                "generate" => format!("the prompt is an option: --prompt '{}'", quoted(prompt)),
                _ => "type messages after the start; --system TEXT comes before them".to_owned(),
            })
        }
        [command, ..] => {
            let known = COMMANDS.iter().find(|(others, _)| others.contains(&&command[..]));
            known.map(|(_, ours)| format!("instead of {command}: {ours}"))
        }
        _ => None,
    }
}

/// Advice for the first option of another program.
fn option_advice(words: &[String], names: &[String]) -> Option<String> {
    words.iter().find_map(|word| {
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
            advice(line.split(' ').map(OsString::from), &own, true)
        };
        assert_eq!(advised("serve -np 2").as_deref(), Some("instead of -np: --parallel N"));
        assert_eq!(
            advised("serve x --ctx-size=512").as_deref(),
            Some("instead of --ctx-size: --context N")
        );
        assert_eq!(advised("serve x --draft y"), None);
        let advised = |line: &str| advised(line).unwrap();
        assert!(advised("polydraft a.gguf").contains("'polydraft chat a.gguf'"));
        assert!(advised("polydraft run a/b").contains("'polydraft chat MODEL'"));
        assert!(advised("polydraft pull a/b").contains("downloaded by the first command"));
        assert!(advised("polydraft chat a --prompt hi").contains("--chat --prompt"));
        let expected = "the prompt is an option: --prompt 'hello there'";
        assert_eq!(advised("polydraft generate a.gguf hello there"), expected);
    }
}
