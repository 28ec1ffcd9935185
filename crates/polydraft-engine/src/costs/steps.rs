//! Whole steps, measured: what they take beside their passes, and what the passes of small models
//! take among others.
//!
//! Problem: drawing, verifying and cutting back caches take time, most with several paths; and a
//! small model's pass is faster or slower by a third as its weights lie in a cache or do not, which
//! passes of one model alone do not show.
//! Method: steps of a few trees and plain ones, in turn in one text, the median of each. What
//! drifts from turn to turn is the machine: a step's time is that of its kind times that of its
//! turn, both found by medians in turn (Tukey's median polish, 1977).
//! 1. Where passes are short, chains say what the draft's passes take: a token more is a pass more,
//!    behind a first one that takes longer, for the target has just had the caches. (By its own a
//!    copy's pass took a third longer than it does in a chain.)
//! 2. There they say what the target's pass takes too: the step less the draft's passes.
//! 3. What a step takes beyond its passes is its verification; of models whose passes are not
//!    short, what the draft's first pass takes beyond another as well.
//! 4. What became of the chains' tokens is what to expect of the draft.

use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Guess, Passes};
use polydraft::{Draft, PolicyKind, Token};

use super::{LONG, Requests, median, never_cheaper, timed};
use crate::{Engine, Error, Result, Session, Speculation};

/// Passes that take less are measured in steps.
const SHORT: Duration = Duration::from_millis(20);
/// Paths and depth of the trees; nothing is drawn in plain steps.
const PLAIN: (usize, usize) = (0, 0);
/// Four rows are measured, for products take rows by fours on many processors: a line from three to
/// five would miss the step behind them, on which the best chains end.
const SHORT_TREES: [(usize, usize); 8] =
    [PLAIN, (1, 1), (1, 2), (1, 3), (1, 4), (1, 7), (2, 2), (4, 2)];
const TREES: [(usize, usize); 4] = [PLAIN, (1, 2), (2, 2), (4, 2)];
/// Steps of one tree before it is the next one's turn, behind some that do not count, in which the
/// draft reads what it has missed and weights come to where they are when these steps are all that
/// is done: small models took a third longer in the first ones.
const STEPS: Rhythm = Rhythm { before: 2, counted: 6 };
/// Where a pass takes longer than [`MEDIUM`], and all weights come from memory in every step.
const FEW: Rhythm = Rhythm { before: 1, counted: 2 };
const MEDIUM: Duration = Duration::from_millis(50);
/// Turns at most, and how long they may take together.
const TURNS: usize = 20;
const TIME: Duration = Duration::from_secs(5);
/// Seconds that no clock tells from none.
const LEAST: f64 = 1e-9;
/// How often kinds and turns are gone through: more changes next to nothing.
const POLISHED: usize = 20;
/// Tokens that a text grows by before the next one begins.
const GROWTH: usize = 128;

/// Steps of a turn.
#[derive(Clone, Copy)]
struct Rhythm {
    before: usize,
    counted: usize,
}

/// Steps of one kind.
struct Kind {
    paths: usize,
    depth: usize,
    /// While it is not this kind's turn.
    speculation: Option<Speculation>,
    turns: Vec<Turn>,
}

/// Steps of one kind behind each other.
type Turn = Vec<Timed>;

/// A step.
struct Timed {
    seconds: f64,
    /// Of them, the draft's.
    draft: f64,
    /// Nodes by level, the root first.
    levels: Vec<usize>,
}

impl Kind {
    /// What they usually take, less what `part` says of each.
    fn usual(&self, part: impl Fn(&[usize]) -> f64) -> Option<f64> {
        median(self.turns.iter().flatten().map(|step| step.seconds - part(&step.levels)).collect())
    }

    /// What the draft usually takes of them.
    fn usual_draft(&self) -> Option<f64> {
        median(self.turns.iter().flatten().map(|step| step.draft).collect())
    }
}

/// Takes out of the steps what made those of their turn slower or faster than their kinds usually
/// are.
fn steady(kinds: &mut [Kind]) {
    for _ in 0..POLISHED {
        let usual: Vec<Option<f64>> = kinds.iter().map(|kind| kind.usual(|_| 0.0)).collect();
        for turn in 0..kinds[0].turns.len() {
            let mut ratios = Vec::new();
            for (kind, usual) in kinds.iter().zip(&usual) {
                ratios.extend(
                    kind.turns[turn].iter().filter_map(|step| Some(step.seconds / (*usual)?)),
                );
            }
            let slower = median(ratios).unwrap_or(1.0);
            let steps = kinds.iter_mut().flat_map(|kind| &mut kind.turns[turn]);
            steps.for_each(|step| {
                step.seconds /= slower;
                step.draft /= slower;
            });
        }
    }
}

/// Corrects the costs of passes and adds those of verification, for trees that the verifier is
/// exact for.
///
/// # Errors
/// Failures of the models; requests that are refused.
pub(crate) fn steps(
    engine: &mut Engine,
    text: &[Token],
    costs: &mut Costs,
    request: &mut Requests,
) -> Result<()> {
    let pass = costs.target.at(1.0);
    if pass > LONG.as_secs_f64() {
        // What comes beside such a pass is little.
        return Ok(());
    }
    let short = pass < SHORT.as_secs_f64();
    let rhythm = if pass < MEDIUM.as_secs_f64() { STEPS } else { FEW };
    let trees = if short { &SHORT_TREES[..] } else { &TREES };
    let mut kinds = Vec::new();
    for &(paths, depth) in trees {
        let speculation = match paths {
            0 => None,
            _ => match request(text.to_vec(), PolicyKind::paths(paths, depth)) {
                // The verifier is not exact for this tree.
                Err(Error::Law(polydraft::Error::Unsupported { .. })) => continue,
                asked => asked?.speculation,
            },
        };
        kinds.push(Kind { paths, depth, speculation, turns: Vec::new() });
    }
    let mut nodes = Nodes::default();
    let start = Instant::now();
    while kinds[0].turns.is_empty() || !enough(&kinds, start) {
        let mut session = engine.open(request(text.to_vec(), PolicyKind::paths(1, 1))?)?;
        session.speculation = None;
        let taken = turns(engine, &mut session, &mut kinds, rhythm, &mut nodes, start);
        let closed = engine.close(session);
        taken.and(closed)?;
    }
    costs.guess = nodes.guess().unwrap_or(costs.guess);
    steady(&mut kinds);
    if short {
        draft_by_chains(&kinds, costs)?;
        costs.target = target_by_chains(&kinds, costs)?;
        // On average the texts were so long.
        costs.longer.than = text.len() + GROWTH / 2;
    }
    let of_passes = |levels: &[usize]| {
        costs.target.at(levels.iter().sum::<usize>() as f64) + drafted(costs, levels)
    };
    // A plain step has a rest too, which is none of verification's.
    let plain = kinds
        .iter()
        .find(|kind| kind.paths == 0)
        .and_then(|kind| kind.usual(of_passes))
        .unwrap_or(0.0);
    let rests = kinds
        .iter()
        .filter(|kind| kind.depth == 2)
        .filter_map(|kind| Some((kind, kind.usual(of_passes)?)));
    let (paths, mut seconds): (Vec<usize>, Vec<f64>) =
        rests.map(|(kind, rest)| (kind.paths, (rest - plain).max(0.0))).unzip();
    never_cheaper(&mut seconds);
    if !paths.is_empty() {
        costs.verification = Passes::new(paths.into_iter().zip(seconds).collect())?;
    }
    Ok(())
}

/// Turns until the text has grown or the time is over, one at least.
fn turns(
    engine: &mut Engine,
    session: &mut Session,
    kinds: &mut [Kind],
    rhythm: Rhythm,
    nodes: &mut Nodes,
    start: Instant,
) -> Result<()> {
    loop {
        for kind in &mut *kinds {
            std::mem::swap(&mut session.speculation, &mut kind.speculation);
            let turn = take(engine, session, kind, rhythm, nodes);
            std::mem::swap(&mut session.speculation, &mut kind.speculation);
            kind.turns.push(turn?);
        }
        if session.is_done() || session.tokens().len() >= GROWTH || enough(kinds, start) {
            return Ok(());
        }
    }
}

fn enough(kinds: &[Kind], start: Instant) -> bool {
    kinds[0].turns.len() >= TURNS || start.elapsed() >= TIME
}

/// Nodes of chains that were verified.
#[derive(Default)]
struct Nodes {
    count: f64,
    rejected: f64,
    unsure: f64,
}

impl Nodes {
    /// Takes note of a step in which so many tokens of a chain were accepted.
    fn note(&mut self, chain: &Draft, accepted: usize) {
        for node in 0..=accepted {
            let Some(law) = chain.law(node) else { break };
            self.count += 1.0;
            self.unsure += 1.0 - law.sureness();
            self.rejected += f64::from(u8::from(node == accepted));
        }
    }

    /// Behind half a node of all kinds: never is not known from a few.
    fn guess(&self) -> Option<Guess> {
        let mean = |sum: f64| ((sum + 0.5) / (self.count + 1.0)).clamp(0.0, 1.0);
        (self.count > 0.0)
            .then(|| Guess { rejected: mean(self.rejected), unsure: mean(self.unsure) })
    }
}

/// Some steps of one kind, as far as the text goes.
fn take(
    engine: &mut Engine,
    session: &mut Session,
    kind: &Kind,
    rhythm: Rhythm,
    nodes: &mut Nodes,
) -> Result<Turn> {
    let mut turn = Turn::new();
    for step in 0..rhythm.before + rhythm.counted {
        if session.is_done() {
            break;
        }
        let (before, drafting) = (session.tokens().len(), session.statistics().draft_time);
        let seconds = timed(|| engine.step(&mut [&mut *session]))?;
        let levels = session.draft.tree().levels();
        // Near the end of the context less is drawn.
        if levels.len() != kind.depth + 1 {
            continue;
        }
        if kind.paths == 1 {
            nodes.note(&session.draft, (session.tokens().len() - before).saturating_sub(1));
        }
        if step >= rhythm.before {
            let draft = (session.statistics().draft_time - drafting).as_secs_f64();
            turn.push(Timed { seconds, draft, levels });
        }
    }
    Ok(turn)
}

/// Sets the draft's passes: of one row by what chains of several tokens take more than that of one,
/// of others in proportion to what passes alone took; and what the first of a step takes beyond
/// another.
fn draft_by_chains(kinds: &[Kind], costs: &mut Costs) -> Result<()> {
    let chains = kinds.iter().filter(|kind| kind.paths == 1);
    let chains: Vec<(f64, f64)> =
        chains.filter_map(|kind| Some((kind.depth as f64, kind.usual_draft()?))).collect();
    let (Some((least, fewest)), Some((most, all))) = (chains.first(), chains.last()) else {
        return Ok(());
    };
    let pass = (all - fewest) / (most - least);
    if !(most > least && pass > 0.0) {
        return Ok(());
    }
    let scale = pass / costs.draft.at(1.0).max(LEAST);
    let passes = costs.draft.pairs().iter().map(|&(rows, alone)| (rows, scale * alone));
    costs.draft = Passes::new(passes.collect())?;
    costs.first = (fewest - least * pass).max(0.0);
    Ok(())
}

/// Seconds of the draft's passes in a step with so many nodes by level: one for each but the last.
fn drafted(costs: &Costs, levels: &[usize]) -> f64 {
    costs.drafted(levels[..levels.len() - 1].iter().map(|&rows| rows as f64))
}

/// The target's passes: of few rows by the steps of chains, of others in proportion to what passes
/// alone took.
fn target_by_chains(kinds: &[Kind], costs: &Costs) -> Result<Passes> {
    let chains = kinds.iter().filter(|kind| kind.paths < 2);
    let mut steps: Vec<(usize, f64)> = chains
        .filter_map(|kind| Some((1 + kind.depth, kind.usual(|levels| drafted(costs, levels))?)))
        .collect();
    let Some(&(_, plain)) = steps.first() else { return Ok(costs.target.clone()) };
    // On a busy machine the draft's passes may have taken longer alone than the steps that they are
    // part of.
    steps.iter_mut().for_each(|(_, seconds)| *seconds = seconds.max(plain));
    let alone = &costs.target;
    let ratio =
        |&(rows, seconds): &(usize, f64)| (rows, seconds / alone.at(rows as f64).max(LEAST));
    let (ratios, last) =
        (Passes::new(steps.iter().map(ratio).collect())?, steps[steps.len() - 1].0);
    for &(rows, alone) in alone.pairs() {
        if let Err(place) = steps.binary_search_by_key(&rows, |(rows, _)| *rows) {
            // Behind the last nothing is known of the ratio but that one.
            steps.insert(place, (rows, alone * ratios.at(rows.min(last) as f64)));
        }
    }
    let (rows, mut seconds): (Vec<usize>, Vec<f64>) = steps.into_iter().unzip();
    never_cheaper(&mut seconds);
    Ok(Passes::new(rows.into_iter().zip(seconds).collect())?)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn kind(paths: usize, turns: &[&[f64]]) -> Kind {
        let step = |&seconds: &f64| Timed { seconds, draft: 0.0, levels: vec![1] };
        let turn = |seconds: &&[f64]| seconds.iter().map(step).collect();
        Kind { paths, depth: paths, speculation: None, turns: turns.iter().map(turn).collect() }
    }

    /// How long the second kind's steps take, relative to the first's.
    fn ratio(mut kinds: [Kind; 2]) -> f64 {
        steady(&mut kinds);
        let [plain, tree] = kinds.map(|kind| kind.usual(|_| 0.0).unwrap());
        tree / plain
    }

    #[test]
    fn a_slow_turn_makes_no_tree_slow() {
        // The second turn at half the speed, where more of the tree's steps were kept; and a third
        // of which nothing was kept.
        let plain = kind(0, &[&[1.0, 1.0], &[2.0, 2.0], &[]]);
        let tree = kind(1, &[&[1.5], &[3.0, 3.0], &[]]);
        assert!((ratio([plain, tree]) - 1.5).abs() < 1e-3);
    }

    /// A draft that is the target, and one that never says what the target says.
    #[test]
    fn what_became_of_chains_is_counted() {
        let table = |next: &str| {
            let json = format!(r#"{{"vocabulary": 4, "next": {{"": {next}}}}}"#);
            crate::TableModel::from_json("model", &json).unwrap()
        };
        let guess = |target: &str, draft: &str| {
            let target = table(target);
            let drafter = crate::ModelDrafter::new(
                Box::new(table(draft)),
                &crate::Model::facts(&target).vocabulary,
            );
            let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter.unwrap())));
            let mut request = |prompt, tree: PolicyKind| {
                let verifier: polydraft::VerifierKind = "block".parse()?;
                let speculation = Speculation::new(verifier.build()?, tree.build()?)?;
                let rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
                Ok(crate::Request::new(prompt).speculation(speculation).rng(rng))
            };
            engine.costs(&[0, 1], &mut request).unwrap().costs.guess
        };
        let (alike, apart) = (
            guess("[0.5, 0.5, 0, 0]", "[0.5, 0.5, 0, 0]"),
            guess("[1, 0, 0, 0]", "[0, 0.5, 0.5, 0]"),
        );
        assert!(alike.rejected < 0.01 && apart.rejected > 0.99, "{alike:?}, {apart:?}");
        assert!(
            (alike.unsure - 0.5).abs() < 0.01 && (apart.unsure - 0.5).abs() < 0.01,
            "{alike:?}, {apart:?}"
        );
    }

    /// Where steps were not measured the staircase is that of passes alone.
    #[test]
    fn passes_between_chains_keep_their_steps() {
        let passes = |pairs: &[(usize, f64)]| Passes::new(pairs.to_vec()).unwrap();
        let costs = Costs {
            target: passes(&[
                (1, 1.0),
                (2, 1.0),
                (3, 1.0),
                (4, 1.0),
                (5, 2.0),
                (8, 2.0),
                (16, 4.0),
            ]),
            draft: passes(&[(1, 0.5)]),
            ..Costs::default()
        };
        let found =
            target_by_chains(&[chain(0, 1.0, 0.0), chain(2, 1.0, 1.0), chain(7, 4.0, 3.5)], &costs)
                .unwrap();
        let expected = [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.2), (5, 2.8), (8, 4.0), (16, 8.0)];
        assert_eq!(found.pairs().len(), expected.len());
        for (found, expected) in found.pairs().iter().zip(expected) {
            assert!(
                found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-9,
                "{found:?}, {expected:?}"
            );
        }
    }

    /// A chain in which the target takes so many seconds, and the draft.
    fn chain(depth: usize, target: f64, draft: f64) -> Kind {
        let turns =
            vec![vec![Timed { seconds: target + draft, draft, levels: vec![1; depth + 1] }]];
        Kind { paths: depth.min(1), depth, speculation: None, turns }
    }

    /// What passes alone took is what they take in relation to each other.
    #[test]
    fn later_passes_of_the_draft_find_its_weights_in_a_cache() {
        let kinds =
            || [chain(0, 1.0, 0.0), chain(1, 1.0, 0.5), chain(2, 1.25, 0.75), chain(7, 2.0, 2.0)];
        let draft = Passes::new(vec![(1, 0.5), (4, 0.75)]).unwrap();
        let mut costs = Costs { draft, ..Costs::default() };
        draft_by_chains(&kinds(), &mut costs).unwrap();
        assert_eq!((costs.first, costs.draft.pairs()), (0.25, &[(1, 0.25), (4, 0.375)][..]));
        let target = target_by_chains(&kinds(), &costs).unwrap();
        assert_eq!([1.0, 2.0, 3.0, 8.0].map(|rows| target.at(rows)), [1.0, 1.0, 1.25, 2.0]);
        // Of chains of one length nothing can be said.
        let before = costs.clone();
        draft_by_chains(&kinds()[..2], &mut costs).unwrap();
        assert_eq!(costs, before);
    }

    #[test]
    fn noise_makes_no_tree_fast() {
        // Of two plain steps one always takes longer.
        let plain = kind(0, &[&[1.0, 1.2], &[1.2, 1.0], &[1.0, 1.2]]);
        let tree = kind(1, &[&[1.65, 1.65], &[1.65, 1.65], &[1.65, 1.65]]);
        assert!((ratio([plain, tree]) - 1.5).abs() < 1e-3);
    }
}
