//! The gated feed-forward's inner step on a processor: x · sigmoid(x) · up, for [x, up] side by side.
//!
//! As tensor operations it is three passes over halves of rows, number by number and on one thread, which of a batch
//! takes as long as a tenth of the products.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape};
use pulp::{Arch, Simd, WithSimd};

use super::exp::exp;
use crate::packed::pool;

/// Numbers that are worth another thread.
const GRAIN: usize = 1 << 14;

/// From `[rows, 2 · width]` to `[rows, width]`.
pub(super) struct SiluGate;

impl CustomOp1 for SiluGate {
    fn name(&self) -> &'static str {
        "silu-gate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, both) = layout.shape().dims2()?;
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("gate: expected a contiguous tensor, got {layout:?}")
        };
        let width = both / 2;
        let mut out = vec![0f32; rows * width];
        let pairs = out.chunks_exact_mut(width.max(1));
        let pairs = pairs.zip(x.as_slice::<f32>()?[from..to].chunks_exact(both.max(1)));
        let arch = Arch::new();
        pool::each(pairs.collect(), GRAIN / width.max(1) + 1, |(), (out, row)| {
            let (gate, up) = row.split_at(width);
            arch.dispatch(Row { out, gate, up });
        });
        Ok((CpuStorage::F32(out), Shape::from((rows, width))))
    }
}

struct Row<'a> {
    out: &'a mut [f32],
    gate: &'a [f32],
    up: &'a [f32],
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (outs, rest) = S::as_mut_simd_f32s(self.out);
        let ((gates, gate_rest), (ups, up_rest)) = (S::as_simd_f32s(self.gate), S::as_simd_f32s(self.up));
        for ((out, gate), up) in outs.iter_mut().zip(gates).zip(ups) {
            *out = one(simd, *gate, *up);
        }
        if !rest.is_empty() {
            let all = one(simd, simd.partial_load_f32s(gate_rest), simd.partial_load_f32s(up_rest));
            simd.partial_store_f32s(rest, all);
        }
    }
}

/// With e = e^−|x| no number overflows: sigmoid(x) is 1 / (1 + e), or e / (1 + e) for negative x.
#[inline(always)]
fn one<S: Simd>(simd: S, x: S::f32s, up: S::f32s) -> S::f32s {
    let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
    let e = exp(simd, simd.neg_f32s(simd.abs_f32s(x)));
    let above = simd.select_f32s(simd.less_than_f32s(x, zero), e, one);
    simd.mul_f32s(simd.div_f32s(simd.mul_f32s(x, above), simd.add_f32s(one, e)), up)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn a_gate_is_a_sigmoid_and_a_row_does_not_depend_on_its_company() {
        const WIDTH: usize = 1003;
        let values: Vec<f32> = (0..40 * 2 * WIDTH).map(|i| ((i as f32) * 1.618).sin() * 100.0).collect();
        let gated = |values: &[f32], rows: usize| {
            let x = Tensor::from_vec(values.to_vec(), (rows, 2 * WIDTH), &Device::Cpu).unwrap();
            x.apply_op1_no_bwd(&SiluGate).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let together = gated(&values, 40);
        for (row, found) in values.chunks(2 * WIDTH).zip(together.chunks(WIDTH)) {
            assert_eq!(gated(row, 1), found);
            for (i, found) in found.iter().enumerate() {
                let (x, up) = (f64::from(row[i]), f64::from(row[WIDTH + i]));
                let exact = x / (1.0 + (-x).exp()) * up;
                let error = (f64::from(*found) - exact).abs();
                assert!(error <= 1e-6 * exact.abs() + 1e-30, "{x}, {up}: {found}, {exact}");
            }
        }
    }
}
