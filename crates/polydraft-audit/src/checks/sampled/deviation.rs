//! What a check of distributions has seen, in words, and the requests that show it.

use super::{Sampled, context, odds};
use crate::evidence::p_value;
use crate::lab::{Lab, Prefix};
use crate::report::{Evidence, Outcome, Verdict};

/// Describes what was seen, and adds the requests that show a fault.
pub fn deviation(check: &Sampled, lab: &Lab<'_>, outcome: &mut Outcome) {
    let (top, expected) = check.bettors[0].1.top();
    let share = |part: f64| 100.0 * part / check.tokens().max(1) as f64;
    outcome.summary = format!(
        "the likeliest token came {:.1} % of the time, expected {:.1} %; first tokens alone: \
         p = {:.2}",
        share(top),
        share(expected),
        p_value(check.peak_of_first)
    );
    if check.is_grammar() {
        outcome.summary =
            format!("{} answers obey the grammar; {}", check.answers, outcome.summary);
    }
    if outcome.verdict != Verdict::Fault {
        return;
    }
    let Some(prepared) = &check.prepared else { return };
    let Some((prefix, what)) = widest(check, lab) else { return };
    let request = lab.continuation(prefix.0, check.case.tokens, &prepared.setting);
    let call = match prepared.grammar {
        None => lab.server.call(&request),
        Some(grammar) => lab.server.grammar_call(&request, grammar),
    };
    outcome.evidence.push(Evidence { what, curl: lab.server.curl(&call) });
    let single_token_request = lab.server.call(&lab.single_token_request(&prefix));
    let what = "what the model says there, by a request of one token, in which no draft has a part";
    outcome
        .evidence
        .push(Evidence { what: what.to_owned(), curl: lab.server.curl(&single_token_request) });
}

/// A token of a place.
struct Deviation<'c> {
    prefix: &'c Prefix,
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
fn widest(check: &Sampled, lab: &Lab<'_>) -> Option<(Prefix, String)> {
    let mut widest: Option<Deviation<'_>> = None;
    for (prefix, emitted) in &check.contexts {
        let (context, odds) = (context(prefix, emitted), odds(emitted));
        let count_of = |cell: usize| check.bettors[0].1.counts(&context, &odds, cell);
        let seen: f64 = (0..odds.cells.len()).map(|cell| count_of(cell).0).sum();
        for (cell, probability) in odds.cells.iter().enumerate() {
            let (count, _) = count_of(cell);
            let named = emitted.cells.get(cell).filter(|_| cell != odds.rest());
            let name = named.map(|cell| cell.text.clone());
            let here = Deviation { prefix, name, probability: *probability, count, seen };
            if widest.as_ref().is_none_or(|widest| here.score() > widest.score()) {
                widest = Some(here);
            }
        }
    }
    let Deviation { prefix, name, probability, count, seen } = widest?;
    let name = name.map_or("any other token".to_owned(), |name| format!("{name:?}"));
    // A server that is lost cannot tell what tokens are as text.
    let spelt = lab.spell(&prefix.1).unwrap_or_else(|_| format!("{:?}", prefix.1));
    let before = format!("{}{spelt}", lab.openings[prefix.0].text);
    let what = format!(
        "after {before:?}, as token {} of the answer, {name} came {count} of {seen} times \
         ({:.1} %); the model says {:.1} %",
        prefix.1.len() + 1,
        100.0 * count / seen.max(1.0),
        100.0 * probability,
    );
    Some((prefix.clone(), what))
}
