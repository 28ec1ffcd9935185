#![allow(unsafe_code)]

#[path = "../../tests/support/reference.rs"]
pub(super) mod reference;

use half::{bf16, f16};
use polydraft_gguf::TensorType;
use pulp::WithSimd;

use super::exact::ExactWeights;
use super::output::Output;
use super::tiles::TILE;
use super::*;
use reference::{blocks, dequantized, quantised};

pub(super) fn values(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + seed) * 1.618).sin()).collect()
}

/// Rows in memory, with their number of columns.
pub(super) struct RowsInMemory(pub Vec<f32>, pub usize);

impl RowsInMemory {
    fn copy<T>(
        &self,
        first: usize,
        values: &mut [T],
        convert: impl Fn(f32) -> T,
    ) -> std::result::Result<(), String> {
        for (value, from) in values.iter_mut().zip(&self.0[first * self.1..]) {
            *value = convert(*from);
        }
        Ok(())
    }
}

impl ReadRows<String> for RowsInMemory {
    fn f32(&self, first: usize, values: &mut [f32]) -> std::result::Result<(), String> {
        self.copy(first, values, |v| v)
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> std::result::Result<(), String> {
        self.copy(first, values, f16::from_f32)
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> std::result::Result<(), String> {
        self.copy(first, values, bf16::from_f32)
    }
}

/// Blocks of a file in memory.
pub(super) struct BlocksInMemory {
    pub kind: TensorType,
    pub bytes: Vec<u8>,
    pub columns: usize,
}

impl BlocksInMemory {
    fn values(&self) -> Vec<f32> {
        dequantized(self.kind, &self.bytes)
    }
}

impl ReadBlocks<String> for BlocksInMemory {
    fn read(
        &self,
        first: usize,
        width: usize,
        bytes: &mut [u8],
    ) -> std::result::Result<(), String> {
        let (from, to) = (first * width, first * width + bytes.len());
        match self.bytes.get(from..to) {
            Some(found) => bytes.copy_from_slice(found),
            None => return Err(format!("expected {to} bytes at least, got {}", self.bytes.len())),
        }
        Ok(())
    }

    fn not_finite_error(&self, row: usize, got: f32) -> String {
        format!("row {row}: {got}")
    }
}

impl ReadRows<String> for BlocksInMemory {
    fn f32(&self, first: usize, values: &mut [f32]) -> std::result::Result<(), String> {
        RowsInMemory(self.values(), self.columns).f32(first, values)
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> std::result::Result<(), String> {
        RowsInMemory(self.values(), self.columns).f16(first, values)
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> std::result::Result<(), String> {
        RowsInMemory(self.values(), self.columns).bf16(first, values)
    }

    fn blocks(&self, kind: TensorType) -> Option<&dyn ReadBlocks<String>> {
        (kind == self.kind).then_some(self)
    }
}

/// Returns a matrix in a format, and its expected numbers in f32.
fn matrix(format: Format, out: usize, columns: usize) -> (Packed, Vec<f32>) {
    let mut w = values(out * columns, 7.1);
    if format == Format::F16 {
        // Include subnormals and zeros of both signs, and the largest number.
        for (w, special) in w.iter_mut().zip([0x0001, 0x83ff, 0x0000, 0x8000, 0x7bff]) {
            *w = f16::from_bits(special).to_f32();
        }
    }
    let rounded = |kind| dequantized(kind, &quantised(kind, &w));
    let expected = match format {
        Format::F32 => w.clone(),
        Format::Bf16 => w.iter().map(|v| bf16::from_f32(*v).to_f32()).collect(),
        Format::F16 => w.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
        Format::Q8_0F32 | Format::Q8_0 => rounded(TensorType::Q8_0),
        Format::Q4_0 => rounded(TensorType::Q4_0),
        Format::Q4_1 => rounded(TensorType::Q4_1),
        Format::Q5_1 => rounded(TensorType::Q5_1),
        other => panic!("{other} has no reference here"),
    };
    (Packed::load(format, out, columns, RowsInMemory(w, columns)).unwrap(), expected)
}

const EXACT: [Format; 4] = [Format::F32, Format::Bf16, Format::F16, Format::Q8_0F32];
const INTEGER: [Format; 4] = [Format::Q8_0, Format::Q4_0, Format::Q4_1, Format::Q5_1];

#[test]
fn packed_rows_equal_reference_rounding() {
    for format in EXACT.into_iter().chain(INTEGER) {
        let columns = 96usize.next_multiple_of(format.block_columns());
        let (packed, expected) = matrix(format, 37, columns);
        let ids: Vec<u32> = (0..37).collect();
        let rows = packed.rows(&ids).unwrap().into_numbers();
        assert_eq!(rows, expected, "{format:?}");
        assert!(packed.rows(&[37]).is_err());
    }
}

/// Returns y computed with the CPU's best vectors, and without vectors.
fn both<W: ExactWeights>(w: &Tiles<W>, x: &[f32], rows: usize) -> [Vec<f32>; 2] {
    let best = exact::product(w, x, rows, Vec::new());
    let output = Output::new(rows, w.out, Vec::new());
    let x = &exact::PackedInputs::new::<W>(x, rows, w.columns);
    exact::Multiply { x, w, output: &output, tiles: 0..w.tiles() }.with_simd(pulp::Scalar::new());
    // SAFETY: `Multiply` wrote all tiles with all rows.
    [best, unsafe { output.assume_written() }]
}

#[test]
fn products_match_double_precision() {
    for format in EXACT {
        for (columns, out) in [(32, 1), (64, 16), (96, 33), (416, 50)] {
            // An odd number of columns, if the format allows it.
            let columns = if format == Format::Q8_0F32 { columns } else { columns - 1 };
            let (_, w) = matrix(format, out, columns);
            let source = &RowsInMemory(w.clone(), columns);
            for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 32, 33, 40] {
                let x = values(rows * columns, 0.3);
                let found = match format {
                    Format::F32 => {
                        both(&Tiles::<F32>::load(out, columns, source, None).unwrap(), &x, rows)
                    }
                    Format::Bf16 => {
                        both(&Tiles::<Bf16>::load(out, columns, source, None).unwrap(), &x, rows)
                    }
                    Format::F16 => {
                        both(&Tiles::<F16>::load(out, columns, source, None).unwrap(), &x, rows)
                    }
                    _ => both(&Tiles::<Q8_0>::load(out, columns, source, None).unwrap(), &x, rows),
                };
                for r in 0..rows {
                    for o in 0..out {
                        let pairs = x[r * columns..].iter().zip(&w[o * columns..]).take(columns);
                        let exact: f64 =
                            pairs.clone().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let size: f64 = pairs.map(|(a, b)| f64::from(a * b).abs()).sum();
                        for y in &found {
                            let error = (f64::from(y[r * out + o]) - exact).abs();
                            assert!(
                                error < 1e-6 * size,
                                "{format:?} {columns} {out} {rows}: {error}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn row_does_not_depend_on_other_rows() {
    for format in Format::ROUNDED {
        // More columns than are widened at a time.
        let columns = 608usize.next_multiple_of(format.block_columns());
        let source = RowsInMemory(values(50 * columns, 7.1), columns);
        let packed = Packed::load(format, 50, columns, source).unwrap();
        let x = values(40 * columns, 0.5);
        let all = packed.product(&x, 40);
        for r in 0..40 {
            let alone = packed.product(&x[r * columns..(r + 1) * columns], 1);
            assert_eq!(all[r * 50..(r + 1) * 50], alone, "{format:?}, row {r}");
        }
    }
}

#[test]
fn loads_file_only_formats_without_loss() {
    for (kind, format) in [
        (TensorType::Q5_0, Format::Q5_0),
        (TensorType::Q5_1, Format::Q5_1),
        (TensorType::Q2_K, Format::Q2K),
        (TensorType::Q3_K, Format::Q3K),
        (TensorType::Q5_K, Format::Q5K),
        (TensorType::Q6_K, Format::Q6K),
        (TensorType::IQ4_NL, Format::Iq4Nl),
        (TensorType::IQ4_XS, Format::Iq4Xs),
    ] {
        assert_eq!(Format::from_tensor_type(kind), format);
        let (out, columns) = (70, 3 * kind.block());
        let bytes = blocks(kind, out * 3);
        let stored = BlocksInMemory { kind, bytes, columns };
        let packed = Packed::load(
            format,
            out,
            columns,
            BlocksInMemory { bytes: stored.bytes.clone(), ..stored },
        )
        .unwrap();
        let wide = Packed::load(Format::F32, out, columns, RowsInMemory(stored.values(), columns))
            .unwrap();
        let ids: Vec<u32> = (0..out as u32).collect();
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let rows = |matrix: &Packed| bits(matrix.rows(&ids).unwrap().into_numbers());
        assert_eq!(rows(&packed), rows(&wide), "{kind}");
        let x = values(40 * columns, 0.3);
        let all = packed.product(&x, 40);
        for (x, y) in x.chunks_exact(columns).zip(all.chunks_exact(out)) {
            assert_eq!(packed.product(x, 1), y, "{kind}: a row depends on other rows");
        }
        // Needs hardly more bytes than the file, but for the padding of the last tile.
        let most = stored.bytes.len() * out.next_multiple_of(TILE) / out;
        assert!(
            packed.bytes() as f64 <= 1.05 * most as f64,
            "{kind}: {} for {most}",
            packed.bytes()
        );
        assert_eq!(packed.bytes() as u64, format.bytes(out, columns));
        // Rejects a scale that is not finite.
        let mut bad = stored.bytes.clone();
        let first = [TensorType::Q5_K, TensorType::IQ4_XS].contains(&kind) || kind.block() == 32;
        let at = if first { 0 } else { kind.block_bytes() - 2 };
        bad[3 * kind.block_bytes() + at..][..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        let bad = Packed::load(format, out, columns, BlocksInMemory { bytes: bad, ..stored })
            .unwrap_err();
        assert!(bad.contains("row 1") && bad.contains("inf"), "{bad}");
    }
}
