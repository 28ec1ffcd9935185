//! Structure-aware mutations: of JSON, of text, of bytes.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

/// Random choices, determined by a seed.
pub struct Dice(pub ChaCha8Rng);

impl Dice {
    /// Returns a number below `most`, or 0 if `most` is 0.
    pub fn below(&mut self, most: usize) -> usize {
        (self.0.next_u64() % most.max(1) as u64) as usize
    }

    /// Returns true with probability 1 / `count`.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Edge cases of lengths, counts and floats.
const NUMBERS: [&str; 30] = [
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e-310",
    "5e-324",
    "1e-300",
    "1e-45",
    "1e38",
    "1e300",
    "1.7976931348623157e308",
    "0.5",
    "0.1",
    "0.9999999999999999",
    "-1e308",
];

/// Strings that often break parsers.
const TEXT_FILES: [&str; 24] = [
    "",
    " ",
    "\0",
    "\n",
    "\u{1b}[2J",
    "\u{feff}",
    "\u{202e}x",
    "é",
    "\u{10ffff}",
    "▁",
    "Ġ",
    "<s>",
    "</s>",
    "<unk>",
    "[MASK]",
    "##",
    "{{",
    "{%",
    "..",
    "/",
    "a/../b",
    "/dev/zero",
    "(?:a+)+$",
    "\\p{L}",
];

/// Returns a random JSON value.
fn value(dice: &mut Dice) -> Value {
    match dice.below(9) {
        0 => Value::Null,
        1 => Value::Bool(dice.one_in(2)),
        2..=4 => serde_json::from_str(NUMBERS[dice.below(NUMBERS.len())]).unwrap_or(Value::Null),
        5 => TEXT_FILES[dice.below(TEXT_FILES.len())].into(),
        6 => TEXT_FILES[dice.below(TEXT_FILES.len())].repeat(1 + dice.below(5_000)).into(),
        7 => json!([]),
        _ => {
            // Nested, but within the parser's depth limit.
            let inner = value(dice);
            (0..dice.below(100)).fold(inner, |inner, _| json!([inner]))
        }
    }
}

/// Lists the positions of all values in a document, each as the child indices from the root.
fn paths(document: &Value, here: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    all.push(here.clone());
    let count = match document {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    // At most 24 children: further elements of a long list are alike.
    for child in 0..count.min(24) {
        here.push(child);
        let inner = match document {
            Value::Array(items) => &items[child],
            Value::Object(fields) => fields.values().nth(child).unwrap_or(&Value::Null),
            _ => &Value::Null,
        };
        paths(inner, here, all);
        here.pop();
    }
}

fn at<'a>(document: &'a mut Value, offset: &[usize]) -> &'a mut Value {
    let Some((&first, rest)) = offset.split_first() else { return document };
    match document {
        Value::Array(items) => at(&mut items[first], rest),
        Value::Object(fields) => {
            at(fields.values_mut().nth(first).expect("a place that was listed"), rest)
        }
        _ => document,
    }
}

/// Changes a document at a few positions.
pub fn json(dice: &mut Dice, document: &mut Value) {
    let times = if dice.one_in(2) { 1 } else { 1 + dice.below(3) };
    for _ in 0..times {
        let mut all = Vec::new();
        paths(document, &mut Vec::new(), &mut all);
        let (offset, other) =
            (all[dice.below(all.len())].clone(), all[dice.below(all.len())].clone());
        let copied = at(document, &other).clone();
        let there = at(document, &offset);
        match (dice.below(8), &mut *there) {
            (0 | 1, _) => *there = value(dice),
            (2, _) => *there = copied,
            (3, Value::Array(items)) if !items.is_empty() => {
                drop(items.remove(dice.below(items.len())))
            }
            (4, Value::Array(items)) if !items.is_empty() => {
                let item = items[dice.below(items.len())].clone();
                items.extend(std::iter::repeat_n(item, 1 + dice.below(40)));
            }
            (3, Value::Object(fields)) if !fields.is_empty() => {
                let key = fields.keys().nth(dice.below(fields.len())).cloned().unwrap_or_default();
                fields.remove(&key);
            }
            (4, Value::Object(fields)) if !fields.is_empty() => {
                let key = fields.keys().nth(dice.below(fields.len())).cloned().unwrap_or_default();
                let inner = fields.remove(&key).unwrap_or_default();
                let mut key = key;
                text(dice, &mut key);
                fields.insert(key, inner);
            }
            (_, Value::String(words)) => text(dice, words),
            (_, Value::Number(number)) => {
                let moved = match (number.as_i64(), dice.below(4)) {
                    (Some(n), 0) => json!(n.wrapping_add(1)),
                    (Some(n), 1) => json!(n.wrapping_sub(1)),
                    (Some(n), 2) => json!(n.wrapping_mul(2)),
                    (None, 0..=2) => json!(number.as_f64().unwrap_or(0.0) * 1.000_001),
                    _ => value(dice),
                };
                *there = moved;
            }
            (_, Value::Object(fields)) => {
                let key = TEXT_FILES[dice.below(TEXT_FILES.len())].to_owned();
                fields.insert(key, copied);
            }
            _ => *there = value(dice),
        }
    }
}

/// Serializes a document, and sometimes damages the bytes.
pub fn written(dice: &mut Dice, document: &Value) -> Vec<u8> {
    let mut out = document.to_string().into_bytes();
    if dice.one_in(12) {
        bytes(dice, &mut out, usize::MAX);
    }
    out
}

/// Moves, duplicates, deletes and inserts substrings.
pub fn text(dice: &mut Dice, text: &mut String) {
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..1 + dice.below(3) {
        let offset = dice.below(characters.len() + 1);
        let end = (offset + dice.below(12)).min(characters.len());
        match dice.below(5) {
            0 => drop(characters.drain(offset..end)),
            1 => {
                let chunk: Vec<char> = characters[offset..end].to_vec();
                let times = if dice.one_in(8) { 500 } else { 1 + dice.below(3) };
                for _ in 0..times {
                    characters.splice(offset..offset, chunk.iter().copied());
                }
            }
            2 => {
                characters.splice(offset..offset, TEXT_FILES[dice.below(TEXT_FILES.len())].chars());
            }
            3 => {
                characters.splice(offset..end, NUMBERS[dice.below(NUMBERS.len())].chars());
            }
            _ if offset < characters.len() => {
                characters[offset] = char::from(32 + dice.below(95) as u8)
            }
            _ => {}
        }
    }
    *text = characters.into_iter().collect();
}

/// Flips, deletes, duplicates and moves bytes, and overwrites numbers; mostly within the first
/// `header` bytes.
pub fn bytes(dice: &mut Dice, bytes: &mut Vec<u8>, header: usize) {
    const SPECIAL: [u64; 12] = [
        0,
        1,
        31,
        255,
        65_536,
        u32::MAX as u64,
        1 << 32,
        1 << 40,
        i64::MAX as u64,
        1 << 63,
        u64::MAX,
        u64::MAX / 4 + 1,
    ];
    let times = if dice.one_in(2) { 1 } else { 1 + dice.below(4) };
    for _ in 0..times {
        let length = if dice.one_in(4) { bytes.len() } else { bytes.len().min(header) };
        let offset = dice.below(length);
        match dice.below(6) {
            0 | 1 if offset < bytes.len() => bytes[offset] ^= 1 << dice.below(8),
            2 => bytes.truncate(offset),
            3 => drop(bytes.drain(offset..(offset + 1 + dice.below(16)).min(bytes.len()))),
            4 => {
                let chunk = bytes[offset..(offset + dice.below(64)).min(bytes.len())].to_vec();
                let to = dice.below(bytes.len() + 1);
                bytes.splice(to..to, chunk);
            }
            _ => {
                let number = SPECIAL[dice.below(SPECIAL.len())].to_le_bytes();
                let end = (offset + [4, 8][dice.below(2)]).min(bytes.len());
                bytes[offset..end].copy_from_slice(&number[..end - offset]);
            }
        }
    }
}

/// Changes the header of a safetensors file. The stored header length is updated more often than
/// not.
pub fn safetensors(dice: &mut Dice, file: &mut Vec<u8>) {
    let length = file.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let header = file
        .get(8..8 + length)
        .and_then(|header| serde_json::from_slice::<Map<String, Value>>(header).ok());
    let Some(header) = header.filter(|_| !dice.one_in(3)) else { return bytes(dice, file, 2_000) };
    let mut header = Value::Object(header);
    json(dice, &mut header);
    let header = written(dice, &header);
    let declared = if dice.one_in(6) { dice.below(1 << 20) as u64 } else { header.len() as u64 };
    *file = [&declared.to_le_bytes()[..], &header, &file[8 + length..]].concat();
}
