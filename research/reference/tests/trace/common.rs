//! Traces of random table models.

#![allow(dead_code)] // each test uses its own part

use std::path::Path;

use polydraft::VerifierKind;
use polydraft::conformance::tree::{NodeTargets, Pair, draw, random_pair};
use polydraft::{Draft, NodeId, PolicyKind, Sampling, TargetDistributions};
use polydraft_reference::trace::{FORMAT, Header, Recording, VERSION, Writer};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Returns a header for this tree.
pub fn header(tree: &str, vocabulary: usize, mass: f64) -> Header {
    Header {
        format: FORMAT.to_owned(),
        version: VERSION,
        target: "a random table".to_owned(),
        draft: "another".to_owned(),
        vocabulary,
        sampling: Sampling::default(),
        draft_sampling: Sampling::default(),
        tree: tree.parse().unwrap(),
        mass,
        sequences: 2,
        max_tokens: 6,
        every: 2,
        seed: 0,
        made: "a test".into(),
    }
}

/// Returns all verifiers that accept drafts from a policy.
pub fn verifiers() -> Vec<VerifierKind> {
    VerifierKind::all_with(&polydraft_reference::rules())
        .into_iter()
        .filter(|kind| !kind.build().unwrap().uses_shared_randomness())
        .collect()
}

pub const PROMPTS: [[u32; 2]; 3] = [[0, 1], [1, 1], [1, 0]];

/// Returns the table models behind a prompt.
pub fn pair(header: &Header, prompt: usize) -> Pair {
    let depth = header.tree.build().unwrap().depth();
    let mut random = ChaCha8Rng::seed_from_u64(prompt as u64);
    random_pair(header.vocabulary, depth, 0.4, prompt == 1, &mut random).unwrap()
}

/// Returns the seed of a sequence.
pub fn seed(prompt: usize, text: u32) -> u64 {
    prompt as u64 * 10 + u64::from(text)
}

/// Calls a function with all positions of a sequence in order: the position, the draft and the
/// target's distributions.
pub fn positions(
    header: &Header,
    prompt: usize,
    text: u32,
    show: &mut dyn FnMut(usize, &Draft, &dyn TargetDistributions),
) {
    let (pair, tree): (Pair, &PolicyKind) = (pair(header, prompt), &header.tree);
    let mut random = ChaCha8Rng::seed_from_u64(seed(prompt, text));
    for position in 0..3 {
        let policy = tree.build().unwrap();
        let draft = draw(policy.as_ref(), &pair.draft, &mut random).unwrap();
        let distributions = NodeTargets::new(draft.tree(), &pair.target);
        let all: Vec<_> = (0..draft.tree().len())
            .map(|node: NodeId| distributions.target(node).unwrap().clone())
            .collect();
        show(2 * position, &draft, &all);
    }
}

/// Returns the recording of a prompt.
pub fn recording(header: &Header, prompt: usize) -> Recording {
    let mut recording = Recording::new(header, &PROMPTS[prompt]);
    for text in 0..header.sequences {
        recording.begin(seed(prompt, text));
        positions(header, prompt, text, &mut |at, draft, target| {
            recording.position(at, draft, target).unwrap()
        });
        recording.end(&[0, 1, 0, 1, 0, 1]);
    }
    recording
}

/// Records a trace of all prompts.
pub fn record(folder: &Path, header: &Header) {
    let mut writer = Writer::create(folder, header).unwrap();
    for prompt in 0..PROMPTS.len() {
        writer.add(&recording(header, prompt), &header.made).unwrap();
    }
}
