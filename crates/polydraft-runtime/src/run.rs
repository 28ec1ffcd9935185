//! Runs: loaded models with the settings of their description.

use anyhow::Result;
use polydraft::policy::{Choices, Costs};
use polydraft::{RandomSource, Sampling, Token};
use polydraft_engine::{Generation, Limits, OutputChunk, Request, Session};
use serde::{Deserialize, Serialize};

use crate::costs::{self, CostKey, CostLookup, PendingCosts};
use crate::draft::NONE;
use crate::listen::Listener;
use crate::message::{Message, OptionName};
use crate::models::{ModelOptions, Models};
use crate::requests::Settings;
use crate::sampling::SamplingOptions;
use crate::speculation::{Speculation, SpeculationOptions};
use crate::tree::AcceptanceFile;

/// Everything that determines the output: target, draft, verifier, sampling. It is plain data, made
/// from a command line or from a server's settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    /// Models.
    pub models: ModelOptions,
    /// Verifier and tree.
    pub speculation: SpeculationOptions,
    /// Sampling of tokens.
    pub sampling: SamplingOptions,
    /// Whether missing sampling settings default to those published with the model or, if there are
    /// none, to usual ones for conversations.
    pub published_sampling: bool,
}

impl Description {
    /// Describes a target, a directory, a GGUF file or a hub id, with defaults for everything else.
    pub fn new(target: impl Into<String>) -> Self {
        let models = ModelOptions { target: Some(target.into()), ..ModelOptions::default() };
        Self { models, ..Self::default() }
    }

    /// Returns the measured acceptances from which sequoia trees are made: from a file, or the demo
    /// pair's; `None` if neither is available.
    ///
    /// # Errors
    /// A file that cannot be read, or has no acceptances.
    pub fn acceptance(&self) -> Result<Option<Vec<f64>>> {
        let named = self.speculation.acceptance.clone();
        let file = named.or_else(|| self.models.demo_acceptance().filter(|file| file.exists()));
        Ok(file.map(|file| AcceptanceFile::read(&file)).transpose()?.map(|file| file.acceptance))
    }

    /// Normalizes plain decoding: the draft `none` becomes no draft and no verifier.
    ///
    /// # Errors
    /// [`Usage`](crate::Usage) for other drafts or options of speculation with `none`.
    fn without_none(mut self) -> Result<Self> {
        self.models.check_none()?;
        if self.models.is_plain() {
            self.speculation.check_plain(&self.sampling, &OptionName::Draft.with(NONE))?;
            self.models.drafts.clear();
            self.speculation.verifier = None;
        }
        Ok(self)
    }
}

/// Tokens of a prompt that are prefilled between two progress messages.
const PREFILL_CHUNK: usize = 512;

/// Loaded models with the settings of requests.
pub struct Run {
    /// Description from which the run was opened.
    pub description: Description,
    /// Target, drafter and tokenizer.
    pub models: Models,
    /// Sampling and speculation of requests.
    pub settings: Settings,
    cost_state: CostState,
}

/// State of the adaptive tree's costs.
enum CostState {
    /// Not measured: general costs, or no adaptive tree.
    Unmeasured,
    /// Being measured; nothing is drafted meanwhile.
    InProgress(Box<PendingCosts>),
    Measured,
}

impl Run {
    /// Loads the models of a description. The adaptive tree has general costs until
    /// [`measure`](Self::measure).
    ///
    /// ```no_run
    /// use polydraft_runtime::{Description, Run, Silent};
    ///
    /// let mut run = Run::open(Description::new("models/qwen3-8b"), &Silent)?;
    /// run.measure(&Silent)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Usage`](crate::Usage) for a contradictory description; models that cannot be loaded.
    pub fn open(description: Description, listener: &dyn Listener) -> Result<Self> {
        let description = description.without_none()?;
        let Description { models: model_options, speculation, sampling, published_sampling } =
            &description;
        let demo = model_options.demo_acceptance();
        let mut speculation =
            speculation.resolve(sampling, model_options.draft_count(), demo.as_deref())?;
        let models = model_options.load(speculation.is_some(), listener)?;
        let sampling = match published_sampling {
            true => with_published_sampling(sampling.clone(), &models, listener).or_chat_defaults(),
            false => sampling.clone(),
        };
        if let Some(speculation) = &mut speculation {
            speculation.sampling = sampling.draft();
            speculation.each = sampling.per_draft(model_options.draft_count())?;
        }
        let settings = Settings { sampling: sampling.target(), speculation };
        Ok(Self { description, models, settings, cost_state: CostState::Unmeasured })
    }

    /// Sets the costs of the adaptive tree: from a file, measured earlier for these models on this
    /// machine, or measured now.
    ///
    /// # Errors
    /// A file without costs; failures of the models.
    pub fn measure(&mut self, listener: &dyn Listener) -> Result<()> {
        if self.settings.speculation.is_none() {
            return Ok(());
        }
        let is_adaptive =
            self.settings.speculation.as_mut().is_some_and(|s| s.tree.auto_mut().is_some());
        if is_adaptive {
            let costs = self.costs(listener)?;
            self.set_costs(costs);
        }
        self.cost_state = CostState::Measured;
        Ok(())
    }

    /// Sets the costs of the adaptive tree from a file, or to negligible costs of drafts, so that
    /// drafts are made and verified even where that is slower, as tests need.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn draft_always(&mut self, listener: &dyn Listener) -> Result<()> {
        if self.description.speculation.costs.is_some() {
            return self.measure(listener);
        }
        self.set_costs(Costs::with_cheap_drafts());
        Ok(())
    }

    /// Returns the costs of this run's steps, as [`measure`](Self::measure) determines them;
    /// default costs without drafting.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn costs(&mut self, listener: &dyn Listener) -> Result<Costs> {
        match self.look_up_costs()? {
            Some(found) => found.costs(&mut self.models.engine, listener),
            None => Ok(Costs::default()),
        }
    }

    /// Searches for the costs of this run's steps; `None` without drafting.
    ///
    /// # Errors
    /// A file without costs.
    pub fn look_up_costs(&self) -> Result<Option<CostLookup>> {
        let Some(Speculation { verifier, sampling, .. }) = &self.settings.speculation else {
            return Ok(None);
        };
        // Adaptive trees draw from one drafter only.
        if self.models.engine.drafter_count() > 1 {
            return Ok(None);
        }
        let samplings = [&self.settings.sampling, sampling];
        let Description { models, speculation, .. } = &self.description;
        let (file, key) = (speculation.costs.as_deref(), CostKey::new(models, &self.models)?);
        costs::look_up(file, &key, &self.models.engine, samplings, verifier).map(Some)
    }

    /// Like [`measure`](Self::measure), but unknown costs are measured while the first outputs are
    /// generated ([`complete`](Self::complete)). Nothing is drafted until then. Returns whether
    /// costs are being measured.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub(crate) fn start_measuring(&mut self, listener: &dyn Listener) -> Result<bool> {
        let tree = self.settings.speculation.as_mut().and_then(|s| s.tree.auto_mut());
        // The measurement needs a sequence in addition to the output's.
        if tree.is_none() || self.models.engine.max_sequences() < 2 {
            return self.measure(listener).map(|()| false);
        }
        match self.look_up_costs()? {
            Some(CostLookup::Pending(measuring)) => {
                self.set_costs(Costs::without_drafts());
                self.cost_state = CostState::InProgress(measuring);
            }
            Some(CostLookup::Known(costs)) => {
                self.set_costs(costs);
                self.cost_state = CostState::Measured;
            }
            None => {}
        }
        Ok(matches!(self.cost_state, CostState::InProgress(_)))
    }

    /// Runs an open session to its end; between its first steps the costs are measured
    /// ([`start_measuring`](Self::start_measuring)). `show` gets every chunk of text as soon as it
    /// is decided, and returns whether to continue. A short output leaves the rest of the
    /// measurement to the next one.
    ///
    /// # Errors
    /// Failures of the models.
    pub(crate) fn complete(
        &mut self,
        mut session: Session,
        show: &mut dyn FnMut(OutputChunk) -> bool,
        listener: &dyn Listener,
    ) -> Result<Generation> {
        if let Err(error) = self.prefill(&mut session, listener) {
            // The earlier error is more informative.
            let _ = self.models.engine.close(session);
            return Err(error);
        }
        let mut measuring = match std::mem::replace(&mut self.cost_state, CostState::Unmeasured) {
            CostState::InProgress(measuring) => measuring,
            cost_state => {
                self.cost_state = cost_state;
                return Ok(self.models.engine.complete(session, show)?);
            }
        };
        loop {
            match self.step_and_measure(&mut session, &mut measuring, show) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    // The earlier error is more informative.
                    let _ = self.models.engine.close(session);
                    return Err(error);
                }
            }
        }
        if session.is_done() {
            self.cost_state = CostState::InProgress(measuring);
        } else {
            self.set_costs(measuring.finish(listener)?);
            self.cost_state = CostState::Measured;
            if let Some(speculation) = &self.settings.speculation {
                session.set_speculation(speculation.build()?);
            }
        }
        Ok(self.models.engine.complete(session, show)?)
    }

    /// Prefills a session's prompt, and reports the progress of long prompts.
    fn prefill(&mut self, session: &mut Session, listener: &dyn Listener) -> Result<()> {
        const WHAT: &str = "reading the prompt";
        let engine = &mut self.models.engine;
        let total = engine.prepare(session, 0)?;
        let mut left = total;
        while left > 0 && !session.is_done() {
            left = engine.prepare(session, PREFILL_CHUNK)?;
            if total > PREFILL_CHUNK {
                listener.progress(WHAT, total - left.min(total), total);
            }
        }
        Ok(())
    }

    /// Runs a step of the session and a part of the measurement; returns whether both continue.
    fn step_and_measure(
        &mut self,
        session: &mut Session,
        measuring: &mut PendingCosts,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<bool> {
        let engine = &mut self.models.engine;
        engine.step(&mut [&mut *session])?;
        for chunk in session.take_chunks() {
            if !show(chunk) {
                session.stop();
            }
        }
        Ok(!session.is_done() && measuring.advance(engine)?)
    }

    /// Sets the costs of the adaptive tree.
    fn set_costs(&mut self, costs: Costs) {
        let speculation = self.settings.speculation.as_mut();
        if let Some(auto) = speculation.and_then(|speculation| speculation.tree.auto_mut()) {
            auto.costs = costs;
        }
    }

    /// Corrects measured costs by the time of a generation, for the next one and for later runs.
    pub(crate) fn learn(&mut self, choices: Option<&Choices>, listener: &dyn Listener) {
        // General costs, and costs without drafts, must not be stored as measured ones; costs from
        // a file are never changed.
        let in_file = self.description.speculation.costs.is_some();
        if in_file || !matches!(self.cost_state, CostState::Measured) {
            return;
        }
        // The tokenizer has encoded this prompt before, so it does not fail.
        if let Ok(key) = CostKey::new(&self.description.models, &self.models) {
            costs::learn(&key, &mut self.settings, choices, listener);
        }
    }

    /// Creates a request with these settings.
    ///
    /// # Errors
    /// Settings of the verifier or the tree out of range.
    pub fn request<'c>(
        &self,
        prompt: &[Token],
        limits: &Limits,
        rng: impl RandomSource + Send + 'c,
    ) -> Result<Request<'c>> {
        self.settings.request(&self.models.language, prompt, limits, rng)
    }

    /// Returns the target's sampling.
    pub fn sampling(&self) -> &Sampling {
        &self.settings.sampling
    }
}

/// Returns the given settings, completed by the model's published ones; a note names published
/// settings that are not supported.
pub fn with_published_sampling(
    given: SamplingOptions,
    models: &Models,
    listener: &dyn Listener,
) -> SamplingOptions {
    let sampling = &models.language.sampling;
    if !sampling.unsupported.is_empty() {
        let settings = sampling.unsupported.join(", ");
        let note = format!(
            "note: generation_config.json contains {settings}, which polydraft does not support"
        );
        listener.note(&Message::from(note));
    }
    given.or_published(sampling)
}
