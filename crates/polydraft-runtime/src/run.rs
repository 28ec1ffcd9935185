//! From a description to something that runs.

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

/// All that decides the output: target, draft, verifier, sampling. It is data: the program makes it
/// of a command line, a server of its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    /// The models.
    pub models: ModelOptions,
    /// Verifier and tree.
    pub speculation: SpeculationOptions,
    /// How tokens are sampled.
    pub sampling: SamplingOptions,
    /// Takes the published sampling settings of the model as defaults, or those that are usual for
    /// conversations where there are none.
    pub published_sampling: bool,
}

impl Description {
    /// Describes a target with all else by default: a directory, a GGUF file, or a hub id.
    pub fn new(target: impl Into<String>) -> Self {
        let models = ModelOptions { target: Some(target.into()), ..ModelOptions::default() };
        Self { models, ..Self::default() }
    }

    /// The measured acceptances that sequoia trees are made from: those of a file, or the demo
    /// pair's; none where neither is known.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no acceptances.
    pub fn acceptance(&self) -> Result<Option<Vec<f64>>> {
        let named = self.speculation.acceptance.clone();
        let file = named.or_else(|| self.models.demo_acceptance().filter(|file| file.exists()));
        Ok(file.map(|file| AcceptanceFile::read(&file)).transpose()?.map(|file| file.acceptance))
    }

    /// Writes plain decoding in one way: the draft `none` becomes no draft and no verifier.
    ///
    /// # Errors
    /// [`Usage`](crate::Usage) for other drafts, or options of speculation, beside `none`.
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

/// Loaded models, and the settings of requests.
pub struct Run {
    /// The description that it was opened from.
    pub description: Description,
    /// Target, drafter and tokenizer.
    pub models: Models,
    /// Sampling and speculation of its requests.
    pub settings: Settings,
    measured: Measured,
}

/// How far the costs of the adaptive tree are measured.
enum Measured {
    /// Not at all: they are general ones, or nothing has an adaptive tree.
    Not,
    /// In part; nothing is drafted meanwhile.
    Partly(Box<PendingCosts>),
    Wholly,
}

impl Run {
    /// Loads what a description asks for. The adaptive tree has general costs until
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
    /// [`Usage`](crate::Usage) where the description contradicts itself; models that cannot be
    /// loaded.
    pub fn open(description: Description, listener: &dyn Listener) -> Result<Self> {
        let description = description.without_none()?;
        let Description { models: which, speculation, sampling, published_sampling } = &description;
        let demo = which.demo_acceptance();
        let mut speculation =
            speculation.resolve(sampling, which.draft_count(), demo.as_deref())?;
        let models = which.load(speculation.is_some(), listener)?;
        let sampling = match published_sampling {
            true => with_published_sampling(sampling.clone(), &models, listener).or_chat_defaults(),
            false => sampling.clone(),
        };
        if let Some(speculation) = &mut speculation {
            speculation.sampling = sampling.draft();
            speculation.each = sampling.per_draft(which.draft_count())?;
        }
        let settings = Settings { sampling: sampling.target(), speculation };
        Ok(Self { description, models, settings, measured: Measured::Not })
    }

    /// Gives the adaptive tree its costs: those of a file, those that were measured before for
    /// these models on this machine, or measured now.
    ///
    /// # Errors
    /// A file that holds no costs; failures of the models.
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
        self.measured = Measured::Wholly;
        Ok(())
    }

    /// Gives the adaptive tree the costs of a file, or those of drafts that cost next to nothing:
    /// drafts are then made and verified whether they are worth their time here or not, as tests
    /// want it.
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

    /// The costs of this run's steps, as [`measure`](Self::measure) finds them; the defaults where
    /// nothing is drafted.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn costs(&mut self, listener: &dyn Listener) -> Result<Costs> {
        match self.look_up_costs()? {
            Some(found) => found.costs(&mut self.models.engine, listener),
            None => Ok(Costs::default()),
        }
    }

    /// The costs of this run's steps, or how they are measured; none where nothing is drafted.
    ///
    /// # Errors
    /// A file that holds no costs.
    pub fn look_up_costs(&self) -> Result<Option<CostLookup>> {
        let Some(Speculation { verifier, sampling, .. }) = &self.settings.speculation else {
            return Ok(None);
        };
        // No adaptive tree draws from several.
        if self.models.engine.drafter_count() > 1 {
            return Ok(None);
        }
        let of = [&self.settings.sampling, sampling];
        let Description { models, speculation, .. } = &self.description;
        let (file, key) = (speculation.costs.as_deref(), CostKey::new(models, &self.models)?);
        costs::look_up(file, &key, &self.models.engine, of, verifier).map(Some)
    }

    /// As [`measure`](Self::measure), but where the costs are not known yet, they are measured
    /// while the first outputs are being written ([`complete`](Self::complete)). Until then nothing
    /// is drafted. Whether that is so.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub(crate) fn measure_later(&mut self, listener: &dyn Listener) -> Result<bool> {
        let tree = self.settings.speculation.as_mut().and_then(|s| s.tree.auto_mut());
        // It takes a sequence besides the text's own.
        if tree.is_none() || self.models.engine.max_sequences() < 2 {
            return self.measure(listener).map(|()| false);
        }
        match self.look_up_costs()? {
            Some(CostLookup::Pending(measuring)) => {
                self.set_costs(Costs::without_drafts());
                self.measured = Measured::Partly(measuring);
            }
            Some(CostLookup::Known(costs)) => {
                self.set_costs(costs);
                self.measured = Measured::Wholly;
            }
            None => {}
        }
        Ok(matches!(self.measured, Measured::Partly(_)))
    }

    /// A session that was opened, to its end, and between its first steps what is to be measured
    /// ([`measure_later`](Self::measure_later)). `show` gets every piece of text as soon as it is
    /// decided, and returns whether to go on. What a short text leaves unmeasured the next one
    /// measures.
    ///
    /// # Errors
    /// Failures of the models.
    pub(crate) fn complete(
        &mut self,
        mut session: Session,
        show: &mut dyn FnMut(OutputChunk) -> bool,
        listener: &dyn Listener,
    ) -> Result<Generation> {
        if let Err(error) = self.read_prompt(&mut session, listener) {
            // As below.
            let _ = self.models.engine.close(session);
            return Err(error);
        }
        let mut measuring = match std::mem::replace(&mut self.measured, Measured::Not) {
            Measured::Partly(measuring) => measuring,
            measured => {
                self.measured = measured;
                return Ok(self.models.engine.complete(session, show)?);
            }
        };
        loop {
            match self.step_and_measure(&mut session, &mut measuring, show) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    // The error says more than what was decided before it.
                    let _ = self.models.engine.close(session);
                    return Err(error);
                }
            }
        }
        if session.is_done() {
            self.measured = Measured::Partly(measuring);
        } else {
            self.set_costs(measuring.finish(listener)?);
            self.measured = Measured::Wholly;
            if let Some(speculation) = &self.settings.speculation {
                session.set_speculation(speculation.build()?);
            }
        }
        Ok(self.models.engine.complete(session, show)?)
    }

    /// Prefills a session's prompt; what takes long says how far it has come.
    fn read_prompt(&mut self, session: &mut Session, listener: &dyn Listener) -> Result<()> {
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

    /// A step of a session and a part of the measurement; whether both go on.
    fn step_and_measure(
        &mut self,
        session: &mut Session,
        measuring: &mut PendingCosts,
        show: &mut dyn FnMut(OutputChunk) -> bool,
    ) -> Result<bool> {
        let engine = &mut self.models.engine;
        engine.step(&mut [&mut *session])?;
        for piece in session.take_chunks() {
            if !show(piece) {
                session.stop();
            }
        }
        Ok(!session.is_done() && measuring.advance(engine)?)
    }

    /// Gives the adaptive tree these costs.
    fn set_costs(&mut self, costs: Costs) {
        let speculation = self.settings.speculation.as_mut();
        if let Some(auto) = speculation.and_then(|speculation| speculation.tree.auto_mut()) {
            auto.costs = costs;
        }
    }

    /// Corrects measured costs by the time of a generation, for the next one and for later runs.
    pub(crate) fn learn(&mut self, choices: Option<&Choices>, listener: &dyn Listener) {
        // General costs, and those by which nothing is drafted, must not be taken for measured ones
        // by later runs; those of a file stay as they are.
        let in_file = self.description.speculation.costs.is_some();
        if in_file || !matches!(self.measured, Measured::Wholly) {
            return;
        }
        // The tokenizer has encoded the same text before.
        if let Ok(key) = CostKey::new(&self.description.models, &self.models) {
            costs::learn(&key, &mut self.settings, choices, listener);
        }
    }

    /// A request with these settings.
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

    /// How the target is sampled.
    pub fn sampling(&self) -> &Sampling {
        &self.settings.sampling
    }
}

/// The published sampling settings where none are given; a note names those that are not supported.
pub fn with_published_sampling(
    given: SamplingOptions,
    models: &Models,
    listener: &dyn Listener,
) -> SamplingOptions {
    let sampling = &models.language.sampling;
    if !sampling.unsupported.is_empty() {
        let settings = sampling.unsupported.join(", ");
        let note = format!(
            "note: generation_config.json asks for {settings}, which polydraft does not have"
        );
        listener.note(&Message::from(note));
    }
    given.or_published(sampling)
}
