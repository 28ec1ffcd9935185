//! Fused operations with gradients, for training on a CPU.
//!
//! Built from candle's elementary operations, each of these would make several passes over its data
//! with a fresh allocation for every one; on two cores that costs more than the matrix products.
//! All take contiguous f32 tensors.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use pulp::{Arch, NullaryFnOnce};

pub(crate) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("expected a contiguous tensor, got {layout:?}")
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

pub(crate) fn done(values: Vec<f32>, layout: &Layout) -> Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(values), layout.shape().clone()))
}

/// e^x to about 2e-7 relative, in a form that compilers vectorise, for CPUs without fused
/// products too.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then found in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    // The first product is exact: the constant has few bits.
    let r = (x - k * 0.693_359_4) + k * 2.121_944_4e-4;
    let mut e = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        e = e * r + c;
    }
    e * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// Overwrites a row of logits with its softmax; returns the logarithm of the normaliser.
pub fn softmax_in_place(row: &mut [f32]) -> f32 {
    struct Row<'a>(&'a mut [f32]);

    impl NullaryFnOnce for Row<'_> {
        type Output = f32;

        #[inline(always)]
        fn call(self) -> f32 {
            softmax(self.0)
        }
    }
    // With the widest vectors of this processor.
    Arch::new().dispatch(Row(row))
}

#[inline(always)]
pub(crate) fn softmax(row: &mut [f32]) -> f32 {
    let mut top = f32::NEG_INFINITY;
    for x in row.iter() {
        top = if *x > top { *x } else { top };
    }
    for x in row.iter_mut() {
        *x = exp(*x - top);
    }
    let sum = sum(row);
    let scale = 1.0 / sum;
    for x in row.iter_mut() {
        *x *= scale;
    }
    top + sum.ln()
}

/// In lanes, which the compiler may add side by side.
#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut lanes = [0f32; 16];
    for chunk in chunks {
        for i in 0..16 {
            lanes[i] += chunk[i];
        }
    }
    lanes.iter().chain(rest).sum()
}

/// Softmax of `scale * x` over the last dimension of scores `[.., time, time]`, each row up to its
/// own time.
pub struct CausalSoftmax {
    pub scale: f32,
}

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let source = values(storage, layout)?;
        let time = layout.dims()[layout.dims().len() - 1];
        let mut out = vec![0f32; source.len()];
        for (r, (to, from)) in out.chunks_exact_mut(time).zip(source.chunks_exact(time)).enumerate()
        {
            let seen = r % time + 1;
            for (y, x) in to[..seen].iter_mut().zip(from) {
                *y = x * self.scale;
            }
            softmax_in_place(&mut to[..seen]);
        }
        done(out, layout)
    }

    fn bwd(&self, _: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let backward = CausalSoftmaxBackward { scale: self.scale };
        Ok(Some(res.apply_op2_no_bwd(&grad.contiguous()?, &backward)?))
    }
}

struct CausalSoftmaxBackward {
    scale: f32,
}

impl CustomOp2 for CausalSoftmaxBackward {
    fn name(&self) -> &'static str {
        "causal-softmax-backward"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (y, g) = (values(s1, l1)?, values(s2, l2)?);
        let time = l1.dims()[l1.dims().len() - 1];
        let mut out = vec![0f32; y.len()];
        for (r, to) in out.chunks_exact_mut(time).enumerate() {
            let seen = r % time + 1;
            let (y, g) = (&y[r * time..][..seen], &g[r * time..][..seen]);
            let dot: f32 = y.iter().zip(g).map(|(y, g)| y * g).sum();
            for ((to, y), g) in to.iter_mut().zip(y).zip(g) {
                *to = self.scale * y * (g - dot);
            }
        }
        done(out, l1)
    }
}

/// RMS normalisation of the rows of `x [.., width]` with weights `[width]`.
pub struct RmsNorm {
    pub epsilon: f32,
}

impl RmsNorm {
    fn scale(&self, row: &[f32]) -> f32 {
        let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        1.0 / (mean + self.epsilon).sqrt()
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (values(s1, l1)?, values(s2, l2)?);
        let mut out = vec![0f32; x.len()];
        for (to, row) in out.chunks_exact_mut(w.len()).zip(x.chunks_exact(w.len())) {
            let scale = self.scale(row);
            for ((to, x), w) in to.iter_mut().zip(row).zip(w) {
                *to = x * scale * w;
            }
        }
        done(out, l1)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = w.elem_count();
        let weights = w.to_vec1::<f32>()?;
        let rows = x.flatten_all()?.to_vec1::<f32>()?;
        let grads = grad.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
        let (mut dx, mut dw) = (vec![0f32; rows.len()], vec![0f32; width]);
        for (r, to) in dx.chunks_exact_mut(width).enumerate() {
            let (row, g) = (&rows[r * width..][..width], &grads[r * width..][..width]);
            let scale = self.scale(row);
            let dot: f32 = (0..width).map(|i| g[i] * weights[i] * row[i]).sum();
            let shrink = dot * scale * scale * scale / width as f32;
            for i in 0..width {
                to[i] = g[i] * weights[i] * scale - row[i] * shrink;
                dw[i] += g[i] * row[i] * scale;
            }
        }
        let dx = Tensor::from_vec(dx, x.shape(), x.device())?;
        Ok((Some(dx), Some(Tensor::from_vec(dw, w.shape(), w.device())?)))
    }
}

/// Rotary embedding of `[.., time, head]`, halves rotated against each other, times counted from 0.
pub struct Rotary {
    pub theta: f32,
    /// Backwards, for the gradient.
    pub inverse: bool,
}

impl CustomOp1 for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let source = values(storage, layout)?;
        let dims = layout.dims();
        let (time, head) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        let half = head / 2;
        let mut angles = Vec::with_capacity(time * half);
        for t in 0..time {
            for i in 0..half {
                let angle = t as f32 * self.theta.powf(-(2.0 * i as f32) / head as f32);
                let (sin, cos) = angle.sin_cos();
                angles.push((if self.inverse { -sin } else { sin }, cos));
            }
        }
        let mut out = vec![0f32; source.len()];
        for (r, (to, from)) in out.chunks_exact_mut(head).zip(source.chunks_exact(head)).enumerate()
        {
            let angles = &angles[r % time * half..][..half];
            for (i, (sin, cos)) in angles.iter().enumerate() {
                to[i] = from[i] * cos - from[i + half] * sin;
                to[i + half] = from[i + half] * cos + from[i] * sin;
            }
        }
        done(out, layout)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let backward = Rotary { theta: self.theta, inverse: !self.inverse };
        Ok(Some(grad.contiguous()?.apply_op1_no_bwd(&backward)?))
    }
}
