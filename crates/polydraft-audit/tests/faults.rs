//! Planted faults are found, each within the budget, and lossless servers are not accused.

mod common;

use common::{Fault, Telling, Texts, Tiny, verdicts};
use polydraft_audit::{Options, Silent, Verdict, audit};

/// Whether what takes long is tried too, as in continuous integration.
fn exhaustive() -> bool {
    std::env::var_os("POLYDRAFT_EXHAUSTIVE").is_some()
}

fn found(fault: Fault, check: &str) {
    let tiny = Tiny::start(fault, Telling::default(), 7);
    let checks: &[&str] = if check == "together" { &[] } else { &[check] };
    // Alone a check may spend what all of them share.
    let sensitivity = if checks.is_empty() { 0.03 } else { 0.012 };
    let options = Options { sensitivity, ..tiny.options(checks, 1) };
    let report = audit(&options, &Silent).expect("an audit");
    if let Some(p) = report.findings.iter().find(|f| f.check == check).map(|f| f.outcome.p_value) {
        println!("{fault:?}: {p:?} in {} requests", report.requests);
    }
    let found = report.findings.iter().find(|finding| finding.check == check).expect("it");
    assert_eq!(found.outcome.verdict, Verdict::Fault, "{fault:?}: {:?}", verdicts(&report));
    assert_eq!(report.exit_code(), 1);
    if check == "together" {
        return;
    }
    assert!(!found.outcome.evidence.is_empty(), "{fault:?}");
    assert!(found.outcome.evidence.iter().all(|shown| shown.curl.starts_with("curl ")));
    // The same check finds nothing wrong with a server that has no fault. (All of them together do
    // so in [`a_lossless_server_passes`].)
    if !exhaustive() {
        return;
    }
    let tiny = Tiny::start(Fault::None, Telling::default(), 8);
    let report = audit(&tiny.options(&[check], 2), &Silent).expect("an audit");
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
    a_correction_from_the_target: CorrectionFromTarget by "temperature-1",
    a_temperature_forgotten: TemperatureForgotten by "temperature-0.7",
    a_bonus_from_the_draft: BonusFromDraft by "together",
    a_truncation_too_late: TruncatesTooLate by "top-p",
    a_truncation_too_late_of_top_k: TruncatesTooLate by "top-k",
    a_biased_tail: BiasedTail by "together",
    penalties_that_ignore_drafts: PenaltiesIgnoreDrafts by "penalties",
    a_shared_stream: SharedStream by "independence",
    choices_that_share_a_stream: SharedByChoices by "choices",
    a_seed_ignored: SeedIgnored by "seeds",
    an_end_swallowed: EndSwallowed by "temperature-1",
    logprobs_shifted: LogprobsShifted by "logprobs",
    a_mask_missing: MaskMissing by "grammar",
    a_stop_string_missed: StopMissed by "stop-strings",
    drafts_at_temperature_0: GreedyDrafts by "greedy",
    drafts_that_are_counted: CountsDrafts by "streams",
}

/// All checks on a server without a fault: it passes.
#[test]
fn a_lossless_server_passes() {
    let tiny = Tiny::start(Fault::None, Telling::default(), 3);
    let report = audit(&tiny.options(&[], 3), &Silent).expect("an audit");
    assert_eq!(report.verdict, Verdict::Passed, "{:#?}", verdicts(&report));
}

/// Servers that tell less are audited as far as that goes.
#[test]
fn servers_may_tell_little() {
    let all = Telling::default();
    for telling in [
        Telling { ids: false, ..all },
        Telling { ids: false, echo: false, ..all },
        Telling { top: 5, echo: false, ..all },
    ] {
        let wrong = Tiny::start(Fault::CorrectionFromTarget, telling, 3);
        let report = audit(&wrong.options(&["temperature-1"], 3), &Silent).expect("an audit");
        assert_eq!(report.verdict, Verdict::Fault, "{telling:?} {:#?}", verdicts(&report));
        let right = Tiny::start(Fault::None, telling, 3);
        let options = Options { requests: 4000, ..right.options(&[], 3) };
        let report = audit(&options, &Silent).expect("an audit");
        assert_ne!(report.verdict, Verdict::Fault, "{telling:?} {:#?}", verdicts(&report));
    }
}

/// A reference may tell ids of tokens where the server tells texts, and the other way round.
#[test]
fn a_reference_may_name_tokens_otherwise() {
    let all = Telling::default();
    let text = Telling { ids: false, ..all };
    // One that tells no tokens at all is compared by what it answers.
    let silent = Telling { top: 0, ..text };
    for (own, others) in [(text, all), (all, text), (silent, all)] {
        let reference = Tiny::start(Fault::None, others, 6);
        for fault in [Fault::None, Fault::CorrectionFromTarget] {
            let tiny = Tiny::start(fault, own, 7);
            let options = Options {
                reference: Some(reference.address()),
                requests: 6000,
                ..tiny.options(&["temperature-1", "reference"], 5)
            };
            let report = audit(&options, &Silent).expect("an audit");
            let is_fault = report.verdict == Verdict::Fault;
            assert_eq!(is_fault, fault != Fault::None, "{own:?} {:#?}", verdicts(&report));
            let by = if own.top == 0 { "answers of " } else { "log-probabilities of " };
            assert!(report.truth.starts_with(by), "{}", report.truth);
        }
    }
}

/// Two tokens may have one text: where that is so, nothing is bet.
#[test]
fn tokens_may_have_one_text() {
    for (texts, echo) in [(Texts::Doubled, true), (Texts::DoubledInObject, false)] {
        let telling = Telling { ids: false, top: 5, echo, texts, ..Telling::default() };
        for fault in [Fault::None, Fault::CorrectionFromTarget] {
            let tiny = Tiny::start(fault, telling, 4);
            let options = Options { requests: 6000, ..tiny.options(&["temperature-1"], 4) };
            let report = audit(&options, &Silent).expect("an audit");
            let is_fault = report.verdict == Verdict::Fault;
            assert_eq!(is_fault, fault != Fault::None, "{texts:?} {:#?}", verdicts(&report));
        }
    }
}

/// Texts of tokens that do not add up to the answer say nothing of where it could be continued.
#[test]
fn tokens_may_lack_their_blanks() {
    let telling = Telling { ids: false, texts: Texts::Stripped, ..Telling::default() };
    let reference = Tiny::start(Fault::None, Telling::default(), 6);
    for fault in [Fault::None, Fault::CorrectionFromTarget] {
        let tiny = Tiny::start(fault, telling, 5);
        let reference = Some(reference.address());
        let options = Options { reference, ..tiny.options(&["temperature-1", "reference"], 4) };
        let report = audit(&options, &Silent).expect("an audit");
        let is_fault = report.verdict == Verdict::Fault;
        assert_eq!(is_fault, fault != Fault::None, "{fault:?} {:#?}", verdicts(&report));
    }
}

/// Penalties may count the prompt's tokens, as llama.cpp's do: that is no fault.
#[test]
fn penalties_may_count_prompts() {
    let telling = Telling { penalises_prompts: true, ..Telling::default() };
    let tiny = Tiny::start(Fault::None, telling, 4);
    let report = audit(&tiny.options(&["penalties"], 4), &Silent).expect("an audit");
    let found = &report.findings.last().expect("it").outcome;
    assert_eq!(found.verdict, Verdict::Passed, "{:#?}", verdicts(&report));
    let tiny = Tiny::start(Fault::PenaltiesIgnoreDrafts, telling, 4);
    let report = audit(&tiny.options(&["penalties"], 4), &Silent).expect("an audit");
    assert_eq!(report.verdict, Verdict::Fault, "{:#?}", verdicts(&report));
}

/// Without log-probabilities a reference tells the truth.
#[test]
fn a_reference_is_enough() {
    let silent = Telling { ids: false, top: 0, echo: false, ..Telling::default() };
    let chat = Telling { chat: true, ..silent };
    // Conversations alone, where there is nothing else.
    let (tiny, other) = (Tiny::start(Fault::None, chat, 2), Tiny::start(Fault::None, chat, 3));
    let options = Options {
        reference: Some(other.address()),
        requests: 4000,
        ..tiny.options(&["reference", "stop-strings", "streams", "greedy"], 4)
    };
    let report = audit(&options, &Silent).expect("an audit");
    assert_eq!(report.verdict, Verdict::Passed, "{:#?}", verdicts(&report));
    let reference = Tiny::start(Fault::None, silent, 4);
    // Nothing is known but texts, so that small errors drown in the tolerance.
    for (fault, expected) in
        [(Fault::CorrectionFromTarget, Verdict::Fault), (Fault::None, Verdict::Passed)]
    {
        let tiny = Tiny::start(fault, silent, 5);
        let options =
            Options { reference: Some(reference.address()), ..tiny.options(&["reference"], 4) };
        let report = audit(&options, &Silent).expect("an audit");
        assert_eq!(report.verdict, expected, "{fault:?} {:#?}", verdicts(&report));
    }
    // Without one there is not enough to say.
    let tiny = Tiny::start(Fault::BonusFromDraft, silent, 5);
    let report = audit(&tiny.options(&["temperature-1"], 4), &Silent).expect("an audit");
    assert_eq!(report.exit_code(), 3);
}

/// No more lossless servers are accused than the error rate says. The rate is set so high here that
/// a test with a wrong rate would show it.
#[test]
fn false_alarms_are_as_rare_as_promised() {
    let (audits, requests) = if exhaustive() { (200, 1500) } else { (6, 1000) };
    let rate = 0.05;
    let mut accused = 0;
    for seed in 0..audits {
        let tiny = Tiny::start(Fault::None, Telling::default(), 1000 + seed);
        let options = Options { requests, error_rate: rate, ..tiny.options(&[], seed) };
        let report = audit(&options, &Silent).expect("an audit");
        if report.verdict == Verdict::Fault {
            eprintln!("{:#?}", verdicts(&report));
        }
        accused += u64::from(report.verdict == Verdict::Fault);
    }
    // Three standard deviations above the promise.
    let most = rate * audits as f64 + 3.0 * (rate * audits as f64).sqrt();
    assert!(accused as f64 <= most, "{accused} of {audits}");
}

/// A server that is lost on the way: what was found until then is found.
#[test]
fn a_lost_server_is_reported() {
    let tiny = Tiny::start(Fault::DiesOfTopK, Telling::default(), 9);
    let report = audit(&tiny.options(&["temperature-0.7", "top-k"], 9), &Silent).expect("one");
    let cut = report.cut_short.as_deref().expect("a reason");
    assert!(cut.contains("top-k") && cut.contains("the engine is dead"), "{cut}");
    assert_ne!(report.exit_code(), 0);
    assert!(report.findings.iter().any(|finding| finding.outcome.seen > 0));
}

/// What was answered once is not asked again, and says the same without the server.
#[test]
fn an_audit_goes_on_where_it_was() {
    let folder = std::env::temp_dir().join(format!("polydraft-audit-{}", std::process::id()));
    let (tiny, file) = (Tiny::start(Fault::None, Telling::default(), 6), folder.clone());
    let with = |requests| Options {
        requests,
        save: Some(file.clone()),
        ..tiny.options(&["temperature-1", "greedy"], 6)
    };
    let short = audit(&with(800), &Silent).expect("an audit");
    assert_eq!(short.exit_code(), 3);
    let whole = audit(&with(20_000), &Silent).expect("an audit");
    let again = audit(&with(20_000), &Silent).expect("an audit");
    assert_eq!(whole.findings[1].outcome, again.findings[1].outcome);
    assert!(whole.findings[1].outcome.seen > short.findings[1].outcome.seen);
    // Another audit's file is refused.
    let other = Options { checks: vec!["top-k".to_owned()], ..with(20_000) };
    let error = audit(&other, &Silent).expect_err("another audit").to_string();
    assert!(error.contains("other options"), "{error}");
    std::fs::remove_file(folder).expect("it is there");
}

#[test]
fn what_cannot_be_audited_is_said() {
    let tiny = Tiny::start(Fault::None, Telling::default(), 6);
    let error = audit(&tiny.options(&["temprature-1"], 6), &Silent).expect_err("no such check");
    assert!(error.to_string().contains("temperature-1, "), "{error}");
    let mut options = tiny.options(&[], 6);
    options.server.url = "http://127.0.0.1:9".to_owned();
    options.server.model = Some("x".to_owned());
    let error = audit(&options, &Silent).expect_err("nobody is there").to_string();
    assert!(error.contains("is the server running"), "{error}");
}
