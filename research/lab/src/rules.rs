//! The laboratory's additions to token-level rules.

use polydraft::coupling::registry::WalkRule;
use polydraft_reference::global_resolution::Mode;
use polydraft_reference::{ReferenceKind, reference, rules};

/// Returns all rules. Slow ones have a time limit of two seconds.
pub fn all_quick() -> Vec<WalkRule> {
    let quick = |rule: &WalkRule| match reference(rule) {
        Some(ReferenceKind::LinearProgram(mut settings)) => {
            settings.seconds = 2.0;
            ReferenceKind::LinearProgram(settings).into()
        }
        Some(ReferenceKind::MaxFlow(mut settings)) => {
            settings.seconds = 2.0;
            ReferenceKind::MaxFlow(settings).into()
        }
        _ => rule.clone(),
    };
    rules().all().iter().map(quick).collect()
}

/// Returns error bounds of the emitted distribution and of the acceptance, for a rule that is not
/// exact: only `global-resolution` as published.
pub fn bounds(rule: &WalkRule) -> Option<(f64, f64)> {
    match reference(rule) {
        Some(ReferenceKind::GlobalResolution(settings)) if settings.mode == Mode::Published => {
            Some((settings.deviation_bound(), settings.acceptance_bound()))
        }
        _ => None,
    }
}
