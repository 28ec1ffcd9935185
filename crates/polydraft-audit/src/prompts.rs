//! Prompts of the requests.
//!
//! The power of a test depends on the uncertainty of the model: where it is certain there is
//! nothing to observe, and where it is very uncertain no prefix occurs twice. So there are several
//! prompts of each kind, and the audit chooses those whose continuations lie between these
//! extremes.

/// Kinds of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Ordinary text.
    Plain,
    /// Repetitive text, on which drafts from the text's own past are accepted.
    Repeating,
    /// Noise, on which drafts fail.
    Hard,
}

/// Returns the candidate prompts of a kind.
pub fn candidates(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Plain => &[
            "The capital of France is",
            "Once upon a time, there was a little",
            "She opened the door and",
            "fn main() {\n    let mut",
            "Yes or no? Answer:",
            "1, 2, 3, 4, 5,",
            "Dear Sir or Madam,\n\nI am writing to",
            "The weather today is very",
        ],
        Kind::Repeating => &[
            "heads tails tails heads heads tails heads tails tails heads tails heads heads",
            "red, blue, red, green, blue, red, green, green, blue, red, blue, green,",
            "0 1 1 0 1 0 0 1 1 1 0 0 1 0 1 1 0 0 0 1 0 1 1 1 0",
            "a b a a b b a b a a b a b b a a b a b b b a",
        ],
        Kind::Hard => &["qz vxk 7f wub jj% kd", "}{ ;; (0x9f) <<~ &", "ylp grnd oeu bvat 44 zzq"],
    }
}
