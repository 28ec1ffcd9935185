//! All rules, those of `polydraft` and those of this crate, and the verifiers that walk with them.

use polydraft::coupling::registry::{ExternalRule, RuleRegistry, WalkRule};
use polydraft::verify::walk;
use polydraft::{Result, Verifier, VerifierKind};
use serde_json::Value;

use crate::ReferenceKind;

/// Returns the registry of the rules of both crates.
///
/// # Panics
/// A rule of this crate that does not serialize with its name. A test checks all rules.
pub fn rules() -> RuleRegistry {
    RuleRegistry::built_in().with_rules(ReferenceKind::all().into_iter().map(external))
}

/// Wraps a rule of this crate for walks.
fn external(rule: ReferenceKind) -> ExternalRule {
    ExternalRule::new(rule.name(), rule).expect("a registry's line gives the name")
}

impl From<ReferenceKind> for WalkRule {
    fn from(rule: ReferenceKind) -> Self {
        external(rule).into()
    }
}

/// Parses the name of a rule of either crate.
///
/// # Errors
/// An unknown name.
pub fn rule(name: &str) -> Result<WalkRule> {
    rules().named(name)
}

/// Parses the name of a verifier, which may be a walk with a rule of this crate.
///
/// # Errors
/// An unknown name.
pub fn verifier(name: &str) -> Result<VerifierKind> {
    VerifierKind::parse_with(name, &rules())
}

/// Reads a rule of either crate from its settings as JSON.
///
/// # Errors
/// A setting that the rule does not have; an unknown rule.
pub fn rule_from_json(settings: Value) -> serde_json::Result<WalkRule> {
    // Dispatched by name, so that the error for a wrong setting mentions the setting.
    let name = settings.get("rule").and_then(Value::as_str).unwrap_or_default();
    match ReferenceKind::NAMES.contains(&name) {
        true => serde_json::from_value::<ReferenceKind>(settings).map(WalkRule::from),
        false => serde_json::from_value(settings),
    }
}

/// Reads a verifier from its settings as JSON. A walk has its rule's settings next to `"verifier":
/// "walk"`.
///
/// # Errors
/// The errors of [`rule_from_json`].
pub fn verifier_from_json(mut settings: Value) -> serde_json::Result<VerifierKind> {
    match settings.get("verifier").and_then(Value::as_str) {
        Some("walk") => {
            settings.as_object_mut().map(|fields| fields.remove("verifier"));
            rule_from_json(settings).map(VerifierKind::Walk)
        }
        _ => serde_json::from_value(settings),
    }
}

/// Builds a verifier for measurement, which may be a walk with a rule that is not exact.
///
/// # Errors
/// Settings out of range.
pub fn for_measurement(kind: &VerifierKind) -> Result<Box<dyn Verifier>> {
    match kind {
        VerifierKind::Walk(rule) => Ok(walk::for_measurement(rule.build()?)),
        _ => kind.build(),
    }
}

/// Returns the settings of a walk's rule, if it is a rule of this crate.
///
/// # Errors
/// Invalid settings.
pub fn reference(rule: &WalkRule) -> Option<ReferenceKind> {
    serde_json::to_value(rule).ok().and_then(|settings| serde_json::from_value(settings).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_named_and_survives_json() -> Result<()> {
        assert_eq!(
            rules().all().len(),
            polydraft::RuleKind::NAMES.len() + ReferenceKind::NAMES.len()
        );
        for rule in rules().all() {
            let json = serde_json::to_value(rule).expect("JSON");
            assert_eq!(&rule_from_json(json).expect("a rule"), rule);
            let kind = VerifierKind::Walk(rule.clone());
            let json = serde_json::to_value(&kind).expect("JSON");
            assert_eq!(verifier_from_json(json).expect("a verifier"), kind);
            assert_eq!(verifier(&kind.to_string())?, kind);
        }
        for kind in VerifierKind::all() {
            let json = serde_json::to_value(&kind).expect("JSON");
            assert_eq!(verifier_from_json(json).expect("a verifier"), kind);
        }
        assert!(matches!(rule("best"), Err(polydraft::Error::Name { .. })));
        Ok(())
    }
}
