//! Runs: loaded models with the settings of their description.

use anyhow::Result;
use polydraft::policy::{Choices, Costs};
use polydraft::{RandomSource, Sampling, Token};
use polydraft_engine::{Generation, Limits, OutputChunk, Request, Session};
use serde::{Deserialize, Serialize};

use crate::costs::{self, CostKey, StepCosts};
use crate::draft::NONE;
use crate::listen::Listener;
use crate::message::{Message, OptionName, message};
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

    /// Checks options and local files without loading weights, for models that are loaded later.
    /// Models on the hub are not checked.
    ///
    /// # Errors
    /// As for [`Run::open`].
    pub fn check(&self) -> Result<()> {
        let Self { models, speculation, sampling, .. } = self.clone().without_none()?;
        let demo = models.demo_acceptance();
        let speculation = speculation.resolve(&sampling, models.draft_count(), demo.as_deref())?;
        models.check_files(speculation.is_some())
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
    /// Costs of the adaptive tree, once they were looked up.
    step_costs: Option<StepCosts>,
}

impl Run {
    /// Loads the models of a description. The adaptive tree has general costs until
    /// [`session`](Self::session) or [`use_costs`](Self::use_costs).
    ///
    /// ```no_run
    /// use polydraft_runtime::{Description, Run, Silent};
    ///
    /// let mut run = Run::open(Description::new("models/qwen3-8b"), &Silent)?;
    /// run.use_costs(true, &Silent)?;
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
        let named = &description.speculation.verifier;
        if let (Some(named), Some(Speculation { verifier, tree, .. })) = (named, &speculation)
            && named != verifier
        {
            let typed = description.speculation.tree.as_ref().map(ToString::to_string);
            let tree = typed.unwrap_or_else(|| tree.to_string());
            listener.note(&message![
                format!("note: {named} is not exact for the tree {tree}: using "),
                OptionName::Verifier.with(verifier),
            ]);
        }
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
        Ok(Self { description, models, settings, step_costs: None })
    }

    /// Sets the costs of the adaptive tree: those in a file or, if the description names none, with
    /// a seed estimated ones, and without a seed those learned from earlier outputs.
    ///
    /// # Errors
    /// As for [`costs`](Self::costs).
    pub fn use_costs(&mut self, is_seeded: bool, listener: &dyn Listener) -> Result<()> {
        let costs = self.costs(listener)?;
        if let Some(auto) = self.settings.speculation.as_mut().and_then(|s| s.tree.auto_mut()) {
            costs.apply(auto, is_seeded);
        }
        self.step_costs = Some(costs);
        Ok(())
    }

    /// Sets the costs of the adaptive tree from a file, or to negligible costs of drafts, so that
    /// drafts are made and verified even where that is slower, as tests need.
    ///
    /// # Errors
    /// As for [`costs`](Self::costs).
    pub fn draft_always(&mut self, listener: &dyn Listener) -> Result<()> {
        if self.description.speculation.costs.is_none() {
            self.step_costs = Some(StepCosts::fixed(Costs::with_cheap_drafts()));
        }
        self.use_costs(true, listener)
    }

    /// Returns the costs of this run's steps; default ones without drafting. They are measured only
    /// for a file that the description names and that does not exist.
    ///
    /// # Errors
    /// A file without costs, or that cannot be written; failures of the models.
    pub fn costs(&mut self, listener: &dyn Listener) -> Result<StepCosts> {
        if let Some(costs) = &self.step_costs {
            return Ok(costs.clone());
        }
        let Some(Speculation { verifier, sampling, .. }) = &self.settings.speculation else {
            return Ok(StepCosts::default());
        };
        // Adaptive trees draw from one drafter only.
        if self.models.engine.drafter_count() > 1 {
            return Ok(StepCosts::default());
        }
        let Description { models, speculation, .. } = &self.description;
        let Some(file) = &speculation.costs else {
            return Ok(CostKey::new(models, &self.models).find(&self.settings.sampling, verifier));
        };
        let samplings = [&self.settings.sampling, sampling];
        let costs =
            costs::read_or_measure(Some(file), &mut self.models, samplings, verifier, listener)?;
        Ok(StepCosts::fixed(costs))
    }

    /// Runs an open session to its end. `show` gets every chunk of text as soon as it is decided,
    /// and returns whether to continue.
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
        let generation = self.models.engine.complete(session, show);
        if let Some(warning) = self.models.engine.take_warning() {
            listener.note(&format!("warning: {warning}").into());
        }
        Ok(generation?)
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

    /// Learns costs from an output without a seed, for the next one and for later runs.
    pub(crate) fn learn(&mut self, choices: Option<&Choices>) {
        let auto = self.settings.speculation.as_mut().and_then(|s| s.tree.auto_mut());
        if let (Some(costs), Some(choices), Some(auto)) = (&mut self.step_costs, choices, auto) {
            costs.learn(choices);
            costs.store();
            costs.apply(auto, false);
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
