//! Loads damaged files: each is a model or an error, and the process survives. POLYDRAFT_DAMAGED
//! sets the number of files, in place of a few hundred.
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
const DEFAULT_COUNT: usize = 600;
/// Exit code of a process in which llama.cpp has aborted and reported an error.
const ABORTED: i32 = 3;

fn count() -> usize {
    std::env::var(COUNT).map_or(DEFAULT_COUNT, |count| count.parse().expect("a number"))
}

/// Changes random bytes of a file, mostly in its header.
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

/// Loads a file and computes with it. Returns whether that was possible.
fn load_and_score(bytes: &[u8]) -> Result<bool, Error> {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let mut model = match load(file.path(), &options()) {
        Ok((model, _)) => model,
        Err(ended @ Error::Ended { .. }) => return Err(ended),
        Err(_) => return Ok(false),
    };
    let sequence = model.open().unwrap();
    let tokens: Vec<u32> =
        (0..5).filter(|token| *token < model.info().vocabulary.size() as u32).collect();
    let Ok(()) = model.extend(sequence, &tokens) else { return Ok(false) };
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
fn child_loads_damaged_files() {
    let Ok(from) = std::env::var(FROM) else { return };
    let files = Kind::ALL.map(|kind| writer(kind, 1, 1.0).finish());
    let name = b".weight";
    let headers = files.each_ref().map(|bytes| {
        let last = bytes.windows(name.len()).rposition(|bytes| bytes == name);
        last.expect("tensors have names") + 48
    });
    for number in from.parse().expect("a number")..count() {
        let mut bytes = files[number % 3].clone();
        let header = headers[number % 3];
        damage(&mut bytes, header, &mut ChaCha12Rng::seed_from_u64(number as u64));
        println!("at {number}");
        match load_and_score(&bytes) {
            Ok(works) => println!("done {works}"),
            Err(ended) => {
                println!("ended {ended}");
                polydraft_llama::leave(ABORTED);
            }
        }
    }
}

#[test]
fn damaged_file_loads_or_is_an_error() {
    let (mut next, mut loaded, mut refused, mut aborts, mut crashes) =
        (0, 0, 0, Vec::new(), Vec::new());
    while next < count() {
        let mut child = child_test("child_loads_damaged_files", &[(FROM, &next.to_string())])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            // The test harness prints in front of the first line.
            let line = line.rsplit_once("... ").map_or(line.as_str(), |(_, line)| line);
            match line.split_once(' ') {
                Some(("at", number)) => next = number.parse::<usize>().unwrap() + 1,
                Some(("done", "true")) => loaded += 1,
                Some(("done", "false")) => refused += 1,
                Some(("ended", reason)) => aborts.push(format!("{}: {reason}", next - 1)),
                _ => {}
            }
        }
        match child.wait().unwrap().code() {
            Some(0 | ABORTED) => {}
            code => crashes.push(format!("{}: exit code {code:?}", next - 1)),
        }
    }
    eprintln!(
        "{loaded} loaded, {refused} refused, {} aborted llama.cpp:\n{}",
        aborts.len(),
        aborts.join("\n")
    );
    assert!(crashes.is_empty(), "{}", crashes.join("\n"));
    assert!(loaded > 0 && refused > 0);
    assert_eq!(loaded + refused + aborts.len(), count());
}
