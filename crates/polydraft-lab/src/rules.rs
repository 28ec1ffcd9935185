//! The laboratory's additions to token-level rules.

use polydraft_reference::global_resolution::Mode;
use polydraft_reference::{ReferenceKind, RuleKind};

/// All rules; those that may take long give up after two seconds.
pub fn all_quick() -> Vec<RuleKind> {
    let mut rules = RuleKind::all();
    for rule in &mut rules {
        match rule {
            RuleKind::Reference(ReferenceKind::LinearProgram(settings)) => settings.seconds = 2.0,
            RuleKind::Reference(ReferenceKind::MaxFlow(settings)) => settings.seconds = 2.0,
            _ => {}
        }
    }
    rules
}

/// Error bounds of the emitted distribution and the acceptance, if the rule is not exact: only
/// `global-resolution` as published.
pub fn bounds(rule: &RuleKind) -> Option<(f64, f64)> {
    match rule {
        RuleKind::Reference(ReferenceKind::GlobalResolution(settings))
            if settings.mode == Mode::Published =>
        {
            Some((settings.deviation_bound(), settings.acceptance_bound()))
        }
        _ => None,
    }
}
