//! Parameter values that clients send in several forms.

use serde::Deserialize;

/// A value, or a list.
#[derive(Debug, Clone)]
pub enum OneOrMany<T> {
    /// A value.
    One(T),
    /// A list.
    Many(Vec<T>),
}

/// Kind of value that errors name.
pub trait Named {
    /// Such a value, or a list of them.
    const ONE_OR_MANY: &str;
}

impl Named for String {
    const ONE_OR_MANY: &str = "expected a string or a list of strings";
}

impl Named for f64 {
    const ONE_OR_MANY: &str = "expected a number or a list of numbers";
}

impl<'de, T: Deserialize<'de> + Named> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            One(T),
            Many(Vec<T>),
        }
        match Either::deserialize(deserializer) {
            Ok(Either::One(one)) => Ok(Self::One(one)),
            Ok(Either::Many(many)) => Ok(Self::Many(many)),
            Err(_) => Err(serde::de::Error::custom(T::ONE_OR_MANY)),
        }
    }
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

/// Deserializes a maximum, of which -1 is none.
pub fn limit<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Limit>, D::Error> {
    let given: Option<i64> = Option::deserialize(deserializer)?;
    let limit = |given| match given {
        -1 => Ok(None),
        given => usize::try_from(given)
            .map(Some)
            .map_err(|_| serde::de::Error::custom(negative_limit(given))),
    };
    given.map(limit).transpose()
}

/// Error of a negative limit.
pub fn negative_limit(got: i64) -> String {
    format!("expected at least 0, or -1 for no limit, got {got}")
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
