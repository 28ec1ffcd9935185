//! Importance-weighted selection: a small linear program determines which of two drafts to select.
//!
//! Problem: select one of the drafts so that Σ min(p, m) is large, where m is the distribution of
//! the selected draft; then apply single-draft speculative sampling to it.
//! Source: Khisti et al. 2025: section 4 (program, truncated program, truncated alphabet), appendix
//! G (algorithm 2 and variant G.1), appendix I (distinct drafts), remark 3 (more than two drafts).
//! Complexity: a program with s(s + 1)/2 variables and a sort of the vocabulary per stage, n − 1
//! stages.
//! Deviations: (1) there is one weight per unordered pair, also for distinct drafts: only the mass
//! that a pair gives to each of its tokens matters, and weights that ignore who drew which token
//! reach any such mass; (2) in variant G.1, formula (195), for pairs entirely outside the program,
//! is missing in our copy of the paper; such pairs have weight 1/2, which needs no sort; (3) with
//! more than two drafts, each stage pairs the draft selected so far with the next one.

use polydraft::coupling::canonical::{Canonical, Selector};
use polydraft::coupling::{Problem, Rule, RuleSettings};
use polydraft::drafting::{Drafting, Draws};
use polydraft::random::RandomSource;
use polydraft::{Error, Result, Token};
use serde::{Deserialize, Serialize};

use crate::program::{Deadline, Program, Solver};

/// Choice of the tokens in the linear program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// Tokens with the largest p − q², the mass that depends on the weights (algorithm 2).
    #[default]
    Gap,
    /// Tokens with the largest q (variant G.1).
    LargestDraft,
}

/// Settings of the rule; the defaults are the paper's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of tokens in the linear program (s), from 1 to 20. Default 5.
    pub truncation: usize,
    /// Choice of these tokens. Default: gap.
    pub selection: Selection,
    /// Number of the target's likeliest tokens to which the rule is restricted (the paper's V0).
    /// Other tokens of the target are never accepted. Default 40; `None` for all.
    pub alphabet: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { truncation: 5, selection: Selection::Gap, alphabet: Some(40) }
    }
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        if !(1..=20).contains(&self.truncation) {
            let got = self.truncation.to_string();
            return Err(Error::Setting { setting: "truncation", expected: "from 1 to 20", got });
        }
        if self.alphabet == Some(0) {
            return Err(Error::Setting {
                setting: "alphabet",
                expected: "at least 1",
                got: "0".to_owned(),
            });
        }
        let rule = Importance {
            settings: self.clone(),
            target: Vec::new(),
            retained: 1.0,
            stages: Vec::new(),
        };
        Ok(Box::new(Canonical(rule)))
    }
}

/// Selection between two drafts, the first one drawn from `first`, the second one from `second`.
struct Stage {
    selection: Selection,
    /// Order of all tokens; the first ones are those of the program.
    rank: Vec<u32>,
    size: usize,
    /// Probability of selecting the token of rank i if the other one has rank j, for i, j < size;
    /// shape `[size, size]`.
    weights: Vec<f64>,
    /// Distribution of the selected draft, shape `[vocabulary]`.
    selected: Vec<f64>,
}

impl Stage {
    /// Returns the probability of selecting token a from {a, b}.
    fn weight(&self, a: Token, b: Token) -> f64 {
        let (i, j) = (self.rank[a as usize] as usize, self.rank[b as usize] as usize);
        if i < self.size && j < self.size {
            self.weights[i * self.size + j]
        } else if self.selection == Selection::LargestDraft && i >= self.size && j >= self.size {
            0.5
        } else if i < j {
            1.0
        } else {
            0.0
        }
    }

    fn new(settings: &Settings, target: &[f64], first: &[f64], second: &[f64]) -> Result<Self> {
        let both = |token: &usize| first[*token] * second[*token];
        let key = |token: &usize| match settings.selection {
            Selection::Gap => target[*token] - both(token),
            Selection::LargestDraft => first[*token] + second[*token],
        };
        let descending = |a: &usize, b: &usize| key(b).total_cmp(&key(a)).then(a.cmp(b));
        let mut order: Vec<usize> = (0..target.len()).collect();
        let size = settings.truncation.min(order.len());
        match settings.selection {
            Selection::Gap => order.sort_unstable_by(descending),
            Selection::LargestDraft => {
                order.select_nth_unstable_by(size - 1, descending);
            }
        }
        let mut rank = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(&token, location)| rank[token] = location);

        // Contributions of pairs with a token outside the program, from the last token to the
        // first.
        let mut selected = vec![0.0; order.len()];
        let (mut first_after, mut second_after) = (0.0, 0.0);
        let half = settings.selection == Selection::LargestDraft;
        let outside = |probs: &[f64]| order[size..].iter().map(|&token| probs[token]).sum::<f64>();
        let (first_outside, second_outside) = (outside(first), outside(second));
        for (location, &token) in order.iter().enumerate().rev() {
            let (one, other) = if location < size {
                (first_outside, second_outside)
            } else if half {
                (0.5 * (first_outside - first[token]), 0.5 * (second_outside - second[token]))
            } else {
                (first_after, second_after)
            };
            selected[token] = both(&token) + first[token] * other + second[token] * one;
            first_after += first[token];
            second_after += second[token];
        }
        let inside = &order[..size];
        let pair = |i: usize, j: usize| {
            let (a, b) = (inside[i], inside[j]);
            first[a] * second[b] + first[b] * second[a]
        };
        let demand = |i: usize| target[inside[i]];
        let weights = solve(size, pair, |i| selected[inside[i]], demand)?;
        for i in 0..size {
            let pairs = (0..size).filter(|&j| j != i).map(|j| pair(i, j) * weights[i * size + j]);
            selected[inside[i]] += pairs.sum::<f64>();
        }
        Ok(Self { selection: settings.selection, rank, size, weights, selected })
    }
}

/// Returns the weights w_ij = 1 − w_ji, shape `[size, size]`, that maximise Σ_i min(demand_i,
/// base_i + Σ_j pair_ij w_ij).
fn solve(
    size: usize,
    pair: impl Fn(usize, usize) -> f64,
    base: impl Fn(usize) -> f64,
    demand: impl Fn(usize) -> f64,
) -> Result<Vec<f64>> {
    let mut weights = vec![0.0; size * size];
    let mut program = Program::default();
    let mut variables = Vec::new();
    let mut rows: Vec<Vec<(usize, f64)>> = vec![Vec::new(); size];
    let mut right: Vec<f64> = (0..size).map(&base).collect();
    for i in 0..size {
        for j in 0..i {
            let mass = pair(i, j);
            weights[i * size + j] = 0.5;
            weights[j * size + i] = 0.5;
            if mass > 0.0 {
                // In units of mass, like all other variables of programs.
                let variable = program.variable(0.0, mass);
                variables.push((i, j, mass, variable));
                rows[i].push((variable, -1.0));
                rows[j].push((variable, 1.0));
                right[j] += mass;
            }
        }
    }
    if variables.is_empty() {
        return Ok(weights);
    }
    for (i, mut row) in rows.into_iter().enumerate() {
        row.push((program.variable(1.0, demand(i)), 1.0));
        program.at_most(row, right[i]);
    }
    let forever = Deadline::after(f64::INFINITY);
    let solution = program.solve("linear program of importance", Solver::Microlp, forever)?;
    for (i, j, mass, variable) in variables {
        let weight = (solution[variable] / mass).clamp(0.0, 1.0);
        weights[i * size + j] = weight;
        weights[j * size + i] = 1.0 - weight;
    }
    Ok(weights)
}

/// Maximum number of tokens that all stages of a node sort together, about a tenth of a second.
const MOST_SORTED: usize = 1 << 21;

struct Importance {
    settings: Settings,
    /// Target restricted to the truncated alphabet, normalised, shape `[vocabulary]`.
    target: Vec<f64>,
    /// Target probability of the truncated alphabet.
    retained: f64,
    stages: Vec<Stage>,
}

impl Selector for Importance {
    fn name(&self) -> &'static str {
        "importance"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(self.name(), &[Drafting::Iid, Drafting::Distinct])
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        let proposal = &problem.proposal;
        let (stages, vocabulary) =
            (proposal.count().saturating_sub(1), problem.target.vocabulary());
        if stages.saturating_mul(vocabulary) > MOST_SORTED {
            return Err(Error::TooLarge {
                operation: "importance",
                expected: format!("at most {MOST_SORTED} tokens in the stages of a node"),
                got: format!("{stages} stages of {vocabulary}"),
            });
        }
        self.target = problem.target.to_vec();
        self.retained = 1.0;
        if let Some(size) =
            self.settings.alphabet.filter(|size| *size < problem.target.support_size())
        {
            let alphabet = problem.target.most_likely(size);
            self.retained = alphabet.iter().map(|&token| problem.target.probability(token)).sum();
            self.target.fill(0.0);
            for token in alphabet {
                self.target[token as usize] = problem.target.probability(token) / self.retained;
            }
        }
        self.stages.clear();
        let mut winner = proposal.distribution(0).to_vec();
        for index in 1..proposal.count() {
            let stage = Stage::new(
                &self.settings,
                &self.target,
                &winner,
                &proposal.distribution(index).to_vec(),
            )?;
            winner.clone_from(&stage.selected);
            self.stages.push(stage);
        }
        Ok(())
    }

    fn select(&mut self, _: &Problem, drafts: &[Token], rng: &mut dyn RandomSource) -> usize {
        let mut winner = 0;
        for (index, stage) in (1..).zip(&self.stages) {
            let (a, b) = (drafts[winner], drafts[index]);
            if a != b && !rng.coin(stage.weight(a, b)) {
                winner = index;
            }
        }
        winner
    }

    fn selection(&mut self, _: &Problem, drafts: &[Token]) -> Vec<f64> {
        let mut wins = vec![0.0; drafts.len()];
        wins[0] = 1.0;
        for (index, stage) in (1..).zip(&self.stages) {
            for winner in 0..index {
                let (a, b) = (drafts[winner], drafts[index]);
                let lost = if a == b { 0.0 } else { wins[winner] * (1.0 - stage.weight(a, b)) };
                wins[winner] -= lost;
                wins[index] += lost;
            }
        }
        wins
    }

    fn selected(&self, problem: &Problem, token: Token) -> f64 {
        match self.stages.last() {
            Some(stage) => stage.selected[token as usize],
            None => problem.proposal.distribution(0).probability(token),
        }
    }

    /// Returns the acceptance probability, multiplied by the alphabet's target probability.
    fn accept(&self, problem: &Problem, token: Token) -> f64 {
        let (p, m) = (self.target[token as usize], self.selected(problem, token));
        match p {
            p if p <= 0.0 => 0.0,
            p if p >= m => self.retained,
            p => self.retained * (p / m),
        }
    }

    /// Returns the accepted mass of a token. The rest of p, which includes all mass outside of the
    /// alphabet, is the residual.
    fn covered(&self, problem: &Problem, token: Token) -> f64 {
        self.retained * self.target[token as usize].min(self.selected(problem, token))
    }
}
