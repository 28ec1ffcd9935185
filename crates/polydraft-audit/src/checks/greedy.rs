//! Greedy decoding: at temperature 0 each token of an answer is the most probable one.

use crate::answer::Key;
use crate::error::Result;
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::{Request, is_end};
use crate::setting::Setting;
use crate::state::{AuditState, Prefix};

/// Tokens per answer.
const TOKENS: usize = 40;
/// Smallest difference of log-probabilities to the best token that counts as a fault; a smaller one
/// is a tie, which rounding may break either way: bfloat16 logits between 16 and 32 are 0.125
/// apart.
pub const GAP: f64 = 0.25;

/// Compares greedy answers with distributions from single-token requests.
pub fn check(state: &mut AuditState<'_>) -> Result<Outcome> {
    if !state.has_distributions() {
        let skip_reason = "the server does not return its tokens, or no server returns their \
             log-probabilities";
        return Ok(Outcome::not_applicable(skip_reason));
    }
    let mut openings = state.choose(Kind::Plain, 3)?;
    openings.extend(state.choose(Kind::Repeating, 2)?);
    openings.extend(state.choose(Kind::Hard, 1)?);
    let greedy = Setting { temperature: 0.0, ..Setting::default() };
    let requests: Vec<Request> =
        openings.iter().map(|at| state.continuation(*at, TOKENS, &greedy)).collect();
    let answers = state.send(&requests, usize::MAX)?;
    let mut seen = 0;
    let mut ties = 0;
    let mut ignored = false;
    let mut outcome = Outcome::certain(Verdict::Passed, 0, "");
    for ((opening, request), answer) in openings.iter().zip(&requests).zip(&answers) {
        let (keys, stopped) = state.tokens(&answer.first())?;
        let ends = usize::from(stopped);
        let prefixes: Vec<Prefix> =
            (0..keys.len() + ends).map(|at| (*opening, keys[..at].to_vec())).collect();
        state.fetch_distributions(&prefixes)?;
        for (at, prefix) in prefixes.iter().enumerate() {
            let Some(distribution) = state.known_distribution(prefix) else { continue };
            seen += 1;
            let is_emitted = |key: &Key, text: &str| match keys.get(at) {
                Some(token) => key == token,
                None => is_end(text),
            };
            let best = &distribution.cells[0];
            if is_emitted(&best.key, &best.text) {
                continue;
            }
            let cell = distribution.cells.iter().find(|cell| is_emitted(&cell.key, &cell.text));
            let probability = cell.map_or(distribution.most_of_rest, |cell| cell.probability);
            let gap = (best.probability / probability.max(1e-300)).ln();
            if gap <= GAP {
                ties += 1;
                continue;
            }
            let before = format!("{}{}", state.openings[*opening].text, state.text_of(&prefix.1)?);
            let token = match keys.get(at) {
                Some(key) => format!("{:?}", state.server.text(key, state.listener)?),
                None => "the end".to_owned(),
            };
            let explanation = format!(
                "after {before:?} the answer has {token}, though {:?} is more probable \
                 by {gap:.2} (difference of log-probabilities)",
                best.text
            );
            let single_token_request = state.server.call(&state.single_token_request(prefix));
            // Drafts play no part in first tokens.
            ignored |= at == 0;
            outcome.verdict = Verdict::Fault;
            outcome.evidence = vec![
                Evidence {
                    what: explanation.clone(),
                    curl: state.server.curl(&state.server.call(request)),
                },
                Evidence {
                    what: "the model's distribution there".to_owned(),
                    curl: state.server.curl(&single_token_request),
                },
            ];
            outcome.summary = explanation;
            break;
        }
    }
    outcome.seen = seen;
    if ignored {
        outcome.verdict = Verdict::Ignored;
        outcome.summary = format!("temperature 0 is ignored; {}", outcome.summary);
    }
    if !outcome.verdict.has_evidence() {
        outcome.summary = format!(
            "{seen} tokens are the most probable ones, {ties} of them ties within \
             {GAP}"
        );
        if seen == 0 {
            outcome.verdict = Verdict::NotEnoughData;
        }
    }
    Ok(outcome)
}
