//! Fixtures of make.py: models, and the logits that transformers computes for them.

use std::fs;
use std::path::{Path, PathBuf};

use polydraft::{DraftTree, NodeId, Token};
use polydraft_models::Precision;
use serde_json::Value;

use crate::common::*;

pub const TOLERANCE: f32 = 1e-4;

/// A model directory with the logits of transformers.
pub struct Case {
    pub name: String,
    /// Copy of the directory, with the variant's config.json.
    pub directory: tempfile::TempDir,
    pub tokens: Vec<Token>,
    pub logits: Vec<Vec<f32>>,
    pub logits_bf16: Vec<Vec<f32>>,
    pub tree: DraftTree,
    /// Length of the context before the tree.
    pub context: usize,
    pub tree_logits: Vec<Vec<f32>>,
}

/// Same value as in make.py.
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
            // `DraftTree` merges equal siblings; the fixtures have none.
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

    pub fn open(&self, precision: Precision) -> SingleSequence {
        open(self.directory.path(), precision)
    }

    /// Largest difference from transformers' logits over all ways to compute a sequence.
    pub fn worst(&self, model: &mut SingleSequence) -> f32 {
        let (tokens, mut largest) = (&self.tokens, 0f32);
        let mut compare =
            |found: &[f32], expected: &[f32]| largest = largest.max(distance(found, expected));
        // As a prompt of every length.
        for (length, expected) in (1..).zip(&self.logits) {
            compare(&alone(model, &tokens[..length]), expected);
        }
        // Token by token.
        model.reset();
        for (token, expected) in tokens.iter().zip(&self.logits) {
            model.extend(&[*token]).unwrap();
            model.score(&DraftTree::new()).unwrap();
            compare(model.logits(DraftTree::ROOT), expected);
        }
        // A tree at once, together with the rest of the prompt; then node by node.
        for known in [0, self.context - 1] {
            model.reset();
            if known > 0 {
                model.extend(&tokens[..known]).unwrap();
                model.score(&DraftTree::new()).unwrap();
            }
            model.extend(&tokens[known..self.context]).unwrap();
            let mut tree = DraftTree::new();
            for node in 1..self.tree.len() {
                tree.add(self.tree.parent(node), self.tree.token(node));
                if known > 0 {
                    model.score(&tree).unwrap();
                }
            }
            model.score(&tree).unwrap();
            compare(model.logits(DraftTree::ROOT), &self.logits[self.context - 1]);
            for (node, expected) in (1..).zip(&self.tree_logits) {
                compare(model.logits(node), expected);
            }
        }
        // The sequence after a committed path, as if it had been read alone.
        let mut tree = DraftTree::new();
        let sibling = tree.add(DraftTree::ROOT, (tokens[self.context] + 1) % 60);
        tree.add(sibling, tokens[self.context]);
        let committed = tree.add(DraftTree::ROOT, tokens[self.context]);
        let next = tree.add(committed, tokens[self.context + 1]);
        model.reset();
        model.extend(&tokens[..self.context]).unwrap();
        model.score(&tree).unwrap();
        model.commit(&tree, &[committed, next]).unwrap();
        model.extend(&tokens[self.context + 2..]).unwrap();
        model.score(&DraftTree::new()).unwrap();
        compare(model.logits(DraftTree::ROOT), self.logits.last().unwrap());
        largest
    }
}

/// A fixture, and changed values of fields of its configuration.
pub type ConfigChanges<'a> = (&'a str, &'a [(&'a str, Value)]);

/// Asserts that the comparison with transformers fails after each of the changes.
pub fn assert_changes_noticed(all: &[ConfigChanges]) {
    let mut unnoticed = Vec::new();
    for (name, changes) in all {
        for (field, value) in *changes {
            let case = Case::named(name);
            change_config(case.directory.path(), |config| match field.strip_prefix('/') {
                Some(_) => {
                    let (parent, inner) = field.rsplit_once('/').unwrap();
                    config.pointer_mut(parent).unwrap()[inner] = value.clone();
                }
                None => config[*field] = value.clone(),
            });
            let largest = case.worst(&mut case.open(Precision::F32));
            // The two forms of GELU differ little.
            let least = if value == "gelu_new" { TOLERANCE } else { 5.0 * TOLERANCE };
            if largest <= least {
                unnoticed.push(format!("{name}: {field} = {value}: {largest:e}"));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}
