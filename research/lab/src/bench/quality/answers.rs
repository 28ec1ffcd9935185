//! Checks whether an output is correct.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regex::Regex;

/// Criterion of a correct output.
#[derive(Debug)]
pub enum Check {
    /// This string, ignoring surrounding white space.
    Exact(String),
    /// An output that starts with this string.
    Prefix(String),
    /// An output whose first number equals this one.
    Number(f64),
    /// An output whose last number equals this one.
    LastNumber(f64),
    Regex(Regex),
    /// A program that the user's command accepts, with this code before and after it.
    Run {
        before: String,
        after: String,
    },
}

/// Runs programs from model output with the user's command.
pub struct Runner {
    pub command: String,
    /// Time limit.
    pub time: Duration,
}

impl Check {
    pub fn named(name: &str, answer: &str) -> Result<Self> {
        let number = || {
            number(answer).with_context(|| format!("expected a number as answer, got {answer:?}"))
        };
        Ok(match name {
            "exact" => Self::Exact(answer.trim().to_owned()),
            "prefix" => Self::Prefix(answer.trim().to_owned()),
            "number" => Self::Number(number()?),
            "regex" => Self::Regex(Regex::new(answer).context("expected a regex as answer")?),
            _ => bail!("\"check\": expected exact, prefix, number or regex, got {name:?}"),
        })
    }

    pub fn last_number(text: &str) -> Result<Self> {
        let last = numbers(text).last().copied();
        last.map(Self::LastNumber)
            .with_context(|| format!("expected a number as answer, got {text:?}"))
    }
}

impl Check {
    /// Whether an output is correct.
    pub fn accepts(&self, text: &str, runner: Option<&Runner>) -> Result<bool> {
        Ok(match self {
            Check::Exact(answer) => text.trim() == answer,
            Check::Prefix(answer) => text.trim_start().starts_with(answer.as_str()),
            Check::Number(answer) => numbers(text).first().is_some_and(|number| number == answer),
            Check::LastNumber(answer) => {
                numbers(text).last().is_some_and(|number| number == answer)
            }
            Check::Regex(regex) => regex.is_match(text),
            Check::Run { before, after } => match runner {
                Some(runner) => runner.accepts(&format!("{before}{text}{after}"))?,
                None => bail!("nothing is run without --run"),
            },
        })
    }
}

/// Returns the first number of a string.
fn number(text: &str) -> Option<f64> {
    numbers(text).first().copied()
}

/// Returns all numbers of a string. Commas between digits are skipped.
fn numbers(text: &str) -> Vec<f64> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let (mut all, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        if !digit(at) {
            at += 1;
            continue;
        }
        let mut word = String::new();
        if at > 0 && chars[at - 1] == '-' && !(at > 1 && chars[at - 2].is_alphanumeric()) {
            word.push('-');
        }
        while digit(at) || (matches!(chars.get(at), Some('.' | ',')) && digit(at + 1)) {
            if chars[at] != ',' {
                word.push(chars[at]);
            }
            at += 1;
        }
        all.extend(word.parse::<f64>().ok());
    }
    all
}

impl Runner {
    /// Whether the command exits with code 0 within the time limit, given this program on its
    /// standard input.
    fn accepts(&self, program: &str) -> Result<bool> {
        let mut child = Command::new("sh")
            .args(["-c", &self.command])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", self.command))?;
        let stdin = child.stdin.take();
        let program = program.to_owned();
        // Written by a thread, so that a command that does not read cannot block this one.
        let writer =
            std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(program.as_bytes())));
        let end = Instant::now() + self.time;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if Instant::now() >= end {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // Not joined: a grandchild process may keep the pipe open.
        drop(writer);
        Ok(status.is_some_and(|status| status.success()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found() {
        assert_eq!(numbers("a 1,072.5 b -3 x-4 1. 2"), [1072.5, -3.0, 4.0, 1.0, 2.0]);
        assert!(numbers("none").is_empty());
    }

    #[test]
    #[cfg(unix)]
    fn programs_are_run_by_the_command() {
        let runner = |command: &str| Runner {
            command: command.to_owned(),
            time: Duration::from_millis(400),
        };
        assert!(runner("grep -q answer").accepts("the answer\n").expect("run"));
        assert!(!runner("grep -q answer").accepts("nothing\n").expect("run"));
        let begun = Instant::now();
        assert!(!runner("exec sleep 20").accepts("x").expect("run"));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
