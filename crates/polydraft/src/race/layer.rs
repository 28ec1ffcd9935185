//! One layer of pooled verification: what of the target's mass at some nodes goes to their drawn
//! children, and what is left to be emitted at the nodes themselves.
//!
//! Draws that a race cannot take at once are taken in stages. Draws without replacement are pairs:
//! given the first pair, the next one is a pair without replacement from the rest of the draft's
//! distribution. Where a pair gets a part of the capacity, the rest of the capacity is divided
//! between what is left of the demands and what the layers above have left to emit, in proportion.
//! So a stage is a race for the demands that the earlier stages left, of the same form (the proof
//! is in `docs/theory.md`). The most likely tokens of greedy, hub and top-k drafts are drawn for
//! certain; each is an entry of its own, beside the one that is drawn from the rest.

use rayon::prelude::*;

use super::entry::Ignored;
use super::{Kind, Race};
use crate::drafting::{Drafting, Draws, remaining_mass};
use crate::{Distribution, RandomSource, Token};

/// Mass of the tokens that get no share, because they are too improbable, at most.
const NEGLIGIBLE: f64 = 3e-3;
/// Stored probabilities of all nodes from which on several threads pay.
const PARALLEL: usize = 1 << 14;
/// Part of a node's weight below which what is outside is summed up.
const PRECISE: f64 = 1e-6;

/// The smallest probability of a draft that counts: a power of two.
fn least_probability(draft: &Distribution) -> f64 {
    // Sums by exponent, down to 2^−63.
    let mut sums = [0.0; 64];
    let exponent = |q: f64| (1023 - (q.to_bits() >> 52).min(1023)).min(63) as usize;
    draft.stored().iter().for_each(|&q| sums[exponent(q)] += q);
    let mut sum = 0.0;
    let least = sums.iter().enumerate().rev().find(|(_, more)| {
        sum += *more;
        sum > NEGLIGIBLE
    });
    least.map_or(0.0, |(exponent, _)| 0.5_f64.powi(exponent as i32))
}

/// A node of a layer, with what was drawn below it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawn<'a> {
    pub draft: &'a Distribution,
    pub draws: Draws,
    /// The tokens in the order of their draws, repeated as often as they were drawn.
    pub tokens: &'a [Token],
}

/// Distributions of the target and the draft at a node.
type Pair<'a> = (&'a Distribution, &'a Distribution);

/// Rest of a node's demand.
#[derive(Debug, Clone, Default)]
struct Rest {
    weight: f64,
    /// The tokens that the draft draws with a probability that counts, ascending, and these
    /// probabilities.
    tokens: Vec<Token>,
    probabilities: Vec<f64>,
    /// All other tokens of the draft, which are less probable than `least`.
    ignored: Ignored,
    least: f64,
    /// What is left of the demand, for each of `tokens` and for all others together.
    left: Vec<f64>,
    outside: f64,
    /// Weights of the drawn tokens.
    shares: Vec<(Token, f64)>,
}

/// Draws of one entry of a race.
#[derive(Debug, Clone, Copy)]
struct Part {
    node: usize,
    tokens: Tokens,
}

/// The tokens of a part, among those that were drawn at the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tokens {
    /// Index of the first one, and their number.
    Range(usize, usize),
    /// One that is drawn for certain.
    Certain(Token),
    /// The only one that is not certain.
    Last,
}

/// A layer, with buffers that are used again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    race: Race,
    nodes: Vec<Rest>,
    used: usize,
    parts: Vec<Part>,
    /// The drawn tokens that get shares: entries and indices, nodes and tokens, shares.
    drawn: Vec<(usize, usize)>,
    owners: Vec<(usize, Token)>,
    shares: Vec<f64>,
    /// Mass that belongs to the layers above.
    above: f64,
    /// Capacity that no drawn token has yet.
    capacity: f64,
}

impl Layer {
    /// Starts a layer. The nodes have these weights, which sum to at most 1, and distributions of
    /// the target and the draft; without them, what is drawn below gets no share.
    pub fn start(&mut self, nodes: &[(f64, Option<Pair>)]) {
        self.used = nodes.len();
        self.nodes.resize_with(self.nodes.len().max(self.used), Rest::default);
        let size =
            |(_, pair): &(f64, Option<Pair>)| pair.map_or(0, |(_, draft)| draft.stored().len());
        let is_large = nodes.iter().map(size).sum::<usize>() > PARALLEL;
        if is_large && nodes.len() > 1 && rayon::current_num_threads() > 1 {
            let all = self.nodes.par_iter_mut().zip(nodes);
            all.for_each(|(rest, (weight, pair))| rest.start(*weight, *pair));
        } else {
            let all = self.nodes.iter_mut().zip(nodes);
            all.for_each(|(rest, (weight, pair))| rest.start(*weight, *pair));
        }
        let sum: f64 = nodes.iter().map(|(weight, _)| weight).sum();
        self.above = (1.0 - sum).max(0.0);
        self.capacity = 1.0;
    }

    /// Divides the capacity among all drawn tokens.
    pub fn divide(&mut self, drawn: &[Option<Drawn>]) {
        self.divide_from(drawn, 0);
    }

    /// As [`divide`](Self::divide), where the stages before this one were divided already.
    pub fn divide_from(&mut self, drawn: &[Option<Drawn>], mut stage: usize) {
        while self.prepare(drawn, stage) {
            self.share(drawn);
            stage += 1;
        }
    }

    /// Computes the expected shares of a stage, which depend on the tokens of the earlier stages
    /// only. Returns false if no node has such a stage.
    pub fn prepare(&mut self, drawn: &[Option<Drawn>], stage: usize) -> bool {
        self.race.clear();
        self.parts.clear();
        let scale = 1.0 / (self.left() + self.above);
        for (node, drawn) in drawn.iter().enumerate() {
            let Some(drawn) = *drawn else { continue };
            self.add(node, drawn, stage, scale);
        }
        if self.parts.is_empty() {
            return false;
        }
        self.race.prepare();
        for (entry, part) in self.parts.iter().enumerate() {
            let (rest, left) = (&mut self.nodes[part.node], self.race.left(entry));
            if let Tokens::Certain(token) = part.tokens {
                if let (Some(index), Some(left)) = (rest.index(token), left.first()) {
                    rest.left[index] = left / scale;
                }
                continue;
            }
            // Certain and removed tokens are no part of this entry.
            let probabilities = self.race.probabilities(entry);
            let all = rest.left.iter_mut().zip(left).zip(probabilities);
            all.filter(|(_, probability)| **probability > 0.0)
                .for_each(|((rest, left), _)| *rest = left / scale);
        }
        true
    }

    /// Adds the draws of one node in a stage.
    fn add(&mut self, node: usize, drawn: Drawn, stage: usize, scale: f64) {
        let Drawn { draft, draws, tokens } = drawn;
        let rest = &self.nodes[node];
        let all = |kind, removed: &[Token], race: &mut Race| {
            race.add(kind, |probabilities, demands| {
                demands.extend(rest.left.iter().map(|left| left * scale));
                if removed.is_empty() {
                    probabilities.extend(&rest.probabilities);
                    return rest.ignored;
                }
                let open = remaining_mass(draft, removed);
                probabilities.extend(rest.probabilities.iter().map(|q| q / open));
                for index in removed.iter().filter_map(|token| rest.index(*token)) {
                    probabilities[index] = 0.0;
                }
                rest.ignored_without(draft, removed, open)
            });
        };
        let part = |tokens| Part { node, tokens };
        let all_drawn = draws.count.min(draft.support_size());
        match draws.scheme {
            Drafting::WithoutReplacement => {
                let from = 2 * stage;
                let count = all_drawn.saturating_sub(from).min(2);
                let kind = if count == 2 { Kind::Pair } else { Kind::Independent(1) };
                if count > 0 {
                    all(kind, &tokens[..from], &mut self.race);
                    self.parts.push(part(Tokens::Range(from, count)));
                }
            }
            _ if stage > 0 => {}
            Drafting::Iid | Drafting::Distinct => {
                all(Kind::Independent(draws.count), &[], &mut self.race);
                self.parts.push(part(Tokens::Range(0, draws.count)));
            }
            Drafting::Greedy | Drafting::Hub | Drafting::TopK => {
                let count = draws.count - usize::from(draws.scheme != Drafting::TopK);
                let certain = draft.most_likely(count);
                for token in &certain {
                    let Some(index) = rest.index(*token) else { continue };
                    self.race.add(Kind::Independent(1), |probabilities, demands| {
                        probabilities.push(1.0);
                        demands.push(rest.left[index] * scale);
                        Ignored::default()
                    });
                    self.parts.push(part(Tokens::Certain(*token)));
                }
                if certain.len() < all_drawn {
                    all(Kind::Independent(1), &certain, &mut self.race);
                    self.parts.push(part(Tokens::Last));
                }
            }
        }
    }

    /// Forgets the shares that were given, for other draws of the first stage.
    pub fn take_back(&mut self) {
        self.capacity = 1.0;
        self.nodes[..self.used].iter_mut().for_each(|rest| rest.shares.clear());
    }

    /// Gives the drawn tokens of the prepared stage their shares.
    pub fn share(&mut self, drawn: &[Option<Drawn>]) {
        self.drawn.clear();
        self.owners.clear();
        for (entry, part) in self.parts.iter().enumerate() {
            let Some(Drawn { tokens, .. }) = drawn[part.node] else { continue };
            let rest = &self.nodes[part.node];
            let of_node = self.parts.iter().filter(|other| other.node == part.node);
            let is_certain = |token: &Token| {
                of_node.clone().any(|other| other.tokens == Tokens::Certain(*token))
            };
            let add = |token: &Token| {
                let certain = matches!(part.tokens, Tokens::Certain(_)).then_some(0);
                let index = certain.or_else(|| rest.index(*token))?;
                Some(((entry, index), (part.node, *token)))
            };
            let all: Vec<&Token> = match part.tokens {
                Tokens::Range(from, count) => tokens[from..].iter().take(count).collect(),
                Tokens::Certain(certain) => {
                    tokens.iter().filter(|token| **token == certain).take(1).collect()
                }
                Tokens::Last => tokens.iter().filter(|token| !is_certain(token)).take(1).collect(),
            };
            let (places, owners): (Vec<_>, Vec<_>) = all.into_iter().filter_map(add).unzip();
            self.drawn.extend(places);
            self.owners.extend(owners);
        }
        self.race.shares(&self.drawn, &mut self.shares);
        let mut sum = 0.0;
        for ((node, token), share) in self.owners.iter().zip(&self.shares) {
            sum += share;
            let weight = self.capacity * share;
            let known = &mut self.nodes[*node].shares;
            match known.iter_mut().find(|(known, _)| known == token) {
                Some((_, known)) => *known += weight,
                None => known.push((*token, weight)),
            }
        }
        self.capacity *= (1.0 - sum).max(0.0);
    }

    /// Sum of the expected shares of the prepared stage.
    pub fn accepted(&self) -> f64 {
        (0..self.parts.len()).map(|entry| self.race.accepted(entry)).sum()
    }

    /// Weight of a drawn token of a node.
    pub fn weight(&self, node: usize, token: Token) -> f64 {
        let shares = &self.nodes[node].shares;
        shares.iter().find(|(drawn, _)| *drawn == token).map_or(0.0, |(_, share)| *share)
    }

    /// Capacity that no drawn token has.
    pub fn capacity(&self) -> f64 {
        self.capacity
    }

    /// What is left of all demands.
    fn left(&self) -> f64 {
        self.nodes[..self.used].iter().map(Rest::sum).sum()
    }

    /// Probability to stop at this layer if no deeper one has stopped.
    pub fn stops(&self) -> f64 {
        let left = self.left();
        if self.above > 0.0 { left / (left + self.above) } else { 1.0 }
    }

    /// Node at which the output ends if this layer stops.
    pub fn pick(&self, rng: &mut dyn RandomSource) -> usize {
        let sums: Vec<f64> = self.nodes[..self.used].iter().map(Rest::sum).collect();
        rng.pick(&sums)
    }

    /// What is left of all demands of a node.
    pub fn left_at(&self, node: usize) -> f64 {
        self.nodes[node].sum()
    }

    /// What is left of the demand for a token at a node.
    pub fn left_of(&self, node: usize, token: Token, target: &Distribution) -> f64 {
        let rest = &self.nodes[node];
        let all = || rest.weight * target.probability(token);
        rest.index(token).map_or_else(all, |index| rest.left[index])
    }

    /// Token after a node, in proportion to what is left, but none of these.
    pub fn emit(
        &self,
        node: usize,
        target: &Distribution,
        without: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Token {
        let weight = self.nodes[node].weight;
        let covered = |token| match without.contains(&token) {
            true => weight * target.probability(token),
            false => weight * target.probability(token) - self.left_of(node, token, target),
        };
        target.sample_excess(weight, covered, rng)
    }

    /// What is left of a node's demand, by token, shape `[vocabulary]`; it sums to 1.
    pub fn rest(&self, node: usize, target: &Distribution) -> Vec<f64> {
        let Rest { weight, tokens, left, .. } = &self.nodes[node];
        let mut rest: Vec<f64> = target.to_vec().iter().map(|p| weight * p).collect();
        tokens.iter().zip(left).for_each(|(token, left)| rest[*token as usize] = *left);
        let sum: f64 = rest.iter().sum();
        rest.iter_mut().for_each(|left| *left /= sum);
        if sum > 0.0 { rest } else { target.to_vec() }
    }
}

impl Rest {
    fn start(&mut self, weight: f64, pair: Option<Pair>) {
        (self.weight, self.outside, self.ignored) = (weight, weight, Ignored::default());
        self.tokens.clear();
        self.probabilities.clear();
        self.left.clear();
        self.shares.clear();
        let Some((target, draft)) = pair else { return };
        self.least = least_probability(draft);
        for (token, q) in draft.support() {
            if q < self.least {
                self.ignored.add(q);
                continue;
            }
            self.tokens.push(token);
            self.probabilities.push(q);
        }
        let covered = |token: &Token| weight * target.probability(*token);
        self.left.extend(self.tokens.iter().map(covered));
        self.outside = (weight - self.left.iter().sum::<f64>()).max(0.0);
        if self.outside < PRECISE * weight {
            // The difference has lost its digits.
            let others = target.support().filter(|(token, _)| self.index(*token).is_none());
            self.outside = weight * others.map(|(_, p)| p).sum::<f64>();
        }
    }

    /// Index of a token among those that count.
    fn index(&self, token: Token) -> Option<usize> {
        self.tokens.binary_search(&token).ok()
    }

    /// The tokens that get no share where these were removed, and the mass that is left is `open`.
    fn ignored_without(&self, draft: &Distribution, removed: &[Token], open: f64) -> Ignored {
        let mut ignored = Ignored::default();
        let others =
            draft.support().filter(|(token, q)| *q < self.least && !removed.contains(token));
        others.for_each(|(_, q)| ignored.add(q / open));
        ignored
    }

    fn sum(&self) -> f64 {
        self.left.iter().sum::<f64>() + self.outside
    }
}
