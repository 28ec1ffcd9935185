//! Kinds of records, and their detection.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Program that wrote a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Decode,
    Verifiers,
    Speed,
    Model,
    SolveTime,
    Acceptance,
    Generate,
    Paper,
    Quality,
    Table,
    Certify,
    Efficiency,
    /// Record of a script or of an unknown kind; its fields are shown as they are.
    Other,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "bench decode",
            Self::Verifiers => "bench verifiers",
            Self::Speed => "bench speed",
            Self::Model => "bench model",
            Self::SolveTime => "bench solve-time",
            Self::Acceptance => "bench acceptance",
            Self::Generate => "generate",
            Self::Paper => "bench paper",
            Self::Quality => "bench quality",
            Self::Table => "bench/table.py",
            Self::Certify => "certify",
            Self::Efficiency => "efficiency",
            Self::Other => "another program",
        }
    }

    fn from_value(value: &Value) -> Self {
        let has = |key: &str| value.get(key).is_some();
        let first = value.get("results").and_then(|results| results.get(0));
        let row_has = |key: &str| first.is_some_and(|row| row.get(key).is_some());
        match () {
            () if has("p_value") => Self::Certify,
            () if has("deviation")
                || value.get(0).is_some_and(|row| row.get("deviation").is_some()) =>
            {
                Self::Efficiency
            }
            () if row_has("pairs") && row_has("verifiers") => Self::Verifiers,
            () if has("verdict") && has("costs") => Self::Speed,
            () if has("paper") && has("tables") => Self::Paper,
            () if has("scores") && has("checked") => Self::Quality,
            () if value.pointer("/cells/0/speed").is_some() => Self::Table,
            () if has("memory_bytes_per_second") => Self::Model,
            () if has("datasets") && has("budget") => Self::SolveTime,
            () if has("rounds") && row_has("block_efficiency") => Self::Decode,
            () if has("acceptance") => Self::Acceptance,
            () if has("stats") && has("finish_reason") => Self::Generate,
            () => Self::Other,
        }
    }
}

/// Record with the file that it came from.
#[derive(Debug)]
pub struct Record {
    pub file: String,
    pub kind: Kind,
    pub value: Value,
}

/// Optional fields that all kinds of records share.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub machine: Option<String>,
    pub version: Option<String>,
    pub commit: Option<String>,
    pub rustc: Option<String>,
    pub profile: Option<String>,
    pub threads: Option<usize>,
    pub command: Option<String>,
    pub interrupted: bool,
}

impl Record {
    /// Deserializes the record into the type of its kind.
    pub fn read<R: DeserializeOwned>(&self) -> Result<R> {
        Ok(serde_json::from_value(self.value.clone())?)
    }

    pub fn origin(&self) -> Origin {
        // Scripts store these fields in an object of their own; lists of results, in each element.
        let inner =
            self.value.get("provenance").or_else(|| self.value.get(0)).unwrap_or(&self.value);
        serde_json::from_value(inner.clone()).unwrap_or_default()
    }
}

/// Maximum number of records in a file.
const MOST: usize = 4096;

/// Reads the records of a file.
pub fn read(file: &Path) -> Result<Vec<Record>> {
    let name = file.display().to_string();
    let text = polydraft_files::read_text(file, polydraft_files::FileKind::RECORD)
        .with_context(|| format!("cannot read {name}"))?;
    let mut records = Vec::new();
    for (number, value) in
        serde_json::Deserializer::from_str(&text).into_iter::<Value>().enumerate()
    {
        let value = value.with_context(|| {
            format!(
                "{name}: expected records, JSON as --json and --save write it; number {} is none",
                number + 1
            )
        })?;
        if number == MOST {
            bail!("{name}: expected at most {MOST} records, got more");
        }
        if !value.is_object() && !value.is_array() {
            bail!("{name}: expected records, JSON objects; number {} is {value}", number + 1);
        }
        let file =
            file.file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned());
        records.push(Record { file, kind: Kind::from_value(&value), value });
    }
    if records.is_empty() {
        bail!("{name}: expected records, got an empty file");
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_files_that_are_no_records() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("record.json");
        for (text, expected) in [
            ("", "empty"),
            ("no", "number 1 is none"),
            ("{} 3", "number 2 is 3"),
            ("{} {", "number 2"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = format!("{:#}", read(&path).expect_err(text));
            assert!(error.contains("record.json") && error.contains(expected), "{text}: {error}");
        }
        std::fs::write(&path, "{}".repeat(MOST + 1)).expect("written");
        assert!(read(&path).expect_err("too many").to_string().contains("at most 4096 records"));
        std::fs::write(&path, r#"{"p_value": 0.5}{"what": 1}"#).expect("written");
        let kinds: Vec<Kind> =
            read(&path).expect("two").into_iter().map(|record| record.kind).collect();
        assert_eq!(kinds, [Kind::Certify, Kind::Other]);
    }
}
