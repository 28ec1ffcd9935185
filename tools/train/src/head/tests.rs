//! The net as it is trained against the head as it drafts, and its gradients against finite
//! differences.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use clap::Parser;
use polydraft::{DraftTree, Sampling, Token};
use polydraft_engine::{Drafter, HiddenState, Model, Sequences};
use polydraft_models::{HeadOptions, LoadOptions, Loaded, load, load_head};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use super::export::export;
use super::learn::{Aim, Sample, Target, Trainer, pass};
use super::losses::Loss;
use super::net::{Net, Shape};
use super::origin::fingerprint;
use super::store::Store;
use super::text::{self, Batch, Writing};
use super::{HeadArgs, open, run};
use crate::{Cli, Command};

const READ: [usize; 3] = [1, 4, 8];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/polydraft-models/tests/heads/target")
}

/// A tiny target that gives its states, and a net for it.
fn pair() -> (Loaded, Net) {
    let mut loaded = load(&folder(), LoadOptions::default()).unwrap();
    let features = READ.map(HiddenState::After).into_iter().chain([HiddenState::Output]);
    loaded.model.capture_hidden_states(&features.collect::<Vec<_>>()).unwrap();
    let config = loaded.model.config();
    let shape = Shape {
        hidden_size: config.hidden,
        intermediate_size: 40,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rope_theta: 300.0,
        rms_norm_eps: 1e-5,
        eagle_aux_hidden_state_layer_ids: READ.to_vec(),
    };
    let net = Net::new(shape, None, &mut ChaCha12Rng::seed_from_u64(3)).unwrap();
    (loaded, net)
}

fn lesson(loaded: &mut Loaded) -> Batch {
    let tokens: Vec<Token> = (0..14).map(|i| 2 + (i * i * 7 + 3 * i) % 50).collect();
    text::read(&mut loaded.model, &tokens, 64).unwrap().remove(0)
}

#[test]
fn what_is_trained_is_what_drafts() {
    let (mut loaded, net) = pair();
    let lesson = lesson(&mut loaded);
    let words: Vec<Token> = (2..50).step_by(2).collect();
    let target = Target::new(&loaded.model, words.clone()).unwrap();
    let (count, hidden) = (lesson.tokens.len(), 32);
    let states = Tensor::from_slice(&lesson.states, (count - 1, 4 * hidden), &Device::Cpu).unwrap();
    let states = states.narrow(1, 0, 3 * hidden).unwrap().contiguous().unwrap();
    let embedded = loaded.model.embedding_rows(&lesson.tokens).unwrap();
    let embedded = Tensor::from_vec(embedded, (count, hidden), &Device::Cpu).unwrap();
    let places = [0, 1, 2, 5, 6, 9, 11, 12];
    let unrolled = net.unroll(&states, &embedded, &places, 4).unwrap();

    for output in [false, true] {
        let made = tempfile::tempdir().unwrap();
        export(&net, &loaded.model, &words, output, made.path()).unwrap();
        // In the precision that it is published in.
        let stored =
            candle_core::safetensors::load(made.path().join("model.safetensors"), &Device::Cpu)
                .unwrap();
        let rounded =
            Net::new(net.shape.clone(), Some(&stored), &mut ChaCha12Rng::seed_from_u64(0)).unwrap();
        let unrolled_rounded = rounded.unroll(&states, &embedded, &places, 4).unwrap();
        assert_eq!(unrolled.len(), unrolled_rounded.len());
        let mut model = load(&folder(), LoadOptions::default()).unwrap().model;
        let mut head = load_head(made.path(), &mut model, &HeadOptions::default()).unwrap();
        let mut worst = 0f64;
        for (row, place) in places.into_iter().enumerate() {
            let own = [model.open().unwrap(), head.open().unwrap()];
            model.extend(own[0], &lesson.tokens[..place + 2]).unwrap();
            while model.prepare(own[0], 99).unwrap() > 0 {}
            head.extend(own[1], &lesson.tokens[..place + 2]).unwrap();
            head.sync_target(own[1], &model, own[0], place + 1).unwrap();
            let (mut tree, mut node) = (DraftTree::new(), DraftTree::ROOT);
            for (step, found) in
                unrolled_rounded.iter().enumerate().filter(|(_, found)| row < found.rows)
            {
                if step > 0 {
                    node = tree.add(node, lesson.tokens[place + 1 + step]);
                }
                head.score(&[(own[1], &tree)]).unwrap();
                let probs = head.distribution(own[1], node, &Sampling::default(), None).unwrap();
                let logits = target.logits(&found.normed.narrow(0, row, 1).unwrap()).unwrap();
                let logits = logits.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let sum = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>();
                for (word, logit) in words.iter().zip(logits) {
                    let expected = f64::from(logit).exp() / sum;
                    worst = worst.max((probs.probability(*word) - expected).abs());
                }
            }
            model.close(own[0]);
        }
        assert!(worst < 1e-5, "{worst:e}");
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let (mut loaded, net) = pair();
    let lesson =
        Batch { taught: (0..14).map(|i| i > 4 && i != 8).collect(), ..lesson(&mut loaded) };
    let target = Target::new(&loaded.model, (2..60).collect()).unwrap();
    let sample = Sample::new(&loaded.model, lesson).unwrap();
    for loss in [Loss::Divergence, Loss::Rejection(1), Loss::Rejection(3)] {
        let aim = Aim { loss, steps: 3, drafts: 2 };
        let value = || pass(&net, &target, &sample, &aim, true).unwrap().0.loss();
        let (_, gradients) = pass(&net, &target, &sample, &aim, true).unwrap();
        for ((name, var), gradient) in net.parameters.iter().zip(&gradients) {
            // Along the gradient itself, where the difference is largest.
            let before = var.as_detached_tensor().copy().unwrap();
            let length =
                gradient.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
            assert!(length > 1e-4, "{loss:?}, {name}: {length}");
            let step = 3e-3_f64;
            let at = |step: f64| {
                let direction = (gradient * (step / f64::from(length))).unwrap();
                var.set(&(&before + direction).unwrap()).unwrap();
                let value = value();
                var.set(&before).unwrap();
                value
            };
            let found = (at(step) - at(-step)) / (2.0 * step);
            let error = (found - f64::from(length)).abs() / f64::from(length);
            assert!(error < 0.02, "{loss:?}, {name}: {found} against {length}");
        }
    }
}

#[test]
fn text_is_written_and_kept() {
    let (mut loaded, _) = pair();
    let writing = Writing { together: 5, longest: 40 };
    let mut rng = ChaCha12Rng::seed_from_u64(4);
    let lessons =
        text::write(&mut loaded.model, &loaded.language, &writing, 300, &mut rng).unwrap();
    assert!(lessons.len() >= 5);
    for lesson in &lessons {
        // What was noted while it was written is what is found on reading.
        let read = text::read(&mut loaded.model, &lesson.tokens, 64).unwrap();
        let Some(read) = read.first() else { continue };
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert_eq!(lesson.states, read.states);
        assert!(
            near(&lesson.log_sums[1..], &read.log_sums[1..])
                && lesson.taught[1..].iter().all(|t| *t)
        );
    }
    let folder = tempfile::tempdir().unwrap();
    Store::open(folder.path(), 128).unwrap().add(&lessons).unwrap();
    let mut store = Store::open(folder.path(), 128).unwrap();
    store.add(&lessons[..2]).unwrap();
    assert_eq!((store.len(), store.shards()), (lessons.len() + 2, 2));
    let last = store.read(store.len() - 1).unwrap();
    assert_eq!((&last.tokens, &last.log_sums), (&lessons[1].tokens, &lessons[1].log_sums));
    let off =
        last.states.iter().zip(&lessons[1].states).map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
    assert!(off.fold(0f32, f32::max) < 1e-3);
    let (words, covered) = store.frequent(10, 62, &[1]);
    assert!(words.len() == 10 && words.contains(&1) && covered > 0.1 && covered < 1.0);
    assert!(Store::open(folder.path(), 96).is_err());
}

/// Options as the program reads them, for a head of the tiny target in a folder.
fn args(out: &Path, more: &str) -> HeadArgs {
    let target = folder();
    let line = [
        "polydraft-train",
        "head",
        "--target",
        target.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    let small = [
        ["--longest", "20"],
        ["--round", "60"],
        ["--batch", "2"],
        ["--unroll", "2"],
        ["--draft-vocabulary", "30"],
        ["--workers", "1"],
        ["--passes", "1"],
    ];
    let small = small.iter().filter(|[name, _]| !more.contains(name)).flatten().copied();
    let line = line.into_iter().chain(small).chain(more.split_whitespace());
    let Command::Head(args) = Cli::try_parse_from(line).unwrap().command else {
        panic!("expected head")
    };
    args
}

fn refusal(args: HeadArgs) -> String {
    format!("{:#}", run(args, None).unwrap_err())
}

/// A file of words that the tiny target knows.
fn words(to: &Path, name: &str, count: Token) -> String {
    let path = to.join(name);
    let language = load(&folder(), LoadOptions::default()).unwrap().language;
    let tokens: Vec<Token> = (0..count).map(|i| 2 + (i * 7) % 50).collect();
    std::fs::write(&path, language.tokenizer.decode(&tokens).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn given_texts_are_read_whole_and_are_the_plan() {
    let made = tempfile::tempdir().unwrap();
    let text = words(made.path(), "text", 200);
    let out = made.path().join("head");
    let given = |more: &str| args(&out, &format!("--text {text} {more}"));
    let mut school = open(given(""), None).unwrap();
    school.learn().unwrap();
    let (texts, shards) = (school.store.len(), school.store.shards());
    assert!(shards > 2);
    // However many tokens would have been written without texts.
    assert_eq!((school.planned(), school.rate()), (school.written() as f64, 0.0));
    assert!(matches!(school.aim().loss, Loss::Rejection(1)));

    // Interrupted before its last shard.
    std::fs::remove_file(out.join("work").join(format!("text-{:04}.json", shards - 1))).unwrap();
    let mut school = open(given(""), None).unwrap();
    assert!(school.store.len() < texts);
    school.learn().unwrap();
    assert_eq!((school.store.len(), school.store.shards()), (texts, shards));

    let other = words(made.path(), "other", 90);
    assert!(refusal(args(&out, &format!("--text {other}"))).contains("expected --text [\""));
    assert!(refusal(args(&out, "")).contains("expected --text [\""));
    assert!(refusal(given("--longest 30")).contains("expected --longest 20"));
    assert!(refusal(given("--layers 1,3,5")).contains("expected --layers [2,4,5]"));
    assert!(refusal(given("--dtype bf16")).contains("expected --dtype \"f32\""));
    assert!(refusal(args(&out, "--export --layers 1,3,5")).contains("expected --layers [2,4,5]"));
    run(args(&out, "--export"), None).unwrap();
}

#[test]
fn a_target_is_told_by_its_weights() {
    let (loaded, _) = pair();
    let config = loaded.model.config();
    let mut norm = loaded.model.last_norm().unwrap().to_vec();
    let own = fingerprint(config, Some(&norm));
    assert!(own.starts_with("8 layers of 32 numbers, 64 tokens, weights "), "{own}");
    norm[3] += 1e-3;
    assert_ne!(fingerprint(config, Some(&norm)), own);
}

#[test]
fn without_a_checkpoint_nothing_is_exported() {
    let made = tempfile::tempdir().unwrap();
    assert!(refusal(args(made.path(), "--export")).contains("no checkpoint at"));
    assert_eq!(std::fs::read_dir(made.path()).unwrap().count(), 0);
}

#[test]
fn texts_without_a_lesson_are_passed_by() {
    let (mut loaded, net) = pair();
    let lesson = Batch { taught: vec![false; 14], ..lesson(&mut loaded) };
    let made = tempfile::tempdir().unwrap();
    let mut school = open(args(made.path(), "--tokens 10"), None).unwrap();
    for _ in 0..2 {
        school.store.add(&[lesson.clone(), lesson.clone()]).unwrap();
    }
    assert!(
        format!("{:#}", school.learn().unwrap_err())
            .contains("expected texts with tokens to learn")
    );

    let path = made.path().join("checkpoint");
    let mut pupil =
        Trainer::open(net.shape.clone(), &path, &mut ChaCha12Rng::seed_from_u64(1)).unwrap();
    let target = Target::new(&loaded.model, (2..60).collect()).unwrap();
    let sample = Sample::new(&loaded.model, lesson).unwrap();
    let aim = Aim { loss: Loss::Divergence, steps: 2, drafts: 2 };
    pupil.batch(&target, &[sample], &aim, 1, Some(0.001)).unwrap();
    assert_eq!((pupil.steps, pupil.tokens), (1, 14));
}

#[test]
fn a_checkpoint_of_another_shape_is_refused() {
    let (_, net) = pair();
    let made = tempfile::tempdir().unwrap();
    let path = made.path().join("checkpoint");
    let open = |shape: Shape| Trainer::open(shape, &path, &mut ChaCha12Rng::seed_from_u64(1));
    open(net.shape.clone()).unwrap().save(&path).unwrap();
    let other = Shape { eagle_aux_hidden_state_layer_ids: vec![1, 4], ..net.shape.clone() };
    let refused = format!("{:#}", open(other).err().unwrap());
    assert!(refused.contains("fc.weight: expected the shape [32, 64], got [32, 96]"), "{refused}");
}
