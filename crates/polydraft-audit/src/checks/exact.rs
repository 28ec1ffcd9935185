//! Stop strings, streams and token counts: deterministic properties.

use crate::error::Result;
use crate::journal::Reply;
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::Request;
use crate::setting::Setting;
use crate::state::AuditState;

const TOKENS: usize = 32;

fn greedy(state: &mut AuditState<'_>, openings: usize) -> Result<Vec<Request>> {
    let setting = Setting { temperature: 0.0, ..Setting::default() };
    let mut chosen = state.choose(Kind::Plain, openings)?;
    chosen.extend(state.choose(Kind::Repeating, 2)?);
    Ok(chosen.into_iter().map(|at| state.continuation(at, TOKENS, &setting)).collect())
}

/// Checks that an answer ends before its stop string, wherever in a draft it occurs.
pub fn stops(state: &mut AuditState<'_>) -> Result<Outcome> {
    let requests = greedy(state, 4)?;
    let full = state.send(&requests, 1)?;
    let mut stopped: Vec<(Request, String)> = Vec::new();
    for (request, answer) in requests.iter().zip(&full) {
        let text = answer.first().text;
        let length = text.chars().count();
        // Stop strings from the middle and near the end, of one and of several characters.
        for (from, take) in [(length / 4, 1), (length / 3, 4), (length / 2, 2), (length / 2, 7)] {
            let stop: String = text.chars().skip(from).take(take).collect();
            if !stop.trim().is_empty() && !stop.contains(char::REPLACEMENT_CHARACTER) {
                stopped.push((Request { stop: Some(stop), ..request.clone() }, text.clone()));
            }
        }
    }
    let cut_requests: Vec<Request> = stopped.iter().map(|(request, _)| request.clone()).collect();
    let answers = state.send(&cut_requests, 1)?;
    let (mut seen, mut parted) = (0, 0);
    for ((request, text), answer) in stopped.iter().zip(&answers) {
        let stop = request.stop.as_deref().unwrap_or_default();
        let choice = answer.first();
        let cut = text.find(stop).map_or(text.as_str(), |at| &text[..at]);
        if choice.text == cut {
            seen += 1;
            continue;
        }
        // Rounding at a tie may make this answer differ from the one without stop strings.
        if !choice.text.starts_with(cut) && !cut.starts_with(choice.text.as_str()) {
            parted += 1;
            continue;
        }
        let summary = format!(
            "the answer {text:?} with the stop string {stop:?} should be {cut:?}, and is {:?}",
            choice.text
        );
        let curl = state.server.curl(&state.server.call(request));
        let ends_no_answer =
            stopped.iter().zip(&answers).all(|((_, text), answer)| answer.first().text == *text);
        let (verdict, summary) = match ends_no_answer && ignores_first(state, request, text)? {
            true => (Verdict::Ignored, format!("no stop string ends an answer; {summary}")),
            false => (Verdict::Fault, summary),
        };
        return Ok(Outcome {
            evidence: vec![Evidence { what: summary.clone(), curl }],
            ..Outcome::certain(verdict, seen + 1, summary)
        });
    }
    let summary =
        format!("{seen} answers ended before their stop strings; {parted} had different text");
    let verdict = if seen > parted { Verdict::Passed } else { Verdict::NotEnoughData };
    Ok(Outcome::certain(verdict, seen, summary))
}

/// Returns whether a stop string in the first token, in which drafts play no part, has no effect.
fn ignores_first(state: &mut AuditState<'_>, request: &Request, text: &str) -> Result<bool> {
    let Some(first) = text.chars().find(|character| !character.is_whitespace()) else {
        return Ok(false);
    };
    let request = Request { stop: Some(first.to_string()), ..request.clone() };
    Ok(state.send(&[request], 1)?[0].first().text == text)
}

/// Checks that the chunks of a stream add up to the complete answer, and that usage counts the
/// tokens returned.
pub fn streams(state: &mut AuditState<'_>) -> Result<Outcome> {
    let requests = greedy(state, 4)?;
    let first = state.send(&requests, 1)?;
    let second = state.send(&requests, 1)?;
    let mut seen = 0;
    let fault = |summary: String, curl: String, seen| Outcome {
        evidence: vec![Evidence { what: summary.clone(), curl }],
        ..Outcome::certain(Verdict::Fault, seen, summary)
    };
    for ((request, first), second) in requests.iter().zip(&first).zip(&second) {
        let choice = first.first();
        let curl = || state.server.curl(&state.server.call(request));
        if let Some((_, counted)) = first.usage
            && !choice.stopped
            && counted != TOKENS
        {
            let summary = format!(
                "an answer that ended at its limit of {TOKENS} tokens is counted as {counted} in \
                 its usage"
            );
            return Ok(fault(summary, curl(), seen));
        }
        // A greedy output that is not reproducible cannot be compared with a stream.
        if choice.text != second.first().text {
            continue;
        }
        let streamed = Request { stream: true, ..request.clone() };
        let call = state.server.call(&streamed);
        let reply = state.server.client.send(&call, state.listener)?;
        let Reply::Body(reply_body) = &reply else {
            let summary = "the server does not stream";
            return Ok(Outcome::not_applicable(summary));
        };
        let events = reply_body.as_array().map(Vec::as_slice).unwrap_or_default();
        let text: String = events
            .iter()
            .filter_map(|event| {
                let choice = &event["choices"][0];
                let delta = choice["delta"]["content"].as_str();
                choice["text"].as_str().or(delta).or(event["content"].as_str())
            })
            .collect();
        if text != choice.text {
            let summary =
                format!("the stream is {text:?}, the complete answer is {:?}", choice.text);
            return Ok(fault(summary, state.server.curl(&call), seen));
        }
        seen += 1;
    }
    let summary = format!("{seen} streams equal the complete answers; usage counts their tokens");
    let verdict = if seen > 0 { Verdict::Passed } else { Verdict::NotEnoughData };
    Ok(Outcome::certain(verdict, seen, summary))
}
