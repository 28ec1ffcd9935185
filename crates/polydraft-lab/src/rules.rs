//! All token-level rules by name: the fast ones, and the reference solvers.

use anyhow::Result;
use polydraft::Error;
use polydraft::coupling::TokenRule;
use polydraft_reference::global_resolution::Mode;
use serde_json::{Map, Value};

/// A rule with its settings.
pub enum Rule {
    Fast(polydraft::Rule),
    Reference(polydraft_reference::Rule),
}

impl Rule {
    /// The names of all rules.
    pub fn names() -> impl Iterator<Item = &'static str> {
        polydraft::Rule::NAMES.iter().chain(polydraft_reference::Rule::NAMES).copied()
    }

    /// The rule of that name with its default settings.
    pub fn named(name: &str) -> Result<Self, Error> {
        if polydraft_reference::Rule::NAMES.contains(&name) {
            return name.parse().map(Self::Reference);
        }
        name.parse().map(Self::Fast).map_err(|_| Error::Name {
            kind: "rule",
            expected: Self::names().collect::<Vec<_>>().join(", "),
            got: name.to_owned(),
        })
    }

    /// The rule of these fields: its name as "rule", and its settings.
    pub fn configured(fields: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let name = fields.get("rule").and_then(Value::as_str).unwrap_or_default();
        if polydraft_reference::Rule::NAMES.contains(&name) {
            return serde_json::from_value(fields.into()).map(Self::Reference);
        }
        serde_json::from_value(fields.into()).map(Self::Fast)
    }

    /// All rules; those that may take long give up after two seconds.
    pub fn all_quick() -> Result<Vec<Self>> {
        let quick = |name| {
            let mut rule = Self::named(name)?;
            match &mut rule {
                Self::Reference(polydraft_reference::Rule::LinearProgram(settings)) => settings.seconds = 2.0,
                Self::Reference(polydraft_reference::Rule::MaxFlow(settings)) => settings.seconds = 2.0,
                _ => {}
            }
            Ok(rule)
        };
        Self::names().map(quick).collect()
    }

    /// The name that users type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fast(rule) => rule.name(),
            Self::Reference(rule) => rule.name(),
        }
    }

    /// How far the emitted law and the acceptance may be from what they should be, if the rule is not exact: only
    /// `global-resolution` as published.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        match self {
            Self::Reference(polydraft_reference::Rule::GlobalResolution(settings))
                if settings.mode == Mode::Published =>
            {
                Some((settings.law_bound(), settings.acceptance_bound()))
            }
            _ => None,
        }
    }

    /// Makes the rule ready to work.
    pub fn build(&self) -> Result<Box<dyn TokenRule>, Error> {
        match self {
            Self::Fast(rule) => rule.build(),
            Self::Reference(rule) => rule.build(),
        }
    }
}
