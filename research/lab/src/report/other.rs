//! Records of scripts, of `bench drafting` and of unknown kinds, shown as tables of their fields.

use std::collections::HashSet;

use anyhow::Result;
use serde_json::{Map, Value};

use super::page::{Cell, Section};
use super::record::Record;

/// Known records. Each kind is identified by two JSON pointers that only its records have.
const KNOWN: [([&str; 2], &str); 16] = [
    (
        ["/rounds/0/requests", "/rounds/0/milliseconds_between_chunks"],
        "bench/load.py: the server under load",
    ),
    (["/bodies", "/half_open"], "bench/hostile.py: the server among hostile clients"),
    (
        ["/alone_seconds", "/beside_seconds"],
        "bench/first_token.py: the time to first token, alone and during a long prefill",
    ),
    (
        ["/rows", "/draft_temperature"],
        "bench drafting: the largest acceptance at a node, by how its drafts are drawn",
    ),
    (["/what", "/cases"], "bench/llama_cpp.py: beside llama.cpp, in turn"),
    (
        ["/cases/0/tokens_per_pass", "/prompts"],
        "research/bench/mtp_paths.py: a trained MTP layer, one chain and several paths",
    ),
    (["/points", "/dtype"], "python -m polydraft.train: a draft head as it learns"),
    (["/cells/0/speed", "/cells/0/head"], "bench speed with two draft heads, in turn"),
    (["/rows", "/costs"], "a head beside n-grams in one tree"),
    (["/rows", "/tables"], "research/bench/learned_ngrams.py: n-grams that a model learned"),
    (
        ["/temperature", "/rows/0/relative_speed"],
        "bench/learned_by_use.py: a server that learns from its requests",
    ),
    (["/rows", "/forms"], "research/bench/head_forms.py: draft heads of several forms"),
    (["/what", "/gpu"], "research/bench/gpu: on a GPU"),
    (["/what", "/rows"], "bench/llama_server.py: the server beside llama-server, in turn"),
    (["/audits", "/error_rate"], "bench/audit_repeatedly.py: many audits of a lossless server"),
    (["/rows", "/provenance"], "bindings/python/bench: inside transformers"),
];

fn title(record: &Record) -> Option<&'static str> {
    let known =
        |pointers: [&str; 2]| pointers.iter().all(|path| record.value.pointer(path).is_some());
    KNOWN.iter().find(|(pointers, _)| known(*pointers)).map(|(_, title)| *title)
}

/// Whether the record is of a known kind.
pub fn is_known(record: &Record) -> bool {
    title(record).is_some()
}

pub fn section(record: &Record) -> Result<Section> {
    let title =
        title(record).unwrap_or("A record of a kind that this version does not know: its contents");
    let mut section = Section::new(record).titled(title);
    let mut single = Vec::new();
    match &record.value {
        Value::Object(fields) => {
            let shown = fields.iter().take(FIELDS);
            shown.for_each(|(name, value)| part(&mut section, &mut single, name, value));
            left_out(fields.len(), FIELDS, "fields").iter().for_each(|note| section.text(note));
        }
        value => part(&mut section, &mut single, "values", value),
    }
    if !single.is_empty() {
        section.table("Single values", "", &["what", "value"], &single);
    }
    Ok(section)
}

/// Maximum number of fields of a record, and of rows and columns of a table, to show.
const FIELDS: usize = 256;
const ROWS: usize = 1000;
const COLUMNS: usize = 64;

/// Returns a note about entries that are not shown, if there are any.
fn left_out(there: usize, shown: usize, what: &str) -> Option<String> {
    (there > shown).then(|| format!("{} more {what} are not shown", there - shown))
}

/// Adds a table for an object or a list of objects, and a row of `single` for other values.
fn part(section: &mut Section, single: &mut Vec<Vec<Cell>>, name: &str, value: &Value) {
    if name == "provenance" {
        return;
    }
    let title = name.replace('_', " ");
    match value {
        Value::Array(rows) if rows.first().is_some_and(Value::is_object) => {
            let note = left_out(rows.len(), ROWS, "rows");
            let rows: Vec<Map<String, Value>> = rows.iter().take(ROWS).map(flat).collect();
            let (mut head, mut known): (Vec<&str>, HashSet<&str>) = Default::default();
            head.extend(
                rows.iter().flat_map(Map::keys).map(String::as_str).filter(|key| known.insert(key)),
            );
            let more = left_out(head.len(), COLUMNS, "columns");
            head.truncate(COLUMNS);
            let cells = rows.iter().map(|row| head.iter().map(|key| cell(row.get(*key))).collect());
            let notes: Vec<String> = note.into_iter().chain(more).collect();
            section.table(&title, &notes.join("; "), &head, &cells.collect::<Vec<Vec<Cell>>>());
        }
        Value::Object(_) => {
            let fields = flat(value);
            let note = left_out(fields.len(), ROWS, "rows").unwrap_or_default();
            let rows = fields
                .iter()
                .take(ROWS)
                .map(|(key, value)| vec![Cell::words(key), cell(Some(value))]);
            section.table(&title, &note, &["", "value"], &rows.collect::<Vec<_>>());
        }
        value => single.push(vec![Cell::words(title), cell(Some(value))]),
    }
}

/// Flattens nested objects; the names of both levels are joined.
fn flat(value: &Value) -> Map<String, Value> {
    let mut all = Map::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => {
                flat(value).into_iter().for_each(|(inner, value)| {
                    all.insert(format!("{key}, {inner}"), value);
                });
            }
            value => {
                all.insert(key.clone(), value.clone());
            }
        }
    }
    all
}

/// Maximum length of a list or string to show in full.
const LONG: usize = 80;

fn cell(value: Option<&Value>) -> Cell {
    match value {
        None | Some(Value::Null) => Cell::words("–"),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(value) if number.is_f64() => Cell::Figure(short(value)),
            _ => Cell::Figure(number.to_string()),
        },
        Some(Value::String(text)) => Cell::words(cut(text)),
        Some(Value::Array(values)) => {
            let words = values.iter().map(|value| value.as_f64().map_or(value.to_string(), short));
            Cell::words(cut(&words.collect::<Vec<_>>().join(", ")))
        }
        Some(value) => Cell::words(cut(&value.to_string())),
    }
}

/// Formats a number with four significant digits.
fn short(value: f64) -> String {
    let size = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    if !(-4.0..9.0).contains(&size) {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.*}", (3.0 - size).clamp(0.0, 6.0) as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONG) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records with many rows or columns are truncated, with a note about the rest.
    #[test]
    fn tables_are_bounded() {
        let rows: Vec<Value> =
            (0..1500).map(|row| serde_json::json!({ format!("k{row}"): row })).collect();
        let value = serde_json::json!({ "a": rows });
        let record = Record { file: String::new(), kind: super::super::record::Kind::Other, value };
        let page = super::super::page::html("", &[section(&record).expect("a section")]);
        assert!(
            page.contains("500 more rows are not shown; 936 more columns are not shown"),
            "{page}"
        );
        assert_eq!((page.matches("<th ").count(), page.matches("<tr>").count()), (64, 1001));
    }

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (2996.3, "2996"),
            (9.6, "9.6"),
            (0.00012345, "0.000123"),
            (1e-9, "1.000e-9"),
            (3.88, "3.88"),
        ] {
            assert_eq!(short(value), expected);
        }
    }
}
