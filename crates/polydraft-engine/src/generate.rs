//! From a prompt to a finished text: the loop with its limits, stop strings and a stream of text.

use std::time::Instant;

use polydraft::{Chance, Token};

use crate::decode::Origin;
use crate::stop::StopScanner;
use crate::{Decoder, Result, Statistics};

/// Turns token ids into text, one at a time.
pub trait TextStream {
    /// Takes the next token; returns the text that is certain by now, in whole characters (it may be empty).
    ///
    /// # Errors
    /// An id that has no text.
    fn push(&mut self, token: Token) -> Result<String>;

    /// What is left at the end, where bytes that make no character become U+FFFD.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    fn finish(&mut self) -> Result<String>;
}

/// When to stop.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Tokens to emit at most; `None` is up to the context's end.
    pub max_tokens: Option<usize>,
    /// Tokens that end the text. They have no text of their own.
    pub end_tokens: Vec<Token>,
    /// Strings that end the text and are not part of it.
    pub stop: Vec<String>,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model emitted an end token.
    EndToken,
    /// A stop string appeared.
    StopString,
    /// The limit on tokens was reached.
    MaxTokens,
    /// The context is full.
    Context,
}

/// A piece of text and where the token came from that completed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
}

/// A finished text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// All pieces in one, up to the stop string if there was one.
    pub text: String,
    /// The tokens decided, up to the one that ended the text.
    pub tokens: Vec<Token>,
    /// Why it ended.
    pub finish: Finish,
    /// What it cost.
    pub statistics: Statistics,
}

impl Generation {
    /// Continues `prompt` until a limit is reached, and shows every piece of text as soon as it is decided.
    ///
    /// `show` returns whether to go on; if it does not, the generation ends as if at its limit.
    ///
    /// # Errors
    /// A prompt that leaves no room; failures of a model or of `text`.
    pub fn run(
        decoder: &mut Decoder,
        prompt: &[Token],
        limits: &Limits,
        text: &mut dyn TextStream,
        chance: &mut dyn Chance,
        show: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<Self> {
        let mut statistics = Statistics::default();
        let clock = Instant::now();
        decoder.start(prompt)?;
        statistics.prompt_time = clock.elapsed();

        let clock = Instant::now();
        let mut output =
            Output { stops: StopScanner::new(&limits.stop), text: String::new(), show, open: true };
        let mut tokens = Vec::new();
        let mut last = Origin::Bonus;
        let mut finish = 'text: loop {
            let left = limits.max_tokens.map_or(usize::MAX, |max| max - tokens.len());
            if left == 0 || !output.open {
                break Finish::MaxTokens;
            }
            let room = decoder.room();
            if room == 0 {
                break Finish::Context;
            }
            let step = decoder.step(left.min(room), chance)?;
            statistics.record(&step);
            for emitted in step.emitted {
                tokens.push(emitted.token);
                last = emitted.origin;
                if limits.end_tokens.contains(&emitted.token) {
                    break 'text Finish::EndToken;
                }
                if output.push(&text.push(emitted.token)?, last) {
                    break 'text Finish::StopString;
                }
            }
        };
        statistics.tokens = tokens.len();
        statistics.total_time = clock.elapsed();
        if finish != Finish::StopString {
            if output.push(&text.finish()?, last) {
                finish = Finish::StopString;
            }
            output.finish();
        }
        Ok(Self { text: output.text, tokens, finish, statistics })
    }
}

/// The text that has passed the stop strings.
struct Output<'a> {
    stops: StopScanner<Origin>,
    text: String,
    show: &'a mut dyn FnMut(Piece) -> bool,
    open: bool,
}

impl Output<'_> {
    /// Whether a stop string was completed.
    fn push(&mut self, text: &str, origin: Origin) -> bool {
        let (pieces, stopped) = self.stops.push(text, origin);
        self.pass(pieces);
        stopped
    }

    fn finish(&mut self) {
        let pieces = self.stops.finish();
        self.pass(pieces);
    }

    fn pass(&mut self, pieces: Vec<(String, Origin)>) {
        for (text, origin) in pieces {
            self.text.push_str(&text);
            self.open = self.open && (self.show)(Piece { text, origin });
        }
    }
}
