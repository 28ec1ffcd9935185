//! From a description to something that runs.

use anyhow::Result;
use polydraft::coupling::RuleRegistry;
use polydraft::policy::{Choices, Costs};
use polydraft::{RandomSource, RuleKind, Sampling, Token};
use polydraft_engine::{Limits, Request};
use serde::{Deserialize, Serialize};

use crate::requests::Settings;
use crate::{
    Listener, ModelOptions, Models, SamplingOptions, Speculation, SpeculationOptions, costs,
};

/// All that decides the output: target, draft, verifier, sampling. It is data: the program makes it
/// of a command line, a server of its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound = "")]
pub struct Description<R: RuleRegistry = RuleKind> {
    /// Which models.
    pub models: ModelOptions,
    /// Verifier and tree.
    pub speculation: SpeculationOptions<R>,
    /// How tokens are sampled.
    pub sampling: SamplingOptions,
    /// Takes the published sampling settings of the model as defaults.
    pub published_sampling: bool,
}

impl<R: RuleRegistry> Default for Description<R> {
    /// The demo pair with the default verifier and the adaptive tree.
    fn default() -> Self {
        Self {
            models: ModelOptions::default(),
            speculation: SpeculationOptions::default(),
            sampling: SamplingOptions::default(),
            published_sampling: false,
        }
    }
}

/// Loaded models, and the settings of requests.
pub struct Run<R: RuleRegistry = RuleKind> {
    /// The description that it was opened from.
    pub description: Description<R>,
    /// Target, drafter and tokenizer.
    pub models: Models,
    /// Sampling and speculation of its requests.
    pub settings: Settings<R>,
}

impl<R: RuleRegistry> Run<R> {
    /// Loads what a description asks for. The adaptive tree has general costs until
    /// [`measure`](Self::measure).
    ///
    /// ```no_run
    /// use polydraft_runtime::{Description, Run, Silent};
    ///
    /// let mut description: Description = Description::default();
    /// description.models.target = Some("models/qwen3-8b".to_owned());
    /// let mut run = Run::open(description, &Silent)?;
    /// run.measure(&Silent)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Usage`](crate::Usage) where the description contradicts itself; models that cannot be
    /// loaded.
    pub fn open(description: Description<R>, listener: &dyn Listener) -> Result<Self> {
        let Description { models: which, speculation, sampling, published_sampling } = &description;
        let demo = which.demo_acceptance();
        let mut speculation = speculation.resolve(sampling, demo.as_deref())?;
        let models = which.load(speculation.is_some(), listener)?;
        let sampling = match published_sampling {
            true => published(sampling.clone(), &models, listener),
            false => sampling.clone(),
        };
        if let Some(speculation) = &mut speculation {
            speculation.sampling = sampling.draft();
        }
        let settings = Settings { sampling: sampling.target(), speculation };
        Ok(Self { description, models, settings })
    }

    /// Gives the adaptive tree its costs: those of a file, those that were measured before for
    /// these models on this machine, or measured now.
    ///
    /// # Errors
    /// A file that holds no costs; failures of the models.
    pub fn measure(&mut self, listener: &dyn Listener) -> Result<()> {
        let Self { description, models, settings } = self;
        let Some(speculation) = &mut settings.speculation else { return Ok(()) };
        let file = description.speculation.costs.as_deref();
        costs::settle(file, &description.models, models, &settings.sampling, speculation, listener)
    }

    /// The costs of this run's steps, as [`measure`](Self::measure) finds them; the defaults where
    /// nothing is drafted.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn costs(&mut self, listener: &dyn Listener) -> Result<Costs> {
        let Some(Speculation { verifier, sampling, .. }) = &self.settings.speculation else {
            return Ok(Costs::default());
        };
        let of = [&self.settings.sampling, sampling];
        let Description { models, speculation, .. } = &self.description;
        let file = speculation.costs.as_deref();
        costs::find(file, models, &mut self.models, of, verifier, listener)
    }

    /// Corrects the costs by the measured time of a generation, for the next one and for later
    /// runs.
    pub fn learn(&mut self, choices: Option<&Choices>, listener: &dyn Listener) {
        let Self { description, models, settings } = self;
        let (file, options) = (description.speculation.costs.as_deref(), &description.models);
        costs::learn(file, options, models, settings, choices, listener);
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
pub fn published(
    given: SamplingOptions,
    models: &Models,
    listener: &dyn Listener,
) -> SamplingOptions {
    let sampling = &models.language.sampling;
    if !sampling.unsupported.is_empty() {
        let settings = sampling.unsupported.join(", ");
        listener.note(&format!(
            "note: generation_config.json asks for {settings}, which polydraft does not have"
        ));
    }
    given.or(sampling)
}
