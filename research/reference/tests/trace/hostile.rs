//! Complete files with invalid contents: numbers that are not a valid shard.

use std::collections::HashMap;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use polydraft_reference::trace::{Error, Header, Replay, Shard, replay};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::common::{header, recording};

/// Name, type, shape and bytes.
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn tensors(file: &[u8]) -> (Vec<Tensor>, HashMap<String, String>) {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let tensors = tensors
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    (tensors.collect(), metadata.metadata().clone().unwrap())
}

fn file(tensors: &[Tensor], metadata: &HashMap<String, String>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let bytes = serialize(views, Some(metadata.clone())).unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&bytes).unwrap();
    gzip.finish().unwrap()
}

fn read(file: &[u8], vocabulary: usize) -> Result<(), Error> {
    let shard = Shard::read("here", file, vocabulary)?;
    (0..shard.positions()).try_for_each(|position| shard.position(position).map(drop))
}

/// Returns a valid shard with one sequence of 3 tokens, paths:2,2.
fn sound() -> Vec<u8> {
    let header = Header { sequences: 1, ..header("paths:2,2", 3, 1.0) };
    recording(&header, 0).file(0, "00000000", &"a test".into()).unwrap()
}

#[test]
fn rejects_invalid_numbers_with_their_location() {
    let (sound_tensors, metadata) = tensors(&sound());
    read(&file(&sound_tensors, &metadata), 3).unwrap();
    let u32s = |number: u32| number.to_le_bytes().to_vec();
    let f64s = |number: f64| number.to_le_bytes().to_vec();
    for (name, element, bytes, expected) in [
        ("prompt", 0, u32s(3), "tensor prompt: expected tokens below 3, got 3"),
        ("text.tokens", 1, u32s(u32::MAX), "tensor text.tokens"),
        ("text.length", 0, u32s(u32::MAX), "tensor text.tokens: expected 4294967295 numbers"),
        ("text.positions", 0, u32s(1 << 31), "tensor position.at: expected 2147483648"),
        ("position.at", 1, u32s(0), "sequence 0, position 1 of it: expected ascending"),
        ("position.at", 2, u32s(7), "a sequence of 6 tokens"),
        ("position.nodes", 0, u32s(0), "position 0 of the file: expected from 1"),
        ("position.nodes", 0, u32s(u32::MAX), "got 4294967295"),
        ("position.nodes", 0, u32s(16_385), "tensor node.scheme: expected"),
        ("node.token", 1, u32s(3), "position 0, node 0"),
        ("node.parent", 1, u32s(1), "node 1: expected a parent before it, got 1"),
        ("node.parent", 2, u32s(u32::MAX), "node 2: expected a parent before it"),
        ("node.draws", 1, u32s(0), "at least one draw"),
        ("node.draws", 1, u32s(u32::MAX), "at most 2^20"),
        ("node.draws", 1, u32s(3), "position 0, node 0"),
        ("node.count", 0, u32s(u32::MAX), "position 0, node 0"),
        ("node.scheme", 0, vec![9], "node 0: expected a scheme"),
        ("node.scheme", 0, vec![5], "position 0, node 0"),
        ("node.scheme", 0, vec![0], "tensor draft.entries"),
        ("node.fresh", 0, vec![0], "position 0, node 0"),
        ("node.fresh", 0, vec![2], "draws that begin"),
        (
            "draft.entries",
            0,
            u32s(0),
            "tensor draft.entries, node 0 of the file: expected from 1 to 3, got 0",
        ),
        ("draft.entries", 0, u32s(4), "got 4"),
        ("target.entries", 0, u32s(u32::MAX), "got 4294967295"),
        ("target.entries", 0, u32s(2), "tensor target.tokens: expected 2 numbers"),
        ("draft.scale", 0, f64s(f64::NAN), "node 0: the draft"),
        ("draft.scale", 0, f64s(-1.0), "node 0: the draft"),
        ("target.scale", 0, f64s(2.0), "position 0, node 0: the target's distribution"),
        ("target.scale", 0, f64s(f64::INFINITY), "position 0, node 0: the target's distribution"),
    ] {
        let mut changed = sound_tensors.clone();
        let (.., tensor) = changed.iter_mut().find(|tensor| tensor.0 == name).unwrap();
        tensor[element * bytes.len()..(element + 1) * bytes.len()].copy_from_slice(&bytes);
        let error = read(&file(&changed, &metadata), 3).expect_err(name).to_string();
        assert!(
            error.starts_with("here: ") && error.contains(expected),
            "{name}: {expected:?} in: {error}"
        );
    }
}

#[test]
fn tensors_that_are_none_are_refused_by_name() {
    let (sound_tensors, metadata) = tensors(&sound());
    for index in 0..sound_tensors.len() {
        let mut changed = sound_tensors.clone();
        let (name, ..) = changed.remove(index);
        let error = read(&file(&changed, &metadata), 3).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor {name}: expected such a tensor")), "{error}");

        let mut changed = sound_tensors.clone();
        changed[index].1 = Dtype::U8;
        changed[index].2 = vec![changed[index].3.len(), 1];
        let error = read(&file(&changed, &metadata), 3).unwrap_err().to_string();
        assert!(
            error.contains(&format!("tensor {name}")) && error.contains("of one dimension"),
            "{error}"
        );
    }
    // Another vocabulary size than in the header.
    assert!(read(&file(&sound_tensors, &metadata), 2).is_err());
    for text in [
        "",
        "[]",
        r#"{"format": "polydraft-trace", "version": 2, "header": "", "number": 0, "left_out": 0,
            "made": 0}"#,
    ] {
        let metadata = HashMap::from([("polydraft".to_owned(), text.to_owned())]);
        assert!(read(&file(&sound_tensors, &metadata), 3).is_err());
    }
    assert!(read(&file(&sound_tensors, &HashMap::new()), 3).is_err());
}

/// Rejects small files that claim very many sequences, and drafts larger than the header allows.
#[test]
fn rejects_unbounded_runs() {
    let (mut several, metadata) = tensors(&sound());
    let seeds = several.iter_mut().find(|tensor| tensor.0 == "text.seed").unwrap();
    (seeds.2, seeds.3) = (vec![(1 << 20) + 1], vec![0; 8 * ((1 << 20) + 1)]);
    let error = read(&file(&several, &metadata), 3).unwrap_err().to_string();
    assert!(
        error.contains("tensor text.seed: expected at most 1048576 sequences, got 1048577"),
        "{error}"
    );

    let shard = Shard::read("here", &sound(), 3).unwrap();
    let verifiers = ["token".parse().unwrap()];
    for (tree, fits) in [("paths:2,2", true), ("paths:2,1", false), ("paths:1,2", false)] {
        let tree = tree.parse().unwrap();
        let one = Replay::new(&tree, &tree, &verifiers).unwrap();
        let replayed = replay(&shard, &[one], 0).map_err(|error| error.to_string());
        assert_eq!(replayed.is_ok(), fits, "{tree}");
        assert!(
            replayed.err().is_none_or(|error| error.contains("here: position 0: draft")),
            "{tree}"
        );
    }
}

#[test]
fn rejects_foreign_files() {
    let sound = sound();
    let mut nothing = GzEncoder::new(Vec::new(), Compression::fast());
    // Decompresses to a thousand times its size: reading stops at the maximum size of a shard.
    (0..520).for_each(|_| nothing.write_all(&vec![0; 1 << 20]).unwrap());
    for bytes in [&b""[..], b"hello", &sound[..sound.len() - 9], &nothing.finish().unwrap()] {
        let error = read(bytes, 3).unwrap_err().to_string();
        assert!(error.starts_with("here: expected"), "{error}");
    }
}

#[test]
fn any_bytes_are_a_shard_or_refused() {
    let mut sound_bytes = vec![3];
    GzDecoder::new(&sound()[..]).read_to_end(&mut sound_bytes).unwrap();
    crate::fuzz_bodies::shard(&sound_bytes);
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for _ in 0..4_000 {
        let mut bytes = sound_bytes.clone();
        for _ in 0..1 + random.next_u64() % 3 {
            let location = random.next_u64() as usize % bytes.len();
            bytes[location] = random.next_u64() as u8;
        }
        crate::fuzz_bodies::shard(&bytes);
    }
}
