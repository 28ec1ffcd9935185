//! Planted faults are found, each within the budget, and lossless servers pass.

mod common;

use common::{Fault, ServerFeatures, TestServer, TokenText, verdicts};
use polydraft_audit::{Options, Silent, Verdict, audit};

/// Returns whether slow tests run in full, as in continuous integration.
fn exhaustive() -> bool {
    std::env::var_os("POLYDRAFT_EXHAUSTIVE").is_some()
}

fn found(fault: Fault, check: &str) {
    let server = TestServer::start(fault, ServerFeatures::default(), 7);
    let checks: &[&str] = if check == "overall" { &[] } else { &[check] };
    // A check that runs alone may spend the budget of all checks.
    let sensitivity = if checks.is_empty() { 0.03 } else { 0.012 };
    let options = Options { sensitivity, ..server.options(checks, 1) };
    let report = audit(&options, &Silent).expect("an audit");
    if let Some(p) = report.findings.iter().find(|f| f.check == check).map(|f| f.outcome.p_value) {
        println!("{fault:?}: {p:?} in {} requests", report.requests);
    }
    let found = report.findings.iter().find(|finding| finding.check == check).expect("it");
    assert_eq!(found.outcome.verdict, Verdict::Fault, "{fault:?}: {:?}", verdicts(&report));
    assert_eq!(report.exit_code(), 1);
    if check == "overall" {
        return;
    }
    assert!(!found.outcome.evidence.is_empty(), "{fault:?}");
    assert!(found.outcome.evidence.iter().all(|shown| shown.curl.starts_with("curl ")));
    // The same check finds no fault in a lossless server. (All checks together are tested in
    // [`lossless_server_passes`].)
    if !exhaustive() {
        return;
    }
    let server = TestServer::start(Fault::None, ServerFeatures::default(), 8);
    let report = audit(&server.options(&[check], 2), &Silent).expect("an audit");
    assert_ne!(report.verdict, Verdict::Fault, "{:?}", verdicts(&report));
}

macro_rules! faults {
    ($($name:ident: $fault:ident by $check:literal,)+) => {
        $(#[test]
        fn $name() {
            found(Fault::$fault, $check);
        })+
    };
}

faults! {
    finds_correction_from_target: CorrectionFromTarget by "temperature-1",
    finds_forgotten_temperature: TemperatureForgotten by "temperature-0.7",
    finds_bonus_token_from_draft: BonusFromDraft by "overall",
    finds_late_top_p_truncation: TruncatesTooLate by "top-p",
    finds_late_top_k_truncation: TruncatesTooLate by "top-k",
    finds_biased_tail: BiasedTail by "overall",
    finds_penalties_that_ignore_drafts: PenaltiesIgnoreDrafts by "penalties",
    finds_random_numbers_shared_by_requests: SharedStream by "independence",
    finds_random_numbers_shared_by_choices: SharedByChoices by "choices",
    finds_skipped_end_token: EndSwallowed by "temperature-1",
    finds_shifted_logprobs: LogprobsShifted by "logprobs",
    finds_missing_grammar_mask: MaskMissing by "grammar",
    finds_missed_stop_string: StopMissed by "stop-strings",
    finds_unverified_drafts_at_temperature_0: GreedyDrafts by "greedy",
    finds_drafts_counted_in_usage: CountsDrafts by "streams",
}

/// A setting that a server takes and ignores is no fault of speculation, and does not hide one.
#[test]
fn ignored_settings_are_no_faults() {
    for (param, check) in [
        ("top_k", "top-k"),
        ("top_p", "top-p"),
        ("temperature", "temperature-0.7"),
        ("temperature", "greedy"),
        ("penalty", "penalties"),
        ("logit_bias", "bias"),
        ("structured_outputs", "grammar"),
        ("stop", "stop-strings"),
        ("seed", "seeds"),
    ] {
        let server = TestServer::start(Fault::Ignores(param), ServerFeatures::default(), 7);
        let options = server.options(&[check, "streams"], 1);
        let report = audit(&options, &Silent).expect("an audit");
        let found = report.findings.iter().find(|finding| finding.check == check).expect("it");
        let all = verdicts(&report);
        assert_eq!(found.outcome.verdict, Verdict::Ignored, "{param} {check}: {all:?}");
        assert_eq!(report.ignored(), [check], "{all:?}");
        assert_ne!(report.verdict, Verdict::Fault, "{param} {check}: {all:?}");
        assert!(!found.outcome.evidence.is_empty(), "{param} {check}");
    }
    // All other checks as well, and all of them together.
    let server = TestServer::start(Fault::Ignores("top_p"), ServerFeatures::default(), 3);
    let report = audit(&server.options(&[], 3), &Silent).expect("an audit");
    assert_eq!(
        (report.verdict, report.exit_code()),
        (Verdict::Passed, 0),
        "{:#?}",
        verdicts(&report)
    );
    assert_eq!(report.ignored(), ["top-p"]);
}

/// All checks pass on a lossless server.
#[test]
fn lossless_server_passes() {
    let server = TestServer::start(Fault::None, ServerFeatures::default(), 3);
    let report = audit(&server.options(&[], 3), &Silent).expect("an audit");
    assert_eq!(report.verdict, Verdict::Passed, "{:#?}", verdicts(&report));
}

/// Servers with few details are audited as far as possible.
#[test]
fn audits_servers_with_few_token_details() {
    let all = ServerFeatures::default();
    for features in [
        ServerFeatures { ids: false, ..all },
        ServerFeatures { ids: false, echo: false, ..all },
        ServerFeatures { top: 5, echo: false, ..all },
    ] {
        let faulty = TestServer::start(Fault::CorrectionFromTarget, features, 3);
        let report = audit(&faulty.options(&["temperature-1"], 3), &Silent).expect("an audit");
        assert_eq!(report.verdict, Verdict::Fault, "{features:?} {:#?}", verdicts(&report));
        let lossless = TestServer::start(Fault::None, features, 3);
        let options = Options { requests: 4000, ..lossless.options(&[], 3) };
        let report = audit(&options, &Silent).expect("an audit");
        assert_ne!(report.verdict, Verdict::Fault, "{features:?} {:#?}", verdicts(&report));
    }
}

/// A reference may return token ids where the server returns texts, and vice versa.
#[test]
fn reference_may_identify_tokens_by_text_or_id() {
    let all = ServerFeatures::default();
    let text = ServerFeatures { ids: false, ..all };
    // A server that returns no tokens is compared by the text of its answers.
    let silent = ServerFeatures { top: 0, ..text };
    for (tested, others) in [(text, all), (all, text), (silent, all)] {
        let reference = TestServer::start(Fault::None, others, 6);
        for fault in [Fault::None, Fault::CorrectionFromTarget] {
            let server = TestServer::start(fault, tested, 7);
            let options = Options {
                reference: Some(reference.address()),
                requests: 6000,
                ..server.options(&["temperature-1", "reference"], 5)
            };
            let report = audit(&options, &Silent).expect("an audit");
            let is_fault = report.verdict == Verdict::Fault;
            assert_eq!(is_fault, fault != Fault::None, "{tested:?} {:#?}", verdicts(&report));
            let by = if tested.top == 0 { "answers of " } else { "log-probabilities of " };
            assert!(report.truth.starts_with(by), "{}", report.truth);
        }
    }
}

/// Contexts in which two tokens have the same text are skipped.
#[test]
fn skips_contexts_with_ambiguous_token_text() {
    for (token_text, echo) in [(TokenText::Doubled, true), (TokenText::DoubledInObject, false)] {
        let features =
            ServerFeatures { ids: false, top: 5, echo, token_text, ..ServerFeatures::default() };
        for fault in [Fault::None, Fault::CorrectionFromTarget] {
            let server = TestServer::start(fault, features, 4);
            let options = Options { requests: 6000, ..server.options(&["temperature-1"], 4) };
            let report = audit(&options, &Silent).expect("an audit");
            let is_fault = report.verdict == Verdict::Fault;
            assert_eq!(is_fault, fault != Fault::None, "{token_text:?} {:#?}", verdicts(&report));
        }
    }
}

/// Token texts that do not add up to the answer cannot serve as prefixes.
#[test]
fn ignores_token_text_without_leading_spaces() {
    let features =
        ServerFeatures { ids: false, token_text: TokenText::Stripped, ..ServerFeatures::default() };
    let reference = TestServer::start(Fault::None, ServerFeatures::default(), 6);
    for fault in [Fault::None, Fault::CorrectionFromTarget] {
        let server = TestServer::start(fault, features, 5);
        let reference = Some(reference.address());
        let options = Options { reference, ..server.options(&["temperature-1", "reference"], 4) };
        let report = audit(&options, &Silent).expect("an audit");
        let is_fault = report.verdict == Verdict::Fault;
        assert_eq!(is_fault, fault != Fault::None, "{fault:?} {:#?}", verdicts(&report));
    }
}

/// Penalties that count the prompt's tokens, as llama.cpp's do, are not a fault.
#[test]
fn accepts_penalties_that_count_prompt() {
    let features = ServerFeatures { penalises_prompts: true, ..ServerFeatures::default() };
    let server = TestServer::start(Fault::None, features, 4);
    let report = audit(&server.options(&["penalties"], 4), &Silent).expect("an audit");
    let found = &report.findings.last().expect("it").outcome;
    assert_eq!(found.verdict, Verdict::Passed, "{:#?}", verdicts(&report));
    let server = TestServer::start(Fault::PenaltiesIgnoreDrafts, features, 4);
    let report = audit(&server.options(&["penalties"], 4), &Silent).expect("an audit");
    assert_eq!(report.verdict, Verdict::Fault, "{:#?}", verdicts(&report));
}

/// Without log-probabilities the audit compares with a reference.
#[test]
fn compares_answers_with_reference_without_logprobs() {
    let silent = ServerFeatures { ids: false, top: 0, echo: false, ..ServerFeatures::default() };
    let chat = ServerFeatures { chat: true, ..silent };
    // Chat completions alone.
    let (server, other) =
        (TestServer::start(Fault::None, chat, 2), TestServer::start(Fault::None, chat, 3));
    let options = Options {
        reference: Some(other.address()),
        requests: 4000,
        ..server.options(&["reference", "stop-strings", "streams", "greedy"], 4)
    };
    let report = audit(&options, &Silent).expect("an audit");
    assert_eq!(report.verdict, Verdict::Passed, "{:#?}", verdicts(&report));
    let reference = TestServer::start(Fault::None, silent, 4);
    // Only texts are known, so errors below the tolerance stay hidden.
    for (fault, expected) in
        [(Fault::CorrectionFromTarget, Verdict::Fault), (Fault::None, Verdict::Passed)]
    {
        let server = TestServer::start(fault, silent, 5);
        let options =
            Options { reference: Some(reference.address()), ..server.options(&["reference"], 4) };
        let report = audit(&options, &Silent).expect("an audit");
        assert_eq!(report.verdict, expected, "{fault:?} {:#?}", verdicts(&report));
    }
    // Without a reference there is not enough data.
    let server = TestServer::start(Fault::BonusFromDraft, silent, 5);
    let report = audit(&server.options(&["temperature-1"], 4), &Silent).expect("an audit");
    assert_eq!(report.exit_code(), 3);
}

/// Checks the rate of false alarms, with an error rate so high that a wrong one would show.
#[test]
fn false_alarms_stay_below_error_rate() {
    let (audits, requests) = if exhaustive() { (200, 1500) } else { (6, 1000) };
    let rate = 0.05;
    let mut accused = 0;
    for seed in 0..audits {
        let server = TestServer::start(Fault::None, ServerFeatures::default(), 1000 + seed);
        let options = Options { requests, error_rate: rate, ..server.options(&[], seed) };
        let report = audit(&options, &Silent).expect("an audit");
        if report.verdict == Verdict::Fault {
            eprintln!("{:#?}", verdicts(&report));
        }
        accused += u64::from(report.verdict == Verdict::Fault);
    }
    // Three standard deviations above the error rate.
    let most = rate * audits as f64 + 3.0 * (rate * audits as f64).sqrt();
    assert!(accused as f64 <= most, "{accused} of {audits}");
}

/// A server that fails during the audit: earlier findings are reported.
#[test]
fn reports_findings_until_server_fails() {
    let server = TestServer::start(Fault::DiesOfTopK, ServerFeatures::default(), 9);
    let report = audit(&server.options(&["temperature-0.7", "top-k"], 9), &Silent).expect("one");
    let cut = report.cut_short.as_deref().expect("a reason");
    assert!(cut.contains("top-k") && cut.contains("the engine is dead"), "{cut}");
    assert_ne!(report.exit_code(), 0);
    assert!(report.findings.iter().any(|finding| finding.outcome.seen > 0));
}

/// Saved answers are not requested again, and give the same result without the server.
#[test]
fn resumes_from_saved_answers() {
    let folder = std::env::temp_dir().join(format!("polydraft-audit-{}", std::process::id()));
    let (server, file) =
        (TestServer::start(Fault::None, ServerFeatures::default(), 6), folder.clone());
    let with = |requests| Options {
        requests,
        save: Some(file.clone()),
        ..server.options(&["temperature-1", "greedy"], 6)
    };
    let short = audit(&with(800), &Silent).expect("an audit");
    assert_eq!(short.exit_code(), 3);
    let full = audit(&with(20_000), &Silent).expect("an audit");
    let again = audit(&with(20_000), &Silent).expect("an audit");
    assert_eq!(full.findings[1].outcome, again.findings[1].outcome);
    assert!(full.findings[1].outcome.seen > short.findings[1].outcome.seen);
    // The file of another audit is rejected.
    let other = Options { checks: vec!["top-k".to_owned()], ..with(20_000) };
    let error = audit(&other, &Silent).expect_err("another audit").to_string();
    assert!(error.contains("other options"), "{error}");
    std::fs::remove_file(folder).expect("it is there");
}

#[test]
fn rejects_unknown_check_and_unreachable_server() {
    let server = TestServer::start(Fault::None, ServerFeatures::default(), 6);
    let error = audit(&server.options(&["temprature-1"], 6), &Silent).expect_err("no such check");
    assert!(error.to_string().contains("temperature-1, "), "{error}");
    let mut options = server.options(&[], 6);
    options.server.url = "http://127.0.0.1:9".to_owned();
    options.server.model = Some("x".to_owned());
    let error = audit(&options, &Silent).expect_err("nobody is there").to_string();
    assert!(error.contains("is the server running"), "{error}");
}
