//! Steps of training: texts to gradients, gradients to parameters, and where it stands.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use polydraft::Token;
use polydraft_models::TransformerModel;
use rand_chacha::ChaCha12Rng;

use super::losses::{Loss, acceptance, gradient};
use super::net::{Net, Shape};
use super::text::Batch;
use crate::ops::{exp, softmax_in_place};
use crate::optimizer::Slot;

/// Each further step of a draft counts this much of the one before it: it is reached as often.
const DECAY: f64 = 0.8;

/// Means over places, by step of the draft.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    steps: Vec<StepFigures>,
    /// How many drafted tokens the text's own distribution would have accepted, of a chain.
    accepted: f64,
    places: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct StepFigures {
    places: f64,
    loss: f64,
    /// Σ min(p, q).
    one: f64,
    /// Of K i.i.d. drafts under the best rule.
    several: f64,
}

impl Figures {
    pub fn add(&mut self, other: &Self) {
        if self.steps.len() < other.steps.len() {
            self.steps.resize(other.steps.len(), StepFigures::default());
        }
        for (own, other) in self.steps.iter_mut().zip(&other.steps) {
            own.places += other.places;
            own.loss += other.loss;
            own.one += other.one;
            own.several += other.several;
        }
        self.accepted += other.accepted;
        self.places += other.places;
    }

    /// The sum that is made smaller.
    #[cfg(test)]
    pub fn loss(&self) -> f64 {
        (0..).zip(&self.steps).map(|(step, figures)| DECAY.powi(step) * figures.loss).sum()
    }

    /// Counts what there is less.
    pub fn fade(&mut self, by: f64) {
        for step in &mut self.steps {
            *step = StepFigures {
                places: step.places * by,
                loss: step.loss * by,
                one: step.one * by,
                several: step.several * by,
            };
        }
        (self.accepted, self.places) = (self.accepted * by, self.places * by);
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let list = |value: fn(&StepFigures) -> f64| {
            let each =
                self.steps.iter().map(|step| format!("{:.3}", value(step) / step.places.max(1.0)));
            each.collect::<Vec<_>>().join(" ")
        };
        let calls = 1.0 + self.accepted / self.places.max(1.0);
        write!(
            f,
            "loss {}; acceptance {}, of several drafts {}; {calls:.2} tokens per call with a chain",
            list(|s| s.loss),
            list(|s| s.one),
            list(|s| s.several)
        )
    }
}

/// What stands still: the target's parts that the head uses.
pub struct Target {
    /// The tokens that the head can say, ascending.
    pub tokens: Vec<Token>,
    /// Their rows of the target's output matrix, `[tokens, hidden]`.
    output: Tensor,
    /// Numbers of a state.
    hidden: usize,
}

impl Target {
    pub fn new(model: &TransformerModel, tokens: Vec<Token>) -> Result<Self> {
        let hidden = model.config().hidden;
        let output =
            Tensor::from_vec(model.output_rows(&tokens)?, (tokens.len(), hidden), &Device::Cpu)?;
        Ok(Self { tokens, output, hidden })
    }

    /// `[rows, tokens]` of normed states `[rows, hidden]`.
    pub fn logits(&self, normed: &Tensor) -> Result<Tensor> {
        Ok(normed.matmul(&self.output.t()?)?)
    }
}

/// A text, ready for the net.
pub struct Sample {
    lesson: Batch,
    /// Of its tokens, `[tokens, hidden]`.
    embedded: Vec<f32>,
}

impl Sample {
    pub fn new(model: &TransformerModel, lesson: Batch) -> Result<Self> {
        let embedded = model.embedding_rows(&lesson.tokens)?;
        Ok(Self { lesson, embedded })
    }

    pub fn tokens(&self) -> usize {
        self.lesson.tokens.len()
    }
}

/// What is to be learned, and how far it is unrolled.
#[derive(Debug, Clone, Copy)]
pub struct Aim {
    pub loss: Loss,
    pub steps: usize,
    /// K of the acceptance that is shown.
    pub drafts: usize,
}

/// Figures of a text, and if `learn` the gradients of all parameters, of sums over its places.
pub fn pass(
    net: &Net,
    target: &Target,
    sample: &Sample,
    aim: &Aim,
    learn: bool,
) -> Result<(Figures, Vec<Tensor>)> {
    let Batch { tokens, taught, log_sums, states } = &sample.lesson;
    let (count, hidden) = (tokens.len(), target.hidden);
    // Place i drafts tokens i + 2 and on.
    let places: Vec<usize> = (0..count.saturating_sub(2))
        .filter(|place| taught[place + 2..].iter().take(aim.steps).any(|taught| *taught))
        .collect();
    let mut figures =
        Figures { steps: vec![StepFigures::default(); aim.steps], ..Figures::default() };
    if places.is_empty() {
        return Ok((figures, Vec::new()));
    }
    // Behind the states that the head reads comes the one that the target's own logits are made of.
    let width = states.len() / (count - 1);
    let all = Tensor::from_slice(states, (count - 1, width), &Device::Cpu)?;
    let read = all.narrow(1, 0, width - hidden)?.contiguous()?;
    let last = all.narrow(1, width - hidden, hidden)?.contiguous()?;
    let embedded = Tensor::from_slice(&sample.embedded, (count, hidden), &Device::Cpu)?;
    let unrolled = net.unroll(&read, &embedded, &places, aim.steps)?;

    // The target's distributions behind tokens first, first + 1, ..
    let first = places[0] + 1;
    let distributions = target.logits(&last.narrow(0, first, count - 1 - first)?)?;
    let mut distributions = distributions.flatten_all()?.to_vec1::<f32>()?;
    let vocabulary = target.tokens.len();
    for (row, probs) in distributions.chunks_exact_mut(vocabulary).enumerate() {
        let sum = log_sums[first + row + 1];
        probs.iter_mut().for_each(|logit| *logit = exp((*logit - sum).min(0.0)));
    }
    // Of each place the product of what its drafts' acceptances would be on the text itself.
    let mut path: HashMap<usize, f64> = HashMap::new();
    let mut total: Option<Tensor> = None;
    let (mut q, mut weight) = (vec![0f32; vocabulary], 1.0);
    for (step, found) in unrolled.iter().enumerate() {
        let rows: Vec<usize> = (0..found.rows)
            .filter(|row| taught.get(places[*row] + 2 + step) == Some(&true))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let normed = match rows.len() == found.rows {
            true => found.normed.clone(),
            false => {
                let ids: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
                found.normed.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?
            }
        };
        // The output matrix stands still: gradients go around it, to the states alone.
        let mut values = target.logits(&normed.detach())?.flatten_all()?.to_vec1::<f32>()?;
        let shown = &mut figures.steps[step];
        for (row, logits) in rows.iter().zip(values.chunks_exact_mut(vocabulary)) {
            let place = places[*row];
            let p = &distributions[(place + 1 + step - first) * vocabulary..][..vocabulary];
            shown.loss += match learn {
                true => gradient(aim.loss, p, logits, &mut q),
                false => {
                    softmax_in_place(logits);
                    q.copy_from_slice(logits);
                    0.0
                }
            };
            shown.places += 1.0;
            shown.one += p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum::<f32>() as f64;
            if !learn {
                shown.several += acceptance(p, &q, aim.drafts);
            }
            let own = target.tokens.binary_search(&tokens[place + 2 + step]);
            let ratio =
                own.map_or(0.0, |own| (f64::from(q[own]) / f64::from(p[own]).max(1e-30)).min(1.0));
            if step == 0 {
                figures.places += 1.0;
                path.insert(place, ratio);
                figures.accepted += ratio;
            } else if let Some(before) = path.get_mut(&place) {
                *before *= ratio;
                figures.accepted += *before;
            }
            logits.iter_mut().for_each(|gradient| *gradient *= weight as f32);
        }
        if learn {
            let gradients = Tensor::from_vec(values, (rows.len(), vocabulary), &Device::Cpu)?;
            // The product with a constant has just that constant as its gradient.
            let part = (normed * gradients.matmul(&target.output)?)?.sum_all()?;
            total = Some(match total {
                None => part,
                Some(total) => (total + part)?,
            });
        }
        weight *= DECAY;
    }
    let mut gradients = Vec::new();
    if let Some(total) = total {
        let mut store = total.backward()?;
        for (name, var) in &net.parameters {
            gradients.push(
                store.remove(var).with_context(|| format!("{name} has no gradient"))?.detach(),
            );
        }
    }
    Ok((figures, gradients))
}

/// A net with the state of its training.
pub struct Trainer {
    pub net: Net,
    slots: Vec<Slot>,
    /// Steps made.
    pub steps: usize,
    /// Tokens learned from, each time counted.
    pub tokens: u64,
}

impl Trainer {
    /// From the checkpoint if there is one, else from the beginning.
    pub fn open(shape: Shape, checkpoint: &Path, rng: &mut ChaCha12Rng) -> Result<Self> {
        let stored = match checkpoint.exists() {
            true => Some(
                candle_core::safetensors::load(checkpoint, &Device::Cpu)
                    .with_context(|| format!("reading {}", checkpoint.display()))?,
            ),
            false => None,
        };
        let net = Net::new(shape, stored.as_ref(), rng)?;
        let slots = net.parameters.iter();
        let slots = slots
            .map(|(name, var)| Slot::new("head", name, var, stored.as_ref()))
            .collect::<Result<_>>()?;
        let (mut steps, mut tokens) = (0, 0);
        if let Some(stored) = stored.as_ref().and_then(|stored| stored.get("progress")) {
            let stored = stored.to_vec1::<i64>()?;
            (steps, tokens) = (stored[0] as usize, stored[1] as u64);
        }
        Ok(Self { net, slots, steps, tokens })
    }

    pub fn save(&self, checkpoint: &Path) -> Result<()> {
        let mut tensors: HashMap<String, Tensor> =
            self.slots.iter().flat_map(Slot::state).collect();
        for (name, var) in &self.net.parameters {
            tensors.insert(name.clone(), var.as_detached_tensor());
        }
        let progress = [self.steps as i64, self.tokens as i64];
        tensors.insert("progress".into(), Tensor::new(&progress, &Device::Cpu)?);
        let partial = checkpoint.with_extension("partial");
        candle_core::safetensors::save(&tensors, &partial)?;
        fs::rename(partial, checkpoint)?;
        Ok(())
    }

    /// Figures of some texts, shared out among workers; with `rate`, one step down the mean
    /// gradient.
    pub fn batch(
        &mut self,
        target: &Target,
        samples: &[Sample],
        aim: &Aim,
        workers: usize,
        rate: Option<f64>,
    ) -> Result<Figures> {
        let net = &self.net;
        let share = samples.len().div_ceil(workers).max(1);
        let parts: Vec<Result<(Figures, Vec<Tensor>)>> = std::thread::scope(|scope| {
            let work = |samples: &[Sample]| {
                let mut all = (Figures::default(), Vec::new());
                for sample in samples {
                    let (figures, gradients) = pass(net, target, sample, aim, rate.is_some())?;
                    all.0.add(&figures);
                    add(&mut all.1, gradients)?;
                }
                Ok(all)
            };
            let threads: Vec<_> =
                samples.chunks(share).map(|samples| scope.spawn(move || work(samples))).collect();
            let joined = threads.into_iter();
            joined
                .map(|t| t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked"))))
                .collect()
        });
        let (mut figures, mut gradients) = (Figures::default(), Vec::new());
        for part in parts {
            let part = part?;
            figures.add(&part.0);
            add(&mut gradients, part.1)?;
        }
        if let Some(rate) = rate {
            // Of texts without a lesson too: the number of the step decides which texts come next.
            self.steps += 1;
            self.tokens += samples.iter().map(|sample| sample.tokens() as u64).sum::<u64>();
            let mean = 1.0 / figures.places.max(1.0);
            for (slot, gradient) in self.slots.iter_mut().zip(gradients) {
                slot.update(&(gradient * mean)?, rate, self.steps)?;
            }
        }
        Ok(figures)
    }
}

fn add(sum: &mut Vec<Tensor>, more: Vec<Tensor>) -> Result<()> {
    if sum.is_empty() {
        *sum = more;
        return Ok(());
    }
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = (&*sum + more)?;
    }
    Ok(())
}
