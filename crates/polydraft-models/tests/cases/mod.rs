//! The fixtures of make.py: models, and what transformers gives for them.

use std::fs;
use std::path::{Path, PathBuf};

use polydraft::{DraftTree, NodeId, Token};
use polydraft_models::Precision;
use serde_json::Value;

use crate::common::*;

pub const TOLERANCE: f32 = 1e-4;

/// A model directory, and what transformers gives for it.
pub struct Case {
    pub name: String,
    /// With the variant's config.json, if it is one.
    pub directory: tempfile::TempDir,
    pub tokens: Vec<Token>,
    pub logits: Vec<Vec<f32>>,
    pub logits_bf16: Vec<Vec<f32>>,
    pub tree: DraftTree,
    /// The text that the tree is behind.
    pub context: usize,
    pub tree_logits: Vec<Vec<f32>>,
}

/// As in make.py.
pub const CONTEXT: usize = 12;

impl Case {
    pub fn read(folder: &Path, variant: Option<&Path>) -> Self {
        let mut name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let directory = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(folder.join(file), directory.path().join(file)).unwrap();
        }
        let mut expected = folder.join("expected.safetensors");
        if let Some(variant) = variant {
            name = format!("{name}/{}", variant.file_stem().unwrap().to_string_lossy());
            let changes: Value = serde_json::from_slice(&fs::read(variant).unwrap()).unwrap();
            change_config(directory.path(), |config| {
                for (field, value) in changes.as_object().unwrap() {
                    config[field] = value.clone();
                }
            });
            expected = variant.with_extension("safetensors");
        }
        let found = read_tensors(&expected);
        let integers = |name: &str| found[name].integers();
        let rows = |name: &str| found[name].rows();
        let mut tree = DraftTree::new();
        for (parent, token) in integers("tree_parents").into_iter().zip(integers("tree_tokens")) {
            // Equal siblings are one node in our trees; the fixtures have none.
            let count = tree.len();
            assert_eq!(tree.add((parent + 1) as NodeId, token as Token), count);
        }
        Self {
            name,
            directory,
            tokens: integers("tokens").into_iter().map(|t| t as Token).collect(),
            logits: rows("logits"),
            logits_bf16: rows("logits_bf16"),
            tree,
            context: CONTEXT,
            tree_logits: rows("tree_logits"),
        }
    }

    pub fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for folder in fixtures() {
            cases.push(Self::read(&folder, None));
            let variants = fs::read_dir(folder.join("variants")).into_iter().flatten().flatten();
            let mut variants: Vec<PathBuf> = variants.map(|entry| entry.path()).collect();
            variants.sort();
            for variant in
                variants.iter().filter(|path| path.extension().is_some_and(|e| e == "json"))
            {
                cases.push(Self::read(&folder, Some(variant)));
            }
        }
        cases
    }

    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|case| case.name == name).unwrap()
    }

    pub fn open(&self, precision: Precision) -> Single {
        open(self.directory.path(), precision)
    }

    /// The largest distance from transformers' logits, in every way that a text can be computed.
    pub fn worst(&self, model: &mut Single) -> f32 {
        let (text, mut worst) = (&self.tokens, 0f32);
        let mut attach =
            |found: &[f32], expected: &[f32]| worst = worst.max(distance(found, expected));
        // As a prompt, of every length.
        for (length, expected) in (1..).zip(&self.logits) {
            attach(&alone(model, &text[..length]), expected);
        }
        // Token by token.
        model.reset();
        for (token, expected) in text.iter().zip(&self.logits) {
            model.extend(&[*token]).unwrap();
            model.score(&DraftTree::new()).unwrap();
            attach(model.logits(DraftTree::ROOT), expected);
        }
        // A tree at once, and what is left of the prompt with it; then level by level.
        for known in [0, self.context - 1] {
            model.reset();
            if known > 0 {
                model.extend(&text[..known]).unwrap();
                model.score(&DraftTree::new()).unwrap();
            }
            model.extend(&text[known..self.context]).unwrap();
            let mut tree = DraftTree::new();
            for node in 1..self.tree.len() {
                tree.add(self.tree.parent(node), self.tree.token(node));
                if known > 0 {
                    model.score(&tree).unwrap();
                }
            }
            model.score(&tree).unwrap();
            attach(model.logits(DraftTree::ROOT), &self.logits[self.context - 1]);
            for (node, expected) in (1..).zip(&self.tree_logits) {
                attach(model.logits(node), expected);
            }
        }
        // A committed path: the text behind it as if it had been read alone.
        let mut tree = DraftTree::new();
        let wrong = tree.add(DraftTree::ROOT, (text[self.context] + 1) % 60);
        tree.add(wrong, text[self.context]);
        let right = tree.add(DraftTree::ROOT, text[self.context]);
        let next = tree.add(right, text[self.context + 1]);
        model.reset();
        model.extend(&text[..self.context]).unwrap();
        model.score(&tree).unwrap();
        model.commit(&tree, &[right, next]).unwrap();
        model.extend(&text[self.context + 2..]).unwrap();
        model.score(&DraftTree::new()).unwrap();
        attach(model.logits(DraftTree::ROOT), self.logits.last().unwrap());
        worst
    }
}

/// A fixture, and fields of its configuration with other values.
pub type Plan<'a> = (&'a str, &'a [(&'a str, Value)]);

/// That a comparison with transformers notices each of the changes.
pub fn noticed(plans: &[Plan]) {
    let mut unnoticed = Vec::new();
    for (name, changes) in plans {
        for (field, value) in *changes {
            let case = Case::named(name);
            change_config(case.directory.path(), |config| match field.strip_prefix('/') {
                Some(_) => {
                    let (parent, inner) = field.rsplit_once('/').unwrap();
                    config.pointer_mut(parent).unwrap()[inner] = value.clone();
                }
                None => config[*field] = value.clone(),
            });
            let worst = case.worst(&mut case.open(Precision::F32));
            // The two forms of gelu differ by little themselves.
            let least = if value == "gelu_new" { TOLERANCE } else { 5.0 * TOLERANCE };
            if worst <= least {
                unnoticed.push(format!("{name}: {field} = {value}: {worst:e}"));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}
