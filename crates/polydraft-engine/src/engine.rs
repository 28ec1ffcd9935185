//! The decode loop: propose, score, verify, commit.

mod bookkeeping;
mod forced;
mod growth;

use polydraft::policy::{Costs, StepContext};
use polydraft::{Chance, Distribution, DraftTree, NodeId, Outcome, PolicyKind, Token, race};

use crate::costs;
use crate::laws::{Changed, Pool, StepLaws};
use crate::session::with_clocks;
use crate::{
    Drafter, Error, Facts, Generation, Model, Piece, Reads, Request, Result, Scored, Session,
    Speculation, Trace,
};
use bookkeeping::{Clock, record};
use growth::{depth, frontier, grow};

/// A target, what drafts for it, and any number of sessions.
///
/// ```
/// use polydraft::{PolicyKind, Sampling, VerifierKind};
/// use polydraft_engine::{Engine, Limits, ModelDrafter, NoText, Request, Speculation, TableModel};
/// use rand::SeedableRng;
///
/// let table = |json| TableModel::from_json("example", json);
/// let target = table(r#"{"vocabulary": 2, "next": {"": [0.9, 0.1], "0": [0.2, 0.8]}}"#)?;
/// let draft = table(r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
/// let drafter = ModelDrafter::new(Box::new(draft), &target.facts().vocabulary)?;
/// let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
///
/// let verifier: VerifierKind = "nested-priority".parse()?;
/// let generation = engine.generate(
///     Request {
///         prompt: vec![1],
///         sampling: Sampling::default(),
///         speculation: Some(Speculation {
///             verifier: verifier.build()?,
///             policy: PolicyKind::paths(2, 3).build()?,
///             sampling: Sampling::default(),
///         }),
///         limits: Limits { max_tokens: Some(20), ..Limits::default() },
///         text: Box::new(NoText),
///         chance: Box::new(rand_chacha::ChaCha8Rng::seed_from_u64(1)),
///     },
///     &mut |_| true,
/// )?;
/// assert_eq!(generation.tokens.len(), 20);
/// assert!(generation.statistics.target_calls < 20);
/// # use polydraft_engine::Model;
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub struct Engine {
    target: Box<dyn Model>,
    drafter: Option<Box<dyn Drafter>>,
    pool: Pool,
}

/// Tokens of a prompt that are computed between two looks at the clock.
const PROMPT_CHUNK: usize = 4096;

impl Engine {
    /// Without a drafter there is plain decoding only.
    pub fn new(target: Box<dyn Model>, mut drafter: Option<Box<dyn Drafter>>) -> Self {
        if let Some(drafter) = &mut drafter {
            drafter.meet(target.as_ref());
        }
        Self { target, drafter, pool: Pool::default() }
    }

    /// What is known of the target.
    pub fn facts(&self) -> &Facts {
        self.target.facts()
    }

    /// The target itself, for those who want its logits.
    pub fn target(&mut self) -> &mut dyn Model {
        self.target.as_mut()
    }

    /// The drafter's name, if there is one.
    pub fn drafter(&self) -> Option<&str> {
        self.drafter.as_ref().map(|drafter| drafter.name())
    }

    /// Bytes that what target and drafter keep of one token takes, about.
    pub fn token_bytes(&self) -> u64 {
        self.target.token_bytes() + self.drafter.as_ref().map_or(0, |drafter| drafter.token_bytes())
    }

    /// Sessions that may be open at once: as many as target and drafter can hold.
    pub fn sequences(&self) -> usize {
        let drafter = self.drafter.as_ref().map_or(usize::MAX, |drafter| drafter.sequences());
        self.target.facts().sequences.min(drafter)
    }

    /// How many tokens of a text drafts can follow, if there is a drafter.
    pub fn draft_context(&self) -> Option<usize> {
        self.drafter.as_ref().map(|drafter| drafter.context())
    }

    /// Tokens that all texts may hold together, where target or drafter has taken memory for so
    /// many beforehand.
    pub fn room(&self) -> Option<usize> {
        let drafter = self.drafter.as_ref().and_then(|drafter| drafter.room());
        self.target.room().into_iter().chain(drafter).min()
    }

    /// Whether there is room for a prompt, and something behind it.
    ///
    /// # Errors
    /// A prompt that fills the context, or an empty one where the target needs a token.
    pub fn admits(&self, prompt: &[Token]) -> Result<()> {
        let Facts { context, begins, .. } = self.target.facts();
        if prompt.len() >= *context {
            return Err(Error::PromptTooLong { prompt: prompt.len(), context: *context });
        }
        if prompt.is_empty() && !begins {
            return Err(Error::EmptyPrompt);
        }
        Ok(())
    }

    /// What steps cost here, and what to expect of drafts, in texts that begin with `text`; with
    /// none in made-up ones, where drafts may be worse than elsewhere. `request` makes requests of
    /// a prompt and a policy: their sampling and their verifier are what is measured. Sessions that
    /// are open go on as if nothing had been.
    ///
    /// # Errors
    /// No drafter; failures of the models; requests that are refused.
    pub fn costs(
        &mut self,
        text: &[Token],
        request: &mut dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>>,
    ) -> Result<Costs> {
        let Some(drafter) = &self.drafter else { return no_drafter() };
        let follows = drafter.reads() == Reads::Kept;
        Ok(Costs { follows, ..costs::measure(self, text, request)? })
    }

    /// Begins a session. Nothing is computed yet.
    ///
    /// # Errors
    /// A prompt that fills the context, or an empty one where the target needs a token; a token
    /// outside the vocabulary; settings out of range; a verifier that is not exact for the tree;
    /// speculation without a drafter; as many sessions as the models can hold.
    pub fn open<'c>(&mut self, request: Request<'c>) -> Result<Session<'c>> {
        request.sampling.validate()?;
        self.admits(&request.prompt)?;
        let drafter = match (&request.speculation, &mut self.drafter) {
            (None, _) => None,
            (Some(speculation), Some(drafter)) => {
                speculation.validate()?;
                Some(drafter)
            }
            (Some(_), None) => return no_drafter(),
        };
        let sequence = self.target.open()?;
        let opened = self.target.extend(sequence, &request.prompt).and_then(|()| {
            drafter.map(|drafter| begin(drafter.as_mut(), &request.prompt)).transpose()
        });
        match opened {
            Ok(drafter) => Ok(Session::new(request, sequence, drafter)),
            Err(error) => {
                self.target.close(sequence);
                Err(error)
            }
        }
    }

    /// Computes at most so many tokens of a session's prompt, by target and drafter; returns how
    /// many are left. The first [`step`](Self::step) does what was not done.
    ///
    /// # Errors
    /// Failures of a model.
    pub fn prepare(&mut self, session: &mut Session, most: usize) -> Result<usize> {
        let clock = Clock::start();
        let mut left = self.target.prepare(session.target, most)?;
        // What reads what the target keeps has nothing to prepare, and would only make the target
        // copy what both hold.
        if self.drafter.as_ref().is_some_and(|drafter| drafter.reads() != Reads::Kept) {
            self.show(session, left)?;
        }
        if let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) {
            left = left.max(drafter.prepare(sequence, most)?);
        }
        session.statistics.prompt_time += clock.elapsed();
        Ok(left)
    }

    /// Decides at least one token for each session that is not done, in one pass of the target for
    /// all of them; before that, what is certain without one.
    ///
    /// What goes wrong in one session alone ends that one, see [`Session::failure`].
    ///
    /// # Errors
    /// Failures of a model for all of them: no session has changed but by what was certain. The
    /// step may be tried again, with generators put back to where they were before it: whether a
    /// model fails may depend on what was drawn, and other random decisions until it does not would
    /// be decisions under that condition. [`restore`](Self::restore) sees to the rest.
    pub fn step(&mut self, sessions: &mut [&mut Session]) -> Result<()> {
        let mut open: Vec<&mut Session> = sessions
            .iter_mut()
            .map(|session| &mut **session)
            .filter(|session| !session.is_done())
            .collect();
        let (mut clock, texts) = (Clock::start(), open.len());
        for session in &mut open {
            session.among =
                if session.is_alone { 1 } else { session.again.take().unwrap_or(texts) };
        }
        self.force(&mut open);
        open.retain(|session| !session.is_done());
        let scored = self.propose(&mut open).and_then(|()| {
            clock.drafted();
            open.retain(|session| !session.is_done());
            self.score(&open)
        });
        if let Err(error) = scored {
            self.forget_trees(&open)?;
            return Err(error);
        }
        clock.scored();
        let mut outcomes = self.verify(&mut open);
        clock.verified();
        self.commit(&mut open, &mut outcomes, &mut clock);
        record(&mut open, &outcomes, clock, |sequence| {
            self.target.facts().context.saturating_sub(self.target.len(sequence))
        });
        Ok(())
    }

    /// After a failure: what was scored of a tree must not be taken for the next one.
    fn forget_trees(&mut self, sessions: &[&mut Session]) -> Result<()> {
        for session in sessions {
            self.target.extend(session.target, &[])?;
            if let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) {
                drafter.extend(sequence, &[])?;
            }
        }
        Ok(())
    }

    /// Shows a drafter that reads what the target computes that of what is decided; `left` tokens
    /// before the last are not computed yet.
    fn show(&mut self, session: &Session, left: usize) -> Result<()> {
        let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) else {
            return Ok(());
        };
        if drafter.reads() == Reads::Tokens {
            return Ok(());
        }
        let known = self.target.len(session.target).saturating_sub(1 + left);
        drafter.read(sequence, self.target.as_ref(), session.target, known)
    }

    /// Draws every session's tree, level by level, each level from one pass of the drafter.
    fn propose(&mut self, sessions: &mut [&mut Session]) -> Result<()> {
        for session in sessions.iter_mut() {
            session.draft.clear(&mut self.pool.spare());
            if let Some(speculation) = &mut session.speculation {
                speculation.policy.begin_step(&StepContext {
                    batch_size: session.among,
                    context_length: self.target.len(session.target),
                });
            }
        }
        let Some(drafter) = &self.drafter else { return Ok(()) };
        let reads = drafter.reads();
        let depths: Vec<usize> = sessions
            .iter()
            .map(|session| depth(session, self.target.as_ref(), drafter.as_ref()))
            .collect();
        for (session, &depth) in sessions.iter().zip(&depths) {
            if depth > 0 && reads != Reads::Tokens {
                while self.target.prepare(session.target, PROMPT_CHUNK)? > 0 {}
                self.show(session, 0)?;
            }
        }
        let Some(drafter) = &mut self.drafter else { return Ok(()) };
        // The nodes that are not asked yet, by session.
        let mut asked = vec![0; sessions.len()];
        loop {
            let frontiers: Vec<Vec<NodeId>> = sessions
                .iter()
                .zip(&depths)
                .zip(&mut asked)
                .map(|((session, &depth), asked)| frontier(session, asked, depth))
                .collect();
            let batch: Vec<_> = sessions
                .iter()
                .zip(&frontiers)
                .filter(|(_, nodes)| !nodes.is_empty())
                .filter_map(|(session, _)| Some((session.drafter?, session.draft.tree())))
                .collect();
            if batch.is_empty() {
                return Ok(());
            }
            drafter.score(&batch)?;
            for (session, nodes) in sessions.iter_mut().zip(&frontiers) {
                if let Err(error) = grow(session, nodes, drafter.as_ref(), &self.pool) {
                    session.fail(error);
                }
            }
        }
    }

    fn score(&mut self, sessions: &[&mut Session]) -> Result<()> {
        let batch: Vec<_> =
            sessions.iter().map(|session| (session.target, session.draft.tree())).collect();
        if batch.is_empty() { Ok(()) } else { self.target.score(&batch) }
    }

    /// What each session emits; none where it failed.
    fn verify(&mut self, sessions: &mut [&mut Session]) -> Vec<Option<Outcome>> {
        sessions
            .iter_mut()
            .map(|session| {
                let Session {
                    target,
                    sampling,
                    speculation,
                    draft,
                    chance,
                    clocks,
                    tokens,
                    processor,
                    asides,
                    limits,
                    ..
                } = &mut **session;
                let nodes = 0..draft.tree().len();
                let logits = nodes.map(|node| self.target.logits(*target, node)).collect();
                let (decided, tree) = (&tokens[..], draft.tree());
                let changed = processor.as_deref().map(|processor| Changed {
                    processor,
                    decided,
                    tree,
                    limits,
                });
                let laws = StepLaws::new(logits, changed, sampling, &self.pool);
                let decide = |chance: &mut dyn Chance| match speculation.as_mut() {
                    Some(Speculation { verifier, .. }) => {
                        let before = verifier.fallbacks();
                        let outcome = verifier.verify(draft, &laws, chance);
                        asides.fallbacks_of_step = verifier.fallbacks() - before;
                        outcome
                    }
                    // Plain decoding: there is nothing to verify.
                    None => laws.root().map(|law: &Distribution| Outcome {
                        accepted: Vec::new(),
                        token: race::next(law, 0, chance),
                    }),
                };
                let outcome = with_clocks(chance.as_mut(), clocks, tokens.len(), decide);
                let trace = match (&outcome, asides.traced) {
                    (Ok(outcome), Some(top)) => {
                        let verifier =
                            speculation.as_ref().map(|speculation| speculation.verifier.as_ref());
                        Some(Trace::of(draft, &laws, outcome, verifier, top))
                    }
                    _ => None,
                };
                let failed = laws.give_back();
                asides.trace_of_step = trace;
                if let (Ok(outcome), Some(top)) = (&outcome, asides.watched) {
                    let logits = |node| self.target.logits(*target, node);
                    match scores(draft.tree(), outcome, logits, top) {
                        Ok(scores) => asides.scores_of_step = scores,
                        Err(error) => {
                            session.fail(error);
                            return None;
                        }
                    }
                }
                let model = || self.target.facts().name.clone();
                let error = |law: polydraft::Error| match failed {
                    Some(source) => Error::Logits { role: "target", model: model(), source },
                    None => law.into(),
                };
                outcome.map_err(|law| session.fail(error(law))).ok()
            })
            .collect()
    }

    /// What cannot be committed ends its session.
    fn commit(
        &mut self,
        sessions: &mut [&mut Session],
        outcomes: &mut [Option<Outcome>],
        clock: &mut Clock,
    ) {
        for (session, decided) in sessions.iter_mut().zip(&mut *outcomes) {
            let Some(outcome) = decided else { continue };
            let (sequence, tree) = (session.target, session.draft.tree());
            let committed = self.target.commit(sequence, tree, &outcome.accepted);
            if let Err(error) =
                committed.and_then(|()| self.target.extend(sequence, &[outcome.token]))
            {
                session.fail(error);
                *decided = None;
            }
        }
        clock.scored();
        let Some(drafter) = &mut self.drafter else { return };
        for (session, decided) in sessions.iter_mut().zip(&mut *outcomes) {
            let (Some(sequence), Some(outcome)) = (session.drafter, &decided) else { continue };
            let committed = drafter.commit(sequence, session.draft.tree(), &outcome.accepted);
            if let Err(error) = committed.and_then(|()| drafter.extend(sequence, &[outcome.token]))
            {
                session.fail(error);
                *decided = None;
            }
        }
    }

    /// Makes the models hold what the session has decided behind its `prompt`, and no more: to go
    /// on after a panic that a caller caught inside [`step`](Self::step), wherever in the step that
    /// was, or after its error. Random decisions of that step are the caller's: where
    /// [`Statistics::target_calls`](crate::Statistics) says that the session has not taken it, and
    /// its generator is put back to where it was before, the next step does the same as this one
    /// would have done, also without the neighbours that it had, and the text is the same as
    /// without the panic.
    ///
    /// # Errors
    /// Failures of the models; a panic while this very session took what was decided. The session
    /// cannot go on then.
    pub fn restore(&mut self, session: &mut Session, prompt: &[Token]) -> Result<()> {
        if session.is_taking {
            return Err(Error::Interrupted);
        }
        session.again = Some(session.among);
        let length = prompt.len() + session.tokens().len();
        self.target.truncate(session.target, length);
        self.target.extend(session.target, &[])?;
        let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) else {
            return Ok(());
        };
        if drafter.len(sequence) == length {
            return drafter.extend(sequence, &[]);
        }
        let text = [prompt, session.tokens()].concat();
        // Closed first, for there may be no room for both; without a new one the session has none.
        session.drafter = None;
        drafter.close(sequence);
        session.drafter = Some(begin(drafter.as_mut(), &text)?);
        Ok(())
    }

    /// Ends a session and gives its text; what the models computed for it may serve later ones.
    ///
    /// # Errors
    /// What broke the session, if something did.
    pub fn close(&mut self, session: Session) -> Result<Generation> {
        self.target.close(session.target);
        if let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) {
            drafter.close(sequence);
        }
        session.into_generation()
    }

    /// One request from beginning to end. `show` gets every piece of text as soon as it is decided,
    /// and returns whether to go on.
    ///
    /// # Errors
    /// As for [`open`](Self::open), [`step`](Self::step) and [`close`](Self::close).
    pub fn generate(
        &mut self,
        request: Request,
        show: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<Generation> {
        let session = self.open(request)?;
        self.complete(session, show)
    }

    /// A session that was opened, to its end; `show` as for [`generate`](Self::generate).
    ///
    /// # Errors
    /// As for [`step`](Self::step) and [`close`](Self::close).
    pub fn complete(
        &mut self,
        mut session: Session,
        show: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<Generation> {
        let done = self.run(&mut session, show);
        let generation = self.close(session);
        done.and(generation)
    }

    fn run(&mut self, session: &mut Session, show: &mut dyn FnMut(Piece) -> bool) -> Result<()> {
        while !session.is_done() && self.prepare(session, PROMPT_CHUNK)? > 0 {}
        let mut wanted = true;
        loop {
            for piece in session.take_pieces() {
                wanted = wanted && show(piece);
            }
            if !wanted {
                session.stop();
            }
            if session.is_done() {
                return Ok(());
            }
            self.step(&mut [&mut *session])?;
        }
    }
}

/// What the target gave each token that a step decided, and the likeliest in its place.
fn scores<'l>(
    tree: &DraftTree,
    outcome: &Outcome,
    logits: impl Fn(NodeId) -> &'l [f32],
    top: usize,
) -> Result<Vec<Scored>> {
    let before = std::iter::once(DraftTree::ROOT).chain(outcome.accepted.iter().copied());
    let decided = outcome.accepted.iter().map(|&node| tree.token(node)).chain([outcome.token]);
    before.zip(decided).map(|(node, token)| crate::score::of(logits(node), token, top)).collect()
}

fn no_drafter<T>() -> Result<T> {
    Err(Error::Setting {
        setting: "drafter",
        expected: "something that drafts, which speculation needs",
        got: "none".to_owned(),
    })
}

/// A drafter's sequence with this prompt.
fn begin(drafter: &mut dyn Drafter, prompt: &[Token]) -> Result<crate::Sequence> {
    let sequence = drafter.open()?;
    match drafter.extend(sequence, prompt) {
        Ok(()) => Ok(sequence),
        Err(error) => {
            drafter.close(sequence);
            Err(error)
        }
    }
}
