//! What a head is taught: to be like the target, then to be accepted.
//!
//! With p the target's distribution on the tokens that the head can say, not renormalised, and q
//! the head's own:
//! 1. Divergence: Σ p̃ log(p̃ / q), p̃ = p / Σ p. It pulls everywhere and gets a head going.
//! 2. Rejection of K i.i.d. drafts under the best rule that there is: max over sets S of tokens of
//!    Z(S)^K − P(S), where Z and P are what q and p give to S (Sun et al. 2023 for the bound,
//!    reached by the priority coupling). Only what pays is learned: a head too small to follow its
//!    target everywhere follows it where it is accepted.
//!
//! The derivative of 2 is that of Z(S)^K at the best S, by the envelope theorem: with softmax `K
//! Z^(K−1) q (1[S] − Z)`.
//!
//! Method: the best S holds the tokens of the smallest p / q. These are put into buckets by that
//! ratio; only buckets inside of which the best end of all can be exceeded are sorted.
//! Complexity: linear in the vocabulary, and a sort of a few buckets.

use pulp::{Arch, NullaryFnOnce};

use crate::ops::{softmax, sum};

/// What is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    Divergence,
    /// One minus the acceptance of so many i.i.d. drafts.
    Rejection(usize),
}

/// Replaces a row of logits by the gradient of the loss; `p` is the target's distribution on the
/// same tokens. Returns the loss, and leaves the head's distribution in `q`.
pub fn gradient(loss: Loss, p: &[f32], logits: &mut [f32], q: &mut [f32]) -> f64 {
    struct Row<'a>(Loss, &'a [f32], &'a mut [f32], &'a mut [f32]);

    impl NullaryFnOnce for Row<'_> {
        type Output = f64;

        #[inline(always)]
        fn call(self) -> f64 {
            let Self(loss, p, logits, q) = self;
            softmax(logits);
            q.copy_from_slice(logits);
            match loss {
                Loss::Divergence => divergence(p, logits),
                Loss::Rejection(drafts) => rejection(p, logits, drafts),
            }
        }
    }
    Arch::new().dispatch(Row(loss, p, logits, q))
}

#[inline(always)]
fn divergence(p: &[f32], q: &mut [f32]) -> f64 {
    let scale = 1.0 / sum(p).max(f32::MIN_POSITIVE);
    let mut divergence = 0.0_f64;
    for (q, p) in q.iter_mut().zip(p) {
        let p = p * scale;
        // What is next to nothing takes as long as the rest, and adds as little.
        if p > 1e-7 {
            divergence += f64::from(p * (p / q.max(f32::MIN_POSITIVE)).ln());
        }
        *q -= p;
    }
    divergence
}

#[inline(always)]
fn rejection(p: &[f32], q: &mut [f32], drafts: usize) -> f64 {
    let best = worst_set(p, q, drafts);
    let slope = drafts as f32 * best.z.powi(drafts as i32 - 1) as f32;
    for (q, p) in q.iter_mut().zip(p) {
        let within = if *p < best.ratio * *q { 1.0 } else { 0.0 };
        *q *= slope * (within - best.z as f32);
    }
    best.value(drafts)
}

/// Tokens with p below `ratio` · q, and what both distributions give them.
#[derive(Debug, Clone, Copy)]
struct Set {
    ratio: f32,
    z: f64,
    p: f64,
}

impl Set {
    #[inline(always)]
    fn of(p: &[f32], q: &[f32], ratio: f32) -> Self {
        let (ps, p_rest) = p.as_chunks::<16>();
        let (qs, q_rest) = q.as_chunks::<16>();
        let (mut z, mut own) = ([0f32; 16], [0f32; 16]);
        for (p, q) in ps.iter().zip(qs) {
            for i in 0..16 {
                let within = if p[i] < ratio * q[i] { 1.0 } else { 0.0 };
                z[i] += within * q[i];
                own[i] += within * p[i];
            }
        }
        let (mut z, mut own) = (sum(&z), sum(&own));
        for (p, q) in p_rest.iter().zip(q_rest).filter(|(p, q)| **p < ratio * **q) {
            (z, own) = (z + q, own + p);
        }
        Self { ratio, z: f64::from(z), p: f64::from(own) }
    }

    fn value(&self, drafts: usize) -> f64 {
        self.z.powi(drafts as i32) - self.p
    }
}

/// The set at which `drafts` drafts are rejected most.
#[inline(always)]
fn worst_set(p: &[f32], q: &[f32], drafts: usize) -> Set {
    let one = Set::of(p, q, 1.0);
    if drafts == 1 {
        return one;
    }
    let (mut buckets, mut z, mut own) =
        (vec![0u8; p.len()], [0.0_f64; BUCKETS], [0.0_f64; BUCKETS]);
    for ((p, q), bucket) in p.iter().zip(q).zip(&mut buckets) {
        *bucket = bucket_of(p / q.max(f32::MIN_POSITIVE));
    }
    for ((p, q), bucket) in p.iter().zip(q).zip(&buckets) {
        z[usize::from(*bucket)] += f64::from(*q);
        own[usize::from(*bucket)] += f64::from(*p);
    }
    // What is before each bucket, and the best among the ends.
    let (mut best, mut before) = (one, [(0.0, 0.0); BUCKETS + 1]);
    for at in 0..BUCKETS {
        before[at + 1] = (before[at].0 + z[at], before[at].1 + own[at]);
        let (z, p) = before[at + 1];
        let set = Set { ratio: beginning(at + 1), z, p };
        if at + 1 < BUCKETS && set.value(drafts) > best.value(drafts) {
            best = set;
        }
    }
    // Inside of a bucket there is more than at its ends only if all of its q and none of its p
    // would be.
    for at in 0..BUCKETS {
        if before[at + 1].0.powi(drafts as i32) - before[at].1 <= best.value(drafts) + 1e-6 {
            continue;
        }
        let within =
            p.iter().zip(q).zip(&buckets).filter(|(_, bucket)| usize::from(**bucket) == at);
        let mut within: Vec<(f32, f32, f32)> = within.map(|((p, q), _)| (p / q, *p, *q)).collect();
        within.retain(|(_, p, q)| *q > 1e-8 || *p > 1e-8);
        within.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut z, mut own) = before[at];
        for (ratio, p, q) in within {
            let set = Set { ratio, z, p: own };
            if set.value(drafts) > best.value(drafts) {
                best = set;
            }
            (z, own) = (z + f64::from(q), own + f64::from(p));
        }
    }
    best
}

/// Of ratios from 2^-8 to 2^8, four an octave; what lies outside belongs to the ends.
const BUCKETS: usize = 64;
/// The exponent of 2^-8 and no bits of the mantissa; two of these tell the parts of an octave
/// apart.
const LEAST: u32 = (127 - 8) << 2;

#[inline(always)]
fn bucket_of(ratio: f32) -> u8 {
    ((ratio.to_bits() >> 21).max(LEAST) - LEAST).min(BUCKETS as u32 - 1) as u8
}

/// The least ratio of a bucket.
fn beginning(bucket: usize) -> f32 {
    f32::from_bits((LEAST + bucket as u32) << 21)
}

/// The acceptance of so many i.i.d. drafts.
pub fn acceptance(p: &[f32], q: &[f32], drafts: usize) -> f64 {
    1.0 - worst_set(p, q, drafts).value(drafts).max(0.0)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha12Rng;

    use super::*;
    use crate::ops::softmax_in_place;

    fn probs(rng: &mut ChaCha12Rng, count: usize, spread: f32) -> Vec<f32> {
        let mut probs: Vec<f32> = (0..count).map(|_| rng.random_range(-spread..spread)).collect();
        softmax_in_place(&mut probs);
        probs
    }

    /// By sorting.
    fn exact(p: &[f32], q: &[f32], drafts: usize) -> f64 {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| (p[*a] / q[*a]).total_cmp(&(p[*b] / q[*b])));
        let (mut z, mut own, mut best) = (0.0_f64, 0.0_f64, 0.0_f64);
        for i in order {
            (z, own) = (z + f64::from(q[i]), own + f64::from(p[i]));
            best = best.max(z.powi(drafts as i32) - own);
        }
        1.0 - best
    }

    #[test]
    fn acceptance_is_that_of_the_best_rule() {
        let mut rng = ChaCha12Rng::seed_from_u64(1);
        for drafts in 1..=4 {
            for _ in 0..200 {
                let (spread, mass) = (rng.random_range(0.5..8.0), rng.random_range(0.7..1.0));
                let q = probs(&mut rng, 50, spread);
                let p: Vec<f32> =
                    probs(&mut rng, 50, spread).into_iter().map(|p| p * mass).collect();
                let (found, expected) = (acceptance(&p, &q, drafts), exact(&p, &q, drafts));
                assert!((found - expected).abs() < 1e-5, "{drafts}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let mut rng = ChaCha12Rng::seed_from_u64(2);
        for loss in [Loss::Divergence, Loss::Rejection(1), Loss::Rejection(2), Loss::Rejection(4)] {
            let (mut checked, mut off) = (0, 0);
            for _ in 0..20 {
                let p: Vec<f32> = probs(&mut rng, 12, 3.0).into_iter().map(|p| p * 0.9).collect();
                let logits: Vec<f32> = (0..12).map(|_| rng.random_range(-3.0..3.0)).collect();
                let value = |logits: &[f32]| {
                    gradient(loss, &p, &mut logits.to_vec(), &mut vec![0.0; logits.len()])
                };
                let mut found = logits.clone();
                gradient(loss, &p, &mut found, &mut [0.0; 12]);
                for i in 0..12 {
                    let at = |step: f32| {
                        let mut moved = logits.clone();
                        moved[i] += step;
                        value(&moved)
                    };
                    let expected = (at(0.01) - at(-0.01)) / 0.02;
                    checked += 1;
                    off += usize::from((f64::from(found[i]) - expected).abs() > 1e-3);
                }
            }
            // The best set changes somewhere: the loss has edges.
            assert!(off * 50 < checked, "{loss:?}: {off} of {checked}");
        }
    }
}
