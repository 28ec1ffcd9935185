//! What steps cost here, measured: what adaptive draft length goes by at first.
//!
//! Problem: how much to draft hangs on the seconds of passes over 1, 2, 4, .. tokens and of the
//! draft's passes, and a small model's pass is faster or slower by a third as its weights lie in
//! the processor's cache or do not: passes of one model alone do not show that.
//! Method: whole steps, plain ones and with chains of 1, 3, 7 and 11 tokens, in turn; of each kind
//! the medians of the draft's seconds and of all others. Chains say what a pass of the draft takes,
//! and what the first one of a step takes beyond that. Once more behind a long context: the
//! difference is what each token of context adds. What became of the chains' first tokens is what
//! to expect of the draft. The draft's passes over several tokens are taken to grow as the target's
//! do. It takes two seconds at most where passes are not long; the clock corrects the rest
//! ([`Costs::learn`]).

use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Passes};
use polydraft::{PolicyKind, Token};

use crate::{Engine, Request, Result, Session, Speculation};

/// Makes the requests whose steps are measured.
pub(crate) type Requests<'a> = dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>> + 'a;

/// Tokens of the chains; 0 is a plain step.
const CHAINS: [usize; 5] = [0, 1, 3, 7, 11];
/// Tokens of the contexts.
const CONTEXTS: [usize; 2] = [128, 1024];
/// How long a context may take to be read, about, and its steps. One turn of all kinds is taken.
const TIME: Duration = Duration::from_millis(800);
/// Turns at most: the median of so many steps is off by a twentieth.
const TURNS: usize = 12;

/// Steps of one kind.
struct Kind {
    tokens: usize,
    speculation: Option<Speculation>,
    /// Seconds of the draft, and all others.
    seconds: [Vec<f64>; 2],
}

/// What was measured behind one context.
struct Behind {
    context: f64,
    /// By tokens.
    target: Vec<(usize, f64)>,
    draft: f64,
    first: f64,
    /// Drafted tokens that were verified, and those that were rejected.
    verified: [f64; 2],
}

/// What steps cost behind a text; behind a made-up one if there is none.
pub(crate) fn measure(
    engine: &mut Engine,
    text: &[Token],
    request: &mut Requests,
) -> Result<Costs> {
    let (context, size) = (engine.info().context, engine.info().vocabulary.size().max(1));
    let context = engine.draft_context().map_or(context, |most| most.min(context));
    let token = |n: usize| text.get(n % text.len().max(1)).copied();
    let prompt = |length: usize| -> Vec<Token> {
        (0..length).map(|n| token(n).unwrap_or((n * 7919 % size) as Token)).collect()
    };
    let [short, long] = CONTEXTS.map(|length| length.min(context / 2));
    let start = Instant::now();
    let (reading, short) = behind(engine, prompt(short), request)?;
    // A context that takes long to be read is left out: its passes are long, too.
    let fits = reading.mul_f64(long as f64 / short.context) < TIME && start.elapsed() < 4 * TIME;
    let long = match fits && long as f64 > 2.0 * short.context {
        true => Some(behind(engine, prompt(long), request)?.1),
        false => None,
    };
    let long = long.as_ref().unwrap_or(&short);
    let line = |before: f64, after: f64| {
        let slope = (after - before) / (long.context - short.context).max(1.0);
        // What a shorter context saves is part of a pass, whatever was measured.
        let most = 0.5 * before / short.context.max(1.0);
        (before - slope.clamp(0.0, most) * short.context, slope.max(0.0))
    };
    let target = short.target.iter().map(|&(tokens, seconds)| {
        let after = long.target.iter().find(|(behind, _)| *behind == tokens);
        let (seconds, longer) = line(seconds, after.map_or(seconds, |(_, seconds)| *seconds));
        (tokens, seconds, longer)
    });
    let target: Vec<(usize, f64, f64)> = target.collect();
    let (seconds, longer) = line(short.draft, long.draft);
    let draft = target.iter().map(|&(tokens, pass, _)| {
        let grown = pass / target[0].1;
        (tokens, grown * seconds, grown * longer)
    });
    let [verified, rejected] = short.verified;
    Ok(Costs {
        draft: Passes::new(draft.collect())?,
        target: Passes::new(target)?,
        first: short.first,
        // Behind half a token of both kinds: never is not known from a few.
        rejected: (rejected + 0.5) / (verified + 1.0),
        ..Costs::default()
    })
}

/// Steps of each kind in turn behind a prompt, as long as there is time; and how long the prompt
/// took to be read.
fn behind(
    engine: &mut Engine,
    prompt: Vec<Token>,
    request: &mut Requests,
) -> Result<(Duration, Behind)> {
    let mut kinds = Vec::new();
    for tokens in CHAINS {
        let like = request(prompt.clone(), PolicyKind::chain(tokens.max(1)))?;
        let speculation = like.speculation.filter(|_| tokens > 0);
        kinds.push(Kind { tokens, speculation, seconds: Default::default() });
    }
    let (mut verified, length) = ([0.0; 2], prompt.len());
    let mut session = engine.open(request(prompt, PolicyKind::chain(1))?)?;
    session.speculation = None;
    let start = Instant::now();
    let read = (|| -> Result<Duration> {
        // What is left of the prompt is read in the first step.
        engine.step(&mut [&mut session])?;
        let (read, start) = (start.elapsed(), Instant::now());
        for turns in 0..TURNS {
            if turns > 0 && start.elapsed() > TIME {
                break;
            }
            for kind in &mut kinds {
                std::mem::swap(&mut session.speculation, &mut kind.speculation);
                let taken = turn(engine, &mut session, kind, &mut verified);
                std::mem::swap(&mut session.speculation, &mut kind.speculation);
                taken?;
            }
        }
        Ok(read)
    })();
    let grown = session.tokens().len();
    engine.close(session)?;
    let mut most = 0.0_f64;
    let (mut target, mut drafts) = (Vec::new(), Vec::new());
    for Kind { tokens, seconds: [draft, rest], .. } in kinds {
        let (Some(draft), Some(rest)) = (median(draft), median(rest)) else { continue };
        // More is never cheaper: where it seems so, chance did it.
        most = most.max(rest);
        target.push((1 + tokens, most));
        drafts.push((tokens as f64, draft));
    }
    let (one, last) = (drafts.get(1).copied().unwrap_or((1.0, 0.0)), drafts.last().copied());
    let (tokens, seconds) = last.filter(|last| last.0 > 1.0).unwrap_or((2.0, 2.0 * one.1));
    let draft = ((seconds - one.1) / (tokens - one.0)).clamp(0.0, one.1);
    let context = (length + grown / 2) as f64;
    Ok((read?, Behind { context, target, draft, first: one.1 - draft, verified }))
}

/// Two steps of one kind.
fn turn(
    engine: &mut Engine,
    session: &mut Session,
    kind: &mut Kind,
    verified: &mut [f64; 2],
) -> Result<()> {
    // The first one finds the weights of the kind before it in the processor's cache.
    for counts in [false, true] {
        let (length, drafting) = (session.tokens().len(), session.statistics().draft_time);
        let start = Instant::now();
        engine.step(&mut [&mut *session])?;
        let (seconds, draft) = (start.elapsed(), session.statistics().draft_time - drafting);
        // Near the end of the context less is drafted.
        if session.is_done() || session.draft.tree().len() != kind.tokens + 1 {
            return Ok(());
        }
        let accepted = session.tokens().len() - length - 1;
        verified[0] += kind.tokens.min(accepted + 1) as f64;
        verified[1] += f64::from(u8::from(accepted < kind.tokens));
        if counts {
            kind.seconds[0].push(draft.as_secs_f64());
            kind.seconds[1].push((seconds - draft).as_secs_f64());
        }
    }
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::{ModelDrafter, TableModel};

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
            let tokens: Vec<usize> = costs.target.known().iter().map(|pass| pass.0).collect();
            assert_eq!(tokens, CHAINS.map(|chain| chain + 1));
            assert!(costs.target.known().is_sorted_by(|one, more| one.1 <= more.1), "{costs:?}");
            assert!(costs.draft.at(1.0, 128) > 0.0 && costs.target.at(1.0, 0) > 0.0, "{costs:?}");
        }
    }
}
