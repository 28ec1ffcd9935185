//! Sessions of a run: consecutive outputs, with learning and storing between them.

use anyhow::Result;
use polydraft::Token;
use polydraft_engine::{Generation, Limits, OutputChunk};

use crate::listen::{Listener, Silent};
use crate::requests::{SeededRng, random, seeded};
use crate::run::Run;

/// Options of one output.
#[derive(Debug, Clone, Default)]
pub struct OutputOptions {
    /// Conditions that end the output.
    pub limits: Limits,
    /// Whether to draw with randomness shared by draft and target (Gumbel coupling), also in plain
    /// decoding.
    pub shared_randomness: bool,
    /// Number of likeliest alternatives whose log-probabilities are recorded with the
    /// log-probability of each token; `None` records nothing.
    pub scores: Option<usize>,
}

impl From<Limits> for OutputOptions {
    /// Sets the limits, with defaults for everything else.
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// Consecutive outputs of a run, drawn with one rng.
///
/// With a seed, nothing that is drawn depends on measured times, so that the seed gives the same
/// outputs in every run. Without a seed the costs of steps are learned from each output.
pub struct RunSession<'r> {
    run: &'r mut Run,
    listener: &'r dyn Listener,
    rng: SeededRng,
    seed: u64,
    is_seeded: bool,
}

impl Run {
    /// Generates the continuation of a prompt. `show` gets each chunk as soon as it is decided, and
    /// returns whether to continue. Without a seed, a random one is used each time.
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
    /// A prompt that fills the context; failures of the models; n-grams that cannot be stored.
    pub fn generate(
        &mut self,
        prompt: &str,
        limits: Limits,
        seed: Option<u64>,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<Generation> {
        let context = self.models.engine.info().context;
        let prompt = self.models.language.tokenizer.encode_within(prompt, context)?;
        let end_tokens = match limits.end_tokens.is_empty() {
            true => self.models.language.end_tokens.clone(),
            false => limits.end_tokens,
        };
        let options = OutputOptions::from(Limits { end_tokens, ..limits });
        self.session(seed, &Silent)?.generate(&prompt, &options, show)
    }

    /// Opens a session, whose outputs are drawn with one rng; the same seed gives the same outputs.
    ///
    /// # Errors
    /// A file of costs that cannot be read or written.
    pub fn session<'r>(
        &'r mut self,
        seed: Option<u64>,
        listener: &'r dyn Listener,
    ) -> Result<RunSession<'r>> {
        self.use_costs(seed.is_some(), listener)?;
        let (is_seeded, seed) = (seed.is_some(), seed.unwrap_or_else(random));
        Ok(RunSession { run: self, listener, rng: seeded(seed), seed, is_seeded })
    }
}

impl RunSession<'_> {
    /// Returns the seed, given or random.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the run.
    pub fn run(&self) -> &Run {
        self.run
    }

    /// Generates one output. `show` gets each chunk as soon as it is decided, and returns whether
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
        let request = request.reproducible(self.is_seeded);
        let tree = self.run.settings.speculation.as_mut().map(|speculation| &mut speculation.tree);
        let is_adaptive = tree.is_some_and(|tree| tree.auto_mut().is_some());
        let mut session = self.run.models.engine.open(request)?;
        if !is_adaptive {
            // The seed that is reported then gives this output again.
            session.make_independent();
        }
        if options.shared_randomness {
            session.share_randomness();
        }
        if let Some(top) = options.scores {
            session.record_scores(top);
        }
        let generation = self.run.complete(session, show, self.listener)?;
        if !self.is_seeded {
            self.run.learn(generation.statistics.choices.as_ref());
        }
        Ok(generation)
    }

    /// Stores the learned n-grams, if any.
    ///
    /// # Errors
    /// A table that cannot be written.
    pub fn close(self) -> Result<()> {
        self.run.models.store()
    }
}
