//! Parameter values that clients send in several forms.

use serde::Deserialize;

/// A value, or a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a value or a list of values")]
pub enum OneOrMany<T> {
    /// A value.
    One(T),
    /// A list.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Converts to a list.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Maximum number of tokens; `None` is unlimited.
pub type Limit = Option<usize>;

/// Deserializes a maximum, of which negative numbers are none.
pub fn limit<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Limit>, D::Error> {
    let given: Option<i64> = Option::deserialize(deserializer)?;
    Ok(given.map(|given| usize::try_from(given).ok()))
}

/// Deserializes null as the default.
pub fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes a flag: a bool, null, or a string, which some clients send.
pub fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true or false")]
    enum Flag {
        Plain(bool),
        Quoted(Quoted),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Quoted {
        True,
        False,
    }
    Ok(Option::deserialize(deserializer)?.map(|flag| match flag {
        Flag::Plain(flag) => flag,
        Flag::Quoted(quoted) => matches!(quoted, Quoted::True),
    }))
}

/// Deserializes a flag, with null as false.
pub fn flag_or_false<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(flag(deserializer)?.unwrap_or_default())
}
