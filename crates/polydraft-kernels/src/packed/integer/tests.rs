use polydraft_gguf::TensorType;

use super::*;
use crate::packed::block::COLUMNS;
use crate::packed::blocks::{Iq4Nl, Iq4Xs, Q4_0, Q4_1, Q4K, Q8_0};
use crate::packed::planes::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};
use crate::packed::tests::reference::{blocks, dequantized, quantised};
use crate::packed::tests::{BlocksInMemory, RowsInMemory, values};
use crate::packed::tiles::Encode;

/// Returns rows of inputs that alternate between difficult cases.
fn inputs(rows: usize, columns: usize) -> Vec<f32> {
    let plain = values(rows * columns, 0.3);
    let mut x = plain.clone();
    for (number, x) in x.chunks_exact_mut(columns).enumerate() {
        match number % 9 {
            1 => x.fill(0.0),
            2 => x.fill(0.7),
            3 => {
                x.iter_mut().enumerate().for_each(|(i, x)| *x = if i % 2 == 0 { 1e4 } else { -1e4 })
            }
            4 => x.fill(-3.0),
            5 => x.iter_mut().for_each(|x| *x *= 1e-41),
            6 => x[columns / 3] = 1e8,
            // Ties of rounding: the scale is 1.
            7 => x
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = i as f32 % 32.0 * 4.0 + 0.5 * (i % 2) as f32 + 3.0),
            8 => x
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x *= if i / 32 % 2 == 0 { 1e20 } else { 1e-20 }),
            _ => {}
        }
    }
    x
}

/// Returns weights with difficult blocks of every kind in every row.
fn weights(out: usize, columns: usize) -> Vec<f32> {
    let mut w = values(out * columns, 7.1);
    hard_blocks(&mut w);
    w
}

fn hard_blocks(w: &mut [f32]) {
    for (number, block) in w.chunks_exact_mut(COLUMNS).enumerate() {
        match number % 7 {
            1 => block.fill(0.0),
            2 => block.fill(-0.4),
            3 => block
                .iter_mut()
                .enumerate()
                .for_each(|(i, w)| *w = if i % 3 == 0 { 2.0 } else { -2.0 }),
            4 => block[5] = 300.0,
            5 => block.iter_mut().for_each(|w| *w *= 1e-6),
            _ => {}
        }
    }
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Returns a row of x after rounding.
fn rounded_inputs(x: &[f32]) -> Vec<f64> {
    let inputs = Inputs::new::<Q8_0>(x, x.len(), 1);
    let block = |b: &Input| b.numbers.map(|q| f64::from(q) * f64::from(b.scale));
    inputs.groups().flatten().flat_map(block).collect()
}

/// Returns numbers rounded to a type of blocks.
fn load<B: Block + Encode<Value = f32>>(w: Vec<f32>, columns: usize) -> Tiles<B> {
    Tiles::load(w.len() / columns, columns, &RowsInMemory(w, columns), None).unwrap()
}

/// Returns tiles of blocks from a file, with blocks of every kind.
fn from_blocks<B: Block>(out: usize, columns: usize) -> Tiles<B> {
    let bytes = blocks(B::KIND, out * columns / B::COLUMNS);
    Tiles::from_file(out, columns, &BlocksInMemory { kind: B::KIND, bytes, columns }).unwrap()
}

/// Runs a check for every block type.
macro_rules! every_kind {
    ($check:ident $argument:tt) => {
        $check::<Q8_0> $argument;
        $check::<Q4_0> $argument;
        $check::<Q4_1> $argument;
        $check::<Q4K> $argument;
        $check::<Q5_0> $argument;
        $check::<Q5_1> $argument;
        $check::<Q2K> $argument;
        $check::<Q3K> $argument;
        $check::<Q5K> $argument;
        $check::<Q6K> $argument;
        $check::<Iq4Nl> $argument;
        $check::<Iq4Xs> $argument;
    };
}

fn kernels_agree<B: Block>() {
    for (out, parts) in [(1, 1), (16, 2), (33, 3), (70, 1), (95, 5)] {
        let columns = parts * B::COLUMNS;
        let w = from_blocks::<B>(out, columns);
        for rows in 1..=40 {
            let x = inputs(rows, columns);
            let plain = bits(&product_by(Kernel::Portable, &w, &x, rows, Vec::new()));
            for kernel in Kernel::available() {
                let found = bits(&product_by(kernel, &w, &x, rows, Vec::new()));
                assert_eq!(found, plain, "{kernel:?}, {rows} rows, {out} x {columns}");
            }
        }
    }
}

#[test]
fn all_kernels_give_the_same_bits() {
    every_kind!(kernels_agree());
}

/// Checks extreme numbers that rounding never gives, but files may have: −128, and blocks full of
/// the largest number.
#[test]
fn kernels_accept_extreme_numbers_from_files() {
    fn check<B: Block>(bytes: &[u8], x: f32) {
        let mut chunk = B::ZERO;
        (0..TILE).for_each(|row| chunk.set_from_file(row, bytes).unwrap());
        let values = vec![x; B::COLUMNS * 20];
        let inputs = Inputs::new::<B>(&values, B::COLUMNS, 20);
        let rounded = Inputs::new::<B>(&values, B::COLUMNS, 1);
        let mut plain = [[0.0; TILE]; 1];
        portable::tile(&[chunk], rounded.groups().next().unwrap(), &mut plain);
        assert!(plain[0][0] != 0.0);
        assert_eq!(inputs.groups().count(), 1);
        for kernel in Kernel::available() {
            for rows in 1..=kernel.max_rows() {
                let x = Inputs::new::<B>(&values[..rows * B::COLUMNS], B::COLUMNS, rows);
                let mut y = [[0.0; TILE]; MAX_ROWS];
                kernel.tile(&[chunk], x.groups().next().unwrap(), &mut y[..rows]);
                for y in &y[..rows] {
                    assert_eq!(bits(y), bits(&plain[0]), "{kernel:?}, {rows}");
                }
            }
        }
    }
    let one = half::f16::ONE.to_le_bytes();
    for number in [0x80, 0x7f, 0x81] {
        for x in [5.0, -5.0] {
            check::<Q8_0>(&[&one[..], &[number; 32]].concat(), x);
        }
    }
    for number in 0..16 {
        for x in [5.0, -5.0] {
            let codes = [number | (15 - number) << 4; 128];
            check::<Iq4Nl>(&[&one[..], &codes[..16]].concat(), x);
            for steps in [0x00, 0xff] {
                check::<Iq4Xs>(&[&one[..], &[steps; 6], &codes].concat(), x);
            }
        }
    }
    for number in [0x00, 0xff] {
        for x in [5.0, -5.0] {
            check::<Q4_0>(&[&one[..], &[number; 16]].concat(), x);
            check::<Q4_1>(&[&one[..], &one, &[number; 16]].concat(), x);
            check::<Q4K>(&[&one[..], &one, &[0xff; 12], &[number; 128]].concat(), x);
            check::<Q5_0>(&[&one[..], &[number; 20]].concat(), x);
            check::<Q5_1>(&[&one[..], &one, &[number; 20]].concat(), x);
            check::<Q5K>(&[&one[..], &one, &[0xff; 12], &[number; 160]].concat(), x);
            for step in [0x80, 0x7f] {
                check::<Q2K>(&[&[step; 16][..], &[number; 64], &one, &one].concat(), x);
                check::<Q3K>(&[&[number; 96][..], &[step; 12], &one].concat(), x);
                check::<Q6K>(&[&[number; 192][..], &[step; 16], &one].concat(), x);
            }
        }
    }
}

/// Checks errors against a bound of rounding errors. The product of a scale of w and a scale of x
/// is rounded once, and so is each addition. A two-level scale of w is exact.
fn near<B: Block>(kernel: Kernel) {
    let (out, columns) = (70, 3 * 256);
    let tiles = from_blocks::<B>(out, columns);
    let rows = 20;
    let x = inputs(rows, columns);
    let y = product_by(kernel, &tiles, &x, rows, Vec::new());
    let blocks = (columns / COLUMNS * B::SPANS) as f64;
    // Roundings of a term: its scale, two additions per block, and the sum of x for a minimum.
    let roundings = 2.0 * blocks + 3.0;
    let mut worst = 0f64;
    for o in 0..out {
        let mut w = Vec::new();
        tiles.row(o, &mut w);
        for r in 0..rows {
            let x = &x[r * columns..][..columns];
            let (mut sum, mut size, mut half) = (0.0, 0.0, 0.0);
            for ((w, x), k) in w
                .chunks_exact(COLUMNS)
                .zip(x.chunks_exact(COLUMNS))
                .zip(rounded_inputs(x).chunks_exact(COLUMNS))
            {
                let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                // Half the scale, or all of an input that is rounded to zero, and three roundings.
                let off = f64::from(largest) / 254.0 * (1.0 + 254.0 * 3.0 * 6e-8) + 4e-37;
                for ((w, x), k) in w.iter().zip(x).zip(k) {
                    assert!((f64::from(*x) - k).abs() <= off, "{x} as {k}");
                    sum += f64::from(*w) * f64::from(*x);
                    half += f64::from(w.abs()) * off;
                }
                // Numbers and minimum are rounded separately, and each may be as large as both
                // sizes together.
                let most = w.iter().fold(0f32, |m, w| m.max(w.abs()));
                size += 3.0 * f64::from(most) * k.iter().map(|k| k.abs()).sum::<f64>();
            }
            let bound = half + size * roundings * 6e-8 + 1e-42;
            let error = (f64::from(y[r * out + o]) - sum).abs();
            assert!(error <= bound, "{kernel:?}, row {r}, {o}: {error:e} beyond {bound:e}");
            if r % 9 == 0 {
                worst = worst.max(error / bound);
            }
        }
    }
    // The bound is not trivial: independent errors come within two orders of magnitude of it.
    assert!(worst > 0.01, "{worst}");
}

#[test]
fn products_are_within_rounding_error_of_double_precision() {
    for kernel in Kernel::available() {
        every_kind!(near(kernel));
    }
}

#[test]
fn non_finite_input_makes_only_its_row_nan() {
    let w = load::<Q4_1>(weights(40, 64), 64);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = values(3 * 64, 0.3);
        x[64 + 40] = bad;
        for kernel in Kernel::available() {
            let y = product_by(kernel, &w, &x, 3, Vec::new());
            for (row, y) in y.chunks_exact(40).enumerate() {
                assert!(y.iter().all(|y| y.is_nan() == (row == 1)), "{kernel:?}, row {row}");
            }
        }
    }
}

#[test]
fn loads_file_blocks_without_loss() {
    fn check<B: Block>() {
        let (out, columns) = (37, 2 * B::COLUMNS);
        let bytes = blocks(B::KIND, out * columns / B::COLUMNS);
        let stored =
            |bytes: &[u8]| BlocksInMemory { kind: B::KIND, bytes: bytes.to_vec(), columns };
        let read = |bytes: &[u8]| Tiles::<B>::from_file(out, columns, &stored(bytes));
        let tiles = read(&bytes).unwrap();
        let mut numbers = Vec::new();
        (0..out).for_each(|row| tiles.row(row, &mut numbers));
        assert_eq!(numbers, dequantized(B::KIND, &bytes), "{}", B::KIND);
        // Rejects a file that is one byte short, and a scale that is not finite.
        let short = read(&bytes[..bytes.len() - 1]).unwrap_err();
        assert!(short.contains(&format!("expected {} bytes", bytes.len())), "{short}");
        let mut bad = bytes.clone();
        bad[3 * B::KIND.block_bytes()..][..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
        let bad = read(&bad).unwrap_err();
        assert!(bad.contains("row 1") && bad.contains("inf"), "{bad}");
    }
    check::<Q8_0>();
    check::<Q4_0>();
    check::<Q4_1>();
    check::<Q4K>();
    check::<Iq4Nl>();
    check::<Iq4Xs>();
}

/// Returns the bits of all rows of tiles.
fn rows<B: Block>(tiles: &Tiles<B>) -> Vec<u32> {
    let mut all = Vec::new();
    (0..tiles.out).for_each(|row| tiles.row(row, &mut all));
    bits(&all)
}

#[test]
fn rounding_matches_ggml_bitwise() {
    fn check<B: Block + Encode<Value = f32>>() {
        let (out, columns) = (64, 512);
        let w = weights(out, columns);
        let bytes = quantised(B::KIND, &w);
        let stored = BlocksInMemory { kind: B::KIND, bytes, columns };
        let read = Tiles::<B>::from_file(out, columns, &stored).unwrap();
        assert_eq!(rows(&load::<B>(w, columns)), rows(&read), "{}", B::KIND);
    }
    check::<Q8_0>();
    check::<Q4_0>();
    check::<Q4_1>();
    check::<Q5_1>();
}

/// Returns weights that are the same on every machine, with difficult blocks of every kind.
fn exact_weights(count: usize) -> Vec<f32> {
    let number = |at: usize| {
        let mixed = (at as u32 ^ 7).wrapping_mul(0x9e37_79b1);
        (mixed ^ mixed >> 15) as f32 / (1u64 << 31) as f32 - 1.0
    };
    let mut w: Vec<f32> = (0..count).map(number).collect();
    hard_blocks(&mut w);
    w
}

/// Compares with fixtures that candle 0.11 made from the same numbers, row by row, with
/// `BlockQ4K::from_float` and `from_float_imatrix`.
#[test]
fn rounding_to_q4_k_matches_candle_bitwise() {
    let (out, columns) = (32, 512);
    let weights: Vec<f32> = (0..columns).map(|at| 0.2 + (at * 7 % 13) as f32).collect();
    let w = RowsInMemory(exact_weights(out * columns), columns);
    for (bytes, weights) in [
        (&include_bytes!("../../../tests/fixtures/q4_k.bin")[..], None),
        (&include_bytes!("../../../tests/fixtures/q4_k-weighed.bin")[..], Some(&weights[..])),
    ] {
        let stored = BlocksInMemory { kind: TensorType::Q4_K, bytes: bytes.to_vec(), columns };
        let read = Tiles::<Q4K>::from_file(out, columns, &stored).unwrap();
        let rounded = Tiles::<Q4K>::load(out, columns, &w, weights).unwrap();
        assert_eq!(rounded.as_bytes(), read.as_bytes(), "weighted: {}", weights.is_some());
    }
}
