//! `--set NAME=VALUE`: settings of rules and verifiers, by their JSON names.

use anyhow::Result;
use polydraft::VerifierKind;
use polydraft::coupling::registry::WalkRule;
use polydraft_cli::usage::UsageError;
use polydraft_reference::{rule_from_json, verifier_from_json};
use serde_json::{Map, Value};

/// A setting's name and value.
pub type Setting = (String, Value);

/// Parses `NAME=VALUE`. A value that is not JSON is a string.
pub fn setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name.to_owned(), value))
}

/// Returns the rule with this name and these settings.
///
/// # Errors
/// A setting that the rule does not have, or that is given twice.
pub fn rule(name: &str, settings: &[Setting]) -> Result<WalkRule> {
    let fields = with(Map::from_iter([("rule".to_owned(), name.into())]), settings)?;
    rule_from_json(fields.into())
        .map_err(|error| UsageError::error(format_args!("--set for {name}: {error}")))
}

/// Returns the verifier with these settings; those of a walk are passed to its rule.
///
/// # Errors
/// The errors of [`rule`].
pub fn verifier(kind: &VerifierKind, settings: &[Setting]) -> Result<VerifierKind> {
    let fields = match kind {
        VerifierKind::Walk(walked) => {
            return Ok(VerifierKind::Walk(rule(walked.name(), settings)?));
        }
        _ => with(Map::from_iter([("verifier".to_owned(), kind.to_string().into())]), settings)?,
    };
    verifier_from_json(fields.into())
        .map_err(|error| UsageError::error(format_args!("--set for {kind}: {error}")))
}

fn with(mut fields: Map<String, Value>, settings: &[Setting]) -> Result<Map<String, Value>> {
    for (name, value) in settings {
        if fields.insert(name.clone(), value.clone()).is_some() {
            return Err(UsageError::error(format_args!("setting {name} is given twice")));
        }
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_apply_to_the_rule_or_the_verifier() {
        let one = |text: &str| [setting(text).expect("a setting")];
        let walk: VerifierKind = "walk:k-seq".parse().expect("a name");
        let got = verifier(&walk, &one("rho=2.5")).expect("settings");
        assert_eq!(serde_json::to_value(&got).expect("JSON")["rho"], 2.5);
        assert!(verifier(&walk, &one("tau=1")).is_err());
        let nested: VerifierKind = "nested-priority".parse().expect("a name");
        let got = verifier(&nested, &one("proportional_below=0.5")).expect("settings");
        assert_eq!(serde_json::to_value(&got).expect("JSON")["proportional_below"], 0.5);
        for (kind, text) in [(&nested, "rho=2"), (&nested, "verifier=block"), (&walk, "rule=x")] {
            assert!(verifier(kind, &one(text)).is_err(), "{text}");
        }
        assert!(setting("rho").is_err());
    }
}
