//! `--draft self`: the target's own weights, in fewer bits, as its draft.

use anyhow::Result;
use polydraft_candle::{Bytes, Description, Precision};

use crate::output::Usage;

/// How a copy of the target is held where nothing is said: in the type whose products are the fastest.
const COPY: Precision = Precision::Q4_0;
/// A copy must take less than this of what the target takes: its passes would be no faster.
const COPY_SHARE: f64 = 0.7;

/// `self` or `self:TYPE`: the target's own weights, in fewer bits, as its draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnCopy(Option<Precision>);

impl OwnCopy {
    /// If that is what a name says.
    pub fn named(name: &str) -> Result<Option<Self>> {
        let kind = match name.split_once(':') {
            None if name == "self" => None,
            Some(("self", kind)) => {
                Some(kind.parse().map_err(|e| Usage::error(format!("--draft self:TYPE: {e}")))?)
            }
            _ => return Ok(None),
        };
        Self(None).or(kind).map(Some)
    }

    /// Held so, where its name does not say how.
    pub fn or(self, kind: Option<Precision>) -> Result<Self> {
        match (self.0, kind) {
            (Some(named), Some(other)) if named != other => Err(Usage::error(format!(
                "--draft self:{named} and --draft-dtype {other} contradict each other: give one of them"
            ))),
            (_, Some(Precision::File)) => Err(Usage::error(
                "--draft self:file: that would be the target again; name a type of fewer bits",
            )),
            (named, other) => Ok(Self(named.or(other))),
        }
    }

    /// How it is held.
    pub fn precision(self) -> Precision {
        self.0.unwrap_or(COPY)
    }

    /// What it takes beside a target that is held so; why it would be no use, if it would not.
    pub fn check(self, target: &Description, precision: Precision) -> Result<Bytes, String> {
        let copy = self.precision();
        let [whole, less] = [precision, copy].map(|precision| target.copy_bytes(precision));
        match less as f64 > COPY_SHARE * whole as f64 {
            true => Err(format!(
                "a copy in {copy} would take {}, the target's own matrices take {}: too near for the copy to be faster",
                Bytes(less),
                Bytes(whole)
            )),
            false => Ok(Bytes(less)),
        }
    }
}
