//! One text, decoded: the one place where commands meet the decode loop.

use anyhow::Result;
use polydraft::{Chance, Sampling, Token};
use polydraft_engine::{Generation, Limits, Piece, Request};
use polydraft_text::Language;
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use crate::models::Models;
use crate::output::detail;
use crate::speculation::Speculation;

/// The generator of every command's random decisions: the same seed gives the same text.
pub type Random = ChaCha12Rng;

/// The generator of this seed.
pub fn random(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}

/// How to decode.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How the target's logits become the law of the text.
    pub sampling: Sampling,
    /// How to speculate; `None` is plain decoding.
    pub speculation: Option<Speculation>,
}

impl Settings {
    /// Says what they are to people who want to know.
    pub fn tell(&self) {
        let Sampling { temperature, top_k, top_p, min_p } = self.sampling;
        let top_k = top_k.map_or("all".to_owned(), |k| k.to_string());
        detail(format_args!(
            "sampling: temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}"
        ));
        match &self.speculation {
            None => detail("plain decoding"),
            Some(s) => detail(format_args!("verifier {}, {}", s.verifier, s.tree.describe())),
        }
    }
}

/// Decodes one text; `show` gets its pieces as they are decided, and says whether to go on.
///
/// # Errors
/// If the verifier does not fit the tree, or the prompt leaves no room.
pub fn decode(
    models: &mut Models,
    prompt: &[Token],
    settings: &Settings,
    limits: &Limits,
    random: &mut Random,
    show: &mut dyn FnMut(Piece) -> bool,
) -> Result<Generation> {
    let request = request(&models.language, prompt, settings, limits, random)?;
    Ok(models.engine.generate(request, show)?)
}

/// What the engine is asked for.
///
/// # Errors
/// Settings of the verifier or the tree out of range.
pub fn request<'c>(
    language: &Language,
    prompt: &[Token],
    settings: &Settings,
    limits: &Limits,
    rng: impl Chance + Send + 'c,
) -> Result<Request<'c>> {
    Ok(Request::new(prompt)
        .sampling(settings.sampling)
        .speculation(settings.speculation.as_ref().map(Speculation::build).transpose()?)
        .limits(limits.clone())
        .text(language.text.stream(prompt))
        .rng(rng))
}
