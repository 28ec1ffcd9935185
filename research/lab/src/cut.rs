//! `--top-k` and `--top-p` of measurements that have their own temperatures.

use anyhow::Result;
use clap::Args;
use polydraft::Sampling;
use polydraft_cli::usage::UsageError;
use polydraft_runtime::SamplingOptions;

/// Restriction of sampling to the likeliest tokens.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct CutArgs {
    /// Keep only the K likeliest tokens, of target and draft.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens that together reach probability P, of target and draft
    /// [default: 1].
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
}

/// Rejects several draft temperatures: here all tokens of a node come from one distribution.
///
/// # Errors
/// More than one draft temperature.
pub fn one_draft(options: &SamplingOptions) -> Result<()> {
    match options.per_draft(1)?.is_empty() {
        true => Ok(()),
        false => {
            Err(UsageError::error("expected one --draft-temperature: one draft is measured here"))
        }
    }
}

impl CutArgs {
    /// Returns the sampling settings at a temperature.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn at(self, temperature: f64) -> Result<Sampling> {
        let sampling = self.sampling(temperature);
        sampling.validate().map_err(UsageError::error)?;
        Ok(sampling)
    }

    /// Returns the sampling settings without checking them.
    pub fn sampling(self, temperature: f64) -> Sampling {
        let neutral = Sampling::default();
        let Self { top_k, top_p } = self;
        Sampling { temperature, top_k, top_p: top_p.unwrap_or(neutral.top_p), ..neutral }
    }
}
