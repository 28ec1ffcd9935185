//! The draft heads of heads/, which make.py made.

use std::path::{Path, PathBuf};

use polydraft_engine::Drafter;
use polydraft_models::{
    Head, HeadOptions, LoadOptions, Loaded, TransformerModel, load, load_block_head, load_head,
};

/// One of every format and variant.
pub const HEADS: [&str; 6] =
    ["original", "specforge", "speculators", "speculators-qwen3", "whole", "eagle1"];

/// One of every format and variant of those that predict blocks.
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

pub fn open_head(name: &str) -> (TransformerModel, Head) {
    let mut target = target().model;
    let head = load_head(&folder(name), &mut target, &HeadOptions::default()).unwrap();
    (target, head)
}

/// A head of either sort.
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
