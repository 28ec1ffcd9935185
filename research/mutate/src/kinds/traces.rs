//! Traces: intact and damaged shards, headers and indices.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use polydraft::{Distribution, Draft, PolicyKind, VerifierKind};
use polydraft_reference::trace::{Header, Recording, Replay, Shard, Trace, Writer, replay};
use serde_json::{Value, json};

use super::write;
use crate::mutation::{self, Dice};

const TREES: [&str; 6] = [
    "paths:3,2",
    "delayed:1,2,1",
    "2,2",
    "2,1/top-k",
    "2,2/without-replacement",
    "stop-below:0.3,paths:2,3",
];

/// Reads a trace of one prompt with one changed file.
pub fn trace(dice: &mut Dice, folder: &Path) -> Result<()> {
    let vocabulary = 2 + dice.below(4);
    let tree: PolicyKind = TREES[dice.below(TREES.len())].parse()?;
    let header = header(&tree, vocabulary)?;
    let recording = recording(dice, &header)?;
    if dice.one_in(3) {
        return opened(dice, &folder.join("trace"), &header, &recording);
    }
    let mut file = recording.file(0, "00000000", &Value::Null)?;
    if dice.one_in(4) {
        mutation::bytes(dice, &mut file, usize::MAX);
    } else {
        let mut inner = Vec::new();
        GzDecoder::new(&file[..]).read_to_end(&mut inner)?;
        mutation::safetensors(dice, &mut inner);
        if dice.one_in(2) {
            // Changes the numbers only, not the header.
            let length =
                inner.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length) as usize);
            let mut numbers = inner.split_off(inner.len().min(length.saturating_add(8)));
            mutation::bytes(dice, &mut numbers, usize::MAX);
            inner.extend(numbers);
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&inner)?;
        file = gzip.finish()?;
    }
    used(&Shard::read("mutant", &file, vocabulary)?, &tree, dice)
}

fn header(tree: &PolicyKind, vocabulary: usize) -> Result<Header> {
    Ok(serde_json::from_value(json!({
        "format": "polydraft-trace", "version": 1, "target": "a", "draft": "b",
            "vocabulary": vocabulary,
        "sampling": {}, "draft_sampling": {}, "tree": tree, "mass": 0.95, "texts": 1,
            "max_tokens": 4, "every": 2,
        "seed": 1, "made": null,
    }))?)
}

fn recording(dice: &mut Dice, header: &Header) -> Result<Recording> {
    let probs = |dice: &mut Dice| {
        let weights: Vec<f64> =
            (0..header.vocabulary).map(|_| 1.0 + dice.below(50) as f64).collect();
        let sum: f64 = weights.iter().sum();
        Distribution::new(weights.iter().map(|weight| weight / sum).collect())
    };
    let mut recording = Recording::new(header, &[1, 0]);
    recording.begin(7);
    for at in [1, 3] {
        let (policy, mut draft, mut node) = (header.tree.build()?, Draft::new(), 0);
        while node < draft.tree().len() {
            if policy.may_grow(&draft.path(node)) {
                let probs = probs(dice)?;
                draft.grow(node, probs, policy.as_ref(), &mut dice.0)?;
            }
            node += 1;
        }
        let target = (0..draft.tree().len()).map(|_| probs(dice)).collect::<Result<Vec<_>, _>>()?;
        recording.position(at, &draft, &target)?;
    }
    recording.end(&[0, 1, 0, 1]);
    Ok(recording)
}

/// Opens a trace folder after one of its files was changed.
fn opened(dice: &mut Dice, folder: &Path, header: &Header, recording: &Recording) -> Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    Writer::create(folder, header)?.add(recording, &Value::Null)?;
    let path = folder.join(["trace.json", "index.jsonl"][dice.below(2)]);
    let text = std::fs::read(&path).context("a file that was written")?;
    let mut document: Value = serde_json::from_slice(&text)?;
    mutation::json(dice, &mut document);
    let mut bytes = mutation::written(dice, &document);
    bytes.extend(b"\n".repeat(dice.below(3)));
    write(&path, &bytes)?;
    let trace = Trace::open(folder)?;
    (0..trace.len()).try_for_each(|shard| used(&trace.shard(shard)?, &trace.header().tree, dice))
}

/// Runs everything that reads a shard.
fn used(shard: &Shard, tree: &PolicyKind, dice: &mut Dice) -> Result<()> {
    for position in 0..shard.positions() {
        shard.position(position)?;
    }
    let requested: PolicyKind = TREES[dice.below(TREES.len())].parse()?;
    let verifiers = ["nested-priority", "traversal", "specinfer", "walk:naive", "block"];
    let verifiers =
        verifiers.iter().map(|name| name.parse()).collect::<Result<Vec<VerifierKind>, _>>()?;
    let replays: Vec<Replay> = [tree, &requested]
        .iter()
        .filter_map(|requested| Replay::new(tree, requested, &verifiers).ok())
        .collect();
    replay(shard, &replays, 0)?;
    Ok(())
}
