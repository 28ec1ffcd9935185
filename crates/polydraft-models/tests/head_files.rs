//! EAGLE-3 heads in GGUF files, which llama.cpp's converter made (heads/to_gguf.py), against their
//! directories, which tests/heads.rs holds against the reference.

use std::fs;
use std::path::Path;

use crate::common::heads::*;
use crate::common::*;
use polydraft::{DraftTree, Sampling, Token};
use polydraft_engine::{Drafter, Sequences};
use polydraft_models::{Head, HeadOptions, Result, is_block_head, is_head, load_head};

const TEXT: [Token; 14] = [5, 17, 3, 40, 22, 9, 31, 60, 2, 11, 47, 5, 17, 28];
/// Tokens that are drafted before the last distribution.
const STEPS: usize = 3;

fn opened(path: &Path) -> Result<HeadPair<Head>> {
    let mut target = target().model;
    let head = load_head(path, &mut target, &HeadOptions::default())?;
    Ok(HeadPair::of(target, head))
}

/// The probabilities of all tokens that a head can draft, after so many tokens of the text and up
/// to `STEPS` drafted ones.
fn probabilities(mut pair: HeadPair<Head>) -> Vec<f64> {
    let mut all = Vec::new();
    for place in [2, 3, 7, TEXT.len() - STEPS] {
        pair.reset();
        pair.extend(&TEXT[..place], 5);
        let (mut tree, mut node) = (DraftTree::new(), DraftTree::ROOT);
        for step in 0..=STEPS {
            pair.head.score(&[(pair.sequences[1], &tree)]).unwrap();
            let drawn = pair.head.distribution(pair.sequences[1], node, &Sampling::default(), None);
            let drawn = drawn.unwrap();
            all.extend(pair.head.tokens().iter().map(|token| drawn.probability(*token)));
            if step < STEPS {
                node = tree.add(node, TEXT[place + step]);
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
fn files_give_what_their_directories_give() {
    for name in ["original", "specforge"] {
        let file = folder(name).join("model.gguf");
        assert!(is_head(&file) && !is_block_head(&file), "{name}");
        let expected = probabilities(opened(&folder(name)).unwrap());
        let worst = distance(&probabilities(opened(&file).unwrap()), &expected);
        assert!(worst < 1e-4, "{name}: {worst:e}");
        let [of_file, of_directory] = [&file, &folder(name)].map(|path| described(path).unwrap());
        assert_eq!((of_file.kind, of_file.tokens), (of_directory.kind, of_directory.tokens));
        assert_eq!(of_file.reads, of_directory.reads, "{name}");
        // Whatever tensor has other numbers shows; other tokens show too.
        with_each_tensor_changed(&file, |tensor, changed| {
            let worst = distance(&probabilities(opened(changed).unwrap()), &expected);
            assert!(worst > 1e-3, "{name}: {tensor}: {worst:e}");
        });
    }
}

/// Frequencies that Llama 3 stretches stand in files as a tensor.
#[test]
fn stretched_positions_are_the_directories() {
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
    let stretched = probabilities(opened(&folder("original").join("stretched.gguf")).unwrap());
    let expected = probabilities(opened(directory.path()).unwrap());
    let worst = distance(&stretched, &expected);
    assert!(worst < 1e-4, "{worst:e}");
    let plain = distance(&stretched, &probabilities(opened(&folder("original")).unwrap()));
    assert!(plain > 1e-3, "{plain:e}");
}

/// A key or a tensor that nobody reads would change what a head drafts.
#[test]
fn what_a_file_says_is_read_or_refused() {
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
