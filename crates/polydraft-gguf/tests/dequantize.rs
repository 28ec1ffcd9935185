//! Compares the conversion of blocks to f32 bit by bit with the `gguf` package of Python
//! (`fixtures/make.py dequantize`).

use std::path::Path;

use half::f16;
use polydraft_gguf::{DEQUANTIZED, Gguf, Integers, TensorType, dequantize};

fn fixture() -> Gguf {
    Gguf::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dequantize.gguf"))
        .unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn conversion_matches_reference_bitwise() {
    let gguf = fixture();
    for kind in DEQUANTIZED {
        let tensor = gguf.tensor(kind.name()).unwrap();
        assert_eq!(tensor.kind(), kind);
        let expected = gguf.tensor(&format!("{kind}.expected")).unwrap().dequantize().unwrap();
        assert!(expected.len() >= 128 && expected.iter().all(|value| value.is_finite()));
        assert_eq!(bits(&tensor.dequantize().unwrap()), bits(&expected), "{kind}");
        // Ranges of rows.
        let columns = tensor.columns();
        for (first, last) in [(0, 1), (2, 5), (5, 6), (3, 3)] {
            let mut rows = vec![f32::NAN; (last - first) * columns];
            tensor.dequantize_rows(first..last, &mut rows).unwrap();
            assert_eq!(bits(&rows), bits(&expected[first * columns..last * columns]), "{kind}");
        }
        // Check that the test can fail: a flipped bit in each block changes the numbers.
        let mut blocks = tensor.read().unwrap();
        blocks
            .iter_mut()
            .skip(kind.block_bytes() / 2)
            .step_by(kind.block_bytes())
            .for_each(|byte| *byte ^= 8);
        let mut other = vec![0.0; expected.len()];
        dequantize(kind, &blocks, &mut other).unwrap();
        assert_ne!(bits(&other), bits(&expected), "{kind}");
    }
}

#[test]
fn fixture_has_extreme_scales() {
    let gguf = fixture();
    for kind in
        DEQUANTIZED.into_iter().filter(|kind| *kind != TensorType::BF16 && *kind != TensorType::F32)
    {
        let values = gguf.tensor(kind.name()).unwrap().dequantize().unwrap();
        // From the largest f16, and from subnormal ones or zeros.
        assert!(values.iter().any(|value| value.abs() >= 65_504.0), "{kind}");
        assert!(values.iter().any(|value| value.abs() < 1e-3), "{kind}");
    }
}

#[test]
fn rejects_incomplete_blocks() {
    let mut values = [0.0; 64];
    for (bytes, length) in [(17, 32), (18, 31), (36, 32), (18, 64), (0, 32)] {
        let e = dequantize(TensorType::Q4_0, &vec![0; bytes], &mut values[..length])
            .unwrap_err()
            .to_string();
        let expected = "expected 32 numbers from every 18 bytes of type Q4_0";
        assert_eq!(e, format!("{expected}, got {length} from {bytes}"));
    }
    dequantize(TensorType::Q4_0, &[], &mut []).unwrap();
}

/// Computes numbers from the integers of a block, and compares them with the conversion of its
/// bytes.
#[test]
fn integers_of_blocks_give_the_same_numbers() {
    use TensorType::*;
    let gguf = fixture();
    for kind in DEQUANTIZED {
        let tensor = gguf.tensor(kind.name()).unwrap();
        let (bytes, values) = (tensor.read().unwrap(), tensor.dequantize().unwrap());
        let blocks = bytes.chunks_exact(kind.block_bytes()).zip(values.chunks_exact(kind.block()));
        for (block, values) in blocks {
            let Some(integers) = Integers::new(kind, block) else {
                assert!(![Q5_0, Q5_1, Q2_K, Q3_K, Q5_K, Q6_K].contains(&kind), "{kind}");
                continue;
            };
            assert_eq!(Integers::new(kind, &block[1..]), None);
            let [scale, minimum] =
                [integers.scale, integers.minimum].map(|h| f16::from_bits(h).to_f32());
            let computed: Vec<f32> = (0..kind.block())
                .map(|i| {
                    let number =
                        f32::from(i16::from(integers.numbers[i]) - Integers::offset(kind) as i16);
                    let sub_scale = integers.sub_scales[i / 16];
                    match kind {
                        Q5_0 => scale * number,
                        Q5_1 => scale * number + minimum,
                        Q2_K => {
                            scale * f32::from(sub_scale & 15) * number
                                - minimum * f32::from(sub_scale >> 4)
                        }
                        Q5_K => {
                            let [sub_scale, sub_minimum] =
                                [i / 32, 8 + i / 32].map(|at| f32::from(integers.sub_scales[at]));
                            scale * sub_scale * number - minimum * sub_minimum
                        }
                        _ => scale * f32::from(sub_scale as i8) * number,
                    }
                })
                .collect();
            assert_eq!(bits(&computed), bits(values), "{kind}");
        }
    }
}
