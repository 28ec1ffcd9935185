//! The measurements for the papers' tables: tokens per call of verifiers on the same drafts, and
//! acceptances at positions of the target's own output.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::{Draws, PolicyKind, Problem, Proposal, Sampling, Token, acceptance, couple};
use polydraft_cli::args::ModelArgs;
use polydraft_cli::interrupts::InterruptGuard;
use polydraft_cli::prompts;
use polydraft_engine::Engine;
use polydraft_reference::{RuleKind, VerifierKind, importance};
use polydraft_runtime::{Models, seeded};

use super::table::Table;
use super::theirs::sources;
use crate::bench::decode::{self, Way};
use crate::bench::solve_time::distributions::{self, Pair};
use crate::bench::solve_time::{self, Column, RowReport, Work};
use crate::bench::verifiers::{self, Extent, Setting};

/// A row of a table: a tree and sampling settings, and the verifiers that are compared.
pub struct Case {
    pub row: String,
    pub tree: PolicyKind,
    pub target: Sampling,
    pub draft: Sampling,
    /// Columns: their names, and the verifiers.
    pub verifiers: Vec<(String, VerifierKind)>,
}

impl Case {
    /// Verifiers under their own names, draft and target sampled alike.
    pub fn new(
        row: impl Into<String>,
        tree: PolicyKind,
        sampling: Sampling,
        verifiers: &[&str],
    ) -> Result<Self> {
        let named = |name: &&str| Ok(((*name).to_owned(), name.parse()?));
        let verifiers = verifiers.iter().map(named).collect::<Result<_>>()?;
        Ok(Self { row: row.into(), tree, target: sampling, draft: sampling, verifiers })
    }
}

/// An acceptance at the nodes of the target's own output.
pub struct Node {
    pub row: String,
    pub column: String,
    /// The rule; none for the optimum over all rules.
    pub rule: Option<RuleKind>,
    pub draws: Draws,
    pub target: Sampling,
    /// The acceptance of each draft where the draws are distinct, else of all.
    pub drafts: Vec<Sampling>,
    /// Whether only the first, the second, .. draft counts.
    pub rank: Option<usize>,
}

/// At this temperature.
pub fn at(temperature: f64) -> Sampling {
    Sampling { temperature, ..Sampling::default() }
}

/// `walk:importance` and the rule, with these settings.
pub fn importance(truncation: usize, alphabet: Option<usize>) -> (VerifierKind, RuleKind) {
    let settings = importance::Settings { truncation, alphabet, ..Default::default() };
    let rule = RuleKind::Reference(polydraft_reference::ReferenceKind::Importance(settings));
    (VerifierKind::Walk(rule.clone()), rule)
}

/// Models, prompts, and the time limit.
pub struct Lab {
    pub models: Models,
    pub prompts: Vec<Vec<Token>>,
    /// Whether only the main rows are wanted.
    pub quick: bool,
    pub seed: u64,
    time: Duration,
    orderly: InterruptGuard,
    bar: ProgressBar,
    begun: Instant,
    tables: Vec<Table>,
    pairs: Vec<Pair>,
}

/// The results of a laboratory.
pub struct Done {
    pub target: String,
    pub draft: String,
    pub prompts: usize,
    pub interrupted: bool,
    pub tables: Vec<Table>,
}

impl Lab {
    pub fn new(
        models: &ModelArgs,
        file: Option<&Path>,
        quick: bool,
        seed: u64,
        time: Duration,
    ) -> Result<Self> {
        let prompts = prompts::read(file)?;
        let models = models.load(true)?;
        let prompts = prompts::encode(&prompts, &models)?;
        let bar = ProgressBar::new(time.as_secs()).with_style(ProgressStyle::with_template(
            "{msg:24} [{bar:30}] {elapsed} of about {len} s",
        )?);
        let (orderly, begun) = (InterruptGuard::begin(), Instant::now());
        Ok(Self {
            models,
            prompts,
            quick,
            seed,
            time,
            orderly,
            bar,
            begun,
            tables: Vec::new(),
            pairs: Vec::new(),
        })
    }

    /// Whether the user interrupted.
    pub fn asked(&self) -> bool {
        self.orderly.asked()
    }

    /// The end of a table that gets this share of the time.
    pub fn end(&self, share: f64) -> Instant {
        Instant::now() + self.time.mul_f64(share)
    }

    pub fn tell(&self, table: &str) {
        self.bar.set_message(table.to_owned());
        self.tick();
    }

    /// Shows the time.
    pub fn tick(&self) -> bool {
        self.bar.set_position(self.begun.elapsed().as_secs().min(self.time.as_secs()));
        !self.asked()
    }

    /// Stores a table unless it is empty.
    pub fn keep(&mut self, table: Table) {
        if !table.entries.is_empty() {
            self.tables.push(table);
        }
    }

    /// All tables, with the paper's figures beside.
    pub fn finish(self, paper: &str) -> Result<Done> {
        self.bar.finish_and_clear();
        let mut tables = self.tables;
        for table in &mut tables {
            let theirs = sources(paper, &table.name);
            table.beside(theirs);
        }
        let engine = &self.models.engine;
        Ok(Done {
            target: engine.info().name.clone(),
            draft: engine.drafter().unwrap_or("no draft").to_owned(),
            prompts: self.prompts.len(),
            interrupted: self.orderly.asked(),
            tables,
        })
    }

    /// Tokens per call of all cases, on the same sequences, for this share of the time.
    pub fn efficiencies(&mut self, share: f64, mut table: Table, cases: &[Case]) -> Result<()> {
        if self.asked() {
            return Ok(());
        }
        self.tell(&table.title);
        let max_tokens = if self.quick { 48 } else { 96 };
        let plan = Extent {
            positions: u32::MAX,
            drafts: 2,
            every: 4,
            max_tokens,
            seed: self.seed,
            steps_of: None,
            end: Some(self.end(share)),
        };
        let (orderly, bar, begun, time) = (&self.orderly, &self.bar, self.begun, self.time);
        let goes_on = || {
            bar.set_position(begun.elapsed().as_secs().min(time.as_secs()));
            !orderly.asked()
        };
        efficiencies(&plan, &mut self.models.engine, &self.prompts, cases, &goes_on, &mut table)?;
        self.keep(table);
        Ok(())
    }

    /// Distributions of both models at so many positions, the same for all tables.
    pub fn pairs(&mut self, count: usize) -> Result<&[Pair]> {
        if self.pairs.len() < count {
            self.tell("positions");
            self.pairs = distributions::of_models(
                &mut self.models.engine,
                &self.prompts,
                count,
                8,
                self.seed,
            )?;
        }
        Ok(&self.pairs[..count.min(self.pairs.len())])
    }

    /// Rows of solvers at the first positions.
    pub fn solvers(
        &mut self,
        count: usize,
        work: &Work,
        columns: &[Column],
    ) -> Result<Vec<RowReport>> {
        self.pairs(count)?;
        self.tell("solvers");
        solve_time::measure(&self.pairs[..count.min(self.pairs.len())], work, columns, &|_, _| {
            self.tick()
        })
    }

    /// One round of decoding methods, in turn, for this share of the time.
    pub fn times(&mut self, share: f64, ways: &mut [Way], max_tokens: u32) -> Result<()> {
        let (end, orderly, first) = (self.end(share), &self.orderly, ways.len());
        let mut texts = 0;
        let mut goes_on = || {
            texts += 1;
            // At least one sequence of each.
            texts <= first || (Instant::now() < end && !orderly.asked())
        };
        decode::time(&mut self.models, &self.prompts, ways, (1, max_tokens), &mut goes_on)?;
        Ok(())
    }

    /// The table that was stored last.
    pub fn last(&self) -> Option<&Table> {
        self.tables.last()
    }

    /// Acceptances at positions of the output, for this share of the time.
    pub fn acceptances(&mut self, share: f64, mut table: Table, nodes: &[Node]) -> Result<()> {
        if self.asked() {
            return Ok(());
        }
        let count = if self.quick { 48 } else { 240 };
        self.pairs(count)?;
        self.tell(&table.title);
        let end = self.end(share);
        let mut sums = vec![Sum::default(); nodes.len()];
        for (number, pair) in self.pairs[..count.min(self.pairs.len())].iter().enumerate() {
            for (node, sum) in nodes.iter().zip(&mut sums) {
                sum.add(acceptance_at(node, pair, self.seed ^ number as u64)?);
            }
            if !self.tick() || Instant::now() >= end {
                break;
            }
        }
        for (node, sum) in nodes.iter().zip(sums) {
            table.add(&node.row, &node.column, sum.mean(), sum.error());
        }
        self.keep(table);
        Ok(())
    }
}

/// Adds the tokens per call of all cases to a table.
pub fn efficiencies(
    plan: &Extent,
    engine: &mut Engine,
    prompts: &[Vec<Token>],
    cases: &[Case],
    goes_on: &dyn Fn() -> bool,
    table: &mut Table,
) -> Result<()> {
    let setting = |case: &Case| {
        let kinds: Vec<VerifierKind> =
            case.verifiers.iter().map(|(_, kind)| kind.clone()).collect();
        Setting::new(case.tree.clone(), case.target, case.draft, plan.drafts, &kinds)
    };
    let mut settings = cases.iter().map(setting).collect::<Result<Vec<_>>>()?;
    verifiers::measure(plan, engine, prompts, &mut settings, goes_on)?;
    for (case, setting) in
        cases.iter().zip(&settings).filter(|(_, setting)| !setting.samples.is_empty())
    {
        let measured = verifiers::compared(setting);
        for (name, kind) in &case.verifiers {
            let place = setting.verifiers.iter().position(|other| other == kind);
            if let Some(row) = place.and_then(|place| measured.verifiers.get(place)) {
                table.add(&case.row, name, row.block_efficiency, row.block_efficiency_error);
            }
        }
    }
    Ok(())
}

/// Tuples of drafts that the acceptance of one of them is averaged over.
const TUPLES: usize = 12;

/// The acceptance of a node at a position.
pub fn acceptance_at(node: &Node, pair: &Pair, seed: u64) -> Result<f64> {
    let target = pair.target(&node.target)?;
    let distributions =
        node.drafts.iter().map(|sampling| pair.draft(sampling)).collect::<Result<Vec<_>>>()?;
    let problem = Problem::new(&target, Proposal::new(node.draws, &distributions)?)?;
    let Some(rule) = &node.rule else { return Ok(acceptance::optimal(&problem)?) };
    let (mut rule, mut random) = (rule.build()?, seeded(seed));
    let mut coupling = couple(rule.as_mut(), problem)?;
    let Some(rank) = node.rank else { return Ok(coupling.acceptance(&mut random).probability) };
    let (mut sum, mut drafts) = (0.0, Vec::new());
    for _ in 0..TUPLES {
        problem.proposal.draw(&mut random, &mut drafts);
        // A token that was drawn before is no draft of its own.
        if let Some(token) = drafts.get(rank).filter(|token| !drafts[..rank].contains(token)) {
            sum += coupling.distribution(&drafts)?.probabilities[*token as usize];
        }
    }
    Ok(sum / TUPLES as f64)
}

/// Values that are added up.
#[derive(Debug, Clone, Default)]
pub struct Sum {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Sum {
    pub fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.count
    }

    /// The standard error of the mean; none of fewer than two values.
    pub fn error(&self) -> Option<f64> {
        let variance =
            (self.squares / self.count - self.mean().powi(2)).max(0.0) / (self.count - 1.0);
        (self.count > 1.0).then(|| variance.sqrt())
    }
}

#[cfg(test)]
mod tests;
