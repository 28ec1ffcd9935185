//! The decode loop: propose, score, verify, commit.

mod clock;
mod commit;
mod force;
mod measure;
mod models;
mod propose;
mod verify;

use polydraft::Token;

use crate::distributions::Pool;
use crate::drafter::ngram::LearningNgrams;
use crate::{Drafter, Error, Generation, Model, ModelInfo, OutputChunk, Request, Result, Session};
use clock::Clock;
use commit::{commit, emit};
use force::force;
use models::{Models, PROMPT_CHUNK, no_drafter};
use propose::propose;
use verify::{score, verify};

/// A target, its drafter, and any number of sessions.
///
/// ```
/// use polydraft::{PolicyKind, VerifierKind};
/// use polydraft_engine::{Engine, Limits, Model, ModelDrafter, Request, Speculation, TableModel};
/// use rand::SeedableRng;
///
/// let table = |json| TableModel::from_json("example", json);
/// let target = table(r#"{"vocabulary": 2, "next": {"": [0.9, 0.1], "0": [0.2, 0.8]}}"#)?;
/// let draft = table(r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
/// let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary)?;
/// let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
///
/// let verifier: VerifierKind = "nested-priority".parse()?;
/// let policy = PolicyKind::paths(2, 3);
/// let request = Request::new([1])
///     .speculation(Speculation::new(verifier.build()?, policy.build()?)?)
///     .limits(Limits::tokens(20))
///     .rng(rand_chacha::ChaCha8Rng::seed_from_u64(1));
/// let generation = engine.generate(request, &mut |_| true)?;
/// assert_eq!(generation.tokens.len(), 20);
/// assert!(generation.statistics.target_calls < 20);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub struct Engine {
    models: Models,
    pool: Pool,
}

impl Engine {
    /// Creates an engine. Without a drafter it only supports plain decoding.
    pub fn new(target: Box<dyn Model>, mut drafter: Option<Box<dyn Drafter>>) -> Self {
        if let Some(drafter) = &mut drafter {
            drafter.attach(target.as_ref());
        }
        Self { models: Models { target, drafter }, pool: Pool::default() }
    }

    /// Returns the properties of the target.
    pub fn info(&self) -> &ModelInfo {
        self.models.target.info()
    }

    /// Returns whether the target caches what it computed for closed sessions, for later ones with
    /// a common prefix.
    pub fn caches_closed_sequences(&self) -> bool {
        self.models.target.caches_closed_sequences()
    }

    /// Returns the target, for access to its logits.
    pub fn target(&mut self) -> &mut dyn Model {
        self.models.target.as_mut()
    }

    /// Returns the drafter's name, if there is a drafter.
    pub fn drafter_name(&self) -> Option<&str> {
        self.models.drafter.as_ref().map(|drafter| drafter.name())
    }

    /// Returns whether the drafter may be late: a reproducible request then waits for it, and all
    /// others in the batch with it.
    pub fn drafts_may_be_late(&self) -> bool {
        self.models.drafter.as_ref().is_some_and(|drafter| drafter.may_be_late())
    }

    /// Returns what the user should know about a draft that failed, once: decoding continues
    /// without it.
    pub fn take_warning(&mut self) -> Option<String> {
        self.models.drafter.as_mut()?.take_warning()
    }

    /// Approximate bytes of one token in the KV caches of target and drafter.
    pub fn token_bytes(&self) -> u64 {
        self.models.target.token_bytes()
            + self.models.drafter.as_ref().map_or(0, |drafter| drafter.token_bytes())
    }

    /// Approximate bytes of an open sequence in addition to its tokens: states of constant size.
    pub fn state_bytes(&self) -> u64 {
        self.models.target.state_bytes()
            + self.models.drafter.as_ref().map_or(0, |drafter| drafter.state_bytes())
    }

    /// Maximum number of open sessions, the smaller one of target and drafter.
    pub fn max_sequences(&self) -> usize {
        let drafter =
            self.models.drafter.as_ref().map_or(usize::MAX, |drafter| drafter.max_sequences());
        self.models.target.info().max_sequences.min(drafter)
    }

    /// Number of drafters with their own distributions; 0 without a drafter.
    pub fn drafter_count(&self) -> usize {
        self.models.drafter.as_ref().map_or(0, |drafter| drafter.drafter_count())
    }

    /// Returns the n-grams that learn from the target's output in every session, if any.
    pub fn learning_ngrams(&self) -> Option<&LearningNgrams> {
        self.models.drafter.as_ref()?.learning_ngrams()
    }

    /// Returns the drafter's context length, if there is a drafter.
    pub fn draft_context(&self) -> Option<usize> {
        self.models.drafter.as_ref().map(|drafter| drafter.context())
    }

    /// Returns the number of tree levels for which the drafter has distributions, if there is a
    /// drafter.
    pub fn draft_levels(&self) -> Option<usize> {
        self.models.drafter.as_ref().map(|drafter| drafter.levels())
    }

    /// Total tokens of all sequences for which target and drafter have allocated memory; `None` if
    /// they allocate on demand.
    pub fn token_capacity(&self) -> Option<usize> {
        let drafter = self.models.drafter.as_ref().and_then(|drafter| drafter.token_capacity());
        self.models.target.token_capacity().into_iter().chain(drafter).min()
    }

    /// Checks that the context holds the prompt and at least one further token.
    ///
    /// # Errors
    /// A prompt that fills the context, or an empty one where the target needs a token.
    pub fn check_prompt(&self, prompt: &[Token]) -> Result<()> {
        let ModelInfo { context, accepts_empty_context, .. } = self.models.target.info();
        if prompt.len() >= *context {
            return Err(Error::PromptTooLong { prompt: prompt.len(), context: *context });
        }
        if prompt.is_empty() && !accepts_empty_context {
            return Err(Error::EmptyPrompt);
        }
        Ok(())
    }

    /// Opens a session. Nothing is computed yet.
    ///
    /// # Errors
    /// A prompt that fills the context, or an empty one where the target needs a token; a token
    /// outside the vocabulary; settings out of range; speculation without a drafter; more sessions
    /// than the models support.
    pub fn open<'c>(&mut self, request: Request<'c>) -> Result<Session<'c>> {
        request.sampling.validate()?;
        self.check_prompt(&request.prompt)?;
        if let Some(speculation) = &request.speculation {
            let Some(drafter) = &self.models.drafter else { return no_drafter() };
            speculation.validate(drafter.drafter_count())?;
        }
        let drafts = request.speculation.is_some();
        let (target, drafter) = self.models.open(&request.prompt, drafts)?;
        let observer = self.learning_ngrams().map(|ngrams| ngrams.observer(&request.prompt));
        let mut session = Session::new(request, target, drafter);
        if let Some(observer) = observer {
            session.add_observer(observer);
        }
        self.models.make_reproducible(&session);
        Ok(session)
    }

    /// Returns the number of tokens already in the target's KV cache, at most all but the last one:
    /// for a new prompt, the tokens found in the prefix cache.
    ///
    /// # Errors
    /// Failures of the target.
    pub fn cached_tokens(&mut self, session: &Session) -> Result<usize> {
        let remaining = self.models.target.prepare(session.target, 0)?;
        Ok(self.models.target.len(session.target).saturating_sub(1 + remaining))
    }

    /// Prefills at most `max_tokens` tokens of a session's prompt, in target and drafter, and
    /// returns how many remain. The first [`step`](Self::step) computes the rest.
    ///
    /// # Errors
    /// Failures of a model.
    pub fn prepare(&mut self, session: &mut Session, max_tokens: usize) -> Result<usize> {
        let clock = Clock::start();
        let remaining = self.models.prepare(session, max_tokens)?;
        session.observers.statistics.prompt_time += clock.elapsed();
        Ok(remaining)
    }

    /// Decides at least one token for each session that is not done, with one target pass for all
    /// of them. Forced tokens are emitted before that, without a pass.
    ///
    /// A failure in one session alone ends that session, see [`Session::failure`].
    ///
    /// # Errors
    /// Failures of a model that affect all sessions. No session has changed except by forced
    /// tokens. The step may be retried if each session's rng is reset to its state before the step:
    /// a model's failure may depend on what was drawn, and retrying with new random decisions until
    /// it succeeds would condition the output on success. [`restore`](Self::restore) resets the
    /// models.
    pub fn step(&mut self, sessions: &mut [&mut Session]) -> Result<()> {
        let Self { models, pool } = self;
        let mut clock = Clock::start();
        let mut batch = active_sessions(sessions);
        force(models, &mut batch);

        let scored = propose(models, pool, &mut batch, &mut clock)
            .and_then(|()| score(models, &batch, &mut clock));
        if let Err(error) = scored {
            // Scores of this tree must not be used for the next one.
            batch.iter().try_for_each(|session| models.extend(session, &[]))?;
            return Err(error);
        }
        let mut decided = verify(models, pool, &mut batch, &mut clock);
        commit(models, &mut batch, &mut decided, &mut clock);

        emit(models, &mut batch, &decided, clock);
        Ok(())
    }

    /// Resets the models to exactly what the session has decided after its `prompt`, to continue
    /// after an error of [`step`](Self::step), or after a panic in it that the caller caught. The
    /// caller resets the random decisions: if [`Statistics::target_calls`](crate::Statistics) shows
    /// that the session has not taken the step, and its rng is reset to its state before it, the
    /// next step repeats this one, even without the other sequences of the batch, and the output is
    /// the same as without the panic.
    ///
    /// # Errors
    /// Failures of the models; a panic while this session was being updated, after which it cannot
    /// continue.
    pub fn restore(&mut self, session: &mut Session, prompt: &[Token]) -> Result<()> {
        if session.is_committing {
            return Err(Error::Interrupted);
        }
        session.repeated_batch_size = Some(session.batch_size);
        self.models.restore(session, prompt)
    }

    /// Closes a session and returns its generation. Its KV cache may serve later sessions.
    ///
    /// # Errors
    /// The failure that ended the session, if any.
    pub fn close(&mut self, session: Session) -> Result<Generation> {
        self.models.close(&session);
        session.into_generation()
    }

    /// Runs a request to its end. `show` gets every chunk of text as soon as it is decided, and
    /// returns whether to continue.
    ///
    /// # Errors
    /// As for [`open`](Self::open), [`step`](Self::step) and [`close`](Self::close).
    pub fn generate(
        &mut self,
        request: Request,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<Generation> {
        let session = self.open(request)?;
        self.complete(session, show)
    }

    /// Runs an open session to its end; `show` as for [`generate`](Self::generate).
    ///
    /// # Errors
    /// As for [`step`](Self::step) and [`close`](Self::close).
    pub fn complete(
        &mut self,
        mut session: Session,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<Generation> {
        let done = self.run(&mut session, show);
        let generation = self.close(session);
        done.and(generation)
    }

    fn run(
        &mut self,
        session: &mut Session,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<()> {
        while !session.is_done() && self.prepare(session, PROMPT_CHUNK)? > 0 {}
        let mut goes_on = true;
        loop {
            for chunk in session.take_chunks() {
                goes_on = goes_on && show(chunk);
            }
            if !goes_on {
                session.stop();
            }
            if session.is_done() {
                return Ok(());
            }
            self.step(&mut [&mut *session])?;
        }
    }
}

/// Returns the sessions that are not done, and sets the batch size for their policies.
fn active_sessions<'s, 'c>(sessions: &'s mut [&mut Session<'c>]) -> Vec<&'s mut Session<'c>> {
    let open = sessions.iter_mut().map(|session| &mut **session);
    let mut batch: Vec<_> = open.filter(|session| !session.is_done()).collect();
    let size = batch.len();
    for session in &mut batch {
        let repeated = session.repeated_batch_size.take();
        session.batch_size = if session.is_independent { 1 } else { repeated.unwrap_or(size) };
    }
    batch
}
