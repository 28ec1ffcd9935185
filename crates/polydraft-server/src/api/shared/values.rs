//! Values of parameters that clients send in several forms.

use serde::Deserialize;

/// A value, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a value or a list of values")]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// As a list.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// For fields with a default that clients send as null.
pub fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// For flags: true or false, which some clients send as strings, or null.
pub fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true or false")]
    enum Flag {
        Plain(bool),
        Said(Said),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Said {
        True,
        False,
    }
    Ok(Option::deserialize(deserializer)?.map(|flag| match flag {
        Flag::Plain(flag) => flag,
        Flag::Said(said) => matches!(said, Said::True),
    }))
}

/// The same where null is false.
pub fn flag_or_not<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(flag(deserializer)?.unwrap_or_default())
}
