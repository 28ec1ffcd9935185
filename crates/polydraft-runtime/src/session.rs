//! Outputs of a run, one after the other: what is measured, learned and stored around them.

use anyhow::Result;
use polydraft::Token;
use polydraft_engine::{Generation, Limits, OutputChunk};

use crate::listen::{Listener, Silent};
use crate::requests::{SeededRng, random, seeded};
use crate::run::Run;

/// How one output is made.
#[derive(Debug, Clone, Default)]
pub struct OutputOptions {
    /// What ends it.
    pub limits: Limits,
    /// Draws by randomness that draft and target share (Gumbel coupling), in plain decoding too.
    pub shared_randomness: bool,
    /// Records the log-probability of every token, and of so many of the likeliest in its place.
    pub scores: Option<usize>,
}

impl From<Limits> for OutputOptions {
    /// With all else by default.
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// Outputs of a run that draw from one random source, one after the other.
///
/// With a seed, costs of steps are measured before the first output and stay as they are, so that
/// the seed gives the same outputs again. Without one they are measured while the first output is
/// written, and corrected by the time that each output took.
pub struct RunSession<'r> {
    run: &'r mut Run,
    listener: &'r dyn Listener,
    rng: SeededRng,
    seed: u64,
    is_seeded: bool,
    measures: bool,
}

impl Run {
    /// Generates the continuation of a text. `show` gets each piece as soon as it is decided, and
    /// returns whether to continue. Without a seed another one is taken each time.
    ///
    /// ```no_run
    /// use polydraft_engine::Limits;
    /// use polydraft_runtime::{Description, Run, Silent};
    ///
    /// let mut run = Run::open(Description::new("model.gguf"), &Silent)?;
    /// let output = run.generate("Once upon a time", Limits::tokens(100), Some(1), &mut |_| true)?;
    /// println!("{}", output.text);
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// A text that fills the context; failures of the models; n-grams that cannot be stored.
    pub fn generate(
        &mut self,
        text: &str,
        limits: Limits,
        seed: Option<u64>,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<Generation> {
        let context = self.models.engine.info().context;
        let prompt = self.models.language.tokenizer.encode_within(text, context)?;
        let end_tokens = match limits.end_tokens.is_empty() {
            true => self.models.language.end_tokens.clone(),
            false => limits.end_tokens,
        };
        let options = OutputOptions::from(Limits { end_tokens, ..limits });
        self.session(seed, &Silent)?.generate(&prompt, &options, show)
    }

    /// Begins outputs that draw from one random source; the same seed gives the same outputs.
    ///
    /// # Errors
    /// Failures of the models while costs are measured.
    pub fn session<'r>(
        &'r mut self,
        seed: Option<u64>,
        listener: &'r dyn Listener,
    ) -> Result<RunSession<'r>> {
        let measures = match seed {
            Some(_) => self.measure(listener).map(|()| false)?,
            None => self.measure_later(listener)?,
        };
        let (is_seeded, seed) = (seed.is_some(), seed.unwrap_or_else(random));
        Ok(RunSession { run: self, listener, rng: seeded(seed), seed, is_seeded, measures })
    }
}

impl RunSession<'_> {
    /// The seed, whether it was given or not.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The run.
    pub fn run(&self) -> &Run {
        self.run
    }

    /// Whether costs are measured while the first output is written: until then nothing is drafted.
    pub fn is_measuring(&self) -> bool {
        self.measures
    }

    /// Generates one output. `show` gets each piece as soon as it is decided, and returns whether
    /// to continue.
    ///
    /// # Errors
    /// A prompt that fills the context; failures of the models.
    pub fn generate(
        &mut self,
        prompt: &[Token],
        options: &OutputOptions,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<Generation> {
        let request = self.run.request(prompt, &options.limits, &mut self.rng)?;
        let mut session = self.run.models.engine.open(request)?;
        if options.shared_randomness {
            session.share_randomness();
        }
        if let Some(top) = options.scores {
            session.record_scores(top);
        }
        let generation = self.run.complete(session, show, self.listener)?;
        if !self.is_seeded {
            self.run.learn(generation.statistics.choices.as_ref(), self.listener);
        }
        Ok(generation)
    }

    /// Stores the n-grams that were learned, if some are.
    ///
    /// # Errors
    /// A table that cannot be written.
    pub fn close(self) -> Result<()> {
        self.run.models.store()
    }
}
