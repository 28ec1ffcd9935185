//! One request: its text so far, how it is decoded, and where it ends.

use std::time::Duration;

use polydraft::race::{Clocks, Raced};
use polydraft::{Chance, Draft, DraftTree, NodeId, Policy, Sampling, Token, Verifier};

use crate::stop::StopScanner;
use crate::{Error, Processor, Result, Scored, Sequence, Statistics, Trace};

/// Turns token ids into text, one at a time.
pub trait TextStream: Send {
    /// Takes the next token; returns the text that is certain by now, in whole characters (it may
    /// be empty).
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

/// A text that is not asked for: tokens are enough.
pub struct NoText;

impl TextStream for NoText {
    fn push(&mut self, _: Token) -> Result<String> {
        Ok(String::new())
    }

    fn finish(&mut self) -> Result<String> {
        Ok(String::new())
    }
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

impl Limits {
    /// Whether a text would end with this node of a draft.
    pub(crate) fn end_at(&self, tree: &DraftTree, node: NodeId) -> bool {
        node != DraftTree::ROOT && self.end_tokens.contains(&tree.token(node))
    }
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Finish {
    /// The model emitted an end token.
    #[serde(rename = "end-token")]
    End,
    /// A stop string appeared.
    #[serde(rename = "stop-string")]
    Stop,
    /// The limit on tokens was reached.
    #[serde(rename = "max-tokens")]
    MaxTokens,
    /// The context is full.
    #[serde(rename = "context")]
    Context,
    /// The caller wanted no more.
    #[serde(rename = "stopped")]
    Stopped,
}

/// Where an emitted token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted, and accepted by the verifier.
    Accepted,
    /// Emitted in place of drafts that were rejected.
    Correction,
    /// Emitted behind the last draft, all of which were accepted; also where nothing was drafted.
    Bonus,
}

/// A decided token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitted {
    /// Its id.
    pub token: Token,
    /// Where it came from.
    pub origin: Origin,
}

/// A piece of text and where the token came from that completed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
}

/// How drafts are made and verified.
pub struct Speculation {
    /// What decides.
    pub verifier: Box<dyn Verifier>,
    /// Where the tree grows in every step. It is cut off near the end of the context and of the
    /// token limit.
    pub policy: Box<dyn Policy>,
    /// How the drafter's output becomes the distributions that drafts are drawn from. It changes
    /// the speed, never the text's law.
    pub sampling: Sampling,
}

impl Speculation {
    /// # Errors
    /// A verifier that is not exact for the policy's trees; sampling out of range.
    pub fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        Ok(self.verifier.supports(&self.policy.form())?)
    }
}

/// What is asked for.
pub struct Request<'c> {
    /// The tokens to continue.
    pub prompt: Vec<Token>,
    /// How the target's logits become the law of the text.
    pub sampling: Sampling,
    /// How to speculate; `None` is plain decoding, one token per pass.
    pub speculation: Option<Speculation>,
    /// When to stop.
    pub limits: Limits,
    /// How tokens become text.
    pub text: Box<dyn TextStream + 'c>,
    /// The random decisions; a seeded generator makes the text reproducible.
    pub chance: Box<dyn Chance + Send + 'c>,
}

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// All of it, up to the stop string if there was one.
    pub text: String,
    /// The tokens decided, up to the one that ended the text.
    pub tokens: Vec<Token>,
    /// Why it ended.
    pub finish: Finish,
    /// What it cost.
    pub statistics: Statistics,
}

/// What is told of a session besides its text.
#[derive(Default)]
pub(crate) struct Asides {
    /// How many of the likeliest tokens are told with every token.
    pub watched: Option<usize>,
    /// Of the tokens that the step at hand decides.
    pub scores_of_step: Vec<Scored>,
    pub scores: Vec<Scored>,
    /// How many tokens of each law are told with every step.
    pub traced: Option<usize>,
    pub trace_of_step: Option<Trace>,
    pub traces: Vec<Trace>,
    /// Nodes of the step at hand at which another rule decided.
    pub fallbacks_of_step: u64,
}

/// A session's source of decisions, with its clocks if it has them. `position` is the number of
/// tokens of its text.
pub(crate) fn with_clocks<T>(
    chance: &mut dyn Chance,
    clocks: &mut Option<Box<dyn Clocks>>,
    position: usize,
    decide: impl FnOnce(&mut dyn Chance) -> T,
) -> T {
    match clocks {
        Some(clocks) => decide(&mut Raced::new(chance, clocks.as_mut(), position)),
        None => decide(chance),
    }
}

/// One request at work. It is advanced by [`Engine::step`](crate::Engine::step) and pulled from in
/// between. It holds a sequence of each model until [`Engine::close`](crate::Engine::close): one
/// that is dropped instead keeps them.
///
/// ```
/// use polydraft::Sampling;
/// use polydraft_engine::{Engine, Finish, Limits, NoText, Request, TableModel};
/// use rand::SeedableRng;
///
/// let target = TableModel::from_json("coin", r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
/// let mut engine = Engine::new(Box::new(target), None);
/// let mut session = engine.open(Request {
///     prompt: vec![0],
///     sampling: Sampling::default(),
///     speculation: None,
///     limits: Limits { max_tokens: Some(3), ..Limits::default() },
///     text: Box::new(NoText),
///     chance: Box::new(rand_chacha::ChaCha8Rng::seed_from_u64(1)),
/// })?;
/// let mut taken = 0;
/// while !session.is_done() {
///     engine.step(&mut [&mut session])?;
///     taken += session.take_tokens().len();
/// }
/// assert_eq!((taken, session.finish()), (3, Some(Finish::MaxTokens)));
/// engine.close(session)?;
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
#[must_use = "a session is to be closed by its engine, or its sequences stay open"]
pub struct Session<'c> {
    pub(crate) target: Sequence,
    pub(crate) drafter: Option<Sequence>,
    pub(crate) sampling: Sampling,
    pub(crate) speculation: Option<Speculation>,
    pub(crate) chance: Box<dyn Chance + Send + 'c>,
    /// Clocks that target and draft share, if they are to.
    pub(crate) clocks: Option<Box<dyn Clocks>>,
    pub(crate) draft: Draft,
    pub(crate) statistics: Statistics,
    pub(crate) processor: Option<Box<dyn Processor>>,
    pub(crate) is_alone: bool,
    /// Texts in the last step, as its policy was told.
    pub(crate) among: usize,
    /// The same for the next step, if it is the last one once more.
    pub(crate) again: Option<usize>,
    /// Whether what a step decided is being taken: a panic then leaves half of it.
    pub(crate) is_taking: bool,
    pub(crate) asides: Asides,
    pub(crate) limits: Limits,
    stream: Box<dyn TextStream + 'c>,
    stops: StopScanner<Origin>,
    pub(crate) tokens: Vec<Token>,
    text: String,
    /// Decided and not taken yet.
    emitted: Vec<Emitted>,
    pieces: Vec<Piece>,
    last: Origin,
    finish: Option<Finish>,
    failure: Option<Error>,
}

impl<'c> Session<'c> {
    pub(crate) fn new(request: Request<'c>, target: Sequence, drafter: Option<Sequence>) -> Self {
        let Request { sampling, speculation, limits, text, chance, .. } = request;
        let stops = StopScanner::new(&limits.stop);
        let mut session = Self {
            target,
            drafter,
            sampling,
            speculation,
            chance,
            clocks: None,
            draft: Draft::new(),
            statistics: Statistics::default(),
            processor: None,
            is_alone: false,
            among: 1,
            again: None,
            is_taking: false,
            asides: Asides::default(),
            limits,
            stream: text,
            stops,
            tokens: Vec::new(),
            text: String::new(),
            emitted: Vec::new(),
            pieces: Vec::new(),
            last: Origin::Bonus,
            finish: None,
            failure: None,
        };
        if session.speculation.as_ref().is_some_and(|speculation| speculation.verifier.races()) {
            session.race();
        }
        if session.left() == 0 {
            session.end(Finish::MaxTokens);
        }
        session
    }

    /// Why it ended; `None` while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// What broke it, if something did: it ends there, and sessions beside it go on.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether nothing more will come.
    pub fn is_done(&self) -> bool {
        self.finish.is_some() || self.failure.is_some()
    }

    /// The tokens decided so far.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// What it cost so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The tokens decided since the last time, and where each came from.
    pub fn take_tokens(&mut self) -> Vec<Emitted> {
        std::mem::take(&mut self.emitted)
    }

    /// Changes the target's logits from now on; the text then has the law of plain decoding with
    /// the same changes.
    pub fn process(&mut self, processor: Box<dyn Processor>) {
        self.processor = Some(processor);
    }

    /// From now on its trees are what they would be without neighbours: trees that choose
    /// themselves else give way to other texts in a pass, which leaves a text its law, but not the
    /// same text for the same random decisions.
    pub fn as_if_alone(&mut self) {
        self.is_alone = true;
    }

    /// To be called before the first step: decides by clocks ([`polydraft::race`]) that follow from
    /// the chance. A session whose verifier goes by clocks has them anyway; plain decoding with
    /// them has the same text as these, if the chance is the same.
    pub fn race(&mut self) {
        if self.clocks.is_none() {
            self.clocks = Some(self.chance.clocks());
        }
    }

    /// From now on every step is kept for [`take_traces`](Self::take_traces), with the `top`
    /// likeliest tokens of each law. It costs a law for every node.
    pub fn trace(&mut self, top: usize) {
        self.asides.traced = Some(top);
    }

    /// The steps since the last time.
    pub fn take_traces(&mut self) -> Vec<Trace> {
        std::mem::take(&mut self.asides.traces)
    }

    /// From now on every token's log-probability is kept for [`take_scores`](Self::take_scores),
    /// with the `top` likeliest in its place: of the target's own distribution at temperature 1, as
    /// [`score`](crate::score()) would say afterwards, at no further pass.
    pub fn watch_scores(&mut self, top: usize) {
        self.asides.watched = Some(top);
    }

    /// The scores of the tokens decided since the last time.
    pub fn take_scores(&mut self) -> Vec<Scored> {
        std::mem::take(&mut self.asides.scores)
    }

    /// The text that has become certain since the last time.
    pub fn take_pieces(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    /// Ends it here: the caller wants no more.
    pub fn stop(&mut self) {
        if !self.is_done() {
            self.end(Finish::Stopped);
        }
    }

    /// How many more tokens the limit allows.
    pub(crate) fn left(&self) -> usize {
        self.limits.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.tokens.len()))
    }

    /// How many of these tokens there are up to one that ends the text, that one included.
    pub(crate) fn up_to_end(&self, tokens: &[Token]) -> usize {
        let end = tokens.iter().position(|token| self.limits.end_tokens.contains(token));
        end.map_or(tokens.len(), |end| end + 1)
    }

    pub(crate) fn fail(&mut self, error: impl Into<Error>) {
        self.failure = Some(error.into());
    }

    /// Takes the tokens of one step; `room` is what the context holds after them.
    pub(crate) fn emit(&mut self, decided: impl IntoIterator<Item = Emitted>, room: usize) {
        let mut scores = std::mem::take(&mut self.asides.scores_of_step).into_iter();
        for emitted in decided {
            self.tokens.push(emitted.token);
            self.asides.scores.extend(scores.next());
            self.emitted.push(emitted);
            self.last = emitted.origin;
            if self.limits.end_tokens.contains(&emitted.token) {
                return self.end(Finish::End);
            }
            match self.stream.push(emitted.token) {
                Ok(text) if self.pass(&text) => return self.finish = Some(Finish::Stop),
                Ok(_) => {}
                Err(error) => return self.fail(error),
            }
        }
        if self.left() == 0 {
            self.end(Finish::MaxTokens);
        } else if room == 0 {
            self.end(Finish::Context);
        }
    }

    /// Lets text through as far as no stop string can begin there; whether one was completed.
    fn pass(&mut self, text: &str) -> bool {
        let (pieces, stopped) = self.stops.push(text, self.last);
        self.show(pieces);
        stopped
    }

    fn show(&mut self, pieces: Vec<(String, Origin)>) {
        for (text, origin) in pieces {
            self.text.push_str(&text);
            self.pieces.push(Piece { text, origin });
        }
    }

    /// Ends the text, and shows what was held back.
    fn end(&mut self, finish: Finish) {
        self.finish = Some(finish);
        match self.stream.finish() {
            Ok(text) if self.pass(&text) => self.finish = Some(Finish::Stop),
            Ok(_) => {
                let rest = self.stops.finish();
                self.show(rest);
            }
            Err(error) => self.fail(error),
        }
    }

    /// The whole of it.
    pub(crate) fn into_generation(mut self) -> Result<Generation> {
        let policy = self.speculation.as_ref().map(|speculation| speculation.policy.as_ref());
        self.statistics.choices = policy.and_then(|policy| policy.choices()).cloned();
        match self.failure {
            Some(error) => Err(error),
            None => Ok(Generation {
                text: self.text,
                tokens: self.tokens,
                finish: self.finish.unwrap_or(Finish::Stopped),
                statistics: self.statistics,
            }),
        }
    }

    /// Adds up time in which this session was at work.
    pub(crate) fn worked(&mut self, time: Duration) {
        self.statistics.total_time += time;
    }
}
