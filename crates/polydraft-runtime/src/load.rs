//! From a plan to loaded models.

use anyhow::{Result, bail};
use polydraft_engine::Engine;
use polydraft_models::Bytes;

use crate::backend::native::Native;
use crate::draft::{Draft, DraftFiles};
use crate::drafters::Drafters;
use crate::keeper::TableKeeper;
use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::models::{LanguageModel, ModelOptions, Models};
use crate::places::demo;
use crate::plan::{Plan, backend_of, draft_backend};
use crate::usage::{Advice, Usage};

/// Weights that take a while to load.
const LARGE: u64 = 256 << 20;

impl ModelOptions {
    /// Loads the target and, if one is needed, its drafter.
    ///
    /// # Errors
    /// [`Usage`] where options contradict each other; models that cannot be loaded.
    pub fn load(&self, with_draft: bool, listener: &dyn Listener) -> Result<Models> {
        let template = self.template.read()?;
        let plan = Plan::new(self, with_draft, listener)?;
        let bytes = plan.bytes();
        let what = format!("loading {}, {}", self.target_name(), Bytes(bytes));
        let progress = |done| {
            if bytes > LARGE {
                listener.progress(&what, done, 1);
            }
        };
        progress(0);
        let models = load(plan);
        progress(1);
        let mut models = models?;
        if let (Some(ngrams), Some(file)) = (models.engine.learning(), &self.learn) {
            models.learned = Some(TableKeeper::new(ngrams.clone(), file.clone())?);
        }
        self.template.apply(template, &mut models.language)?;
        Ok(models)
    }

    /// Loads target and draft as two models, for users of both distributions.
    ///
    /// # Errors
    /// As for [`load`](Self::load); a draft that is no model.
    pub fn load_both(&self, listener: &dyn Listener) -> Result<(LanguageModel, LanguageModel)> {
        let files = match &self.drafts[..] {
            [] if self.target.is_none() => DraftFiles { name: None, path: demo()?.join("draft") },
            [name] => match Draft::find(name, self.offline, listener)? {
                Draft::Model(files) => files,
                head if head.is_head() => bail!(Advice(message![
                    OptionName::Draft.with(name),
                    " is a draft head, not a model",
                ])),
                _ => return Err(two_needed()),
            },
            _ => return Err(two_needed()),
        };
        let target = self.load_target(listener)?;
        let plan = Plan::new(self, false, listener)?;
        let backend = plan.backend(plan.draft_backend(&files)?);
        let (model, language) = backend.load_draft(&files.path, None)?;
        target.language.vocabulary.check_draft(&language.vocabulary)?;
        Ok((target, LanguageModel { model, language }))
    }

    /// Loads a draft alone, as a model, where something else than these options gives the target.
    ///
    /// # Errors
    /// [`Usage`] for a draft that is no model; one that cannot be loaded.
    pub fn load_draft(&self, name: &str, listener: &dyn Listener) -> Result<LanguageModel> {
        let Draft::Model(files) = Draft::find(name, self.offline, listener)? else {
            return Err(Usage::conflict(
                &[OptionName::Draft],
                message![OptionName::Draft.with(name), ": expected the files of a model here"],
            ));
        };
        let native = Native { options: self, beside_llama: false, listener };
        let backend = backend_of(draft_backend(self, &files)?, native);
        let (model, language) = backend.load_draft(&files.path, None)?;
        Ok(LanguageModel { model, language })
    }

    /// Loads the target alone, as a model.
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

fn two_needed() -> anyhow::Error {
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
    let opened = plan.opened.take();
    let mut target = backend.load_target(&plan.target.path, opened, plan.self_draft())?;
    let drafter = Drafters { plan: &plan }.open(target.as_mut())?;
    let (model, language) = target.into_parts();
    Ok(Models {
        engine: Engine::new(model, drafter),
        language,
        draft: plan.draft.label(),
        learned: None,
        target_place: plan.target,
        mixes_ngrams: plan.mixes_ngrams,
        loaded_draft: plan.draft,
    })
}
