//! Options of sampling.

use anyhow::Result;
use polydraft::Sampling;
use polydraft_text::PublishedSampling;
use serde::{Deserialize, Serialize};

use crate::message::{OptionName, message};
use crate::usage::Usage;

/// Sampling settings of target and draft; missing ones are the model's published ones, or neutral.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// Temperature: divides the logits; 0 always chooses the likeliest token.
    pub temperature: Option<f64>,
    /// Samples only from this many of the likeliest tokens; `usize::MAX` sets no limit, also where
    /// the model's published settings do.
    pub top_k: Option<usize>,
    /// Samples only from the smallest set of likeliest tokens with this total probability.
    pub top_p: Option<f64>,
    /// Samples only from tokens with at least this fraction of the likeliest token's probability.
    pub min_p: Option<f64>,
    /// Temperature of the draft. If this or one of the next three options is missing, the target's
    /// setting applies.
    pub draft_temperature: Option<f64>,
    /// Temperatures of further drafts of the same model, each of which draws its own path.
    pub further_draft_temperatures: Vec<f64>,
    /// `top_k` of the draft.
    pub draft_top_k: Option<usize>,
    /// `top_p` of the draft.
    pub draft_top_p: Option<f64>,
    /// `min_p` of the draft.
    pub draft_min_p: Option<f64>,
}

/// Whether a number of tokens is a limit.
fn is_limit(top_k: &usize) -> bool {
    *top_k != usize::MAX
}

impl SamplingOptions {
    /// Returns the first draft option that is given.
    pub fn given_draft_option(&self) -> Option<OptionName> {
        let given = [
            (OptionName::DraftTemperature, self.draft_temperature.is_some()),
            (OptionName::DraftTopK, self.draft_top_k.is_some()),
            (OptionName::DraftTopP, self.draft_top_p.is_some()),
            (OptionName::DraftMinP, self.draft_min_p.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Returns the target's settings; missing ones are neutral.
    pub fn target(&self) -> Sampling {
        let neutral = Sampling::default();
        Sampling {
            temperature: self.temperature.unwrap_or(neutral.temperature),
            top_k: self.top_k.filter(is_limit),
            top_p: self.top_p.unwrap_or(neutral.top_p),
            min_p: self.min_p.unwrap_or(neutral.min_p),
        }
    }

    /// Returns the draft's settings; missing ones are taken from the target's.
    pub fn draft(&self) -> Sampling {
        self.draft_with_target(self.target())
    }

    /// Returns the draft's settings; missing ones are taken from `target`.
    pub fn draft_with_target(&self, target: Sampling) -> Sampling {
        Sampling {
            temperature: self.draft_temperature.unwrap_or(target.temperature),
            top_k: self.draft_top_k.or(target.top_k).filter(is_limit),
            top_p: self.draft_top_p.unwrap_or(target.top_p),
            min_p: self.draft_min_p.unwrap_or(target.min_p),
        }
    }

    /// Sets defaults for conversations, if no setting is given: temperature 0.7 and top-p 0.95.
    /// With neutral settings, unlikely tokens derail answers.
    pub fn or_chat_defaults(self) -> Self {
        match self {
            Self { temperature: None, top_k: None, top_p: None, min_p: None, .. } => {
                Self { temperature: Some(0.7), top_p: Some(0.95), ..self }
            }
            given => given,
        }
    }

    /// Returns the settings of each draft for several drafts, or several temperatures of one draft;
    /// otherwise an empty list.
    ///
    /// # Errors
    /// [`Usage`] for different numbers of temperatures and drafts.
    pub fn per_draft(&self, drafts: usize) -> Result<Vec<Sampling>> {
        let first = self.draft();
        let further = self.further_draft_temperatures.iter();
        let at = |temperature: &f64| Sampling { temperature: *temperature, ..first };
        let each: Vec<Sampling> = std::iter::once(first).chain(further.map(at)).collect();
        match (drafts, each.len()) {
            (1, 1) => Ok(Vec::new()),
            (_, 1) => Ok(vec![first; drafts]),
            (1, _) => Ok(each),
            (drafts, given) if drafts == given => Ok(each),
            (drafts, given) => Err(Usage::conflict(
                &[OptionName::Draft, OptionName::DraftTemperature],
                message![
                    OptionName::Draft,
                    format!(" is given {drafts} times, "),
                    OptionName::DraftTemperature,
                    format!(" has {given} numbers: give one for all, or one for each"),
                ],
            )),
        }
    }

    /// Sets missing settings to the published ones.
    pub fn or_published(self, published: &PublishedSampling) -> Self {
        Self {
            temperature: self.temperature.or(published.temperature),
            top_k: self.top_k.or(published.top_k),
            top_p: self.top_p.or(published.top_p),
            min_p: self.min_p.or(published.min_p),
            ..self
        }
    }
}
