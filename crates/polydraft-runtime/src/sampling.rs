//! Options of sampling.

use anyhow::Result;
use polydraft::Sampling;
use polydraft_text::PublishedSampling;
use serde::{Deserialize, Serialize};

use crate::message::{OptionName, message};
use crate::usage::Usage;

/// Sampling settings of target and draft; those that are not given are the model's published ones,
/// or neutral.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: Option<f64>,
    /// Keeps only so many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Keeps the likeliest tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Keeps the tokens at least so many times as likely as the likeliest.
    pub min_p: Option<f64>,
    /// The draft's temperature; like the next three the target's where it is not given.
    pub draft_temperature: Option<f64>,
    /// Temperatures of further drafts of the same model: each draws a path of its own.
    pub further_draft_temperatures: Vec<f64>,
    /// The draft's `top_k`.
    pub draft_top_k: Option<usize>,
    /// The draft's `top_p`.
    pub draft_top_p: Option<f64>,
    /// The draft's `min_p`.
    pub draft_min_p: Option<f64>,
}

impl SamplingOptions {
    /// The first of the draft's options that was given.
    pub fn given_draft_option(&self) -> Option<OptionName> {
        let given = [
            (OptionName::DraftTemperature, self.draft_temperature.is_some()),
            (OptionName::DraftTopK, self.draft_top_k.is_some()),
            (OptionName::DraftTopP, self.draft_top_p.is_some()),
            (OptionName::DraftMinP, self.draft_min_p.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// The target's settings, neutral where nothing was given.
    pub fn target(&self) -> Sampling {
        let neutral = Sampling::default();
        Sampling {
            temperature: self.temperature.unwrap_or(neutral.temperature),
            top_k: self.top_k,
            top_p: self.top_p.unwrap_or(neutral.top_p),
            min_p: self.min_p.unwrap_or(neutral.min_p),
        }
    }

    /// The draft's settings, the target's where nothing was given.
    pub fn draft(&self) -> Sampling {
        self.draft_with_target(self.target())
    }

    /// The draft's settings, those of the target where nothing was given.
    pub fn draft_with_target(&self, target: Sampling) -> Sampling {
        Sampling {
            temperature: self.draft_temperature.unwrap_or(target.temperature),
            top_k: self.draft_top_k.or(target.top_k),
            top_p: self.draft_top_p.unwrap_or(target.top_p),
            min_p: self.draft_min_p.unwrap_or(target.min_p),
        }
    }

    /// For conversations with a model whose makers say nothing: cooler than its own distribution,
    /// in which unlikely tokens lead answers astray. Nothing changes where a setting is given.
    pub fn or_chat_defaults(self) -> Self {
        match self {
            Self { temperature: None, top_k: None, top_p: None, min_p: None, .. } => {
                Self { temperature: Some(0.7), top_p: Some(0.95), ..self }
            }
            given => given,
        }
    }

    /// The settings of each draft where there are several of the target's `drafts`, or several
    /// temperatures of one; else none.
    ///
    /// # Errors
    /// [`Usage`] for other numbers of temperatures than of drafts.
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

    /// The published settings, where none are given.
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
