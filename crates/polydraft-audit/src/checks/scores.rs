//! Log-probabilities of an answer must be those of its tokens.

use crate::error::Result;
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::{Detail, Request};
use crate::setting::Setting;
use crate::state::{AuditState, Prefix};

const ANSWERS: usize = 24;
const TOKENS: usize = 10;
/// Largest difference of log-probabilities that may be due to arithmetic.
const NEAR: f64 = 0.25;
/// Share of tokens that may differ by more: bfloat16 moves improbable tokens.
const STRAY: f64 = 0.05;

/// Compares log-probabilities of answers with those of single-token requests.
pub fn check(state: &mut AuditState<'_>) -> Result<Outcome> {
    if !state.has_distributions() || state.server.capabilities.top == 0 {
        return Ok(Outcome::not_applicable("the server returns no log-probabilities"));
    }
    let openings = state.choose(Kind::Plain, 3)?;
    let cases: Vec<(usize, Request)> = (0..ANSWERS)
        .map(|at| {
            let opening = openings[at % openings.len()];
            let request = state.continuation(opening, TOKENS, &Setting::default());
            (opening, Request { detail: Detail::Logprobs, ..request })
        })
        .collect();
    let requests: Vec<Request> = cases.iter().map(|(_, request)| request.clone()).collect();
    let answers = state.send(&requests, usize::MAX)?;
    let (mut seen, mut missing, mut mismatches) = (0, 0, 0);
    let mut example: Option<(f64, String, Evidence)> = None;
    for ((opening, request), answer) in cases.iter().zip(&answers) {
        let choice = answer.first();
        let (keys, _) = state.tokens(&choice)?;
        let prefixes: Vec<Prefix> =
            (0..keys.len()).map(|at| (*opening, keys[..at].to_vec())).collect();
        state.fetch_distributions(&prefixes)?;
        for (prefix, (key, token)) in prefixes.iter().zip(keys.iter().zip(&choice.tokens)) {
            let Some(returned) = token.logprob else {
                missing += 1;
                continue;
            };
            let Some(distribution) = state.known_distribution(prefix) else { continue };
            let Some(cell) = distribution.cells.iter().find(|cell| cell.key == *key) else {
                continue;
            };
            seen += 1;
            let off = (returned - cell.probability.ln()).abs();
            if off <= NEAR {
                continue;
            }
            mismatches += 1;
            if example.as_ref().is_none_or(|(most, ..)| off > *most) {
                let summary = format!(
                    "token {} of an answer, {:?}, has the log-probability {returned:.3}; after \
                     the same tokens the model gives it {:.3}",
                    prefix.1.len() + 1,
                    cell.text,
                    cell.probability.ln()
                );
                let curl = state.server.curl(&state.server.call(request));
                example = Some((off, summary.clone(), Evidence { what: summary, curl }));
            }
        }
    }
    let missed = match missing {
        0 => String::new(),
        n => format!("; {n} tokens have no log-probability"),
    };
    let summary = format!("{mismatches} of {seen} are off by more than {NEAR}{missed}");
    Ok(match example {
        Some((_, explanation, evidence)) if mismatches as f64 > STRAY * seen as f64 => Outcome {
            evidence: vec![evidence],
            ..Outcome::certain(Verdict::Fault, seen, format!("{summary}: {explanation}"))
        },
        _ if seen < ANSWERS => Outcome::certain(Verdict::NotEnoughData, seen, summary),
        _ => Outcome::certain(Verdict::Passed, seen, summary),
    })
}
