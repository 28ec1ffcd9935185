//! The same counts under the names of llama.cpp's server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Telemetry;
use super::families::Family;
use super::families::Kind::{Counter, Gauge};

pub(super) fn families(telemetry: &Telemetry) -> Vec<Family> {
    let value = |count: &AtomicU64| count.load(Relaxed) as f64;
    let seconds = |count: &AtomicU64| value(count) / 1e9;
    let rate = |count: f64, per: f64| if per > 0.0 { count / per } else { 0.0 };
    let steps = &telemetry.steps;
    let (prefilled, generated) = (value(&steps.prefilled), value(&telemetry.generated_tokens));
    let (prefill, decoding) = (seconds(&steps.prefill), seconds(&steps.decoding));
    let accepted = telemetry.accepted_by_position.sum() as f64;
    let busy = rate(value(&steps.sequences), value(&steps.passes));
    [
        ("prompt_tokens_total", Counter, prefilled, "Tokens of prompts that were prefilled"),
        (
            "prompt_tokens_cached_total",
            Counter,
            value(&steps.cached),
            "Tokens of prompts that were in the prefix cache",
        ),
        (
            "prompt_seconds_total",
            Counter,
            prefill,
            "Seconds of prefill, without each prompt's last token",
        ),
        ("tokens_predicted_total", Counter, generated, "Generated tokens"),
        ("tokens_predicted_seconds_total", Counter, decoding, "Seconds of steps"),
        (
            "n_decode_total",
            Counter,
            value(&steps.passes),
            "Passes of the target, each for one batch",
        ),
        (
            "n_tokens_max",
            Counter,
            value(&steps.max_length),
            "Tokens of the longest sequence, including its prompt",
        ),
        (
            "spec_decode_num_drafts_total",
            Counter,
            value(&telemetry.drafts),
            "Passes of the target with drafts",
        ),
        (
            "spec_decode_num_draft_tokens_total",
            Counter,
            value(&telemetry.draft_tokens),
            "Distinct drafted tokens",
        ),
        ("spec_decode_num_accepted_tokens_total", Counter, accepted, "Accepted drafted tokens"),
        (
            "prompt_tokens_seconds",
            Gauge,
            rate(prefilled, prefill),
            "Prefilled tokens per second of prefill",
        ),
        (
            "predicted_tokens_seconds",
            Gauge,
            rate(generated, decoding),
            "Generated tokens per second of steps",
        ),
        (
            "requests_processing",
            Gauge,
            value(&telemetry.running),
            "Running requests, counted by prompt",
        ),
        (
            "requests_deferred",
            Gauge,
            value(&telemetry.waiting),
            "Waiting requests, counted by prompt",
        ),
        ("n_busy_slots_per_decode", Gauge, busy, "Mean number of sequences in a pass"),
    ]
    .map(|(name, kind, value, help)| Family::new(("llamacpp:", name), kind, help).value(value))
    .into()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use polydraft_engine::{Finish, Statistics};

    use super::super::Metrics;

    #[test]
    fn counts_under_each_metric_name() {
        let metrics = Metrics::new();
        let (model, _) = (metrics.for_model(Some("a".into())), metrics.for_model(Some("b".into())));
        model.admit_prompt(10);
        model.add_prefilled_prompt(10, 4);
        model.add_prefill_pass(Duration::from_secs(2));
        model.add_decode_pass(3, Duration::from_secs(4));
        model.add_emitted_tokens(8, Instant::now(), None);
        model.add_speculation(&Statistics {
            target_calls: 3,
            drafted: vec![2, 1],
            accepted: vec![2, 1],
            nodes: 5,
            ..Default::default()
        });
        model.finish_sequence(Finish::MaxTokens, 18, Duration::from_secs(6));
        model.set_load(1, 2, 0.25);
        // A model that is loaded again continues with its counts.
        metrics.for_model(Some("a".into())).finish_sequence(Finish::Stopped, 2, Duration::ZERO);
        model.abort_sequences(2);
        model.fail_sequence();
        let text = metrics.render();
        for line in [
            "# TYPE llamacpp:prompt_tokens_total counter",
            "llamacpp:prompt_tokens_total{model_name=\"a\"} 6",
            "llamacpp:prompt_tokens_total{model_name=\"b\"} 0",
            "llamacpp:prompt_tokens_cached_total{model_name=\"a\"} 4",
            "llamacpp:prompt_seconds_total{model_name=\"a\"} 2",
            "llamacpp:prompt_tokens_seconds{model_name=\"a\"} 3",
            "llamacpp:predicted_tokens_seconds{model_name=\"a\"} 2",
            "llamacpp:n_decode_total{model_name=\"a\"} 2",
            "llamacpp:n_busy_slots_per_decode{model_name=\"a\"} 2",
            "llamacpp:n_tokens_max{model_name=\"a\"} 18",
            "llamacpp:spec_decode_num_accepted_tokens_total{model_name=\"a\"} 3",
            "llamacpp:predicted_tokens_seconds{model_name=\"b\"} 0",
            "polydraft:prompt_tokens_total{model_name=\"a\"} 10",
            "polydraft:generation_tokens_total{model_name=\"a\"} 8",
            "polydraft:target_calls_total{model_name=\"a\"} 3",
            "polydraft:spec_decode_num_drafts_total{model_name=\"a\"} 2",
            "polydraft:spec_decode_num_draft_tokens_total{model_name=\"a\"} 5",
            "polydraft:spec_decode_num_accepted_tokens_total{model_name=\"a\"} 3",
            "polydraft:spec_decode_num_accepted_tokens_per_pos_total\
             {model_name=\"a\",position=\"1\"} 1",
            "polydraft:request_success_total{model_name=\"a\",finished_reason=\"length\"} 1",
            "polydraft:request_success_total{model_name=\"a\",finished_reason=\"abort\"} 3",
            "polydraft:request_success_total{model_name=\"a\",finished_reason=\"error\"} 1",
            "polydraft:num_requests_waiting{model_name=\"a\"} 2",
            "polydraft:kv_cache_usage_perc{model_name=\"a\"} 0.25",
            "polydraft:e2e_request_latency_seconds_sum{model_name=\"a\"} 6",
            "polydraft:e2e_request_latency_seconds_count{model_name=\"a\"} 2",
            "polydraft:time_to_first_token_seconds_count{model_name=\"a\"} 1",
            "polydraft:inter_token_latency_seconds_count{model_name=\"a\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        let names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!(names.len(), 14 + 15);
    }
}
