//! The laboratory's additions to token-level rules.

use polydraft::coupling::registry::WalkRule;
use polydraft_reference::global_resolution::Mode;
use polydraft_reference::{ReferenceKind, reference, rules};

/// All rules; those that may take long give up after two seconds.
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

/// Error bounds of the emitted distribution and the acceptance, if the rule is not exact: only
/// `global-resolution` as published.
pub fn bounds(rule: &WalkRule) -> Option<(f64, f64)> {
    match reference(rule) {
        Some(ReferenceKind::GlobalResolution(settings)) if settings.mode == Mode::Published => {
            Some((settings.deviation_bound(), settings.acceptance_bound()))
        }
        _ => None,
    }
}
