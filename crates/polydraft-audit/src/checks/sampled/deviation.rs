//! Summary of a check of distributions, and the requests that show a fault.

use super::{DistributionCheck, context, odds};
use crate::evidence::p_value;
use crate::report::{Evidence, Outcome, Verdict, emitted};
use crate::state::{AuditState, Prefix};

/// Sets the summary of the observations, and adds requests that show a fault.
pub fn deviation(check: &DistributionCheck, state: &AuditState<'_>, outcome: &mut Outcome) {
    let (top, expected) = check.bettors[0].1.top();
    outcome.summary = format!(
        "{}; first tokens alone: p = {:.2}",
        emitted(top, expected, check.tokens()),
        p_value(check.peak_of_first)
    );
    if check.is_grammar() {
        outcome.summary =
            format!("{} answers obey the grammar; {}", check.answers, outcome.summary);
    }
    if outcome.verdict == Verdict::Ignored {
        outcome.summary =
            format!("the server takes the setting and ignores it; {}", outcome.summary);
    }
    if !outcome.verdict.has_evidence() {
        return;
    }
    let Some(prepared) = &check.prepared else { return };
    let Some((prefix, explanation)) = widest(check, state) else { return };
    let request = state.continuation(prefix.0, check.case.tokens, &prepared.setting);
    let call = match prepared.grammar {
        None => state.server.call(&request),
        Some(grammar) => state.server.grammar_call(&request, grammar),
    };
    outcome.evidence.push(Evidence { what: explanation, curl: state.server.curl(&call) });
    let single_token_request = state.server.call(&state.single_token_request(&prefix));
    let explanation =
        "the model's distribution there, by a request of one token, which involves no draft";
    outcome.evidence.push(Evidence {
        what: explanation.to_owned(),
        curl: state.server.curl(&single_token_request),
    });
}

/// Count of one token at a prefix.
struct Deviation<'c> {
    prefix: &'c Prefix,
    /// Token text; `None` for the cell of all other tokens.
    name: Option<String>,
    probability: f64,
    count: f64,
    /// Tokens observed at the prefix.
    seen: f64,
}

impl Deviation<'_> {
    /// Returns the token's term of a chi-squared statistic.
    fn score(&self) -> f64 {
        let expected = self.seen * self.probability;
        (self.count - expected).powi(2) / expected
    }
}

/// Returns the prefix with the largest deviation, and a description of it.
fn widest(check: &DistributionCheck, state: &AuditState<'_>) -> Option<(Prefix, String)> {
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
    // Without a connection to the server, token texts may be unknown.
    let text = state.text_of(&prefix.1).unwrap_or_else(|_| format!("{:?}", prefix.1));
    let before = format!("{}{text}", state.openings[prefix.0].text);
    let explanation = format!(
        "after {before:?}, as token {} of the answer, {name} was emitted {count} of {seen} times \
         ({:.1} %); expected {:.1} % by the model",
        prefix.1.len() + 1,
        100.0 * count / seen.max(1.0),
        100.0 * probability,
    );
    Some((prefix.clone(), explanation))
}
