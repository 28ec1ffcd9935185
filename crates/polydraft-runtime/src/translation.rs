//! Drafts whose tokenizer is not the target's.

use polydraft_engine::{TranslatedVocabulary, Translation};
use polydraft_text::Language;

/// Least share of the smaller vocabulary that both must have: with less, nearly every drafted token
/// is the beginning of another.
const LEAST_SHARED: f64 = 0.2;

/// How two models' tokens stand for each other.
pub enum Translated {
    /// A translation that may pay.
    Yes(Translation),
    /// The share of common tokens is too small for that.
    TooFew(f64),
    /// The tokens of one of them are not pieces of a text.
    No,
}

/// Translates between the vocabularies of a target with this number of logits and of a draft.
pub fn translate(target: (&Language, usize), draft: (&Language, usize)) -> Translated {
    let (Some(target), Some(draft)) = (vocabulary(target), vocabulary(draft)) else {
        return Translated::No;
    };
    let translation = Translation::new(&target, &draft);
    match translation.shared() {
        shared if shared < LEAST_SHARED => Translated::TooFew(shared),
        _ => Translated::Yes(translation),
    }
}

fn vocabulary((language, size): (&Language, usize)) -> Option<TranslatedVocabulary> {
    let is_known = |token: &u32| (*token as usize) < size;
    let tokenizer = &language.tokenizer;
    Some(TranslatedVocabulary {
        pieces: tokenizer.pieces(size)?,
        ends: language.end_tokens.iter().copied().filter(is_known).collect(),
        begin: tokenizer.encode("").ok()?.first().copied().filter(is_known),
        special: tokenizer.special_tokens().filter(|(_, token)| is_known(token)).collect(),
    })
}
