//! Models and their drafters, from the options that describe them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use polydraft_engine::{
    Drafter, DrafterKind, Engine, Model, ModelDrafter, ModelInfo, SeveralDrafters,
};
use polydraft_models::{
    Bytes, LoadOptions, Loaded, Opened, Precision, TransformerModel, brings_mtp, is_head,
};
use polydraft_text::{ChatTemplate, Language, LanguageModel};

use crate::backend::Backend;
use crate::keeper::TableKeeper;
use crate::models::{FALLBACK, MTP, ModelOptions, Models, Own, advise};
use crate::places::{demo, locate};
use crate::self_draft::SelfDraft;
use crate::{Listener, Usage, copies, machine};

impl ModelOptions {
    /// Loads the target and, if one is needed, its drafter.
    ///
    /// # Errors
    /// [`Usage`] where options contradict each other; models that cannot be loaded.
    pub fn load(&self, with_draft: bool, listener: &dyn Listener) -> Result<Models> {
        let bytes = self.weight_bytes();
        let what = format!("loading {}, {}", self.target_name(), Bytes(bytes));
        let tells = |done| {
            if bytes > LARGE {
                listener.progress(&what, done, 1);
            }
        };
        let template = self.template.read()?;
        tells(0);
        let loaded = self
            .with_tables()
            .and_then(|options| Loader { options: &options, listener }.load(with_draft));
        tells(1);
        let mut loaded = loaded?;
        if let (Some(ngrams), Some(file)) = (loaded.engine.learning(), &self.learn) {
            loaded.learned = Some(TableKeeper::new(ngrams.clone(), file.clone())?);
        }
        let language = &mut loaded.language;
        if let Some((text, file)) = template {
            language.use_template(&text, file)?;
        }
        let chat = language.chat.take();
        let chat = chat.map(|chat| chat.with_variables(&self.template.variables));
        language.chat =
            if self.template.extras { chat.map(ChatTemplate::with_extras) } else { chat };
        Ok(loaded)
    }

    /// Loads target and draft as two models, for users of both distributions.
    ///
    /// # Errors
    /// As for [`load`](Self::load); a draft that is no model.
    pub fn load_both(&self, listener: &dyn Listener) -> Result<(LanguageModel, LanguageModel)> {
        Loader { options: self, listener }.load_both()
    }

    /// Loads the target alone, as a model.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_target(&self, listener: &dyn Listener) -> Result<LanguageModel> {
        Loader { options: self, listener }.load_model("target")
    }
}

/// Weights that take a while to load.
const LARGE: u64 = 256 << 20;

/// Loads models by their options.
pub(crate) struct Loader<'a> {
    pub options: &'a ModelOptions,
    pub listener: &'a dyn Listener,
}

impl Loader<'_> {
    /// Loads the target and, if one is needed, its drafter.
    pub fn load(&self, with_draft: bool) -> Result<Models> {
        self.check(with_draft)?;
        let options = self.options;
        let path = match &options.target {
            Some(name) => locate(name, options.offline, self.listener)?,
            None => demo()?.join("target"),
        };
        if options.target_backend(&path)? == Backend::Llama {
            return self.load_llama(&path, with_draft);
        }
        if with_draft && options.says_nothing_of_drafts() && brings_mtp(&path) {
            let options = options.with_draft(MTP);
            self.listener.note(
                "note: no draft was named: the model's own layer that predicts further tokens \
                 drafts for it (--draft mtp)",
            );
            return Loader { options: &options, ..*self }.load(true);
        }
        if !with_draft || !options.drafts_on_llama() {
            options.backend.check_unused()?;
        }
        let own = if with_draft { options.own_copy()? } else { Own::No };
        let (mut target, own) = self.open(&path, "target", own)?;
        let copy = match target.self_draft.take() {
            Some(copy) => Some(self.drafting(copy, target.model.info(), &target.language)?),
            None => None,
        };
        let drafter = match with_draft || copy.is_some() {
            true => {
                let info = target.model.info().clone();
                let open = &mut |one: &Loader<'_>| one.open_drafter(&path, &mut target);
                Some(self.with_ngrams(self.drafters(copy, open)?, &info)?)
            }
            false => None,
        };
        let draft = match own {
            Some(own) => Some(self.and_further(format!("self:{own}"))).filter(|_| with_draft),
            None => self.named_draft(with_draft),
        };
        Ok(Models {
            engine: Engine::new(Box::new(target.model), drafter),
            language: target.language,
            draft,
            learned: None,
        })
    }

    /// All drafters as one: the first, which may be there already, and the further ones.
    fn drafters(
        &self,
        first: Option<Box<dyn Drafter>>,
        open: &mut dyn FnMut(&Loader<'_>) -> Result<Box<dyn Drafter>>,
    ) -> Result<Box<dyn Drafter>> {
        let (options, listener) = (self.options, self.listener);
        if options.further_drafts.is_empty() {
            return first.map_or_else(|| open(self), Ok);
        }
        let mut one = |name: &String| {
            let options = options.with_draft(name);
            open(&Loader { options: &options, listener })
        };
        let mut all: Vec<Box<dyn Drafter>> = first.into_iter().collect();
        let named = options.draft.iter().filter(|_| all.is_empty()).chain(&options.further_drafts);
        let named: Vec<&String> = named.collect();
        for name in named {
            if SelfDraft::named(name)?.is_some() {
                return Err(Usage::error("--draft self comes before other drafts, and once"));
            }
            all.push(one(name)?);
        }
        Ok(Box::new(SeveralDrafters::new(all)?))
    }

    /// The same with n-grams of the sequence mixed in, if that is wanted.
    fn with_ngrams(
        &self,
        drafter: Box<dyn Drafter>,
        target: &ModelInfo,
    ) -> Result<Box<dyn Drafter>> {
        if !self.options.mixes_ngrams() {
            return Ok(drafter);
        }
        let ngrams = FALLBACK.parse::<DrafterKind>()?.build(target)?;
        Ok(Box::new(SeveralDrafters::mixed(drafter, ngrams)))
    }

    /// The name of the first draft with those of the further ones.
    fn and_further(&self, first: String) -> String {
        let further = self.options.further_drafts.iter().cloned();
        std::iter::once(first).chain(further).collect::<Vec<_>>().join(" + ")
    }

    /// Options that are not used, or contradict each other, on any backend.
    fn check(&self, with_draft: bool) -> Result<()> {
        let options = self.options;
        let unused = [
            ("--draft", options.draft.is_some() && options.learn.is_none()),
            ("--learn", options.learn.is_some()),
            ("--draft-dtype", options.draft_dtype.is_some()),
            ("--draft-vocabulary", options.draft_vocabulary.is_some()),
            ("--draft-layers", options.draft_layers.is_some()),
        ];
        if let Some((option, _)) = unused.iter().find(|(_, given)| *given && !with_draft) {
            self.listener.note(&format!("note: {option} is not used: nothing is drafted here"));
        }
        let mixes = options.mix_ngrams == Some(true);
        if mixes && !options.further_drafts.is_empty() {
            return Err(Usage::error(
                "--mix-ngrams is for one draft: --draft ngram beside others draws paths of its own",
            ));
        }
        if mixes && options.draft.as_deref() == Some(FALLBACK) {
            return Err(Usage::error("--mix-ngrams: n-grams are the draft already"));
        }
        let all = options.draft.iter().chain(&options.further_drafts);
        let ngram = options.drafter().is_some()
            || all.map(String::as_str).any(|name| DrafterKind::named(name).is_some());
        match options.corpus.is_some() && !ngram {
            true => Err(Usage::error("--corpus is for --draft ngram: give both, or neither")),
            false => Ok(()),
        }
    }

    /// The same with a target on llama.cpp.
    fn load_llama(&self, path: &Path, with_draft: bool) -> Result<Models> {
        let options = self.options;
        // Before the target, as the whole model is in memory while a copy of it is made.
        let copy = match options.own_copy()? {
            own @ Own::RequestParams(_) if with_draft => Some(self.copy_beside(path, own)?),
            _ => None,
        };
        let LanguageModel { model: mut target, language } =
            options.backend.load_target(path, options.cache_type, self.listener)?;
        let (copy, kind) = match copy {
            Some((copy, kind)) => {
                (Some(self.drafting(copy, target.info(), &language)?), Some(kind))
            }
            None => (None, None),
        };
        let drafter = match with_draft {
            false => None,
            true => {
                let info = target.info().clone();
                let beside =
                    &mut |one: &Loader<'_>| one.drafter_beside(path, &mut *target, &language);
                Some(self.with_ngrams(self.drafters(copy, beside)?, &info)?)
            }
        };
        let draft = match kind {
            Some(kind) => Some(self.and_further(format!("self:{kind}"))),
            None => self.named_draft(with_draft),
        };
        Ok(Models { engine: Engine::new(target, drafter), language, draft, learned: None })
    }

    /// A quantised self-draft, on the native backend, of a target that llama.cpp computes.
    fn copy_beside(&self, path: &Path, own: Own) -> Result<(TransformerModel, Precision)> {
        let (loaded, kind) = self
            .open(path, "target", own)
            .context("making a copy of the target on the native backend")?;
        loaded.self_draft.zip(kind).context("--draft self: expected a copy, got none")
    }

    /// The drafter of a quantised self-draft.
    fn drafting(
        &self,
        copy: TransformerModel,
        target: &ModelInfo,
        language: &Language,
    ) -> Result<Box<dyn Drafter>> {
        let copy = Box::new(self.cut(copy, language)?);
        Ok(Box::new(ModelDrafter::new(copy, &target.vocabulary)?))
    }

    /// The draft's name, if there is one that is no self-draft.
    fn named_draft(&self, with_draft: bool) -> Option<String> {
        if with_draft && self.options.has_default_draft() {
            self.listener.note(
                "note: no draft was named: n-grams of the sequence itself draft for it (--draft \
                 ngram)",
            );
            return Some(FALLBACK.to_owned());
        }
        self.options.draft.clone().filter(|_| with_draft).map(|draft| self.and_further(draft))
    }

    /// Loads target and draft as two models.
    pub fn load_both(&self) -> Result<(LanguageModel, LanguageModel)> {
        let options = self.options;
        if options.drafter().is_some() || !matches!(options.own_copy()?, Own::No) {
            return Err(Usage::error(
                "two models are needed here: give --target MODEL and --draft MODEL",
            ));
        }
        let (target, draft) = (self.load_model("target")?, self.load_model("draft")?);
        target.language.vocabulary.check_draft(&draft.language.vocabulary)?;
        Ok((target, draft))
    }

    /// One of the two as a model: "target" or "draft".
    pub fn load_model(&self, role: &str) -> Result<LanguageModel> {
        let (options, is_draft) = (self.options, role == "draft");
        let path = match if is_draft { &options.draft } else { &options.target } {
            Some(name) => locate(name, options.offline, self.listener)?,
            None => demo()?.join(role),
        };
        if is_head(&path) {
            let path = path.display();
            return Err(Usage::error(format_args!("{path} is a draft head, not a model")));
        }
        let (cache, listener) = (options.cache_type, self.listener);
        let backend = match is_draft {
            true => options.draft_backend(&path)?,
            false => options.target_backend(&path)?,
        };
        match backend {
            Backend::Llama if is_draft => options.backend.load_draft(&path, cache, listener),
            Backend::Llama => options.backend.load_target(&path, cache, listener),
            Backend::Native => self.open(&path, role, Own::No).map(|(loaded, _)| loaded.into()),
        }
    }

    /// A model on the native backend; with the type of its quantised self-draft, if there is to be
    /// one.
    pub fn open(&self, path: &Path, role: &str, own: Own) -> Result<(Loaded, Option<Precision>)> {
        let options = self.options;
        let precision = match role {
            "draft" => options.draft_dtype.unwrap_or_else(|| options.precision(path)),
            _ => options.precision(path),
        };
        let failed = |error| advise(error).context(format!("loading the {role} model"));
        let clock = Instant::now();
        let opened = Opened::new(path).map_err(failed)?;
        let beside = |own: SelfDraft| own.beside(&opened.description, precision);
        let copy = match own {
            Own::No => None,
            Own::IfItHelps(own) => beside(own).ok(),
            Own::RequestParams(own) => Some(beside(own).map_err(|problem| {
                Usage::error(format!("--draft self: {problem}; see --dtype and --draft-dtype"))
            })?),
        };
        if let Some((copy, bytes)) = &copy {
            self.listener.note(&format!(
                "note: quantised self-draft: the target's own weights in {copy} draft for it, \
                 {bytes} more"
            ));
        }
        let mut copy = copy.map(|(copy, _)| copy);
        let how = LoadOptions {
            precision,
            cache: options.native_cache()?,
            self_draft: copy,
            ..LoadOptions::default()
        };
        let kept = copies::of(options.copies.as_deref());
        let kept = kept.and_then(|copies| copies.place(&opened.description, &how));
        let loaded = match opened.load_with(how, kept.as_ref()) {
            Err(polydraft_models::Error::Memory { .. })
                if copy.is_some() && matches!(own, Own::IfItHelps(_)) =>
            {
                self.listener.note("note: there is no memory for that: the target alone");
                copy = None;
                Opened::new(path)
                    .and_then(|opened| opened.load(LoadOptions { self_draft: None, ..how }))
            }
            loaded => loaded,
        };
        let loaded = loaded.map_err(failed)?;
        if let (Some(file), Some(copy)) = (&kept, &loaded.self_draft) {
            copies::keep(file, copy, loaded.was_cached, self.listener);
        }
        let (seconds, threads) = (clock.elapsed().as_secs_f64(), machine::threads());
        let path = path.display();
        self.listener.detail(&format!(
            "{role}: {path} in {precision}, {threads} threads; loaded in {seconds:.2} s"
        ));
        Ok((loaded, copy))
    }

    /// Where the draft is.
    pub fn draft_path(&self) -> Result<PathBuf> {
        let Some(name) = &self.options.draft else { return Ok(demo()?.join("draft")) };
        let path = locate(name, self.options.offline, self.listener)?;
        match path.exists() {
            true => Ok(path),
            false => anyhow::bail!(
                "--draft {name}: expected a model directory, a .gguf file, a draft head or a \
                 table of n-grams, or self, self:TYPE, mtp, ngram or none, got nothing there"
            ),
        }
    }
}
