//! Fused operations of a head's layer, with gradients; as in the decoder's, elementary ones would
//! each make a pass of their own over the data.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};

use crate::ops::{done, exp, softmax_in_place, values};

/// Cosines and sines of rows, `[rows, head / 2]` each.
#[derive(Debug, Clone)]
pub struct Angles {
    pub cos: Arc<[f32]>,
    pub sin: Arc<[f32]>,
    pub half: usize,
}

impl Angles {
    /// At these positions.
    pub fn new(positions: &[usize], head: usize, theta: f64) -> Self {
        let half = head / 2;
        let angle = |p: usize, i: usize| p as f64 * theta.powf(-2.0 * i as f64 / head as f64);
        let all = || positions.iter().flat_map(move |&p| (0..half).map(move |i| angle(p, i)));
        Self {
            cos: all().map(|a| a.cos() as f32).collect(),
            sin: all().map(|a| a.sin() as f32).collect(),
            half,
        }
    }
}

/// Turns the heads of `x [rows, heads · head]`, halves against each other.
pub struct Turn {
    pub angles: Angles,
    /// Backwards, for the gradient.
    pub inverse: bool,
}

impl CustomOp1 for Turn {
    fn name(&self) -> &'static str {
        "turn"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let source = values(storage, layout)?;
        let (half, width) = (self.angles.half, layout.dims()[1]);
        let sign = if self.inverse { -1.0 } else { 1.0 };
        let mut out = vec![0f32; source.len()];
        for (r, (to, from)) in
            out.chunks_exact_mut(width).zip(source.chunks_exact(width)).enumerate()
        {
            let (cos, sin) =
                (&self.angles.cos[r * half..][..half], &self.angles.sin[r * half..][..half]);
            for (to, from) in to.chunks_exact_mut(2 * half).zip(from.chunks_exact(2 * half)) {
                for i in 0..half {
                    let sin = sign * sin[i];
                    to[i] = from[i] * cos[i] - from[i + half] * sin;
                    to[i + half] = from[i + half] * cos[i] + from[i] * sin;
                }
            }
        }
        done(out, layout)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let backward = Self { angles: self.angles.clone(), inverse: !self.inverse };
        Ok(Some(grad.contiguous()?.apply_op1_no_bwd(&backward)?))
    }
}

/// Softmax of `scale * x` over the last dimension of `[.., rows, columns]`: row r sees the first
/// `seen[r]` columns and the last `own`.
pub struct SightSoftmax {
    pub scale: f32,
    pub seen: Arc<[usize]>,
    pub own: usize,
}

impl CustomOp1 for SightSoftmax {
    fn name(&self) -> &'static str {
        "sight-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let source = values(storage, layout)?;
        let columns = layout.dims()[layout.dims().len() - 1];
        let mut out = vec![0f32; source.len()];
        let mut row = Vec::with_capacity(columns);
        for (r, (to, from)) in
            out.chunks_exact_mut(columns).zip(source.chunks_exact(columns)).enumerate()
        {
            let seen = self.seen[r % self.seen.len()];
            row.clear();
            row.extend(
                from[..seen].iter().chain(&from[columns - self.own..]).map(|x| x * self.scale),
            );
            softmax_in_place(&mut row);
            to[..seen].copy_from_slice(&row[..seen]);
            to[columns - self.own..].copy_from_slice(&row[seen..]);
        }
        done(out, layout)
    }

    fn bwd(&self, _: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        // What is not seen has probability 0, and with it no gradient.
        Ok(Some(res.apply_op2_no_bwd(&grad.contiguous()?, &SoftmaxBackward { scale: self.scale })?))
    }
}

struct SoftmaxBackward {
    scale: f32,
}

impl CustomOp2 for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax-backward"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (y, g) = (values(s1, l1)?, values(s2, l2)?);
        let columns = l1.dims()[l1.dims().len() - 1];
        let mut out = vec![0f32; y.len()];
        for ((to, y), g) in
            out.chunks_exact_mut(columns).zip(y.chunks_exact(columns)).zip(g.chunks_exact(columns))
        {
            let dot: f32 = y.iter().zip(g).map(|(y, g)| y * g).sum();
            for ((to, y), g) in to.iter_mut().zip(y).zip(g) {
                *to = self.scale * y * (g - dot);
            }
        }
        done(out, l1)
    }
}

/// With e^−|x| no number overflows.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

/// x · sigmoid(x) · up of two tensors of one shape.
pub struct SiluGate;

impl CustomOp2 for SiluGate {
    fn name(&self) -> &'static str {
        "silu-gate"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, up) = (values(s1, l1)?, values(s2, l2)?);
        done(x.iter().zip(up).map(|(x, up)| x * sigmoid(*x) * up).collect(), l1)
    }

    fn bwd(
        &self,
        x: &Tensor,
        up: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let flat = |x: &Tensor| x.contiguous()?.flatten_all()?.to_vec1::<f32>();
        let (mut xs, mut ups, grads) = (flat(x)?, flat(up)?, flat(grad)?);
        for ((x, up), g) in xs.iter_mut().zip(&mut ups).zip(grads) {
            let s = sigmoid(*x);
            (*x, *up) = (g * *up * s * (1.0 + *x * (1.0 - s)), g * *x * s);
        }
        let tensor = |values| Tensor::from_vec(values, x.shape(), x.device());
        Ok((Some(tensor(xs)?), Some(tensor(ups)?)))
    }
}
