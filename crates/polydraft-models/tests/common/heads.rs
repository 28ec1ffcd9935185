//! The draft heads of heads/, which make.py made.

use std::path::{Path, PathBuf};

use polydraft_models::{Head, HeadOptions, LoadOptions, Loaded, TransformerModel, load, load_head};

/// One of every format and variant.
pub const HEADS: [&str; 6] =
    ["original", "specforge", "speculators", "speculators-qwen3", "whole", "eagle1"];

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
