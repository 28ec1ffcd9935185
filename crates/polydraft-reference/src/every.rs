//! All rules: the fast ones of `polydraft` and those of this crate, and the verifiers that walk
//! with them.

use std::fmt;
use std::str::FromStr;

use polydraft::coupling::RuleRegistry;
use polydraft::verify::walk;
use polydraft::{Error, Result, Rule, Verifier};
use serde::{Deserialize, Deserializer, Serialize};

use crate::ReferenceKind;

/// A rule and its settings, of either crate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RuleKind {
    /// A fast one.
    Fast(polydraft::RuleKind),
    /// A reference solver, or a rule that needs one.
    Reference(ReferenceKind),
}

/// A verifier that may walk with any rule.
pub type VerifierKind = polydraft::VerifierKind<RuleKind>;

impl RuleKind {
    /// The names that users type.
    pub fn names() -> impl Iterator<Item = &'static str> {
        polydraft::RuleKind::NAMES.iter().chain(ReferenceKind::NAMES).copied()
    }

    /// The name that users type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fast(rule) => rule.name(),
            Self::Reference(rule) => rule.name(),
        }
    }

    /// All rules with their default settings.
    pub fn all() -> Vec<Self> {
        let fast = polydraft::RuleKind::all().into_iter().map(Self::Fast);
        fast.chain(ReferenceKind::all().into_iter().map(Self::Reference)).collect()
    }

    /// Builds the rule.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn build(&self) -> Result<Box<dyn Rule>> {
        match self {
            Self::Fast(rule) => rule.build(),
            Self::Reference(rule) => rule.build(),
        }
    }
}

/// The verifier, or the walk with a rule that is not exact: to measure what it emits.
///
/// # Errors
/// Settings out of range.
pub fn to_measure(kind: &VerifierKind) -> Result<Box<dyn Verifier>> {
    match kind {
        VerifierKind::Walk(rule) => Ok(walk::to_measure(rule.build()?)),
        _ => kind.build(),
    }
}

impl RuleRegistry for RuleKind {
    fn all() -> Vec<Self> {
        Self::all()
    }

    fn build(&self) -> Result<Box<dyn Rule>> {
        self.build()
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for RuleKind {
    type Err = Error;

    /// The rule of that name with its default settings.
    fn from_str(name: &str) -> Result<Self> {
        let fast = polydraft::RuleKind::named(name).map(Self::Fast);
        fast.or_else(|| ReferenceKind::named(name).map(Self::Reference)).ok_or_else(|| {
            Error::Name {
                kind: "rule",
                expected: Self::names().collect::<Vec<_>>().join(", "),
                got: name.to_owned(),
            }
        })
    }
}

/// By the name, so that the error of a wrong setting names it.
impl<'de> Deserialize<'de> for RuleKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let fields = serde_json::Map::deserialize(deserializer)?;
        let name = fields.get("rule").and_then(serde_json::Value::as_str).unwrap_or_default();
        if ReferenceKind::NAMES.contains(&name) {
            return serde_json::from_value(fields.into())
                .map(Self::Reference)
                .map_err(D::Error::custom);
        }
        serde_json::from_value(fields.into()).map(Self::Fast).map_err(D::Error::custom)
    }
}
