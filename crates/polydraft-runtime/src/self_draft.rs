//! `--draft self`: the quantised self-draft, the target's own weights in fewer bits.

use anyhow::Result;
use polydraft_models::{Bytes, Description, Precision};

use crate::Usage;

/// `self` or `self:TYPE`: the quantised self-draft, the target's own weights in fewer bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelfDraft(Option<Precision>);

impl SelfDraft {
    /// The self-draft of this name, if it is one.
    ///
    /// # Errors
    /// An unknown type, or one that makes no draft.
    pub fn named(name: &str) -> Result<Option<Self>> {
        let kind = match name.split_once(':') {
            None if name == "self" => None,
            Some(("self", kind)) => {
                let kind: Precision = kind.parse().map_err(|e| {
                    Usage::error(format!("--draft self:TYPE: {e}; f32 and file are no copies"))
                })?;
                Some(kind)
            }
            _ => return Ok(None),
        };
        Self(None).or(kind).map(Some)
    }

    /// Stored as this type, where its name has none.
    ///
    /// # Errors
    /// Two types that contradict each other, or one that makes no draft.
    pub fn or(self, kind: Option<Precision>) -> Result<Self> {
        match (self.0, kind) {
            (Some(named), Some(other)) if named != other => Err(Usage::error(format!(
                "--draft self:{named} and --draft-dtype {other} contradict each other: give one of \
                 them"
            ))),
            (_, Some(Precision::File)) => Err(Usage::error(
                "--draft self:file: that would be the target again; name a type of fewer bits",
            )),
            (named, other) => Ok(Self(named.or(other))),
        }
    }

    /// The type it is stored as beside a target of that type, and the bytes that it takes.
    ///
    /// # Errors
    /// Why it would be no use.
    pub fn beside(
        self,
        target: &Description,
        precision: Precision,
    ) -> Result<(Precision, Bytes), String> {
        let copy = self.0.unwrap_or_else(|| target.best_self_draft(precision));
        let bytes = Bytes(target.self_draft_bytes(copy));
        match target.is_self_draft_small(copy, precision) {
            true => Ok((copy, bytes)),
            false => Err(format!(
                "a copy in {copy} would take {bytes}, the target's own matrices in {precision} \
                 take {}: it would not be faster. Take --draft ngram, or load the target in a \
                 larger type, such as --dtype bf16",
                Bytes(target.self_draft_bytes(precision))
            )),
        }
    }
}
