//! What steps cost here, measured: what adaptive draft length goes by at first.
//!
//! Problem: how much to draft hangs on the seconds of passes over 1, 2, 4, .. tokens and of the
//! draft's passes, and a small model's pass is faster or slower by a third as its weights lie in
//! the CPU's cache or do not: passes of one model alone do not show that.
//! Method: whole steps, plain ones and with chains of 1, 3, 7 and 11 tokens; of each kind the least
//! of two rounds, of the draft's seconds and of all others. Chains say what a pass of the draft
//! takes, and what the first one of a step takes beyond that. The same after a long context,
//! where that does not take long: the difference is what each token of context adds. What became of
//! the chains is what to expect of the draft. The draft's passes over several tokens are taken to
//! grow as the target's do. It takes two seconds or three where passes are not long; the clock
//! corrects the rest ([`Costs::learn`]).

use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Pass, Passes};
use polydraft::{PolicyKind, Token};

use crate::{Engine, Request, Result, Statistics};

/// Makes the requests whose steps are measured.
pub(crate) type Requests<'a> = dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>> + 'a;

/// Tokens of the chains; 0 is a plain step.
const CHAINS: [usize; 5] = [0, 1, 3, 7, 11];
/// Tokens of the contexts.
const CONTEXTS: [usize; 2] = [128, 1024];
/// Steps of a kind that count in a round, after one that finds another kind's weights in the
/// CPU's cache; that one alone where it takes long.
const STEPS: usize = 2;
const LONG: Duration = Duration::from_millis(100);
/// Rounds, and how long one may take for there to be another.
const ROUNDS: usize = 2;
const TIME: Duration = Duration::from_millis(1500);

/// What steps cost after a text, again and again until it is long enough; after any token if
/// there is none.
pub(crate) fn measure(
    engine: &mut Engine,
    text: &[Token],
    request: &mut Requests,
) -> Result<Costs> {
    let context = engine.draft_context().unwrap_or(usize::MAX).min(engine.info().context);
    let text = if text.is_empty() { &[0] } else { text };
    let contexts = CONTEXTS.map(|length| length.min(context / 2));
    let (mut verified, mut rejected) = (1.0, 0.5);
    // By context and kind: seconds of the draft, and all others.
    let mut least = [[[f64::INFINITY; 2]; CHAINS.len()]; CONTEXTS.len()];
    let start = Instant::now();
    for round in 0..ROUNDS * CONTEXTS.len() {
        let place = round % CONTEXTS.len();
        if round > 0 && start.elapsed() > TIME.mul_f64((1 + round / CONTEXTS.len()) as f64) {
            break;
        }
        for (tokens, least) in CHAINS.into_iter().zip(&mut least[place]) {
            let prompt = text.iter().copied().cycle().take(contexts[place]).collect();
            let mut request = request(prompt, PolicyKind::chain(tokens.max(1)))?;
            request.speculation = request.speculation.filter(|_| tokens > 0);
            let taken = steps(engine, request)?;
            let (calls, draft) = (taken.target_calls as f64, taken.draft_time.as_secs_f64());
            let rest = taken.total_time.as_secs_f64() - draft;
            *least = [least[0].min(draft / calls), least[1].min(rest / calls)];
            // A long context says the same again and again, which n-grams know.
            if tokens > 0 && place == 0 {
                let wrong = calls - taken.complete_paths as f64;
                verified += taken.accepted.iter().sum::<usize>() as f64 + wrong;
                rejected += wrong;
            }
        }
    }
    let span = (contexts[1] - contexts[0]) as f64;
    let pass = |tokens: usize, [before, after]: [f64; 2]| {
        // Nothing where there is no longer context, or no time for it.
        let longer = Some((after - before) / span).filter(|longer| longer.is_finite());
        // What a shorter context saves is a part of the pass, whatever was measured.
        let longer = longer.unwrap_or(0.0).clamp(0.0, 0.5 * before / contexts[0].max(1) as f64);
        Pass { tokens, seconds: before - longer * contexts[0] as f64, longer }
    };
    let (mut target, mut most) = (Vec::new(), [0.0_f64; 2]);
    for (kind, tokens) in CHAINS.into_iter().enumerate() {
        // More is never cheaper: where it seems so, chance did it.
        most = [0, 1].map(|place| most[place].max(least[place][kind][1]));
        let mut pass = pass(1 + tokens, most);
        pass.seconds =
            target.last().map_or(pass.seconds, |last: &Pass| last.seconds.max(pass.seconds));
        target.push(pass);
    }
    let draft = least.map(|[_, one, .., most]| {
        let passes = (CHAINS[CHAINS.len() - 1] - CHAINS[1]) as f64;
        ((most[0] - one[0]) / passes).max(0.0).min(one[0])
    });
    let Pass { seconds, longer, .. } = pass(1, draft);
    let draft_passes = target.iter().map(|pass| {
        let grown = pass.seconds / target[0].seconds;
        Pass { tokens: pass.tokens, seconds: grown * seconds, longer: grown * longer }
    });
    Ok(Costs {
        draft: Passes(draft_passes.collect()),
        target: Passes(target),
        first: least[0][1][0] - draft[0],
        rejected: rejected / verified,
        ..Costs::default()
    })
}

/// What some steps of a request took.
fn steps(engine: &mut Engine, request: Request<'static>) -> Result<Statistics> {
    let mut session = engine.open(request)?;
    let taken = (|| {
        while engine.prepare(&mut session, usize::MAX)? > 0 {}
        let start = Instant::now();
        engine.step(&mut [&mut session])?;
        if start.elapsed() < LONG {
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

    /// A draft that is the target, and one that never says what the target says.
    #[test]
    fn what_became_of_chains_is_counted() {
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
            engine.costs(&[0, 1], &mut request).unwrap()
        };
        let alike = measured("[0.5, 0.5, 0, 0]", "[0.5, 0.5, 0, 0]");
        let apart = measured("[1, 0, 0, 0]", "[0, 0.5, 0.5, 0]");
        assert!(alike.rejected < 0.01 && apart.rejected > 0.95, "{alike:?}, {apart:?}");
        for costs in [&alike, &apart] {
            let tokens: Vec<usize> = costs.target.0.iter().map(|pass| pass.tokens).collect();
            assert_eq!(tokens, CHAINS.map(|chain| chain + 1));
            assert!(costs.target.0.is_sorted_by_key(|pass| pass.seconds), "{costs:?}");
            assert!(
                costs.draft.0[0].seconds >= 0.0 && costs.target.0[0].seconds > 0.0,
                "{costs:?}"
            );
        }
    }
}
