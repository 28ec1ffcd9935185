//! Measured costs of steps on this machine: the initial values for adaptive draft length.
//!
//! Problem: the best draft length depends on the seconds of passes over 1, 2, 4, .. tokens and of
//! the draft's passes. A small model's pass is a third faster or slower depending on whether its
//! weights are in the CPU cache, so timing one model alone gives wrong values.
//! Method: time whole steps, plain and with chains of 1, 3, 7 and 11 tokens, and take for each kind
//! the minimum of two rounds, separately for the draft and for the rest. The chains give the cost
//! of a draft pass and the extra cost of the first one of a step. The measurement is repeated after
//! a long context, if that does not take long: the difference is the cost per token of context. The
//! acceptance rate in the chains is the expected acceptance rate of the draft. The draft's passes
//! over several tokens are assumed to grow as the target's do. Measuring takes two or three seconds
//! where passes are short, in parts of a few steps, between which other sequences can proceed.
//! Only for measurements that somebody asked for: ordinary outputs learn from their own steps
//! ([`Costs::learn`]).

use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Pass, Passes};
use polydraft::{PolicyKind, Token};

use crate::{Engine, Request, Result, Statistics};

/// Builds the requests whose steps are measured, from a prompt and a policy.
pub type RequestFactory<'a> = dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>> + 'a;

/// Tokens per chain; 0 is a plain step.
const CHAIN_LENGTHS: [usize; 5] = [0, 1, 3, 7, 11];
/// Tokens per context.
const CONTEXT_LENGTHS: [usize; 2] = [128, 1024];
/// Measured steps of each kind per round, after one warm-up step, which starts with another kind's
/// weights in the CPU cache. If the warm-up step is slow, it is the measurement.
const STEPS: usize = 2;
const SLOW_STEP: Duration = Duration::from_millis(100);
/// Number of rounds; a further round starts only while less than this time is spent per round.
const ROUNDS: usize = 2;
const ROUND_TIME: Duration = Duration::from_millis(1500);
/// Tokens of a context that one part of the measurement prefills.
const PREFILL_CHUNK: usize = 128;
/// A measurement in progress. It runs in parts, between which other sequences of the engine
/// proceed.
///
/// ```
/// use polydraft::{PolicyKind, VerifierKind};
/// use polydraft_engine::{Engine, CostMeasurement, ModelDrafter, Request, Speculation, TableModel};
///
/// let table = || TableModel::from_json("coin", r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#);
/// let vocabulary = polydraft_engine::Vocabulary::numbered(2);
/// let drafter = ModelDrafter::new(Box::new(table()?), &vocabulary)?;
/// let mut engine = Engine::new(Box::new(table()?), Some(Box::new(drafter)));
/// let mut request = |prompt, tree: PolicyKind| {
///     let block: VerifierKind = "block".parse()?;
///     Ok(Request::new(prompt).speculation(Speculation::new(block.build()?, tree.build()?)?))
/// };
/// let mut measurement = CostMeasurement::new(&engine, &[0, 1]);
/// while measurement.advance(&mut engine, &mut request)? {}
/// assert!(measurement.costs().target.0[0].seconds > 0.0);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CostMeasurement {
    prompt: Vec<Token>,
    contexts: [usize; CONTEXT_LENGTHS.len()],
    /// Maximum chain length.
    levels: usize,
    reads_kv_cache: bool,
    /// The next part: a round of one context, and a kind of steps in it.
    round: usize,
    kind: usize,
    /// Prefilled tokens of the round's context.
    prefilled: usize,
    /// Total time of all parts.
    spent: Duration,
    verified: f64,
    rejected: f64,
    /// Seconds of the draft and of everything else, by context and kind.
    fastest: [[[f64; 2]; CHAIN_LENGTHS.len()]; CONTEXT_LENGTHS.len()],
}

impl CostMeasurement {
    /// Measures steps after `prompt`, repeated up to the context's length. An empty prompt is
    /// replaced by token 0.
    pub fn new(engine: &Engine, prompt: &[Token]) -> Self {
        let context = engine.draft_context().unwrap_or(usize::MAX).min(engine.info().context);
        Self {
            prompt: if prompt.is_empty() { vec![0] } else { prompt.to_vec() },
            contexts: CONTEXT_LENGTHS.map(|length| length.min(context / 2)),
            levels: engine.draft_levels().unwrap_or(usize::MAX).max(1),
            reads_kv_cache: engine.drafts_from_kv_cache(),
            round: 0,
            kind: 0,
            prefilled: 0,
            spent: Duration::ZERO,
            verified: 1.0,
            rejected: 0.5,
            fastest: [[[f64::INFINITY; 2]; CHAIN_LENGTHS.len()]; CONTEXT_LENGTHS.len()],
        }
    }

    /// Measures the next part and returns whether there is another one. `request` builds requests
    /// from a prompt and a policy; their sampling and verifier are those whose costs are measured.
    ///
    /// # Errors
    /// Failures of the models; rejected requests.
    pub fn advance(&mut self, engine: &mut Engine, request: &mut RequestFactory) -> Result<bool> {
        let start = Instant::now();
        let index = self.round % CONTEXT_LENGTHS.len();
        let length = self.contexts[index];
        if self.prefilled < length {
            // The context is prefilled in chunks; the steps find it in the prefix cache.
            self.prefilled = length.min(self.prefilled + PREFILL_CHUNK);
            let request = request(self.context(self.prefilled), PolicyKind::chain(1))?;
            prefill(engine, request)?;
            self.spent += start.elapsed();
            return Ok(true);
        }
        let tokens = CHAIN_LENGTHS[self.kind];
        let mut request = request(self.context(length), PolicyKind::chain(tokens.max(1)))?;
        request.speculation = request.speculation.filter(|_| tokens > 0);
        let statistics = run_steps(engine, request)?;
        self.record(index, tokens, &statistics);
        self.spent += start.elapsed();
        self.kind += 1;
        if self.kind == CHAIN_LENGTHS.len() {
            (self.round, self.kind, self.prefilled) = (self.round + 1, 0, 0);
        }
        let time_limit = ROUND_TIME.mul_f64((1 + self.round / CONTEXT_LENGTHS.len()) as f64);
        let goes_on = self.kind > 0
            || (self.round < ROUNDS * CONTEXT_LENGTHS.len() && self.spent <= time_limit);
        Ok(goes_on)
    }

    /// Tokens of the chains, at most as many as the draft has levels.
    fn chains(&self) -> impl Iterator<Item = usize> {
        let levels = self.levels;
        CHAIN_LENGTHS.into_iter().map(move |tokens| tokens.min(levels))
    }

    fn context(&self, length: usize) -> Vec<Token> {
        self.prompt.iter().copied().cycle().take(length).collect()
    }

    fn record(&mut self, index: usize, tokens: usize, statistics: &Statistics) {
        let (calls, draft) = (statistics.target_calls as f64, statistics.draft_time.as_secs_f64());
        let rest = statistics.total_time.as_secs_f64() - draft;
        let fastest = &mut self.fastest[index][self.kind];
        *fastest = [fastest[0].min(draft / calls), fastest[1].min(rest / calls)];
        if tokens > 0 && index == 0 {
            // The long context repeats the prompt, which n-grams would predict.
            let rejections = calls - statistics.complete_paths as f64;
            self.verified += statistics.accepted.iter().sum::<usize>() as f64 + rejections;
            self.rejected += rejections;
        }
    }

    /// Seconds of steps by context and kind, without the draft. A disturbance makes a step longer,
    /// and more tokens never take less time, so each kind is bounded by the longer ones.
    fn bounds(&self) -> [[f64; CHAIN_LENGTHS.len()]; CONTEXT_LENGTHS.len()] {
        self.fastest.map(|kinds| {
            let mut bounds = kinds.map(|[_, rest]| rest);
            for kind in (1..CHAIN_LENGTHS.len()).rev() {
                bounds[kind - 1] = bounds[kind - 1].min(bounds[kind]);
            }
            bounds
        })
    }

    /// Returns the costs and the expected acceptances measured so far; final once
    /// [`advance`](Self::advance) has returned false.
    pub fn costs(&self) -> Costs {
        let (contexts, fastest) = (self.contexts, &self.fastest);
        let span = (contexts[1] - contexts[0]) as f64;
        let pass = |tokens: usize, [before, after]: [f64; 2]| {
            // Zero if no longer context fits the model, or if there was no time to measure one.
            let longer = Some((after - before) / span).filter(|longer| longer.is_finite());
            // A shorter context can save only a part of the pass, however noisy the measurement.
            let longer = longer.unwrap_or(0.0).clamp(0.0, 0.5 * before / contexts[0].max(1) as f64);
            Pass { tokens, seconds: before - longer * contexts[0] as f64, longer }
        };
        let (mut target, bounds) = (Vec::new(), self.bounds());
        for (kind, tokens) in self.chains().enumerate() {
            if target.last().is_some_and(|last: &Pass| last.tokens == 1 + tokens) {
                continue;
            }
            let mut pass = pass(1 + tokens, bounds.map(|bounds| bounds[kind]));
            pass.seconds =
                target.last().map_or(pass.seconds, |last: &Pass| last.seconds.max(pass.seconds));
            target.push(pass);
        }
        let draft = fastest.map(|[_, one, .., most]| {
            let passes =
                self.chains().max().unwrap_or(1).saturating_sub(CHAIN_LENGTHS[1]).max(1) as f64;
            ((most[0] - one[0]) / passes).max(0.0).min(one[0])
        });
        let Pass { seconds, longer, .. } = pass(1, draft);
        let draft_passes = target.iter().map(|pass| {
            let grown = pass.seconds / target[0].seconds;
            Pass { tokens: pass.tokens, seconds: grown * seconds, longer: grown * longer }
        });
        Costs {
            draft: Passes(draft_passes.collect()),
            target: Passes(target),
            first: fastest[0][1][0] - draft[0],
            rejected: self.rejected / self.verified,
            follows: self.reads_kv_cache,
            ..Costs::default()
        }
    }
}

/// Prefills a request's prompt, so that it is in the prefix cache.
fn prefill(engine: &mut Engine, request: Request<'static>) -> Result<()> {
    let mut session = engine.open(request)?;
    let done = loop {
        match engine.prepare(&mut session, usize::MAX) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    session.stop();
    engine.close(session)?;
    done
}

/// Runs a few steps of a request and returns their statistics.
fn run_steps(engine: &mut Engine, request: Request<'static>) -> Result<Statistics> {
    let mut session = engine.open(request)?;
    // This output is generated for measurement only: n-grams must not learn from it.
    session.observers.others.clear();
    let taken = (|| {
        while engine.prepare(&mut session, usize::MAX)? > 0 {}
        let start = Instant::now();
        engine.step(&mut [&mut session])?;
        if start.elapsed() < SLOW_STEP {
            session.observers.statistics = Statistics::default();
            (0..STEPS).try_for_each(|_| engine.step(&mut [&mut session]))?;
        }
        Ok(())
    })();
    let closed = engine.close(session)?;
    taken.map(|()| closed.statistics)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::{ModelDrafter, Speculation, TableModel};

    /// A draft identical to the target, and one that never proposes what the target emits.
    #[test]
    fn counts_rejections_and_costs_of_chains() {
        let table = |next: &str| {
            let json = format!(r#"{{"vocabulary": 4, "next": {{"": {next}}}}}"#);
            TableModel::from_json("model", &json).unwrap()
        };
        let measured = |target: &str, draft: &str| {
            let target = table(target);
            let vocabulary = &crate::Model::info(&target).vocabulary;
            let drafter = ModelDrafter::new(Box::new(table(draft)), vocabulary).unwrap();
            let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
            let mut request = |prompt, tree: PolicyKind| {
                let verifier: polydraft::VerifierKind = "block".parse()?;
                Ok(Request::new(prompt)
                    .speculation(Speculation::new(verifier.build()?, tree.build()?)?)
                    .rng(rand_chacha::ChaCha8Rng::seed_from_u64(0)))
            };
            engine.measure_costs(&[0, 1], &mut request).unwrap()
        };
        let alike = measured("[0.5, 0.5, 0, 0]", "[0.5, 0.5, 0, 0]");
        let apart = measured("[1, 0, 0, 0]", "[0, 0.5, 0.5, 0]");
        assert!(alike.rejected < 0.01 && apart.rejected > 0.95, "{alike:?}, {apart:?}");
        for costs in [&alike, &apart] {
            let tokens: Vec<usize> = costs.target.0.iter().map(|pass| pass.tokens).collect();
            assert_eq!(tokens, CHAIN_LENGTHS.map(|chain| chain + 1));
            assert!(costs.target.0.is_sorted_by_key(|pass| pass.seconds), "{costs:?}");
            assert!(
                costs.draft.0[0].seconds >= 0.0 && costs.target.0[0].seconds > 0.0,
                "{costs:?}"
            );
        }
    }

    /// Plain steps measured while the machine was busy are bounded by the steps with drafts.
    #[test]
    fn bounds_disturbed_measurements() {
        let table = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#;
        let engine = Engine::new(Box::new(TableModel::from_json("t", table).unwrap()), None);
        let measured = |plain: f64| {
            let mut measurement = CostMeasurement::new(&engine, &[0]);
            measurement.fastest = [[plain, 6.0, 7.0, 14.0, 21.0].map(|rest| [0.0, rest]); 2];
            measurement
        };
        let at_one = |plain: f64| measured(plain).costs().target.0[0].seconds;
        assert_eq!((at_one(5.0), at_one(12.0)), (5.0, 6.0));
    }
}
