//! Requests to the engine, made from settings.

use anyhow::Result;
use polydraft::{RandomSource, Sampling, Token};
use polydraft_engine::{Generation, Limits, OutputChunk, Request};
use polydraft_text::Language;
use rand::distr::{Distribution, StandardUniform};
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde::{Deserialize, Serialize};

use crate::listen::Listener;
use crate::models::Models;
use crate::speculation::Speculation;

/// Rng of all random decisions: the same seed gives the same output.
pub type SeededRng = ChaCha12Rng;

/// Creates the rng with this seed.
pub fn seeded(seed: u64) -> SeededRng {
    SeededRng::seed_from_u64(seed)
}

/// Returns an unpredictable number from the system's rng, for seeds and names.
///
/// # Panics
/// If the system's rng fails; every system that Rust's standard library supports has one.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    UnwrapErr(SysRng).random()
}

/// Settings of decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Sampling of the target.
    pub sampling: Sampling,
    /// Speculation; `None` is plain decoding.
    pub speculation: Option<Speculation>,
}

impl Settings {
    /// Reports the settings as detail messages.
    pub fn report(&self, listener: &dyn Listener) {
        let Sampling { temperature, top_k, top_p, min_p } = self.sampling;
        let top_k = top_k.map_or("all".to_owned(), |k| k.to_string());
        let sampling = format!(
            "sampling: temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}"
        );
        listener.detail(&sampling.into());
        let speculation = match &self.speculation {
            None => "plain decoding".to_owned(),
            Some(s) => format!("verifier {}, {}", s.verifier, s.tree.describe()),
        };
        listener.detail(&speculation.into());
    }

    /// Creates the engine's request.
    ///
    /// # Errors
    /// Settings of the verifier or the tree out of range.
    pub fn request<'c>(
        &self,
        language: &Language,
        prompt: &[Token],
        limits: &Limits,
        rng: impl RandomSource + Send + 'c,
    ) -> Result<Request<'c>> {
        Ok(Request::new(prompt)
            .sampling(self.sampling)
            .speculation(self.speculation.as_ref().map(Speculation::build).transpose()?)
            .limits(limits.clone())
            .detokenizer(language.tokenizer.stream(prompt))
            .rng(rng))
    }
}

impl Models {
    /// Decodes one sequence; `show` gets each chunk as soon as it is decided, and returns whether
    /// to continue.
    ///
    /// # Errors
    /// A verifier that does not support the tree; a prompt that fills the context.
    pub fn decode(
        &mut self,
        prompt: &[Token],
        settings: &Settings,
        limits: &Limits,
        rng: &mut SeededRng,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<Generation> {
        let request = settings.request(&self.language, prompt, limits, rng)?;
        Ok(self.engine.generate(request, show)?)
    }
}
