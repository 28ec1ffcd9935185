//! Damaged files: whatever is changed in one, it is a model or an error, and the process lives.
//! POLYDRAFT_DAMAGED says how many are tried, in place of a few hundred.
#![cfg(feature = "native")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use polydraft::DraftTree;
use polydraft_llama::{Error, load};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use support::*;

const FROM: &str = "POLYDRAFT_DAMAGED_FROM";
const COUNT: &str = "POLYDRAFT_DAMAGED";
const USUAL: usize = 600;
/// Exit code of a process in which llama.cpp has ended, and said so.
const ENDED: i32 = 3;

fn count() -> usize {
    std::env::var(COUNT).map_or(USUAL, |count| count.parse().expect("a number"))
}

/// Changes a file somewhere, most often in its header.
fn damage(bytes: &mut Vec<u8>, header: usize, rng: &mut ChaCha12Rng) {
    for _ in 0..rng.random_range(1..4) {
        let end = if rng.random_bool(0.9) { header } else { bytes.len() };
        let at = rng.random_range(0..end - 8);
        match rng.random_range(0..5) {
            0 | 1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => bytes[at] = rng.random(),
            3 => {
                let value = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX][rng.random_range(0..5)];
                bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            }
            _ if rng.random_bool(0.1) => bytes.truncate(at + 8),
            _ => rng.fill_bytes(&mut bytes[at..at + 8]),
        }
        if bytes.len() < header {
            return;
        }
    }
}

/// Loads a file and computes with it. True if that was possible.
fn works(bytes: &[u8]) -> Result<bool, Error> {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let mut model = match load(file.path(), &options()) {
        Ok(loaded) => loaded.model,
        Err(ended @ Error::Ended { .. }) => return Err(ended),
        Err(_) => return Ok(false),
    };
    let sequence = model.open().unwrap();
    let text: Vec<u32> =
        (0..5).filter(|token| *token < model.info().vocabulary.size() as u32).collect();
    let Ok(()) = model.extend(sequence, &text) else { return Ok(false) };
    match model.score(&[(sequence, &DraftTree::new())]) {
        Ok(()) => Ok(true),
        Err(polydraft_engine::Error::Model { source, .. }) => match source.downcast::<Error>() {
            Ok(ended) if matches!(*ended, Error::Ended { .. }) => Err(*ended),
            _ => Ok(false),
        },
        Err(_) => Ok(false),
    }
}

#[test]
#[ignore = "a part of another test"]
fn tries() {
    let Ok(from) = std::env::var(FROM) else { return };
    let whole = Kind::ALL.map(|kind| writer(kind, 1, 1.0).finish());
    let name = b".weight";
    let headers = whole.each_ref().map(|bytes| {
        let last = bytes.windows(name.len()).rposition(|bytes| bytes == name);
        last.expect("tensors have names") + 48
    });
    for number in from.parse().expect("a number")..count() {
        let (whole, header) = (&whole[number % 3], headers[number % 3]);
        let mut bytes = whole.clone();
        damage(&mut bytes, header, &mut ChaCha12Rng::seed_from_u64(number as u64));
        println!("at {number}");
        match works(&bytes) {
            Ok(works) => println!("done {works}"),
            Err(ended) => {
                println!("ended {ended}");
                polydraft_llama::leave(ENDED);
            }
        }
    }
}

#[test]
fn a_damaged_file_is_a_model_or_an_error() {
    let (mut next, mut taken, mut refused, mut ends, mut crashes) =
        (0, 0, 0, Vec::new(), Vec::new());
    while next < count() {
        let mut child =
            apart("tries", &[(FROM, &next.to_string())]).stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            // The harness writes before the first.
            let line = line.rsplit_once("... ").map_or(line.as_str(), |(_, line)| line);
            match line.split_once(' ') {
                Some(("at", number)) => next = number.parse::<usize>().unwrap() + 1,
                Some(("done", "true")) => taken += 1,
                Some(("done", "false")) => refused += 1,
                Some(("ended", said)) => ends.push(format!("{}: {said}", next - 1)),
                _ => {}
            }
        }
        match child.wait().unwrap().code() {
            Some(0 | ENDED) => {}
            code => crashes.push(format!("{}: exit code {code:?}", next - 1)),
        }
    }
    eprintln!(
        "{taken} taken, {refused} refused, {} ended llama.cpp:\n{}",
        ends.len(),
        ends.join("\n")
    );
    assert!(crashes.is_empty(), "{}", crashes.join("\n"));
    assert!(taken > 0 && refused > 0);
    assert_eq!(taken + refused + ends.len(), count());
}
