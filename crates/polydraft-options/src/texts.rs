//! One text, decoded: the one place where commands meet the decode loop.

use anyhow::Result;
use polydraft::{Token, Verifier};
use polydraft_candle::Loaded;
use polydraft_engine::{Decoder, Generation, Limits, Model, Piece, Settings};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

/// The generator of every command's random decisions: the same seed gives the same text.
pub type Random = ChaCha12Rng;

/// The generator of this seed.
pub fn random(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}

/// What is to be decoded, and how.
pub struct Request<'a> {
    /// The tokens to continue.
    pub prompt: &'a [Token],
    /// Sampling, verifier and tree.
    pub settings: Settings,
    /// A verifier in the place of the one that `settings` names, such as one with a planted fault.
    pub verifier: Option<Box<dyn Verifier>>,
    /// Where the text ends.
    pub limits: &'a Limits,
}

/// Decodes one text; `show` gets its pieces as they are decided, and says whether to go on.
///
/// # Errors
/// If the draft does not fit the target, the verifier does not fit the tree, or the prompt leaves no room.
pub fn decode(
    target: &mut Loaded,
    draft: Option<&mut Loaded>,
    request: Request,
    random: &mut Random,
    show: &mut dyn FnMut(Piece) -> bool,
) -> Result<Generation> {
    let Request { prompt, settings, verifier, limits } = request;
    let draft = draft.map(|draft| &mut draft.model as &mut dyn Model);
    let mut decoder = match verifier {
        Some(verifier) => Decoder::with_verifier(&mut target.model, draft, settings, verifier)?,
        None => Decoder::new(&mut target.model, draft, settings)?,
    };
    let mut text = target.text.stream(prompt);
    Ok(Generation::run(&mut decoder, prompt, limits, &mut text, random, show)?)
}
