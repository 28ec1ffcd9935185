//! Loads the models of a plan.

use anyhow::{Result, bail};
use polydraft::policy::DraftShape;
use polydraft_engine::Engine;
use polydraft_models::Bytes;

use crate::backend::native::Native;
use crate::draft::{Draft, DraftFiles};
use crate::drafters::Drafters;
use crate::listen::{Listener, Silent};
use crate::message::{OptionName, message};
use crate::model_files::{demo_folder, hub_id};
use crate::models::{LanguageModel, ModelOptions, Models};
use crate::plan::{Plan, backend_of, draft_backend};
use crate::table_saver::TableSaver;
use crate::usage::{Advice, Usage};

/// Weights above this size report their loading progress.
const MIN_PROGRESS_BYTES: u64 = 256 << 20;

impl ModelOptions {
    /// Loads the target and, if `with_draft`, its drafter.
    ///
    /// # Errors
    /// [`Usage`] for contradictory options; models that cannot be loaded.
    pub fn load(&self, with_draft: bool, listener: &dyn Listener) -> Result<Models> {
        let template = self.template.read()?;
        let plan = Plan::new(self, with_draft, listener)?;
        let bytes = plan.bytes();
        let what = format!("loading {}, {}", self.target_name(), Bytes(bytes));
        let progress = |done| {
            if bytes > MIN_PROGRESS_BYTES {
                listener.progress(&what, done, 1);
            }
        };
        progress(0);
        let models = load(plan);
        progress(1);
        let mut models = models?;
        if let (Some(ngrams), Some(file)) = (models.engine.learning_ngrams(), &self.learn) {
            models.table_saver = Some(TableSaver::new(ngrams.clone(), file.clone())?);
        }
        self.template.apply(template, &mut models.language)?;
        Ok(models)
    }

    /// Checks the files of target and draft without loading weights, unless they are on the hub.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub(crate) fn check_files(&self, with_draft: bool) -> Result<()> {
        let is_on_hub = |name: &String| hub_id(name).is_some();
        if self.target.as_ref().is_some_and(is_on_hub) {
            return Ok(());
        }
        let with_draft = with_draft && !self.drafts.iter().any(is_on_hub);
        Plan::new(self, with_draft, &Silent).map(drop)
    }

    /// Loads target and draft as two models, for callers that need both distributions.
    ///
    /// # Errors
    /// As for [`load`](Self::load); a draft that is not a model.
    pub fn load_both(&self, listener: &dyn Listener) -> Result<(LanguageModel, LanguageModel)> {
        let files = match &self.drafts[..] {
            [] if self.target.is_none() => {
                DraftFiles { name: None, path: demo_folder()?.join("draft") }
            }
            [name] => match Draft::resolve(name, self.offline, listener)? {
                Draft::Model(files) => files,
                head if head.is_head() => bail!(Advice(message![
                    OptionName::Draft.with(name),
                    " is a draft head, not a model",
                ])),
                _ => return Err(two_models_required()),
            },
            _ => return Err(two_models_required()),
        };
        let target = self.load_target(listener)?;
        let plan = Plan::new(self, false, listener)?;
        let backend = plan.backend(plan.draft_backend(&files)?);
        let (model, language) = backend.load_draft(&files.path, None)?;
        target.language.vocabulary.check_draft(&language.vocabulary)?;
        Ok((target, LanguageModel { model, language }))
    }

    /// Loads only a draft, as a model, for a target that is not given by these options.
    ///
    /// # Errors
    /// [`Usage`] for a draft that is not a model; a model that cannot be loaded.
    pub fn load_draft(&self, name: &str, listener: &dyn Listener) -> Result<LanguageModel> {
        let Draft::Model(files) = Draft::resolve(name, self.offline, listener)? else {
            return Err(Usage::conflict(
                &[OptionName::Draft],
                message![OptionName::Draft.with(name), ": expected the files of a model here"],
            ));
        };
        let native = Native { options: self, target_on_llama: false, listener };
        let backend = backend_of(draft_backend(self, &files)?, native);
        let (model, language) = backend.load_draft(&files.path, None)?;
        Ok(LanguageModel { model, language })
    }

    /// Loads only the target, as a model.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_target(&self, listener: &dyn Listener) -> Result<LanguageModel> {
        let mut plan = Plan::new(self, false, listener)?;
        let opened = plan.opened.take();
        let backend = plan.backend(plan.target.backend);
        let (model, language) = backend.load_target(&plan.target.path, opened, None)?.into_parts();
        Ok(LanguageModel { model, language })
    }
}

fn two_models_required() -> anyhow::Error {
    Usage::conflict(
        &[OptionName::Target, OptionName::Draft],
        message![
            "two models are needed here: give ",
            OptionName::Target.with("MODEL"),
            " and ",
            OptionName::Draft.with("MODEL"),
        ],
    )
}

fn load(mut plan: Plan) -> Result<Models> {
    let backend = plan.backend(plan.target.backend);
    let mut estimated_costs = plan.estimated_costs(plan.draft_shape());
    let without = plan.is_sidecar.then(|| plan.estimated_costs(DraftShape::Ngrams));
    let opened = plan.opened.take();
    let mut target = backend.load_target(&plan.target.path, opened, plan.self_draft())?;
    let drafter = match (Drafters { plan: &plan }.open(target.as_mut()), without) {
        (Err(error), Some(without)) => {
            plan.drop_sidecar(&error);
            estimated_costs = without;
            Drafters { plan: &plan }.open(target.as_mut())?
        }
        (drafter, _) => drafter?,
    };
    let (model, language) = target.into_parts();
    Ok(Models {
        engine: Engine::new(model, drafter),
        language,
        draft: plan.draft.label(),
        table_saver: None,
        resolved_target: plan.target,
        mixes_ngrams: plan.mixes_ngrams,
        loaded_draft: plan.draft,
        estimated_costs,
    })
}
