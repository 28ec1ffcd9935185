//! Prompt files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polydraft::Token;
use polydraft_files::{FileKind, read_text};
use serde::Deserialize;

use polydraft_runtime::Models;

/// Default prompts of measurements.
const DEFAULT_PROMPTS: &str = include_str!("../data/prompts.jsonl");

/// Prompts of a measurement.
#[derive(clap::Args, Debug)]
pub struct PromptArgs {
    /// File of prompts, one JSON object per line.
    ///
    /// Either {"prompt": "..."}, or {"turns": ["..."]} as in Spec-Bench, of which the first turn is
    /// used. [default: the project's own prompts; Rust code for the demo pair]
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

impl PromptArgs {
    /// Reads the prompts of the file, or the default ones: at least one.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has an invalid line.
    pub fn read(&self) -> Result<Vec<String>> {
        read(self.prompts.as_deref())
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Line {
    prompt: Option<String>,
    turns: Option<Vec<String>>,
}

/// Encodes prompts, each within the target's context.
pub fn encode(prompts: &[String], models: &Models) -> Result<Vec<Vec<Token>>> {
    let context = models.engine.info().context;
    let encode = |prompt: &String| Ok(models.language.tokenizer.encode_within(prompt, context)?);
    prompts.iter().map(encode).collect()
}

/// Parses one prompt per line: `{"prompt": ".."}`, or Spec-Bench's `{"turns": ["..", ..]}`, whose
/// first turn is used. Without a file, returns the default prompts.
fn read(path: Option<&Path>) -> Result<Vec<String>> {
    let (name, text) = match path {
        None => ("bench/prompts.jsonl".to_owned(), DEFAULT_PROMPTS.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            let text =
                read_text(path, FileKind::PROMPT).with_context(|| format!("cannot read {name}"))?;
            (name, text)
        }
    };
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let expected = || {
            format!(
                "{name}, line {}: expected {{\"prompt\": \"...\"}} or {{\"turns\": [\"...\"]}}",
                number + 1
            )
        };
        let line: Line =
            serde_json::from_str(line).map_err(|e| anyhow::anyhow!("{}: {}", expected(), e))?;
        let first_turn = || line.turns.and_then(|turns| turns.into_iter().next());
        prompts.push(line.prompt.or_else(first_turn).with_context(expected)?);
    }
    ensure!(!prompts.is_empty(), "{name} has no prompts");
    Ok(prompts)
}
