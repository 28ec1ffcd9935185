//! Draft heads of heads/, made by make.py.

use std::fs;
use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Drafter, Sequence, Sequences};
use polydraft_models::{
    DraftHead, HeadDescription, HeadOptions, LoadOptions, Loaded, TransformerModel, load,
    load_block_head, load_head,
};

/// One head of every format and variant.
pub const HEADS: [&str; 6] =
    ["original", "specforge", "speculators", "speculators-qwen3", "whole", "eagle1"];

/// One block head of every format and variant.
pub const BLOCKS: [&str; 8] = [
    "dflash",
    "dflash-speculators",
    "dflash-causal",
    "dflash-windows",
    "dspark",
    "dspark-speculators",
    "dflash2",
    "dflash2-capped",
];

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/heads").join(name)
}

pub fn target() -> Loaded {
    load(&folder("target"), LoadOptions::default()).unwrap()
}

pub fn open_head(name: &str) -> (TransformerModel, DraftHead) {
    let mut target = target().model;
    let head = load_head(&folder(name), &mut target, &HeadOptions::default()).unwrap();
    (target, head)
}

/// Opens a head of either kind.
pub fn open_drafter(name: &str) -> (TransformerModel, Box<dyn Drafter>) {
    if HEADS.contains(&name) {
        let (target, head) = open_head(name);
        return (target, Box::new(head));
    }
    let mut target = target().model;
    let options = HeadOptions::default();
    let head = load_block_head(&folder(name), &mut target, &folder("target"), &options).unwrap();
    (target, Box::new(head))
}

/// A target and its head, each with a sequence of the same tokens.
pub struct HeadPair<D> {
    pub target: TransformerModel,
    pub head: D,
    pub sequences: [Sequence; 2],
}

impl<D: Drafter> HeadPair<D> {
    pub fn new(mut target: TransformerModel, mut head: D) -> Self {
        let sequences = [target.open().unwrap(), head.open().unwrap()];
        Self { target, head, sequences }
    }

    pub fn reset(&mut self) {
        self.target.close(self.sequences[0]);
        self.head.close(self.sequences[1]);
        self.sequences = [self.target.open().unwrap(), self.head.open().unwrap()];
    }

    /// Appends tokens and computes them, `chunk` tokens at a time.
    pub fn extend(&mut self, tokens: &[Token], chunk: usize) {
        let [target_sequence, head_sequence] = self.sequences;
        self.target.extend(target_sequence, tokens).unwrap();
        self.head.extend(head_sequence, tokens).unwrap();
        loop {
            let left = self.target.prepare(target_sequence, chunk).unwrap();
            self.head
                .sync_target(
                    head_sequence,
                    &self.target,
                    target_sequence,
                    self.target.len(target_sequence) - 1 - left,
                )
                .unwrap();
            if left.max(self.head.prepare(head_sequence, chunk).unwrap()) == 0 {
                return;
            }
        }
    }
}

/// Copy of a head's directory with a change.
pub fn changed(name: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in fs::read_dir(folder(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), directory.path().join(file.file_name())).unwrap();
    }
    change(directory.path());
    directory
}

/// Description of a head, from its headers.
pub fn described(directory: &Path) -> polydraft_models::Result<HeadDescription> {
    let target = target();
    HeadDescription::read(directory, target.model.config(), target.language.vocabulary.size())
}
