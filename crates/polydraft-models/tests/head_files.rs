//! EAGLE-3 heads in GGUF files, which llama.cpp's converter made (heads/to_gguf.py), against their
//! directories, which tests/heads.rs compares with the reference.

use std::fs;
use std::path::Path;

use crate::common::heads::*;
use crate::common::*;
use polydraft::{DraftTree, Sampling, Token};
use polydraft_engine::{Drafter, Sequences};
use polydraft_models::{DraftHead, HeadOptions, Result, is_block_head, is_head, load_head};

const TOKENS: [Token; 14] = [5, 17, 3, 40, 22, 9, 31, 60, 2, 11, 47, 5, 17, 28];
/// Number of drafted tokens before the last distribution.
const STEPS: usize = 3;

fn opened(path: &Path) -> Result<HeadPair<DraftHead>> {
    let mut target = target().model;
    let head = load_head(path, &mut target, &HeadOptions::default())?;
    Ok(HeadPair::new(target, head))
}

/// Probabilities of all draftable tokens, after several lengths of the context and up to `STEPS`
/// drafted tokens.
fn probabilities(mut pair: HeadPair<DraftHead>) -> Vec<f64> {
    let mut all = Vec::new();
    for position in [2, 3, 7, TOKENS.len() - STEPS] {
        pair.reset();
        pair.extend(&TOKENS[..position], 5);
        let (mut tree, mut node) = (DraftTree::new(), DraftTree::ROOT);
        for step in 0..=STEPS {
            pair.head.score(&[(pair.sequences[1], &tree)]).unwrap();
            let distribution =
                pair.head.distribution(pair.sequences[1], node, &Sampling::default(), None);
            let distribution = distribution.unwrap();
            all.extend(pair.head.tokens().iter().map(|token| distribution.probability(*token)));
            if step < STEPS {
                node = tree.add(node, TOKENS[position + step]);
            }
        }
    }
    all
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a.ln() - b.ln()).abs()).fold(0.0, f64::max)
}

#[test]
fn gguf_files_draft_like_their_directories() {
    for name in ["original", "specforge"] {
        let file = folder(name).join("model.gguf");
        assert!(is_head(&file) && !is_block_head(&file), "{name}");
        let expected = probabilities(opened(&folder(name)).unwrap());
        let difference = distance(&probabilities(opened(&file).unwrap()), &expected);
        assert!(difference < 1e-4, "{name}: {difference:e}");
        let [of_file, of_directory] = [&file, &folder(name)].map(|path| described(path).unwrap());
        assert_eq!((of_file.kind, of_file.tokens), (of_directory.kind, of_directory.tokens));
        assert_eq!(of_file.hidden_states, of_directory.hidden_states, "{name}");
        // Changing any tensor, including the draft tokens, changes the drafts.
        with_each_tensor_changed(&file, |tensor, changed| {
            let difference = distance(&probabilities(opened(changed).unwrap()), &expected);
            assert!(difference > 1e-3, "{name}: {tensor}: {difference:e}");
        });
    }
}

/// Files store Llama 3's scaled frequencies as a tensor.
#[test]
fn scaled_rotary_frequencies_equal_the_directorys() {
    let directory = changed("original", |directory| {
        change_config(directory, |config| {
            config["rope_scaling"] = serde_json::json!({
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            });
        });
    });
    let scaled = probabilities(opened(&folder("original").join("stretched.gguf")).unwrap());
    let expected = probabilities(opened(directory.path()).unwrap());
    let difference = distance(&scaled, &expected);
    assert!(difference < 1e-4, "{difference:e}");
    let plain = distance(&scaled, &probabilities(opened(&folder("original")).unwrap()));
    assert!(plain > 1e-3, "{plain:e}");
}

/// A key or tensor that is ignored would change what a head drafts.
#[test]
fn rejects_missing_keys_and_unknown_tensors() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("model.gguf");
    for (from, to, expected) in [
        ("eagle3.target_layers", "eagle3.target_layerx", "target_layers: expected layers"),
        ("eagle3.norm_before_fc", "eagle3.norm_before_fx", "enc.output_norm.weight: expected no"),
        ("eagle3.block_count", "eagle3.block_counx", "eagle3.block_count: expected"),
        ("blk.0.attn_norm_2", "blk.0.attn_norm_x", "tensor blk.0.attn_norm_2.weight"),
        ("enc.output_norm", "enc.output_nory", "tensor enc.output_norm.weight"),
        ("blk.0.attn_v.bias", "blk.0.attn_v.biax", "tensor blk.0.attn_v.bias"),
    ] {
        assert_eq!(from.len(), to.len());
        let mut bytes = fs::read(folder("specforge").join("model.gguf")).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        let error = opened(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{from}: {error}");
    }
}
