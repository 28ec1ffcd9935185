//! The training loop: first target and draft side by side, the draft learning from the target's own
//! probabilities; then the draft alone, on what it is for.
//!
//! In the first part the target's logits on a batch are there anyway, so distilling the draft on
//! them as they improve costs only the draft's own passes. In the second the target stands still
//! and the draft maximises the acceptance sum(min(p, q)) itself: a model too small to follow the
//! target everywhere then follows it where it pays.
//!
//! Two workers hold a graph each; single-threaded products inside them use two cores better than
//! parallel products between serial element-wise passes.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::model::{Decoder, Shape};
use crate::ops::softmax_in_place;
use crate::optimizer::Slot;

/// Models that are trained in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// The target from the text, the draft from the target (Kullback-Leibler divergence).
    Both,
    /// The draft from the target (total variation, which is one minus the acceptance).
    Draft,
}

/// Settings of one phase of training.
pub struct Plan {
    pub lesson: Batch,
    /// Steps of this part in all, counted from its first run.
    pub steps: usize,
    /// The part of the steps, at the end, over which the rate falls to zero.
    pub decay: f64,
    pub rate: f64,
    /// Sequences of [`Shape::max_position_embeddings`] tokens in a step.
    pub batch: usize,
    /// Sequences in one pass of one worker.
    pub micro_batch: usize,
    pub workers: usize,
    pub save_every: usize,
    pub check_every: usize,
    pub checkpoint: PathBuf,
}

impl Plan {
    /// Warm-up, a plateau, then a straight line to zero: the plateau lets a run be prolonged.
    fn rate_at(&self, step: usize) -> f64 {
        let left =
            (self.steps.saturating_sub(step)) as f64 / (self.steps as f64 * self.decay).max(1.0);
        self.rate * left.min(1.0) * ((step + 1) as f64 / 50.0).min(1.0)
    }
}

/// Means over the tokens of one or more batches, in nats.
#[derive(Clone, Copy, Default)]
pub struct Figures {
    pub tokens: f64,
    /// Cross-entropy of the target with the text.
    pub target_loss: f64,
    /// Cross-entropy of the draft with the text.
    pub draft_loss: f64,
    /// Mean of sum(min(p, q)) at temperature 1.
    pub acceptance: f64,
}

impl Figures {
    fn add(&mut self, other: &Self) {
        let total = self.tokens + other.tokens;
        let mix = |a: f64, b: f64| (a * self.tokens + b * other.tokens) / total;
        *self = Self {
            target_loss: mix(self.target_loss, other.target_loss),
            draft_loss: mix(self.draft_loss, other.draft_loss),
            acceptance: mix(self.acceptance, other.acceptance),
            tokens: total,
        };
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            f,
            "target loss {:.3}, draft loss {:.3}, acceptance {:.3}",
            self.target_loss, self.draft_loss, self.acceptance
        )
    }
}

/// Figures of a batch, and the gradients of both losses with respect to both logits `[rows,
/// vocabulary]`; the target's is that of [`Batch::Both`] always.
fn losses(
    lesson: Batch,
    target: &Tensor,
    draft: &Tensor,
    labels: &[u32],
) -> Result<(Figures, Tensor, Tensor)> {
    let (rows, vocabulary) = target.dims2()?;
    let mut p = target.flatten_all()?.to_vec1::<f32>()?;
    let mut q = draft.flatten_all()?.to_vec1::<f32>()?;
    let mut sums = Figures { tokens: rows as f64, ..Default::default() };
    let scale = 1.0 / rows as f32;
    for ((p, q), &label) in
        p.chunks_exact_mut(vocabulary).zip(q.chunks_exact_mut(vocabulary)).zip(labels)
    {
        let (p_label, q_label) = (p[label as usize], q[label as usize]);
        sums.target_loss += f64::from(softmax_in_place(p) - p_label);
        sums.draft_loss += f64::from(softmax_in_place(q) - q_label);
        sums.acceptance += f64::from(p.iter().zip(q.iter()).map(|(p, q)| p.min(*q)).sum::<f32>());
        match lesson {
            Batch::Both => q.iter_mut().zip(p.iter()).for_each(|(q, p)| *q = (*q - p) * scale),
            Batch::Draft => {
                // 1 - sum(min(p, q)) falls with q exactly where q < p.
                let below: f32 =
                    q.iter().zip(p.iter()).filter(|(q, p)| q < p).map(|(q, _)| q).sum();
                for (q, p) in q.iter_mut().zip(p.iter()) {
                    *q *= (below - if *q < *p { 1.0 } else { 0.0 }) * scale;
                }
            }
        }
        p.iter_mut().for_each(|p| *p *= scale);
        p[label as usize] -= scale;
    }
    for figure in [&mut sums.target_loss, &mut sums.draft_loss, &mut sums.acceptance] {
        *figure /= rows as f64;
    }
    let tensor = |values| Tensor::from_vec(values, (rows, vocabulary), &Device::Cpu);
    Ok((sums, tensor(p)?, tensor(q)?))
}

/// Target and draft, with the state of their training.
pub struct Pair {
    pub target: Decoder,
    pub draft: Decoder,
    /// Optimizer slots of the target's parameters, then of the draft's.
    slots: Vec<Slot>,
    /// Steps made of each [`Batch`].
    steps: [usize; 2],
}

impl Pair {
    /// From the checkpoint if there is one, else from the beginning.
    pub fn open(vocabulary: usize, checkpoint: &std::path::Path) -> Result<Self> {
        let stored = match checkpoint.exists() {
            true => Some(
                candle_core::safetensors::load(checkpoint, &Device::Cpu)
                    .with_context(|| format!("reading {}", checkpoint.display()))?,
            ),
            false => None,
        };
        let mut rng = ChaCha12Rng::seed_from_u64(1);
        let part = |prefix: &str| {
            stored.as_ref().map(|all| -> HashMap<String, Tensor> {
                let own = all
                    .iter()
                    .filter_map(|(k, v)| Some((k.strip_prefix(prefix)?.to_owned(), v.clone())));
                own.collect()
            })
        };
        let target = Decoder::new(Shape::target(vocabulary), part("target.").as_ref(), &mut rng)?;
        let draft = Decoder::new(Shape::draft(vocabulary), part("draft.").as_ref(), &mut rng)?;
        let mut slots = Vec::new();
        for (prefix, model) in [("target", &target), ("draft", &draft)] {
            for (name, var) in &model.parameters {
                slots.push(Slot::new(prefix, name, var, stored.as_ref())?);
            }
        }
        let mut steps = [0; 2];
        if let Some(stored) = stored.as_ref().and_then(|s| s.get("step")) {
            let stored = stored.to_vec1::<u32>()?;
            steps.iter_mut().zip(stored).for_each(|(step, stored)| *step = stored as usize);
        }
        Ok(Self { target, draft, slots, steps })
    }

    fn save(&self, checkpoint: &std::path::Path) -> Result<()> {
        let mut tensors: HashMap<String, Tensor> =
            self.slots.iter().flat_map(Slot::state).collect();
        for (prefix, model) in [("target", &self.target), ("draft", &self.draft)] {
            for (name, var) in &model.parameters {
                tensors.insert(format!("{prefix}.{name}"), var.as_detached_tensor());
            }
        }
        tensors.insert("step".into(), Tensor::new(&self.steps.map(|s| s as u32), &Device::Cpu)?);
        let partial = checkpoint.with_extension("partial");
        candle_core::safetensors::save(&tensors, &partial)?;
        fs::rename(partial, checkpoint)?;
        Ok(())
    }

    /// Figures of sequences, and for a lesson the gradients of the parameters it concerns, in the
    /// order of the slots.
    fn pass(&self, sequences: &[&[u16]], lesson: Option<Batch>) -> Result<(Figures, Vec<Tensor>)> {
        let time = sequences[0].len() - 1;
        let inputs: Vec<u32> =
            sequences.iter().flat_map(|s| s[..time].iter().map(|&t| u32::from(t))).collect();
        let labels: Vec<u32> =
            sequences.iter().flat_map(|s| s[1..].iter().map(|&t| u32::from(t))).collect();
        let inputs = Tensor::from_vec(inputs, (sequences.len(), time), &Device::Cpu)?;
        let (p, q) = (self.target.forward(&inputs)?, self.draft.forward(&inputs)?);
        let (figures, p_grad, q_grad) =
            losses(lesson.unwrap_or(Batch::Both), &p.detach(), &q.detach(), &labels)?;
        let concerned = match lesson {
            None => vec![],
            Some(Batch::Both) => vec![(&self.target, p, p_grad), (&self.draft, q, q_grad)],
            Some(Batch::Draft) => vec![(&self.draft, q, q_grad)],
        };
        let mut grads = Vec::new();
        for (model, logits, grad) in concerned {
            // The product with a constant has just that constant as its gradient.
            let mut store = (logits * grad)?.sum_all()?.backward()?;
            for (name, var) in &model.parameters {
                grads.push(
                    store.remove(var).with_context(|| format!("{name} has no gradient"))?.detach(),
                );
            }
        }
        Ok((figures, grads))
    }

    /// Splits the sequences among the workers; sums what they found.
    fn batch(
        &self,
        plan: &Plan,
        sequences: &[&[u16]],
        lesson: Option<Batch>,
    ) -> Result<(Figures, Vec<Tensor>)> {
        let parts: Vec<Result<(Figures, Vec<Tensor>)>> = std::thread::scope(|scope| {
            let workers: Vec<_> = sequences
                .chunks(sequences.len().div_ceil(plan.workers))
                .map(|share| scope.spawn(|| self.share(plan.micro_batch, share, lesson)))
                .collect();
            workers
                .into_iter()
                .map(|w| w.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked"))))
                .collect()
        });
        merge(parts)
    }

    fn share(
        &self,
        micro_batch: usize,
        sequences: &[&[u16]],
        lesson: Option<Batch>,
    ) -> Result<(Figures, Vec<Tensor>)> {
        merge(sequences.chunks(micro_batch).map(|chunk| self.pass(chunk, lesson)))
    }

    /// Mean figures on the first `count` sequences of a validation stream.
    pub fn check(&self, plan: &Plan, tokens: &[u16], count: usize) -> Result<Figures> {
        let length = self.target.shape.max_position_embeddings + 1;
        let sequences: Vec<&[u16]> = tokens.chunks_exact(length).take(count).collect();
        ensure!(!sequences.is_empty(), "the validation text is shorter than one sequence");
        Ok(self.batch(plan, &sequences, None)?.0)
    }

    fn learn(&mut self, plan: &Plan, sequences: &[&[u16]]) -> Result<Figures> {
        let (figures, grads) = self.batch(plan, sequences, Some(plan.lesson))?;
        // Every pass has averaged over its own tokens.
        let share = plan.micro_batch as f64 / sequences.len() as f64;
        let rate = plan.rate_at(self.steps[plan.lesson as usize]);
        self.steps[plan.lesson as usize] += 1;
        let (step, first) = (self.steps.iter().sum(), self.slots.len() - grads.len());
        let grads = &grads;
        // Heaviest first and dealt out in turn, so that the threads end together.
        let mut order: Vec<(usize, &mut Slot)> =
            self.slots[first..].iter_mut().enumerate().collect();
        order.sort_by_key(|(i, _)| std::cmp::Reverse(grads[*i].elem_count()));
        let mut hands: Vec<Vec<(usize, &mut Slot)>> =
            (0..plan.workers).map(|_| Vec::new()).collect();
        for (i, slot) in order.into_iter().enumerate() {
            hands[i % plan.workers].push(slot);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = hands
                .into_iter()
                .map(|hand| {
                    scope.spawn(move || -> Result<()> {
                        for (i, slot) in hand {
                            slot.update(&(&grads[i] * share)?, rate, step)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|t| {
                t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
            })
        })?;
        Ok(figures)
    }

    /// Trains up to the plan's number of steps, saving on the way.
    pub fn train(&mut self, plan: &Plan, tokens: &[u16], held_out: &[u16]) -> Result<()> {
        let length = self.target.shape.max_position_embeddings + 1;
        ensure!(tokens.len() > length, "the training text is shorter than one sequence");
        let bar = ProgressBar::new(plan.steps as u64).with_style(ProgressStyle::with_template(
            "{elapsed_precise} [{bar:30}] {pos}/{len} steps, {eta} left: {msg}",
        )?);
        let step = |pair: &Self| pair.steps[plan.lesson as usize];
        bar.set_position(step(self) as u64);
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_secs(5));
        let mut recent = Figures::default();
        while step(self) < plan.steps {
            // The step fixes the batch, so a resumed run sees what an unbroken one would have seen.
            let mut rng = ChaCha12Rng::seed_from_u64(self.steps.iter().sum::<usize>() as u64);
            let sequences: Vec<&[u16]> = (0..plan.batch)
                .map(|_| &tokens[rng.random_range(0..tokens.len() - length)..][..length])
                .collect();
            recent.tokens = recent.tokens.min(40.0 * (plan.batch * (length - 1)) as f64);
            recent.add(&self.learn(plan, &sequences)?);
            bar.set_message(recent.to_string());
            bar.inc(1);
            let done = step(self);
            if done % plan.check_every == 0 || done == plan.steps {
                let figures = self.check(plan, held_out, 16)?;
                let line = format!("step {done}: validation: {figures}; training: {recent}");
                bar.suspend(|| println!("{line}"));
            }
            if done % plan.save_every == 0 || done == plan.steps {
                self.save(&plan.checkpoint)?;
            }
        }
        bar.finish();
        Ok(())
    }
}

fn merge(
    parts: impl IntoIterator<Item = Result<(Figures, Vec<Tensor>)>>,
) -> Result<(Figures, Vec<Tensor>)> {
    let mut total = Figures::default();
    let mut sum: Vec<Tensor> = Vec::new();
    for part in parts {
        let (figures, grads) = part?;
        total.add(&figures);
        if sum.is_empty() {
            sum = grads;
        } else {
            for (sum, grad) in sum.iter_mut().zip(&grads) {
                *sum = (&*sum + grad)?;
            }
        }
    }
    Ok((total, sum))
}
