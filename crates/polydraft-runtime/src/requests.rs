//! One request, from settings to the decode loop.

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

/// The rng of all random decisions: the same seed gives the same output.
pub type SeededRng = ChaCha12Rng;

/// The rng of this seed.
pub fn seeded(seed: u64) -> SeededRng {
    SeededRng::seed_from_u64(seed)
}

/// A number that nobody can know before, for seeds and names, of the system's own rng.
///
/// # Panics
/// The system has none: not on those that Rust's standard library is for.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    UnwrapErr(SysRng).random()
}

/// How to decode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How the target's logits become the sampled distribution.
    pub sampling: Sampling,
    /// How to speculate; none is plain decoding.
    pub speculation: Option<Speculation>,
}

impl Settings {
    /// Describes the settings in a detail message.
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

    /// The engine's request.
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
    /// Decodes one sequence; `show` gets its pieces as they are decided, and returns whether to go
    /// on.
    ///
    /// # Errors
    /// If the verifier does not fit the tree, or the prompt fills the context.
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
