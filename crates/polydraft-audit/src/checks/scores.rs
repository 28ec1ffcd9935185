//! The log-probabilities in an answer belong to the tokens at which they stand.

use crate::error::Result;
use crate::lab::{Lab, Place};
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::{Ask, Told};
use crate::setting::Setting;

const ANSWERS: usize = 24;
const TOKENS: usize = 10;
/// Log-probabilities that differ by less may differ by arithmetic.
const NEAR: f64 = 0.25;
/// So many of the tokens may differ by more: what bfloat16 does to unlikely tokens.
const STRAY: f64 = 0.05;

/// Compares log-probabilities of answers with those of requests of one token.
pub fn look(lab: &mut Lab<'_>) -> Result<Outcome> {
    if !lab.knows() || lab.server.abilities.top == 0 {
        return Ok(Outcome::not_applicable("the server tells no log-probabilities"));
    }
    let openings = lab.choose(Kind::Plain, 3)?;
    let asks: Vec<(usize, Ask)> = (0..ANSWERS)
        .map(|at| {
            let opening = openings[at % openings.len()];
            let ask = lab.continuation(opening, TOKENS, &Setting::default());
            (opening, Ask { told: Told::Scores, ..ask })
        })
        .collect();
    let only: Vec<Ask> = asks.iter().map(|(_, ask)| ask.clone()).collect();
    let answers = lab.ask(&only, usize::MAX)?;
    let (mut seen, mut missing, mut wrong) = (0, 0, 0);
    let mut example: Option<(f64, String, Evidence)> = None;
    for ((opening, ask), answer) in asks.iter().zip(&answers) {
        let choice = answer.first();
        let (keys, _) = lab.tokens(&choice)?;
        let places: Vec<Place> =
            (0..keys.len()).map(|at| (*opening, keys[..at].to_vec())).collect();
        lab.learn(&places)?;
        for (place, (key, token)) in places.iter().zip(keys.iter().zip(&choice.tokens)) {
            let Some(told) = token.logprob else {
                missing += 1;
                continue;
            };
            let Some(conditional) = lab.at(place) else { continue };
            let Some(cell) = conditional.cells.iter().find(|cell| cell.key == *key) else {
                continue;
            };
            seen += 1;
            let off = (told - cell.probability.ln()).abs();
            if off <= NEAR {
                continue;
            }
            wrong += 1;
            if example.as_ref().is_none_or(|(most, ..)| off > *most) {
                let said = format!(
                    "token {} of an answer, {:?}, has the log-probability {told:.3}; after \
                     the same text the model gives it {:.3}",
                    place.1.len() + 1,
                    cell.text,
                    cell.probability.ln()
                );
                let curl = lab.server.curl(&lab.server.call(ask));
                example = Some((off, said.clone(), Evidence { what: said, curl }));
            }
        }
    }
    let missed = match missing {
        0 => String::new(),
        n => format!("; {n} tokens have none"),
    };
    let said = format!("{wrong} of {seen} are off by more than {NEAR}{missed}");
    Ok(match example {
        Some((_, what, evidence)) if wrong as f64 > STRAY * seen as f64 => Outcome {
            evidence: vec![evidence],
            ..Outcome::certain(Verdict::Fault, seen, format!("{said}: {what}"))
        },
        _ if seen < ANSWERS => Outcome::certain(Verdict::NotEnoughData, seen, said),
        _ => Outcome::certain(Verdict::Passed, seen, said),
    })
}
