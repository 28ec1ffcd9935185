//! GGUF files that are missing, of another architecture or damaged: errors name the file, the
//! tensor and the expected content.

use std::fs;
use std::path::Path;

use crate::common::{SingleSequence, alone};
use crate::gguf_pair::{TOKENS, gguf, pair};
use polydraft_gguf::{Gguf, TensorType};
use polydraft_models::{LoadOptions, Precision, load};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

#[test]
fn errors_name_missing_unsupported_cut_and_damaged_files() {
    let message = |path: &Path| load(path, LoadOptions::default()).unwrap_err().to_string();
    let folder = tempfile::tempdir().unwrap();
    let missing = message(&folder.path().join("none.gguf"));
    assert!(missing.contains("none.gguf"), "{missing}");
    let other = folder.path().join("other.gguf");
    fs::write(&other, gguf::model("mamba").finish()).unwrap();
    let other = message(&other);
    assert!(other.contains("llama, qwen2") && other.contains("mamba"), "{other}");
    let pair = pair("llama");
    let path = pair.plain();
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let cut = message(&path);
    assert!(cut.contains("model.gguf") && cut.contains("expected"), "{cut}");
    // An infinite scale.
    let path = pair.write(pair.keys(), &|_| TensorType::Q8_0);
    let mut broken = fs::read(&path).unwrap();
    let at = Gguf::open(&path).unwrap().tensor("blk.1.ffn_up.weight").unwrap().offset() as usize;
    broken[at..at + 2].copy_from_slice(&[0, 0x7c]);
    fs::write(&path, broken).unwrap();
    for precision in [Precision::File, Precision::F32] {
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let found = load(&path, options).unwrap_err().to_string();
        assert!(
            found.contains("tensor blk.1.ffn_up.weight") && found.contains("finite"),
            "{found}"
        );
    }
}

#[test]
fn errors_name_unsupported_tensor_types() {
    let pair = pair("llama");
    let path = pair.plain();
    let (mut bytes, name) = (fs::read(&path).unwrap(), b"blk.0.attn_q.weight");
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    // After the name come the number of dimensions, two dimensions, and the type. I32 has as many
    // bytes as F32.
    bytes[at + 20..at + 24].copy_from_slice(&26u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let found = load(&path, LoadOptions::default()).unwrap_err().to_string();
    assert!(
        found.contains("tensor blk.0.attn_q.weight: expected type F32, F16")
            && found.contains("I32"),
        "{found}"
    );
}

/// A damaged header causes an error that names the file, or loads a working model; never a panic or
/// a needless allocation.
#[test]
fn damaged_headers_are_errors_or_load() {
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    let (mut refused, mut worked) = (0, 0);
    let temporary = tempfile::tempdir().unwrap();
    let written = ["llama", "gemma3"].map(|fixture| {
        let pair = pair(fixture);
        fs::read(pair.write(pair.keys(), &|_| TensorType::Q8_0)).unwrap()
    });
    // Made by llama.cpp's converter.
    let converted = ["deepseek-v2", "gpt-oss", "olmo3", "phi4", "qwen2-moe"].map(|fixture| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        fs::read(fixtures.join(fixture).join("model.gguf")).unwrap()
    });
    for bytes in written.into_iter().chain(converted) {
        let path = temporary.path().join("model.gguf");
        fs::write(&path, &bytes).unwrap();
        let header =
            Gguf::open(&path).unwrap().tensors().map(|tensor| tensor.offset()).min().unwrap()
                as usize;
        for round in 0..400 {
            let mut mutant = bytes.clone();
            for _ in 0..1 + round % 3 {
                let at = rng.random_range(8..header);
                mutant[at] = match rng.random_range(0..4) {
                    0 => rng.random(),
                    1 => 0,
                    2 => 0xff,
                    _ => mutant[at] ^ 1 << rng.random_range(0..8),
                };
            }
            fs::write(&path, mutant).unwrap();
            let precision = [Precision::File, Precision::F32, Precision::Q4_0][round % 3];
            match load(
                &path,
                LoadOptions { precision, memory: Some(1 << 28), ..LoadOptions::default() },
            ) {
                Err(error) => {
                    assert!(error.to_string().contains("model"), "{error}");
                    refused += 1;
                }
                Ok(loaded) => {
                    let vocabulary = loaded.language.vocabulary.size() as u32;
                    let tokens: Vec<u32> =
                        TOKENS.iter().copied().filter(|token| *token < vocabulary).collect();
                    if !tokens.is_empty() {
                        alone(&mut SingleSequence::new(loaded.model), &tokens);
                        worked += 1;
                    }
                }
            }
        }
    }
    // Most damage is detected before anything is computed.
    assert!(refused > 100 && worked > 50, "{refused} refused, {worked} worked");
}
