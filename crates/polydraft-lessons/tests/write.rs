//! Folders of text: what lies there is what the model finds, whoever interrupts.

use std::path::{Path, PathBuf};

use polydraft::DraftTree;
use polydraft_engine::{HiddenState, HiddenStates, Model, Sequences};
use polydraft_lessons::{GROUP, Kind, Shard, ShardPlan, ShardProgress, write_shards};
use polydraft_models::{LoadOptions, load};
use safetensors::SafeTensors;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/heads/target")
}

fn talks() -> PathBuf {
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

struct Read {
    bytes: Vec<u8>,
}

impl Read {
    fn new(folder: &Path, number: usize) -> Self {
        Self { bytes: std::fs::read(Shard::path(folder, number)).unwrap() }
    }

    fn part(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        (tensor.shape().to_vec(), tensor.data().to_vec())
    }

    fn integers(&self, name: &str) -> Vec<i32> {
        self.part(name).1.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.part(name).1.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// States as they are read: units times scales.
    fn states(&self) -> (usize, Vec<f32>) {
        let ((shape, units), (_, scales)) = (self.part("states"), self.part("scales"));
        let scales = scales.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32());
        let states = scales
            .zip(units.as_chunks::<GROUP>().0)
            .flat_map(|(scale, group)| group.map(|unit| f32::from(unit.cast_signed()) * scale));
        (shape[1], states.collect())
    }
}

#[test]
fn shards_hold_what_the_model_finds() {
    let made = tempfile::tempdir().unwrap();
    write_shards(&plan(tiny(), made.path()), &mut |_| true).unwrap();
    let mut model = load(&tiny(), LoadOptions::default()).unwrap().model;
    let layers = model.config().layers;
    let read = [2, layers / 2, layers - 3].map(HiddenState::After);
    model.capture_hidden_states(&[&read[..], &[HiddenState::Output]].concat()).unwrap();
    let shard = Read::new(made.path(), 1);
    let (tokens, lengths) = (shard.integers("tokens"), shard.integers("lengths"));
    let (taught, log_sums) = (shard.part("taught").1, shard.numbers("log_sums"));
    let (width, states) = shard.states();
    assert_eq!(width, 4 * model.config().hidden);
    assert_eq!(lengths.iter().sum::<i32>() as usize, tokens.len());
    assert!(tokens.len() >= 400 && lengths.iter().all(|length| (16..=60).contains(length)));
    let mut at = 0;
    let mut learned = 0;
    for length in lengths {
        let own = at..at + length as usize;
        let text: Vec<u32> = tokens[own.clone()].iter().map(|token| *token as u32).collect();
        let sequence = model.open().unwrap();
        model.extend(sequence, &text[..1]).unwrap();
        for (i, token) in text.iter().enumerate().skip(1) {
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
        let expected = model.hidden_states(sequence, 0..text.len() - 1).unwrap();
        let got = &states[own.start * width..(own.end - 1) * width];
        for (expected, got) in
            expected.as_chunks::<GROUP>().0.iter().zip(got.as_chunks::<GROUP>().0)
        {
            // Half a unit, and a unit is a 127th of the largest of the group, in 11 bits.
            let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (expected, got) in expected.iter().zip(got) {
                assert!((expected - got).abs() <= most * (0.5 / 127.0 + 0.001) + 1e-6);
            }
        }
        // Behind the last token nothing was computed.
        assert!(states[(own.end - 1) * width..own.end * width].iter().all(|x| *x == 0.0));
        model.close(sequence);
        at = own.end;
    }
    assert!(learned > 200, "{learned}");
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_text() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_shards(&plan(tiny(), whole.path()), &mut |_| true).unwrap();
    // Once in the middle of the first shard, once in that of the third.
    for stop in [
        ShardProgress { shards: 0, stored_tokens: 0, open_tokens: 200 },
        ShardProgress { shards: 2, stored_tokens: 0, open_tokens: 100 },
    ] {
        let mut last = None;
        write_shards(&plan(tiny(), parts.path()), &mut |now| {
            last = Some(now);
            now.shards < stop.shards || now.open_tokens < stop.open_tokens
        })
        .unwrap();
        assert_eq!(last.unwrap().shards, stop.shards);
        assert!(!Shard::path(parts.path(), stop.shards).exists());
    }
    let mut last = None;
    write_shards(&plan(tiny(), parts.path()), &mut |now| {
        last = Some(now);
        true
    })
    .unwrap();
    let last = last.unwrap();
    assert!(last.stored_tokens >= 2000 && last.shards >= 3);
    for number in 0..last.shards {
        let bytes = |folder: &Path| std::fs::read(Shard::path(folder, number)).unwrap();
        assert!(bytes(whole.path()) == bytes(parts.path()), "shard {number}");
    }
}

#[test]
fn conversations_are_of_all_kinds() {
    let made = tempfile::tempdir().unwrap();
    let plan = ShardPlan {
        batch_size: 24,
        max_sample_tokens: 80,
        tokens: 3000,
        shard: 3000,
        ..plan(talks(), made.path())
    };
    write_shards(&plan, &mut |_| true).unwrap();
    let shard = Read::new(made.path(), 0);
    let (kinds, lengths) = (shard.part("kinds").1, shard.integers("lengths"));
    assert_eq!(kinds.len(), lengths.len());
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Given) {
        assert!(kinds.contains(&kind.number()), "{}", kind.name());
    }
}

#[test]
fn given_texts_are_read() {
    let made = tempfile::tempdir().unwrap();
    let text = made.path().join("text");
    std::fs::write(&text, "fn main() { let x = 1; }\n".repeat(30)).unwrap();
    let folder = made.path().join("work");
    let plan = ShardPlan { text_files: vec![text], shard: 100, ..plan(talks(), &folder) };
    write_shards(&plan, &mut |_| true).unwrap();
    let shard = Read::new(&folder, 0);
    assert_eq!(shard.integers("lengths"), [60, 40]);
    assert_eq!(shard.part("kinds").1, [Kind::Given.number(); 2]);
    let taught: usize = shard.part("taught").1.iter().map(|taught| usize::from(*taught)).sum();
    assert_eq!(taught, 98);
    assert!(Shard::path(&folder, 1).exists());
}

#[test]
fn what_cannot_be_is_refused() {
    let made = tempfile::tempdir().unwrap();
    let refused = |plan: ShardPlan| write_shards(&plan, &mut |_| true).unwrap_err().to_string();
    let right = || plan(tiny(), made.path());
    assert!(refused(ShardPlan { batch_size: 0, ..right() }).contains("at least one text"));
    assert!(refused(ShardPlan { max_sample_tokens: 3, ..right() }).contains("at least 16 tokens"));
    assert!(refused(ShardPlan { temperatures: vec![-1.0], ..right() }).contains("temperatures"));
    assert!(
        refused(ShardPlan { target: "nowhere".into(), ..right() }).contains("loading the target")
    );
    write_shards(&right(), &mut |_| true).unwrap();
    let other = refused(ShardPlan { layers: Some(vec![1, 2, 3]), ..right() });
    assert!(other.contains("layers") && other.contains("another work folder"), "{other}");
    std::fs::write(Shard::path(made.path(), 0), "nonsense").unwrap();
    let spoilt = refused(right());
    assert!(spoilt.contains("is no shard of text: delete it"), "{spoilt}");
}
