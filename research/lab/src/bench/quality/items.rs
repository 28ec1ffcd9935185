//! Prompts with answers, in the published formats.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use polydraft_files::{FileKind, read_text};
use serde::Deserialize;

use super::answers::Check;

/// The project's own prompts.
const OWN: &str = include_str!("../../../../../bench/quality.jsonl");

/// A prompt with the criterion of a correct output.
#[derive(Debug)]
pub struct Item {
    /// Line number.
    pub number: usize,
    pub kind: String,
    pub prompt: String,
    pub check: Check,
    pub stop: Vec<String>,
    pub max_tokens: usize,
}

/// Fields of all formats.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Line {
    prompt: Option<String>,
    answer: Option<String>,
    check: Option<String>,
    kind: Option<String>,
    stop: Option<Vec<String>>,
    question: Option<String>,
    turns: Option<Vec<String>>,
    category: Option<String>,
    #[serde(default)]
    reference: Vec<String>,
    test: Option<String>,
    entry_point: Option<String>,
}

/// Maximum numbers of tokens for a short answer, and for a derivation or program.
const SHORT: usize = 24;
const LONG: usize = 256;
/// Strings that end a function of HumanEval.
const AFTER_FUNCTION: [&str; 5] = ["\nclass ", "\ndef ", "\n#", "\nif ", "\nprint("];

/// Reads the items of a file, or the project's own. Also returns the number of prompts without an
/// answer that can be checked.
pub fn read(file: Option<&Path>, runs: bool) -> Result<(Vec<Item>, usize)> {
    let (name, text) = match file {
        None => ("bench/quality.jsonl".to_owned(), OWN.to_owned()),
        Some(file) => {
            let name = file.display().to_string();
            let text =
                read_text(file, FileKind::PROMPT).with_context(|| format!("cannot read {name}"))?;
            (name, text)
        }
    };
    let (mut items, mut skipped) = (Vec::new(), 0);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let location = || format!("{name}, line {}", number + 1);
        let line: Line =
            serde_json::from_str(line).map_err(|e| anyhow!("{}: {}", location(), e))?;
        match item(number, line, runs).with_context(location)? {
            Some(item) => items.push(item),
            None => skipped += 1,
        }
    }
    ensure!(!items.is_empty(), "{name}: no prompt has an answer that can be checked");
    Ok((items, skipped))
}

fn item(number: usize, line: Line, runs: bool) -> Result<Option<Item>> {
    let item = |kind: Option<String>, prompt, check, stop, max_tokens| {
        let kind = kind.unwrap_or_else(|| "all".to_owned());
        Ok(Some(Item { number, kind, prompt, check, stop, max_tokens }))
    };
    match line {
        Line { prompt: Some(prompt), test: Some(test), entry_point: Some(entry), .. } => {
            ensure!(
                runs,
                "this is a program to be written and run, as in HumanEval: nothing is run unless \
                 --run COMMAND says how"
            );
            let after = format!("\n{test}\ncheck({entry})\n");
            let stop = AFTER_FUNCTION.map(str::to_owned).to_vec();
            item(line.kind, prompt.clone(), Check::Run { before: prompt, after }, stop, LONG)
        }
        Line { question: Some(question), answer: Some(answer), .. } => {
            let (_, number) =
                answer.rsplit_once("####").context("expected an answer after ####, as in GSM8K")?;
            let check = Check::last_number(number)?;
            item(line.kind.or(line.category), question, check, Vec::new(), LONG)
        }
        Line { turns: Some(turns), reference, category, .. } => {
            let prompt = turns.into_iter().next().context("expected at least one turn")?;
            match reference.first().map(|reference| Check::last_number(reference)) {
                Some(Ok(check)) => item(category, prompt, check, Vec::new(), LONG),
                _ => Ok(None),
            }
        }
        Line { prompt: Some(prompt), answer: Some(answer), check, kind, stop, .. } => {
            let check = Check::named(check.as_deref().unwrap_or("exact"), &answer)?;
            let stop = stop.unwrap_or_else(|| vec!["\n".to_owned()]);
            item(kind, prompt, check, stop, SHORT)
        }
        _ => bail!(
            "expected \"prompt\" and \"answer\", or \"question\" and \"answer\" (GSM8K), \"turns\" \
             and \"reference\" (Spec-Bench), \
             or \"prompt\", \"test\" and \"entry_point\" (HumanEval)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str, runs: bool) -> Result<Option<Item>> {
        item(0, serde_json::from_str(line).expect("a line"), runs)
    }

    #[test]
    fn published_forms_are_read() {
        let gsm = one(r#"{"question": "How many?", "answer": "It is 7.\n#### 1,072"}"#, false);
        let gsm = gsm.expect("read").expect("an item");
        assert!(gsm.check.accepts("So 3 and 4: the answer is 1072.", None).expect("checked"));
        assert!(!gsm.check.accepts("1072 or 1073", None).expect("checked"));
        let spec = r#"{"question_id": 1, "category": "math_reasoning", "turns": ["2 + 2?"],
            "reference": ["4"]}"#;
        assert_eq!(one(spec, false).expect("read").expect("an item").kind, "math_reasoning");
        let talk = r#"{"category": "writing", "turns": ["Write."], "reference": []}"#;
        assert!(one(talk, false).expect("read").is_none());
        let human = r#"{"task_id": "HumanEval/0", "prompt": "def f():\n",
            "test": "def check(f): pass", "entry_point": "f"}"#;
        assert!(format!("{:#}", one(human, false).expect_err("nothing is run")).contains("--run"));
        assert!(one(human, true).expect("read").is_some());
        assert!(
            format!("{:#}", one(r#"{"prompt": "x"}"#, false).expect_err("no answer"))
                .contains("\"answer\"")
        );
        let wrong = one(r#"{"prompt": "x", "answer": "(", "check": "regex"}"#, false);
        assert!(format!("{:#}", wrong.expect_err("no regex")).contains("regex"));
    }

    #[test]
    fn built_in_items_are_complete() {
        let (items, skipped) = read(None, false).expect("read");
        assert!((60..=100).contains(&items.len()) && skipped == 0, "{}", items.len());
        let mut kinds: Vec<&str> = items.iter().map(|item| item.kind.as_str()).collect();
        kinds.dedup();
        assert!(kinds.len() >= 6, "{kinds:?}");
    }
}
