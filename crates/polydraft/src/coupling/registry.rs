//! Registries of rules as values: the built-in rules, and rules of other crates.
//!
//! A walk uses a [`WalkRule`]. Users give its name, and a [`RuleRegistry`] resolves it:
//! [`RuleRegistry::built_in`] contains the rules of this crate, [`RuleRegistry::with_rules`] adds
//! others.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::coupling::RuleSettings;
use crate::{Error, Result, Rule, RuleKind};

/// A rule and its settings, built in or from another crate.
#[derive(Debug, Clone, PartialEq)]
pub enum WalkRule {
    /// A rule of this crate.
    BuiltIn(RuleKind),
    /// A rule of another crate.
    External(ExternalRule),
}

impl WalkRule {
    /// Returns the name that users type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::BuiltIn(rule) => rule.name(),
            Self::External(rule) => rule.name,
        }
    }

    /// Builds the rule.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn build(&self) -> Result<Box<dyn Rule>> {
        match self {
            Self::BuiltIn(rule) => rule.build(),
            Self::External(rule) => rule.settings.build(),
        }
    }
}

impl From<RuleKind> for WalkRule {
    fn from(rule: RuleKind) -> Self {
        Self::BuiltIn(rule)
    }
}

impl From<ExternalRule> for WalkRule {
    fn from(rule: ExternalRule) -> Self {
        Self::External(rule)
    }
}

impl fmt::Display for WalkRule {
    /// Writes the name that users type, without settings.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for WalkRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::BuiltIn(rule) => rule.serialize(serializer),
            Self::External(rule) => rule.fields.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WalkRule {
    /// Deserializes a built-in rule; rules of another crate can only be deserialized by that crate.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        RuleKind::deserialize(deserializer).map(Self::BuiltIn)
    }
}

/// A rule of another crate, with its settings.
#[derive(Clone)]
pub struct ExternalRule {
    name: &'static str,
    /// The settings as JSON, for records and comparison.
    fields: Map<String, Value>,
    settings: Arc<dyn RuleSettings + Send + Sync>,
}

impl ExternalRule {
    /// Describes a rule by the name that users type and by its settings, which serialize to an
    /// object with that name as `rule`.
    ///
    /// # Errors
    /// Settings that serialize to anything else.
    pub fn new<S>(name: &'static str, settings: S) -> Result<Self>
    where
        S: RuleSettings + Serialize + Send + Sync + 'static,
    {
        match serde_json::to_value(&settings) {
            Ok(Value::Object(fields))
                if fields.get("rule").and_then(Value::as_str) == Some(name) =>
            {
                Ok(Self { name, fields, settings: Arc::new(settings) })
            }
            other => Err(Error::Name {
                kind: "rule",
                expected: format!("settings that serialize with \"rule\": {name:?}"),
                got: other.map_or_else(|error| error.to_string(), |value| value.to_string()),
            }),
        }
    }
}

impl fmt::Debug for ExternalRule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple(self.name).field(&self.fields).finish()
    }
}

impl PartialEq for ExternalRule {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

/// Rules that can be named, with their default settings.
///
/// ```
/// use polydraft::coupling::registry::RuleRegistry;
///
/// let rules = RuleRegistry::built_in();
/// assert_eq!(rules.named("priority")?.name(), "priority");
/// assert!(rules.named("best").is_err());
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RuleRegistry {
    rules: Vec<WalkRule>,
}

impl RuleRegistry {
    /// Creates a registry of this crate's rules.
    pub fn built_in() -> Self {
        Self { rules: RuleKind::all().into_iter().map(WalkRule::BuiltIn).collect() }
    }

    /// Adds rules of another crate.
    pub fn with_rules(mut self, rules: impl IntoIterator<Item = ExternalRule>) -> Self {
        self.rules.extend(rules.into_iter().map(WalkRule::External));
        self
    }

    /// Returns all rules with their default settings.
    pub fn all(&self) -> &[WalkRule] {
        &self.rules
    }

    /// Returns the names that users type, with commas between them.
    pub fn names(&self) -> String {
        self.rules.iter().map(WalkRule::name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the rule of that name with its default settings.
    ///
    /// # Errors
    /// A name that this registry does not have.
    pub fn named(&self, name: &str) -> Result<WalkRule> {
        let found = self.rules.iter().find(|rule| rule.name() == name);
        found.cloned().ok_or_else(|| Error::Name {
            kind: "rule",
            expected: self.names(),
            got: name.to_owned(),
        })
    }
}

impl Default for RuleRegistry {
    fn default() -> Self {
        Self::built_in()
    }
}
