//! What a run cost, for people and for machines.

use polydraft::policy::Choices;
use polydraft_engine::{Finish, Generation, Statistics};
use serde::Serialize;

use super::printer::legend;
use crate::commands::score::TokenScore;
use crate::output::note;

/// What `--json` prints.
#[derive(Serialize)]
pub struct Report<'a> {
    text: String,
    tokens: &'a [polydraft::Token],
    finish_reason: Finish,
    seed: u64,
    prompt_tokens: usize,
    prompt_token_ids: &'a [polydraft::Token],
    /// What drafted, where it was named.
    pub draft: Option<String>,
    /// Of the tokens, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenScore>>,
    stats: Stats,
}

#[derive(Serialize)]
struct Stats {
    target_calls: usize,
    block_efficiency: f64,
    /// Distinct tokens drafted per call of the target.
    nodes_per_call: f64,
    accepted_by_position: Vec<f64>,
    /// By first, second, .. distinct draft at a node.
    accepted_by_draft: Vec<f64>,
    /// Nodes that the verifier's own algorithm could not do, and another one did.
    fallbacks: u64,
    /// What --tree auto chose, and what it gained.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<Auto>,
    time_ms: Times,
    tokens_per_second: f64,
}

#[derive(Serialize)]
struct Auto {
    #[serde(flatten)]
    choices: Choices,
    /// Times as fast as plain decoding, by the costs.
    gain: f64,
    /// The same by the clock, where steps of the text tell.
    gain_by_clock: Option<f64>,
}

/// Milliseconds. `total` runs from the end of the prompt; reading the prompt is apart.
#[derive(Serialize)]
struct Times {
    prompt: f64,
    draft: f64,
    target: f64,
    verify: f64,
    total: f64,
}

impl<'a> Report<'a> {
    pub fn new(
        text: String,
        generation: &'a Generation,
        prompt: &'a [polydraft::Token],
        seed: u64,
    ) -> Self {
        let s = &generation.statistics;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let time_ms = Times {
            prompt: ms(s.prompt_time),
            draft: ms(s.draft_time),
            target: ms(s.target_time),
            verify: ms(s.verify_time),
            total: ms(s.total_time),
        };
        let stats = Stats {
            target_calls: s.target_calls,
            block_efficiency: s.block_efficiency(),
            nodes_per_call: s.nodes_per_call(),
            accepted_by_position: s.accepted_by_position(),
            accepted_by_draft: s.accepted_by_draft(),
            fallbacks: s.fallbacks,
            auto: s.choices.clone().map(|choices| Auto {
                gain: choices.gain(),
                gain_by_clock: times_plain(s),
                choices,
            }),
            time_ms,
            tokens_per_second: s.tokens_per_second(),
        };
        Self {
            text,
            tokens: &generation.tokens,
            finish_reason: generation.finish,
            seed,
            prompt_tokens: prompt.len(),
            prompt_token_ids: prompt,
            draft: None,
            logprobs: None,
            stats,
        }
    }
}

/// The end of a run, for people.
pub fn summary(generation: &Generation, seed: u64, show_drafts: bool, draft: Option<&str>) {
    let s: &Statistics = &generation.statistics;
    let reason = match generation.finish {
        Finish::End => "by the model",
        Finish::Stop => "at a stop string",
        Finish::MaxTokens => "at --max-tokens",
        Finish::Context => "at the context's end",
        Finish::Stopped => "because it was interrupted",
    };
    note("");
    if show_drafts {
        note(legend());
    }
    let seconds = s.total_time.as_secs_f64();
    let faster = times_plain(s).map_or(String::new(), |times| format!(", {times:.2}× plain"));
    note(format_args!(
        "{} tokens in {seconds:.2} s, {:.0} tokens/s{faster}; ended {reason}; seed {seed}",
        s.tokens,
        s.tokens_per_second()
    ));
    let drafts = draft.map_or(String::new(), |draft| format!("; drafts by {draft}"));
    note(format_args!(
        "{} target calls, block efficiency {:.2}{drafts}",
        s.target_calls,
        s.block_efficiency()
    ));
    let percent = |mut rates: Vec<f64>| {
        // Of many, those that never happened say nothing.
        let last = rates.iter().rposition(|rate| *rate >= 0.005).map_or(1, |last| last + 2);
        rates.truncate(last);
        rates.iter().map(|rate| format!("{:.0} %", 100.0 * rate)).collect::<Vec<_>>().join(", ")
    };
    if !s.drafted.is_empty() {
        let by_position = percent(s.accepted_by_position());
        note(format_args!(
            "drafts accepted by position: {by_position}; {:.1} drafted per call",
            s.nodes_per_call()
        ));
    }
    if s.accepted_by_rank.len() > 1 {
        let by_draft = percent(s.accepted_by_draft());
        note(format_args!(
            "accepted at a position, by first, second, .. distinct draft: {by_draft}"
        ));
    }
    if s.fallbacks > 0 {
        note(format_args!(
            "at {} nodes another rule decided, for the verifier's own could not",
            s.fallbacks
        ));
    }
    let share = |time: std::time::Duration| 100.0 * time.as_secs_f64() / seconds.max(1e-9);
    note(format_args!(
        "time: draft {:.0} %, target {:.0} %, verifier {:.0} %; before that {:.1} ms for the \
         prompt",
        share(s.draft_time),
        share(s.target_time),
        share(s.verify_time),
        s.prompt_time.as_secs_f64() * 1e3
    ));
}

/// How many times as fast as plain decoding the text was, by the clock: where too few of its steps
/// were plain, nobody knows.
fn times_plain(s: &Statistics) -> Option<f64> {
    let plain = s.choices.as_ref()?.plain_seconds_by_clock()?;
    let drafted = s.choices.as_ref()?.clock.drafted.steps > 0;
    drafted.then(|| plain / s.total_time.as_secs_f64().max(1e-9))
}
