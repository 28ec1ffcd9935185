use super::*;
use candle_core::quantized::{GgmlDType, QTensor};

fn values(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + seed) * 1.618).sin()).collect()
}

/// Rows in memory.
struct Memory(Vec<f32>, usize);

impl Memory {
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

impl Read<String> for Memory {
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

/// A matrix in this format, and what it holds in f32.
fn matrix(format: Format, out: usize, columns: usize) -> (Packed, Vec<f32>) {
    let mut w = values(out * columns, 7.1);
    if format == Format::F16 {
        // Subnormals and zeros of both signs too, and the largest.
        for (w, special) in w.iter_mut().zip([0x0001, 0x83ff, 0x0000, 0x8000, 0x7bff]) {
            *w = f16::from_bits(special).to_f32();
        }
    }
    let held = match format {
        Format::F32 => w.clone(),
        Format::Bf16 => w.iter().map(|v| bf16::from_f32(*v).to_f32()).collect(),
        Format::F16 => w.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
        Format::Q8 => {
            let tensor = Tensor::from_vec(w.clone(), (out, columns), &Device::Cpu).unwrap();
            let reference = QTensor::quantize(&tensor, GgmlDType::Q8_0).unwrap();
            reference.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
        }
    };
    (Packed::load(format, out, columns, Memory(w, columns)).unwrap(), held)
}

const FORMATS: [Format; 4] = [Format::F32, Format::Bf16, Format::F16, Format::Q8];

#[test]
fn rows_are_what_was_packed() {
    for format in FORMATS {
        let (packed, held) = matrix(format, 37, 96);
        let ids: Vec<u32> = (0..37).collect();
        let rows = packed.rows(&ids).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(rows, held, "{format:?}");
        assert!(packed.rows(&[37]).is_err());
    }
}

#[test]
fn products_equal_those_in_double_precision() {
    for format in FORMATS {
        for (columns, out) in [(32, 1), (64, 16), (96, 33), (416, 50)] {
            // An odd width too, where the format allows one.
            let columns = if format == Format::Q8 { columns } else { columns - 1 };
            let (packed, w) = matrix(format, out, columns);
            for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 40] {
                let x = values(rows * columns, 0.3);
                // By the best vectors of this processor, and by none.
                let best = packed.product(&x, rows);
                let mut plain = vec![0f32; out.div_ceil(TILE) * rows * TILE];
                let lines = &packed.lines;
                let side_by_side = interleaved(&x, rows, columns);
                Multiply { x: &side_by_side, lines, y: &mut plain, rows, columns, format }
                    .with_simd(pulp::Scalar::new());
                for r in 0..rows {
                    for o in 0..out {
                        let pairs = x[r * columns..].iter().zip(&w[o * columns..]).take(columns);
                        let exact: f64 = pairs.clone().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let size: f64 = pairs.map(|(a, b)| f64::from(a * b).abs()).sum();
                        for y in [best[r * out + o], plain[(o / TILE * rows + r) * TILE + o % TILE]] {
                            let error = (f64::from(y) - exact).abs();
                            assert!(error < 1e-6 * size, "{format:?} {columns} {out} {rows}: {error}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    for format in FORMATS {
        let (packed, _) = matrix(format, 50, 192);
        let x = values(40 * 192, 0.5);
        let together = packed.product(&x, 40);
        for r in 0..40 {
            let alone = packed.product(&x[r * 192..(r + 1) * 192], 1);
            assert_eq!(together[r * 50..(r + 1) * 50], alone, "{format:?}, row {r}");
        }
    }
}
