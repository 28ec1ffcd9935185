//! Keeps every answer in a file, so that an audit can go on where it was cut off, and so that
//! somebody else can go over it without the server.
//!
//! An audit is a function of its options and of the answers it gets: the same requests come in the
//! same order, and what the file has is not asked again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// What was answered: a body, or a status with what was said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// A body.
    Body(Value),
    /// A status that is no success, and the body as text.
    Status(u16, String),
}

#[derive(Serialize, Deserialize)]
struct Line {
    number: usize,
    request: Value,
    reply: Reply,
}

/// The answers of an audit, by the number of the request.
#[derive(Debug, Default)]
pub struct Journal {
    path: PathBuf,
    file: Option<File>,
    replies: HashMap<usize, (Value, Reply)>,
}

impl Journal {
    /// Reads what a file has, and appends to it.
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
                // The last line may have been cut off.
                Err(_) if !line.ends_with('}') => break,
                Err(error) => {
                    let reason =
                        format!("line {}: {error}; it is not the record of an audit", at + 1);
                    return Err(journal_error(reason));
                }
            }
        }
        Ok(Self { path: path.to_owned(), file: Some(file), replies })
    }

    /// The answer to a request, if it was given before.
    pub fn find(&self, number: usize, request: &Value) -> Result<Option<Reply>> {
        match self.replies.get(&number) {
            None => Ok(None),
            Some((replies, reply)) if replies == request => Ok(Some(reply.clone())),
            Some(_) => Err(Error::Journal {
                path: self.path.clone(),
                reason: format!(
                    "request {number} was another one there: the file is of an audit with other \
                     options or of another version; give the same options, or another file"
                ),
            }),
        }
    }

    /// Keeps an answer.
    pub fn append(&mut self, number: usize, request: &Value, reply: &Reply) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = Line { number, request: request.clone(), reply: reply.clone() };
        let mut text = serde_json::to_string(&line).expect("plain values");
        text.push('\n');
        file.write_all(text.as_bytes())
            .map_err(|error| Error::Journal { path: self.path.clone(), reason: error.to_string() })
    }
}
