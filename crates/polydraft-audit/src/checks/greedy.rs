//! At temperature 0 an answer is, token by token, what the model likes best.

use crate::answer::Key;
use crate::error::Result;
use crate::lab::{Lab, Place};
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::{Ask, is_end};
use crate::setting::Setting;

/// Tokens of an answer.
const TOKENS: usize = 40;
/// A token that the model likes less than another by this much, as the difference of their
/// log-probabilities, is a fault; by less, a tie that rounding may break either way: bfloat16's
/// logits of 16 to 32 are 0.125 apart.
pub const GAP: f64 = 0.25;

/// Compares greedy answers with what requests of one token say.
pub fn look(lab: &mut Lab<'_>) -> Result<Outcome> {
    if !lab.knows() {
        let lacking = "the server does not tell its tokens, or nobody their log-probabilities";
        return Ok(Outcome::not_applicable(lacking));
    }
    let mut openings = lab.choose(Kind::Plain, 3)?;
    openings.extend(lab.choose(Kind::Repeating, 2)?);
    openings.extend(lab.choose(Kind::Hard, 1)?);
    let greedy = Setting { temperature: 0.0, ..Setting::default() };
    let asks: Vec<Ask> = openings.iter().map(|at| lab.continuation(*at, TOKENS, &greedy)).collect();
    let answers = lab.ask(&asks, usize::MAX)?;
    let mut seen = 0;
    let mut ties = 0;
    let mut outcome = Outcome::certain(Verdict::Passed, 0, "");
    for ((opening, ask), answer) in openings.iter().zip(&asks).zip(&answers) {
        let (keys, stopped) = lab.tokens(&answer.first())?;
        let ends = usize::from(stopped);
        let places: Vec<Place> =
            (0..keys.len() + ends).map(|at| (*opening, keys[..at].to_vec())).collect();
        lab.learn(&places)?;
        for (at, place) in places.iter().enumerate() {
            let Some(conditional) = lab.at(place) else { continue };
            seen += 1;
            let came = |key: &Key, text: &str| match keys.get(at) {
                Some(token) => key == token,
                None => is_end(text),
            };
            let best = &conditional.cells[0];
            if came(&best.key, &best.text) {
                continue;
            }
            let cell = conditional.cells.iter().find(|cell| came(&cell.key, &cell.text));
            let own = cell.map_or(conditional.most_of_rest, |cell| cell.probability);
            let gap = (best.probability / own.max(1e-300)).ln();
            if gap <= GAP {
                ties += 1;
                continue;
            }
            let before = format!("{}{}", lab.openings[*opening].text, lab.spell(&place.1)?);
            let token = match keys.get(at) {
                Some(key) => format!("{:?}", lab.server.text(key, lab.listener)?),
                None => "the end".to_owned(),
            };
            let what = format!(
                "after {before:?} the answer has {token}, though the model likes {:?} better \
                 by {gap:.2} (difference of log-probabilities)",
                best.text
            );
            let question = lab.server.call(&lab.question(place));
            outcome.verdict = Verdict::Fault;
            outcome.evidence = vec![
                Evidence { what: what.clone(), curl: lab.server.curl(&lab.server.call(ask)) },
                Evidence {
                    what: "what the model says there".to_owned(),
                    curl: lab.server.curl(&question),
                },
            ];
            outcome.said = what;
            break;
        }
    }
    outcome.seen = seen;
    if outcome.verdict != Verdict::Fault {
        outcome.said = format!(
            "{seen} tokens are those that the model likes best, {ties} of them ties within \
             {GAP}"
        );
        if seen == 0 {
            outcome.verdict = Verdict::NotEnoughData;
        }
    }
    Ok(outcome)
}
