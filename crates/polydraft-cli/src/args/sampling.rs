//! Sampling options, for the target and, prefixed, for the draft.

use clap::Args;
use polydraft::Sampling;
use polydraft_runtime::SamplingOptions;

use crate::output::note;

/// Options for sampling.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divide the logits by T; 0 always takes the most likely token [default: 1].
    #[arg(long, short = 't', value_name = "T", value_parser = temperature)]
    temperature: Option<f64>,
    /// Keep only the K most likely tokens; -1 keeps all.
    #[arg(long, value_name = "K", value_parser = top_k)]
    top_k: Option<usize>,
    /// Keep the most likely tokens whose probabilities add up to P [default: 1].
    #[arg(long, value_name = "P", value_parser = top_p)]
    top_p: Option<f64>,
    /// Keep tokens at least P times as likely as the most likely one [default: 0].
    #[arg(long, value_name = "P", value_parser = min_p)]
    min_p: Option<f64>,
    /// Temperature of the draft.
    ///
    /// The draft's sampling settings change the speed, never the distribution of the output; each
    /// of the four defaults to the target's. Several values, such as 0.6,1.2, draw one path each,
    /// which needs a verifier for distinct drafts: specinfer or walk:naive.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "T,..",
        value_delimiter = ',',
        value_parser = temperature,
    )]
    draft_temperature: Vec<f64>,
    /// Like --top-k, for the draft.
    #[arg(hide_short_help = true, long, value_name = "K", value_parser = top_k)]
    draft_top_k: Option<usize>,
    /// Like --top-p, for the draft.
    #[arg(hide_short_help = true, long, value_name = "P", value_parser = top_p)]
    draft_top_p: Option<f64>,
    /// Like --min-p, for the draft.
    #[arg(hide_short_help = true, long, value_name = "P", value_parser = min_p)]
    draft_min_p: Option<f64>,
}

impl SamplingArgs {
    /// Returns the options as a description. Notes a temperature that no client can ask for, since
    /// `-t` is the number of threads elsewhere.
    pub fn options(&self) -> SamplingOptions {
        if let Some(high) = self.temperature.filter(|temperature| *temperature > 2.0) {
            note(format_args!("-t {high} is the temperature; for threads: --threads {high}"));
        }
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            draft_temperature: self.draft_temperature.first().copied(),
            further_draft_temperatures: self.draft_temperature.iter().skip(1).copied().collect(),
            draft_top_k: self.draft_top_k,
            draft_top_p: self.draft_top_p,
            draft_min_p: self.draft_min_p,
        }
    }
}

/// Parses one field; `Sampling::validate` checks its range.
fn field<T: std::str::FromStr>(
    text: &str,
    set: impl FnOnce(&mut Sampling, T),
    value: impl FnOnce(&Sampling) -> T,
) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    let mut sampling = Sampling::default();
    set(&mut sampling, text.parse().map_err(|e: T::Err| e.to_string())?);
    sampling.validate().map_err(|e| e.to_string())?;
    Ok(value(&sampling))
}

fn temperature(text: &str) -> Result<f64, String> {
    field(text, |s, v| s.temperature = v, |s| s.temperature)
}

/// Parses a seed.
pub fn seed(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| "expected an integer from 0 to 2^64 - 1".to_owned())
}

fn top_k(text: &str) -> Result<usize, String> {
    // No vocabulary has as many tokens.
    if text.trim() == "-1" {
        return Ok(usize::MAX);
    }
    field(text, |s, v| s.top_k = Some(v), |s| s.top_k.unwrap_or_default())
}

fn top_p(text: &str) -> Result<f64, String> {
    field(text, |s, v| s.top_p = v, |s| s.top_p)
}

fn min_p(text: &str) -> Result<f64, String> {
    field(text, |s, v| s.min_p = v, |s| s.min_p)
}
