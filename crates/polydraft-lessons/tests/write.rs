//! Shards contain what the model computes, whether writing is interrupted or not.

use std::path::{Path, PathBuf};

use polydraft::DraftTree;
use polydraft_engine::{HiddenState, HiddenStates, Model, Sequences};
use polydraft_lessons::{GROUP, Kind, Shard, ShardPlan, ShardProgress, write_shards};
use polydraft_models::{LoadOptions, load};
use safetensors::SafeTensors;

fn tiny_target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/heads/target")
}

fn chat_target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/target")
}

fn plan(target: PathBuf, folder: &Path) -> ShardPlan {
    ShardPlan {
        target,
        dtype: None,
        layers: None,
        folder: folder.to_owned(),
        tokens: 2000,
        shard: 400,
        batch_size: 4,
        max_sample_tokens: 60,
        temperatures: vec![0.7, 1.0],
        text_files: Vec::new(),
    }
}

struct ShardReader {
    bytes: Vec<u8>,
}

impl ShardReader {
    fn new(folder: &Path, number: usize) -> Self {
        Self { bytes: std::fs::read(Shard::path(folder, number)).unwrap() }
    }

    fn tensor_bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        (tensor.shape().to_vec(), tensor.data().to_vec())
    }

    fn integers(&self, name: &str) -> Vec<i32> {
        self.tensor_bytes(name)
            .1
            .as_chunks()
            .0
            .iter()
            .map(|bytes| i32::from_le_bytes(*bytes))
            .collect()
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.tensor_bytes(name)
            .1
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    }

    /// Decodes the states: units times scales.
    fn states(&self) -> (usize, Vec<f32>) {
        let ((shape, units), (_, scales)) =
            (self.tensor_bytes("states"), self.tensor_bytes("scales"));
        let scales = scales.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32());
        let states = scales
            .zip(units.as_chunks::<GROUP>().0)
            .flat_map(|(scale, group)| group.map(|unit| f32::from(unit.cast_signed()) * scale));
        (shape[1], states.collect())
    }
}

#[test]
fn shards_contain_the_models_states_and_log_sums() {
    let directory = tempfile::tempdir().unwrap();
    write_shards(&plan(tiny_target(), directory.path()), &mut |_| true).unwrap();
    let mut model = load(&tiny_target(), LoadOptions::default()).unwrap().model;
    let layers = model.config().layers;
    let read = [2, layers / 2, layers - 3].map(HiddenState::After);
    model.capture_hidden_states(&[&read[..], &[HiddenState::Output]].concat()).unwrap();
    let shard = ShardReader::new(directory.path(), 1);
    let (tokens, lengths) = (shard.integers("tokens"), shard.integers("lengths"));
    let (taught, log_sums) = (shard.tensor_bytes("taught").1, shard.numbers("log_sums"));
    let (width, states) = shard.states();
    assert_eq!(width, 4 * model.config().hidden);
    assert_eq!(lengths.iter().sum::<i32>() as usize, tokens.len());
    assert!(tokens.len() >= 400 && lengths.iter().all(|length| (16..=60).contains(length)));
    let mut at = 0;
    let mut learned = 0;
    for length in lengths {
        let range = at..at + length as usize;
        let sample: Vec<u32> = tokens[range.clone()].iter().map(|token| *token as u32).collect();
        let sequence = model.open().unwrap();
        model.extend(sequence, &sample[..1]).unwrap();
        for (i, token) in sample.iter().enumerate().skip(1) {
            model.score(&[(sequence, &DraftTree::new())]).unwrap();
            if taught[at + i] == 1 {
                let logits = model.logits(sequence, DraftTree::ROOT);
                let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
                let got = f64::from(log_sums[at + i]);
                assert!((got - sum.ln()).abs() < 1e-4, "{got}, {}", sum.ln());
                learned += 1;
            }
            model.extend(sequence, &[*token]).unwrap();
        }
        model.score(&[(sequence, &DraftTree::new())]).unwrap();
        let expected = model.hidden_states(sequence, 0..sample.len() - 1).unwrap();
        let got = &states[range.start * width..(range.end - 1) * width];
        for (expected, got) in
            expected.as_chunks::<GROUP>().0.iter().zip(got.as_chunks::<GROUP>().0)
        {
            // Half a unit; a unit is a 127th of the group's largest number, rounded to 11 bits.
            let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            for (expected, got) in expected.iter().zip(got) {
                assert!((expected - got).abs() <= largest * (0.5 / 127.0 + 0.001) + 1e-6);
            }
        }
        // Nothing is computed after the last token.
        assert!(states[(range.end - 1) * width..range.end * width].iter().all(|x| *x == 0.0));
        model.close(sequence);
        at = range.end;
    }
    assert!(learned > 200, "{learned}");
}

#[test]
fn interrupted_run_writes_the_same_shards() {
    let (full, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_shards(&plan(tiny_target(), full.path()), &mut |_| true).unwrap();
    // Once within the first shard, once within the third.
    for stop in [
        ShardProgress { shards: 0, stored_tokens: 0, open_tokens: 200 },
        ShardProgress { shards: 2, stored_tokens: 0, open_tokens: 100 },
    ] {
        let mut last = None;
        write_shards(&plan(tiny_target(), parts.path()), &mut |now| {
            last = Some(now);
            now.shards < stop.shards || now.open_tokens < stop.open_tokens
        })
        .unwrap();
        assert_eq!(last.unwrap().shards, stop.shards);
        assert!(!Shard::path(parts.path(), stop.shards).exists());
    }
    let mut last = None;
    write_shards(&plan(tiny_target(), parts.path()), &mut |now| {
        last = Some(now);
        true
    })
    .unwrap();
    let last = last.unwrap();
    assert!(last.stored_tokens >= 2000 && last.shards >= 3);
    for number in 0..last.shards {
        let bytes = |folder: &Path| std::fs::read(Shard::path(folder, number)).unwrap();
        assert!(bytes(full.path()) == bytes(parts.path()), "shard {number}");
    }
}

#[test]
fn writes_conversations_of_all_kinds() {
    let directory = tempfile::tempdir().unwrap();
    let plan = ShardPlan {
        batch_size: 24,
        max_sample_tokens: 80,
        tokens: 3000,
        shard: 3000,
        ..plan(chat_target(), directory.path())
    };
    write_shards(&plan, &mut |_| true).unwrap();
    let shard = ShardReader::new(directory.path(), 0);
    let (kinds, lengths) = (shard.tensor_bytes("kinds").1, shard.integers("lengths"));
    assert_eq!(kinds.len(), lengths.len());
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Given) {
        assert!(kinds.contains(&kind.number()), "{}", kind.name());
    }
}

#[test]
fn reads_text_files() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "fn main() { let x = 1; }\n".repeat(30)).unwrap();
    let folder = directory.path().join("work");
    let plan = ShardPlan { text_files: vec![text], shard: 100, ..plan(chat_target(), &folder) };
    write_shards(&plan, &mut |_| true).unwrap();
    let shard = ShardReader::new(&folder, 0);
    assert_eq!(shard.integers("lengths"), [60, 40]);
    assert_eq!(shard.tensor_bytes("kinds").1, [Kind::Given.number(); 2]);
    let taught: usize =
        shard.tensor_bytes("taught").1.iter().map(|taught| usize::from(*taught)).sum();
    assert_eq!(taught, 98);
    assert!(Shard::path(&folder, 1).exists());
}

fn error(plan: &ShardPlan) -> String {
    write_shards(plan, &mut |_| true).unwrap_err().to_string()
}

#[test]
fn rejects_invalid_plans() {
    let directory = tempfile::tempdir().unwrap();
    let valid = || plan(tiny_target(), directory.path());
    assert!(error(&ShardPlan { batch_size: 0, ..valid() }).contains("at least one sample"));
    assert!(error(&ShardPlan { max_sample_tokens: 3, ..valid() }).contains("at least 16 tokens"));
    assert!(error(&ShardPlan { temperatures: vec![-1.0], ..valid() }).contains("temperatures"));
    assert!(
        error(&ShardPlan { target: "missing".into(), ..valid() }).contains("loading the target")
    );
}

#[test]
fn rejects_folder_written_with_other_layers() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(tiny_target(), directory.path());
    write_shards(&plan, &mut |_| true).unwrap();
    let message = error(&ShardPlan { layers: Some(vec![1, 2, 3]), ..plan });
    assert!(message.contains("layers") && message.contains("another work folder"), "{message}");
}

#[test]
fn rejects_damaged_shards() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(Shard::path(directory.path(), 0), "nonsense").unwrap();
    let message = error(&plan(tiny_target(), directory.path()));
    assert!(message.contains("is not a shard of samples: delete it"), "{message}");
}
