//! Measurements for the papers' tables: tokens per call of verifiers on the same drafts, and
//! acceptance rates at positions of the target's own output.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::VerifierKind;
use polydraft::coupling::registry::WalkRule;
use polydraft::{Draws, PolicyKind, Problem, Proposal, Sampling, Token, acceptance, couple};
use polydraft_cli::args::ModelArgs;
use polydraft_cli::interrupts::InterruptGuard;
use polydraft_cli::prompts::{self, PromptArgs};
use polydraft_engine::Engine;
use polydraft_reference::comparison::{Part, Sample, exact_for};
use polydraft_reference::{ReferenceKind, importance};
use polydraft_runtime::{ModelOptions, Models, seeded};

use super::orders;
use super::ranks;
use super::table::Table;
use super::theirs::sources;
use crate::bench::decode::{self, Way};
use crate::bench::solve_time::distributions::{self, Pair};
use crate::bench::solve_time::{self, Column, RowReport, Work};
use crate::bench::verifiers::{self, Extent, Setting};
use crate::cut::CutArgs;

/// A row of a table: tree, sampling settings, and the verifiers to compare.
pub struct Case {
    pub row: String,
    pub tree: PolicyKind,
    pub target: Sampling,
    pub draft: Sampling,
    /// Sampling settings of each draft, for trees with paths of several drafts; else empty.
    pub each: Vec<Sampling>,
    /// Columns: name and verifier.
    pub verifiers: Vec<(String, VerifierKind)>,
}

impl Case {
    /// Creates a case with verifiers under their own names, and the same sampling for draft and
    /// target.
    pub fn new(
        row: impl Into<String>,
        tree: PolicyKind,
        sampling: Sampling,
        verifiers: &[&str],
    ) -> Result<Self> {
        let named = |name: &&str| Ok(((*name).to_owned(), polydraft_reference::verifier(name)?));
        let verifiers = verifiers.iter().map(named).collect::<Result<_>>()?;
        let each = Vec::new();
        Ok(Self { row: row.into(), tree, target: sampling, draft: sampling, each, verifiers })
    }
}

/// An acceptance rate to measure at positions of the target's own output.
#[derive(Clone)]
pub struct Node {
    pub row: String,
    pub column: String,
    /// Rule; `None` for the optimum over all rules.
    pub rule: Option<WalkRule>,
    pub draws: Draws,
    pub target: Sampling,
    /// Sampling settings of each draft if drafts are distinct, else of all drafts.
    pub drafts: Vec<Sampling>,
    /// `Some(0)` counts acceptance of the first of two drafts only, `Some(1)` of the second only.
    pub rank: Option<usize>,
}

/// Returns the walk and the rule of importance-weighted selection with these settings.
pub fn importance(truncation: usize, alphabet: Option<usize>) -> (VerifierKind, WalkRule) {
    let settings = importance::Settings { truncation, alphabet, ..Default::default() };
    let rule = WalkRule::from(ReferenceKind::Importance(settings));
    (VerifierKind::Walk(rule.clone()), rule)
}

/// Models, prompts and time limit.
pub struct Lab {
    pub models: Models,
    /// Options with which the models were loaded.
    pub options: ModelOptions,
    pub prompts: Vec<Vec<Token>>,
    /// Whether to measure the main rows only.
    pub quick: bool,
    pub seed: u64,
    time: Duration,
    orderly: InterruptGuard,
    bar: ProgressBar,
    begun: Instant,
    tables: Vec<Table>,
    /// Positions, by sampling settings of the target.
    pairs: Vec<(Sampling, Vec<Pair>)>,
    /// Sampling settings that replace the paper's.
    cut: CutArgs,
}

/// Results of all measurements.
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
        prompts: &PromptArgs,
        extent: (bool, Duration),
        (seed, cut): (u64, CutArgs),
    ) -> Result<Self> {
        let (quick, time) = extent;
        let prompts = prompts.read()?;
        let options = models.options();
        let models = models.load(true)?;
        let prompts = prompts::encode(&prompts, &models)?;
        let bar = ProgressBar::new(time.as_secs()).with_style(ProgressStyle::with_template(
            "{msg:24} [{bar:30}] {elapsed} of about {len} s",
        )?);
        let (orderly, begun) = (InterruptGuard::install(), Instant::now());
        Ok(Self {
            models,
            options,
            prompts,
            quick,
            seed,
            time,
            orderly,
            bar,
            begun,
            tables: Vec::new(),
            pairs: Vec::new(),
            cut,
        })
    }

    /// Returns the sampling settings at a temperature: the paper's top-k and top-p, unless the user
    /// sets others.
    pub fn at(&self, temperature: f64, theirs: CutArgs) -> Sampling {
        let CutArgs { top_k, top_p } = self.cut;
        let given = CutArgs { top_k: top_k.or(theirs.top_k), top_p: top_p.or(theirs.top_p) };
        given.sampling(temperature)
    }

    /// Whether the user interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.orderly.is_interrupted()
    }

    /// Returns the end of a table's time, given its share.
    pub fn end(&self, share: f64) -> Instant {
        Instant::now() + self.time.mul_f64(share)
    }

    pub fn note(&self, table: &str) {
        self.bar.set_message(table.to_owned());
        self.tick();
    }

    /// Updates the progress display.
    pub fn tick(&self) -> bool {
        self.bar.set_position(self.begun.elapsed().as_secs().min(self.time.as_secs()));
        !self.is_interrupted()
    }

    /// Stores a table unless it is empty.
    pub fn keep(&mut self, table: Table) {
        if !table.entries.is_empty() {
            self.tables.push(table);
        }
    }

    /// Returns all tables, with the paper's values added.
    pub fn finish(self, paper: &str) -> Result<Done> {
        self.bar.finish_and_clear();
        let mut tables = self.tables;
        for table in &mut tables {
            let theirs = sources(paper, &table.name);
            table.add_sources(theirs);
            orders::compare(table);
        }
        let engine = &self.models.engine;
        Ok(Done {
            target: engine.info().name.clone(),
            draft: engine.drafter_name().unwrap_or("no draft").to_owned(),
            prompts: self.prompts.len(),
            interrupted: self.orderly.is_interrupted(),
            tables,
        })
    }

    /// Measures tokens per call of all cases on the same sequences, for a share of the time.
    pub fn efficiencies(&mut self, share: f64, mut table: Table, cases: &[Case]) -> Result<()> {
        if self.is_interrupted() {
            return Ok(());
        }
        self.note(&table.title);
        let max_tokens = if self.quick { 48 } else { 96 };
        let plan = Extent {
            positions: u32::MAX,
            // Several drafts from one pass reduce the error of differences between numbers of
            // paths.
            drafts: 3,
            every: 4,
            max_tokens,
            seed: self.seed,
            steps_of: None,
            end: Some(self.end(share)),
        };
        let (orderly, bar, begun, time) = (&self.orderly, &self.bar, self.begun, self.time);
        let goes_on = || {
            bar.set_position(begun.elapsed().as_secs().min(time.as_secs()));
            !orderly.is_interrupted()
        };
        efficiencies(&plan, &mut self.models.engine, &self.prompts, cases, &goes_on, &mut table)?;
        self.keep(table);
        Ok(())
    }

    /// Returns distributions of both models at `count` positions of output with this sampling. All
    /// tables use the same positions.
    pub fn pairs(&mut self, sampling: Sampling, count: usize) -> Result<&[Pair]> {
        let place = match self.pairs.iter().position(|(own, _)| *own == sampling) {
            Some(place) => place,
            None => {
                self.pairs.push((sampling, Vec::new()));
                self.pairs.len() - 1
            }
        };
        if self.pairs[place].1.len() < count {
            self.note("positions");
            let (engine, how) = (&mut self.models.engine, (sampling, self.seed));
            self.pairs[place].1 = distributions::of_models(engine, &self.prompts, count, 8, how)?;
        }
        let pairs = &self.pairs[place].1;
        Ok(&pairs[..count.min(pairs.len())])
    }

    /// Measures solvers at the first positions.
    pub fn solvers(
        &mut self,
        count: usize,
        work: &Work,
        columns: &[Column],
    ) -> Result<Vec<RowReport>> {
        let sampling = work.sampling;
        self.pairs(sampling, count)?;
        self.note("solvers");
        let own = self.pairs.iter().find(|(own, _)| *own == sampling);
        let pairs = own.map_or(&[][..], |(_, pairs)| &pairs[..count.min(pairs.len())]);
        solve_time::measure(pairs, work, columns, &|_, _| self.tick())
    }

    /// Times one round of decoding methods in turn, for a share of the time.
    pub fn times(&mut self, share: f64, ways: &mut [Way], max_tokens: u32) -> Result<()> {
        let (end, orderly, first) = (self.end(share), &self.orderly, ways.len());
        let mut outputs = 0;
        let mut goes_on = || {
            outputs += 1;
            // At least one sequence of each.
            outputs <= first || (Instant::now() < end && !orderly.is_interrupted())
        };
        decode::time(&mut self.models, &self.prompts, ways, (1, max_tokens), &mut goes_on)?;
        Ok(())
    }

    /// Returns the table that was stored last.
    pub fn last(&self) -> Option<&Table> {
        self.tables.last()
    }

    /// Measures acceptance rates at positions of the output, for a share of the time. Nodes with
    /// the same target sampling use the same positions.
    pub fn acceptances(&mut self, share: f64, mut table: Table, nodes: &[Node]) -> Result<()> {
        if self.is_interrupted() {
            return Ok(());
        }
        let mut samplings: Vec<Sampling> = Vec::new();
        for node in nodes {
            if !samplings.contains(&node.target) {
                samplings.push(node.target);
            }
        }
        // Use about half of the time for finding positions. A sequence of eight takes about a tenth
        // of a second.
        let each = self.time.as_secs_f64() * share / samplings.len() as f64;
        let count = ((20.0 * each) as usize).clamp(48, if self.quick { 48 } else { 960 });
        let mut series: Vec<Vec<Sample>> = vec![Vec::new(); nodes.len()];
        for sampling in &samplings {
            self.pairs(*sampling, count)?;
            let (end, seed) = (self.end(0.5 * share / samplings.len() as f64), self.seed);
            self.note(&table.title);
            let own = self.pairs.iter().find(|(own, _)| own == sampling);
            let pairs = own.map_or(&[][..], |(_, pairs)| &pairs[..count.min(pairs.len())]);
            // By sequence, because positions of one sequence are correlated.
            for text in pairs.chunk_by(|a, b| a.text == b.text) {
                for (node, series) in nodes.iter().zip(&mut series) {
                    if node.target != *sampling {
                        continue;
                    }
                    let mut sum = 0.0;
                    for pair in text {
                        sum += acceptance_at(node, pair, seed ^ pair.text as u64)?;
                    }
                    series.push(Sample {
                        prompt: text[0].prompt,
                        positions: text.len(),
                        drafts: text.len(),
                        nodes: 0,
                        tokens: vec![sum / text.len() as f64],
                    });
                }
                if !self.tick() || Instant::now() >= end {
                    break;
                }
            }
        }
        for (node, series) in nodes.iter().zip(series) {
            if !series.is_empty() {
                table.add_series(&node.row, &node.column, series);
            }
        }
        self.keep(table);
        Ok(())
    }
}

/// Returns the tree whose drafts contain those of the case, and the case's part of it. Cases with
/// the same tree and sampling are evaluated on the same drafts.
fn largest_tree(case: &Case, all: &[Case]) -> (PolicyKind, Part) {
    let alike = |other: &&Case| (other.target, other.draft) == (case.target, case.draft);
    let like = all.iter().filter(alike).map(|other| &other.tree);
    match &case.tree {
        PolicyKind::Paths(own) => {
            let (mut paths, mut depth) = (own.paths, own.depth);
            for other in like {
                if let PolicyKind::Paths(other) = other {
                    (paths, depth) = (paths.max(other.paths), depth.max(other.depth));
                }
            }
            let part = Part { paths: Some(own.paths), depth: Some(own.depth) };
            (PolicyKind::paths(paths, depth), part)
        }
        // A tree of levels without its last levels.
        PolicyKind::Levels(own) => {
            let mut longest = own;
            for other in like {
                if let PolicyKind::Levels(other) = other
                    && other.drafting == own.drafting
                    && other.counts.starts_with(&longest.counts)
                {
                    longest = other;
                }
            }
            let part = Part { paths: None, depth: Some(own.counts.len()) };
            (PolicyKind::Levels(longest.clone()), part)
        }
        tree => (tree.clone(), Part::default()),
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
    // Settings that share drafts, and for each column of each case its index in them.
    type Drawn = (PolicyKind, Sampling, Sampling, Vec<Sampling>);
    type Own = (Drawn, Vec<(VerifierKind, Part)>);
    let mut owns: Vec<Own> = Vec::new();
    let mut places = Vec::new();
    for case in cases {
        let form = case.tree.build()?.form();
        let (tree, part) = largest_tree(case, cases);
        let drawn = (tree, case.target, case.draft, case.each.clone());
        let index = match owns.iter().position(|own| own.0 == drawn) {
            Some(index) => index,
            None => {
                owns.push((drawn, Vec::new()));
                owns.len() - 1
            }
        };
        for (name, kind) in &case.verifiers {
            if exact_for(std::slice::from_ref(kind), &form)?.is_empty() {
                continue;
            }
            let (all, own) = (&mut owns[index].1, (kind.clone(), part));
            let place = all.iter().position(|other| *other == own).unwrap_or(all.len());
            if place == all.len() {
                all.push(own);
            }
            places.push((&case.row, name, index, place));
        }
    }
    let setting = |((tree, target, draft, each), all): &Own| {
        let setting = Setting::of_parts(tree.clone(), *target, *draft, plan.drafts, all)?;
        anyhow::Ok(setting.with_each(each.clone()))
    };
    let mut settings = owns.iter().map(setting).collect::<Result<Vec<_>>>()?;
    verifiers::measure(plan, engine, prompts, &mut settings, goes_on)?;
    for (row, name, index, place) in places {
        let one = |sample: &Sample| Sample { tokens: vec![sample.tokens[place]], ..*sample };
        let samples = &settings[index].samples;
        if !samples.is_empty() {
            table.add_series(row, name, samples.iter().map(one).collect());
        }
    }
    Ok(())
}

/// Returns the acceptance of a node at a position. Rules without a formula estimate it with drafts
/// drawn by `seed`.
pub fn acceptance_at(node: &Node, pair: &Pair, seed: u64) -> Result<f64> {
    let target = pair.target(&node.target)?;
    let distributions =
        node.drafts.iter().map(|sampling| pair.draft(sampling)).collect::<Result<Vec<_>>>()?;
    let problem = Problem::new(&target, Proposal::new(node.draws, &distributions)?)?;
    let Some(rule) = &node.rule else { return Ok(acceptance::optimal(&problem)?) };
    let mut rule = rule.build()?;
    let mut coupling = couple(rule.as_mut(), problem)?;
    let all = coupling.acceptance(&mut seeded(seed)).probability;
    let Some(rank) = node.rank else { return Ok(all) };
    let first = ranks::first(&problem);
    Ok(if rank == 0 { first } else { all - first })
}

/// Running sum, for a mean.
#[derive(Debug, Clone, Default)]
pub struct Sum {
    count: f64,
    sum: f64,
}

impl Sum {
    pub fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.count
    }
}

#[cfg(test)]
mod tests;
