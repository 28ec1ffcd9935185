//! Messages from a terminal with a line editor, or from a pipe.

use std::io::{self, BufRead, IsTerminal, Read, StdinLock};
use std::path::PathBuf;

use anyhow::{Context, Result};
use polydraft_files::FileKind;
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};

/// Result of reading a line.
pub enum Line {
    Message(String),
    /// Invalid message, with the reason.
    Rejected(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// Source of messages.
pub enum Input {
    Terminal {
        editor: Box<DefaultEditor>,
        /// History file, if there is a folder for it.
        history: Option<PathBuf>,
    },
    Pipe(StdinLock<'static>),
}

impl Input {
    pub fn open() -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe(io::stdin().lock()));
        }
        // Uses the terminal itself, since answers may be redirected. A pasted block is one line,
        // through bracketed paste.
        let config = Config::builder().behavior(Behavior::PreferTerm).bracketed_paste(true).build();
        let mut editor =
            DefaultEditor::with_config(config).context("cannot read from the terminal")?;
        let history = history_file();
        if let Some(file) = &history {
            // The file does not exist the first time.
            let _ = editor.load_history(file);
        }
        Ok(Self::Terminal { editor: Box::new(editor), history })
    }

    /// Returns whether messages are typed at a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Reads the next message.
    pub fn next(&mut self) -> Result<Line> {
        match self {
            Self::Terminal { editor, history } => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    if let Some(file) = history {
                        // A failure does not end the conversation.
                        let _ = editor.append_history(file);
                    }
                    Ok(Line::Message(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error).context("cannot read a message from the terminal"),
            },
            Self::Pipe(input) => line(input).context("cannot read a message from standard input"),
        }
    }
}

/// Reads a line, which may be of any bytes and length.
fn line(input: &mut impl BufRead) -> io::Result<Line> {
    let most = FileKind::PROMPT.max_bytes;
    let mut bytes = Vec::new();
    input.by_ref().take(most + 1).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(Line::End);
    }
    if bytes.len() as u64 > most && !bytes.ends_with(b"\n") {
        input.skip_until(b'\n')?;
        return Ok(Line::Rejected(format!(
            "expected a message of at most {} MiB, got a longer one",
            most >> 20
        )));
    }
    Ok(match polydraft_files::decode_utf8(bytes) {
        Ok(text) => Line::Message(text),
        Err(error) => Line::Rejected(format!("message: {error}")),
    })
}

/// Returns the path of `polydraft/history` in the system's folder for state.
fn history_file() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .or_else(|| absolute("LOCALAPPDATA"))?;
    let folder = state.join("polydraft");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_of_any_bytes() {
        let mut input = &b"one\n\xff\n\nlast"[..];
        let mut next = || match line(&mut input).unwrap() {
            Line::Message(text) => format!("message {text:?}"),
            Line::Rejected(why) => why,
            Line::Interrupted => "interrupted".to_owned(),
            Line::End => "end".to_owned(),
        };
        assert_eq!(next(), "message \"one\\n\"");
        assert!(next().contains("UTF-8"));
        assert_eq!(next(), "message \"\\n\"");
        assert_eq!(next(), "message \"last\"");
        assert_eq!(next(), "end");
    }

    #[test]
    fn rejects_endless_line_in_little_memory() {
        let mut input = io::BufReader::new(
            io::repeat(b'x').take(FileKind::PROMPT.max_bytes + 5).chain(&b"\nhi\n"[..]),
        );
        assert!(matches!(line(&mut input).unwrap(), Line::Rejected(why) if why.contains("64 MiB")));
        assert!(matches!(line(&mut input).unwrap(), Line::Message(text) if text == "hi\n"));
    }
}
