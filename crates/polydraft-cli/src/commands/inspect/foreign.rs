//! Report on a GGUF file of an architecture that only llama.cpp supports, from its header.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Result;
use polydraft_models::Bytes;
use polydraft_runtime::{GgufDescription, has_llama};
use serde::Serialize;

use super::count;
use crate::output;

#[derive(Serialize)]
struct Report<'a> {
    directory: String,
    architecture: &'a str,
    parameters: u64,
    layers: u64,
    hidden: u64,
    context: u64,
    tokens: usize,
    tokenizer: &'static str,
    chat_template: bool,
    weight_bytes: u64,
    /// Error of the native backend.
    native: &'a str,
    /// Whether this program can run it on llama.cpp, according to the header.
    llama: bool,
}

/// Prints the report. `problem` is the native backend's error.
pub fn report(path: &Path, model: &GgufDescription, problem: &str, json: bool) -> Result<()> {
    let report = Report {
        directory: path.display().to_string(),
        architecture: &model.architecture,
        parameters: model.parameters,
        layers: model.layers,
        hidden: model.hidden,
        context: model.context,
        tokens: model.language.vocabulary.size(),
        tokenizer: model.language.tokenizer.kind(),
        chat_template: model.language.chat.is_some(),
        weight_bytes: model.bytes,
        native: problem,
        llama: has_llama(),
    };
    if json {
        return output::json(&report);
    }
    let mut out = std::io::stdout().lock();
    let terminal = out.is_terminal();
    let mut line = |name: &str, value: String| {
        let value = if terminal { output::visible(&value) } else { Cow::Borrowed(&value[..]) };
        writeln!(out, "{name:<16} {value}")
    };
    line("model", report.directory.clone())?;
    line("family", format!("{}, for llama.cpp: --backend llama", report.architecture))?;
    if !has_llama() {
        line(
            "",
            "this program was built without llama.cpp; build it with --features llama".to_owned(),
        )?;
    }
    line("native", format!("no: {problem}"))?;
    line("parameters", count(report.parameters))?;
    line("shape", format!("{} layers, width {}", report.layers, report.hidden))?;
    line("context", format!("{} tokens", report.context))?;
    line("tokenizer", format!("{}, {} tokens", report.tokenizer, report.tokens))?;
    line("chat template", if report.chat_template { "yes" } else { "none" }.to_owned())?;
    line("memory", format!("{} as stored", Bytes(report.weight_bytes)))?;
    Ok(())
}
