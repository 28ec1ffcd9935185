//! Statistics of a run, as text and JSON.

use polydraft_engine::{Finish, Generation, Statistics};
use serde::Serialize;

use super::printer::legend;
use crate::commands::score::TokenScore;
use crate::output::{detail, note};

/// Output of `--json`.
#[derive(Serialize)]
pub struct Report<'a> {
    text: String,
    tokens: &'a [polydraft::Token],
    finish_reason: Finish,
    seed: u64,
    prompt_tokens: usize,
    prompt_token_ids: &'a [polydraft::Token],
    /// Draft, if it was given.
    pub draft: Option<String>,
    /// Scores of the tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenScore>>,
    stats: Stats,
}

#[derive(Serialize)]
struct Stats {
    target_calls: usize,
    block_efficiency: f64,
    /// Distinct drafted tokens per target pass.
    nodes_per_call: f64,
    accepted_by_position: Vec<f64>,
    /// Acceptance rates of the first, second, .. distinct draft at a node.
    accepted_by_draft: Vec<f64>,
    /// Number of nodes at which another algorithm replaced the verifier's own.
    fallbacks: u64,
    /// Choices of --tree auto, and their gain.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<Auto>,
    time_ms: Times,
    tokens_per_second: f64,
}

#[derive(Serialize)]
struct Auto {
    /// Number of steps.
    steps: u64,
    /// Number of steps without drafts.
    plain_steps: u64,
    /// Speed-up over plain decoding, estimated from costs.
    gain: f64,
    /// Measured speed-up, if enough steps of either kind were timed.
    gain_by_clock: Option<f64>,
}

/// Times in milliseconds. `total` starts at the end of the prefill, which is separate.
#[derive(Serialize)]
struct Times {
    prompt: f64,
    draft: f64,
    target: f64,
    verify: f64,
    total: f64,
}

impl<'a> Report<'a> {
    /// Creates the report of a generation.
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
            auto: s.choices.as_ref().map(|choices| Auto {
                steps: choices.steps,
                plain_steps: choices.plain,
                gain: choices.gain(),
                gain_by_clock: measured_speedup(s),
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

/// Prints the summary: one line, and details with --verbose.
pub fn summary(generation: &Generation, seed: u64, show_drafts: bool, draft: Option<&str>) {
    let s: &Statistics = &generation.statistics;
    let end = match generation.finish {
        Finish::End | Finish::MaxTokens => "",
        Finish::Stop => ", stop string",
        Finish::Context => ", context full",
        Finish::Stopped => ", interrupted",
    };
    note("");
    if show_drafts {
        note(legend());
    }
    let seconds = s.total_time.as_secs_f64();
    let faster = measured_speedup(s).map_or(String::new(), |times| format!(", {times:.2}× plain"));
    note(format_args!(
        "{} tokens, {:.0} tokens/s{faster}, seed {seed}{end}",
        s.tokens,
        s.tokens_per_second()
    ));
    let drafts = draft.map_or(String::new(), |draft| format!("; drafts by {draft}"));
    detail(format_args!(
        "{seconds:.2} s, {} target passes, {:.2} tokens per target pass{drafts}",
        s.target_calls,
        s.block_efficiency()
    ));
    let percent = |mut rates: Vec<f64>| {
        // Trailing rates near zero are omitted.
        let last = rates.iter().rposition(|rate| *rate >= 0.005).map_or(1, |last| last + 2);
        rates.truncate(last);
        rates.iter().map(|rate| format!("{:.0} %", 100.0 * rate)).collect::<Vec<_>>().join(", ")
    };
    if !s.drafted.is_empty() {
        let by_position = percent(s.accepted_by_position());
        detail(format_args!(
            "drafts accepted by position: {by_position}; {:.1} drafted per target pass",
            s.nodes_per_call()
        ));
    }
    if s.accepted_by_rank.len() > 1 {
        let by_draft = percent(s.accepted_by_draft());
        detail(format_args!(
            "accepted at a position, by first, second, .. distinct draft: {by_draft}"
        ));
    }
    if s.fallbacks > 0 {
        detail(format_args!(
            "at {} nodes a fallback rule decided in place of the verifier's own",
            s.fallbacks
        ));
    }
    note_draft_problem(s);
    let share = |time: std::time::Duration| 100.0 * time.as_secs_f64() / seconds.max(1e-9);
    detail(format_args!(
        "time: draft {:.0} %, target {:.0} %, verifier {:.0} %; prefill {:.1} ms",
        share(s.draft_time),
        share(s.target_time),
        share(s.verify_time),
        s.prompt_time.as_secs_f64() * 1e3
    ));
}

/// Names the problem of a draft whose logits defined no distribution.
pub fn note_draft_problem(s: &Statistics) {
    if let Some(problem) = &s.draft_problem {
        note(format_args!("nothing was drafted at {} nodes: {problem}", s.invalid_drafts));
    }
}

/// Returns the measured speed-up over plain decoding; `None` if too few steps with or without
/// drafts were timed.
pub fn measured_speedup(s: &Statistics) -> Option<f64> {
    let plain_seconds = s.choices.as_ref()?.measured_plain_seconds()?;
    Some(plain_seconds / s.total_time.as_secs_f64().max(1e-9))
}
