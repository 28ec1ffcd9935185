//! What a check of distributions has seen, in words, and the requests that show it.

use super::{Sampled, context, odds};
use crate::evidence::p_value;
use crate::lab::{Lab, Place};
use crate::report::{Evidence, Outcome, Verdict};

/// Describes what was seen, and adds the requests that show a fault.
pub fn deviation(check: &Sampled, lab: &Lab<'_>, outcome: &mut Outcome) {
    let (top, expected) = check.bettors[0].1.top();
    let share = |part: f64| 100.0 * part / check.tokens().max(1) as f64;
    outcome.said = format!(
        "the likeliest token came {:.1} % of the time, expected {:.1} %; first tokens alone: \
         p = {:.2}",
        share(top),
        share(expected),
        p_value(check.most_of_first)
    );
    if check.is_grammar() {
        outcome.said = format!("{} answers obey the grammar; {}", check.answers, outcome.said);
    }
    if outcome.verdict != Verdict::Fault {
        return;
    }
    let Some(prepared) = &check.prepared else { return };
    let Some((place, what)) = widest(check, lab) else { return };
    let ask = lab.continuation(place.0, check.case.tokens, &prepared.setting);
    let call = match prepared.grammar {
        None => lab.server.call(&ask),
        Some(grammar) => lab.server.call_for_words(&ask, grammar),
    };
    outcome.evidence.push(Evidence { what, curl: lab.server.curl(&call) });
    let question = lab.server.call(&lab.question(&place));
    let what = "what the model says there, by a request of one token, in which no draft has a part";
    outcome.evidence.push(Evidence { what: what.to_owned(), curl: lab.server.curl(&question) });
}

/// A token of a place.
struct Deviation<'c> {
    place: &'c Place,
    /// None for all that are not told apart.
    name: Option<String>,
    probability: f64,
    count: f64,
    /// Tokens seen in the place.
    seen: f64,
}

impl Deviation<'_> {
    /// How far its count is from what it should be, as in a chi-squared test.
    fn score(&self) -> f64 {
        let expected = self.seen * self.probability;
        (self.count - expected).powi(2) / expected
    }
}

/// The place where what came is farthest from what should, and that in words.
fn widest(check: &Sampled, lab: &Lab<'_>) -> Option<(Place, String)> {
    let mut widest: Option<Deviation<'_>> = None;
    for (place, emitted) in &check.contexts {
        let (context, odds) = (context(place, emitted), odds(emitted));
        let of = |cell: usize| check.bettors[0].1.counts(&context, &odds, cell);
        let seen: f64 = (0..odds.cells.len()).map(|cell| of(cell).0).sum();
        for (cell, probability) in odds.cells.iter().enumerate() {
            let (count, _) = of(cell);
            let named = emitted.cells.get(cell).filter(|_| cell != odds.rest());
            let name = named.map(|cell| cell.text.clone());
            let here = Deviation { place, name, probability: *probability, count, seen };
            if widest.as_ref().is_none_or(|widest| here.score() > widest.score()) {
                widest = Some(here);
            }
        }
    }
    let Deviation { place, name, probability, count, seen } = widest?;
    let name = name.map_or("any other token".to_owned(), |name| format!("{name:?}"));
    // A server that is lost cannot tell what tokens are as text.
    let spelt = lab.spell(&place.1).unwrap_or_else(|_| format!("{:?}", place.1));
    let before = format!("{}{spelt}", lab.openings[place.0].text);
    let what = format!(
        "after {before:?}, as token {} of the answer, {name} came {count} of {seen} times \
         ({:.1} %); the model says {:.1} %",
        place.1.len() + 1,
        100.0 * count / seen.max(1.0),
        100.0 * probability,
    );
    Some((place.clone(), what))
}
