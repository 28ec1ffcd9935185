//! File of all answers, so that an audit can be resumed, or repeated without the server.
//!
//! An audit is a function of its options and of the answers: requests are numbered in a
//! reproducible order, and answered requests of the file are not sent again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// Answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Body of a successful response.
    Body(Value),
    /// Status of a failed response, and its body as text.
    Status(u16, String),
}

#[derive(Serialize, Deserialize)]
struct Line {
    number: usize,
    request: Value,
    reply: Reply,
}

/// Answers of an audit, by number of the request.
#[derive(Debug, Default)]
pub struct Journal {
    path: PathBuf,
    file: Option<File>,
    replies: HashMap<usize, (Value, Reply)>,
}

impl Journal {
    /// Opens or creates a file; reads its answers and appends new ones.
    pub fn open(path: &Path) -> Result<Self> {
        let journal_error = |reason: String| Error::Journal { path: path.to_owned(), reason };
        let file = OpenOptions::new().create(true).read(true).append(true).open(path);
        let file = file.map_err(|error| journal_error(error.to_string()))?;
        let mut replies = HashMap::new();
        for (at, line) in BufReader::new(&file).lines().enumerate() {
            let line = line.map_err(|error| journal_error(error.to_string()))?;
            match serde_json::from_str::<Line>(&line) {
                Ok(Line { number, request, reply }) => {
                    replies.insert(number, (request, reply));
                }
                // The last line may be incomplete.
                Err(_) if !line.ends_with('}') => break,
                Err(error) => {
                    let reason =
                        format!("line {}: {error}; expected the record of an audit", at + 1);
                    return Err(journal_error(reason));
                }
            }
        }
        Ok(Self { path: path.to_owned(), file: Some(file), replies })
    }

    /// Returns the saved answer to a request.
    pub fn find(&self, number: usize, request: &Value) -> Result<Option<Reply>> {
        match self.replies.get(&number) {
            None => Ok(None),
            Some((replies, reply)) if replies == request => Ok(Some(reply.clone())),
            Some(_) => Err(Error::Journal {
                path: self.path.clone(),
                reason: format!(
                    "request {number} differs from the saved one: the file is of an audit with \
                     other options or of another version; give the same options or another file"
                ),
            }),
        }
    }

    /// Appends an answer.
    pub fn append(&mut self, number: usize, request: &Value, reply: &Reply) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = Line { number, request: request.clone(), reply: reply.clone() };
        let mut text = serde_json::to_string(&line).expect("plain values");
        text.push('\n');
        file.write_all(text.as_bytes())
            .map_err(|error| Error::Journal { path: self.path.clone(), reason: error.to_string() })
    }
}
