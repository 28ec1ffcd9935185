//! Which models to load, and what computes them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{ArgMatches, Args, Command};
use polydraft::{DraftTree, Token};
use polydraft_engine::{Drafter, DrafterKind, Engine, Facts, Model, ModelDrafter};
use polydraft_llama::CacheType;
use polydraft_models::{
    Ends, Head, HeadOptions, LoadOptions, Loaded, Opened, Precision, TransformerModel, is_gguf,
    is_head, load_head, load_head_beside, read_tokens,
};
use polydraft_text::{Language, LanguageModel};

use crate::backend::{Backend, BackendArgs};
use crate::config::typed;
use crate::copies;
use crate::output::{Usage, detail, note};
use crate::own_copy::OwnCopy;
use crate::places::{demo, locate, weight_bytes};

/// The models of a run.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Models")]
pub struct ModelArgs {
    /// The target model: a directory with config.json, tokenizer.json and model.safetensors (or
    /// shards with an index), a file that ends in .gguf, or a hub id such as org/name or
    /// org/name@revision [default: the demo pair's].
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
    /// What drafts [default: the demo pair's where no target is named; else 'self' where that
    /// helps, or 'ngram']: a model of the same vocabulary; a draft head that was trained for the
    /// target (EAGLE); 'self': the target's own weights once more, in q5_1 or q4_1, the first that
    /// is much less than the target takes (on a card in q8_0), or as self:TYPE says; or 'ngram':
    /// what the text itself has said before, and no model.
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// A text that --draft ngram may quote besides: a file of the same kind as what is to be
    /// written.
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Tokens that the draft may propose, which leaves it less to compute: a number, for so many of
    /// the first (tokenizers number what is frequent first), or a file with a JSON list of ids or
    /// one that PyTorch saved (FR-Spec).
    #[arg(long, value_name = "N|FILE")]
    draft_vocabulary: Option<String>,
    /// The layers of the target whose inputs a draft head reads, such as 2,15,27, where acceptance
    /// shows that its files say it wrongly.
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    draft_layers: Option<Vec<usize>>,
    /// How weights are held: f32; f16 or bf16 (half the memory, and exact if the model was
    /// published so; on a CPU all arithmetic is in f32 all the same); q8_0, q4_0, q4_1, q5_1 or
    /// q4_k (quantised on loading; then the quantised model, with inputs of products rounded to 8
    /// bits too, is what is sampled exactly); q8_0-f32 (the same weights as q8_0, inputs not
    /// rounded); file (each as its file has it, nothing rounded; blocks of other types are
    /// multiplied as f32 would be) [default: file for a .gguf file, else f32].
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Precision>,
    /// How the weights of the draft are held [default: as --dtype says; those of a draft head in
    /// q8_0]. The text has the target's law whatever the draft is held in.
    #[arg(long, value_name = "TYPE")]
    draft_dtype: Option<Precision>,
    /// Where copies that --draft self made are kept, so that the next start need not make them
    /// again, or none: the ones used last, of 20 GB together [default: the user's cache folder].
    #[arg(long, value_name = "FOLDER|none")]
    copies: Option<PathBuf>,
    /// How keys and values are held, the target's and a drafting model's: f32, or f16, which takes
    /// half the memory and makes long texts faster; llama.cpp has bf16, q8_0 and q4_0 too [default:
    /// f32, on llama.cpp f16]. The model with keys and values so rounded is what is sampled
    /// exactly. A draft head's stay in f32.
    #[arg(long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
    /// Never ask the network: use what was downloaded before.
    #[arg(long)]
    offline: bool,
    /// Threads to compute with, at most as many as the machine runs at once [default: one for a
    /// target of less than 64 MB, which is done before a second thread has started; else one per
    /// core].
    // Read in threads.rs, before all else.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    backend: BackendArgs,
}

/// Options that the file of defaults may have, and that have no meaning beside what was typed.
pub(crate) fn outdone(command: &Command, matches: &ArgMatches) -> Vec<&'static str> {
    let Ok(Some(draft)) = matches.try_get_one::<String>("draft") else { return Vec::new() };
    let is_model = DrafterKind::named(draft).is_none();
    match typed(matches, "draft") {
        true if is_model => {
            // Layers of the file are those of its own draft, if it names one.
            let of_another = command
                .get_arguments()
                .any(|arg| arg.get_id() == "draft" && !arg.get_default_values().is_empty());
            match of_another || !locate(draft, true).is_ok_and(|path| is_head(&path)) {
                true => vec!["corpus", "draft_layers"],
                false => vec!["corpus"],
            }
        }
        true => vec!["draft_dtype", "draft_vocabulary", "draft_layers"],
        false if is_model && typed(matches, "corpus") => vec!["draft"],
        false => Vec::new(),
    }
}

/// What drafts where nothing is named and a copy of the target would not help: it costs next to
/// nothing.
const FALLBACK: &str = "ngram";

/// Whether a copy of the target is to draft for it.
#[derive(Debug, Clone, Copy)]
enum Own {
    No,
    Asked(OwnCopy),
    IfItHelps(OwnCopy),
}

/// The models of a run, at work.
pub struct Models {
    /// The target and its drafter.
    pub engine: Engine,
    /// The target's tokenizer, and all else between text and tokens.
    pub language: Language,
    /// What drafts, where it was named.
    pub draft: Option<String>,
}

impl ModelArgs {
    /// Loads the target and, if one is needed, what drafts for it.
    pub fn load(&self, with_draft: bool) -> Result<Models> {
        let unused = [
            ("--draft", self.draft.is_some()),
            ("--draft-dtype", self.draft_dtype.is_some()),
            ("--draft-vocabulary", self.draft_vocabulary.is_some()),
            ("--draft-layers", self.draft_layers.is_some()),
        ];
        if let Some((option, _)) = unused.iter().find(|(_, given)| *given && !with_draft) {
            note(format_args!("note: {option} is not used: nothing is drafted here"));
        }
        if self.corpus.is_some() && self.drafter().is_none() {
            return Err(Usage::error(
                "--corpus is what --draft ngram may quote: give both, or neither",
            ));
        }
        let target = match &self.target {
            Some(name) => locate(name, self.offline)?,
            None => demo()?.join("target"),
        };
        if self.target_backend(&target)? == Backend::Llama {
            return self.load_llama(&target, with_draft);
        }
        if !with_draft || !self.drafts_on_llama() {
            self.backend.check_unused()?;
        }
        let own = if with_draft { self.own_copy()? } else { Own::No };
        let (mut target, own) = self.open(&target, "target", own)?;
        let drafter: Option<Box<dyn Drafter>> = match target.copy.take() {
            Some(copy) => Some(self.drafting(copy, target.model.facts(), &target.language)?),
            None if with_draft => Some(self.open_drafter(&mut target)?),
            None => None,
        };
        let draft = match own {
            Some(own) => Some(format!("self:{own}")).filter(|_| with_draft),
            None => self.named_draft(with_draft),
        };
        Ok(Models {
            engine: Engine::new(Box::new(target.model), drafter),
            language: target.language,
            draft,
        })
    }

    /// The same with a target on llama.cpp.
    fn load_llama(&self, path: &Path, with_draft: bool) -> Result<Models> {
        // Before the target, as candle has the whole model while it makes a copy.
        let copy = match self.own_copy()? {
            own @ Own::Asked(_) if with_draft => Some(self.copy_beside(path, own)?),
            _ => None,
        };
        let LanguageModel { model: mut target, language } =
            self.backend.load_target(path, self.cache_type)?;
        if let Some((copy, kind)) = copy {
            let drafter = Some(self.drafting(copy, target.facts(), &language)?);
            let draft = Some(format!("self:{kind}"));
            return Ok(Models { engine: Engine::new(target, drafter), language, draft });
        }
        let drafter = match with_draft {
            false => None,
            true => Some(match self.ngram(target.facts(), &language)? {
                Some(ngram) => ngram,
                None => {
                    let draft = self.draft_path()?;
                    match is_head(&draft) {
                        true => {
                            Box::new(self.head_beside(&draft, path, &mut *target, &language)?)
                        }
                        false => self.draft_model(&draft, target.facts(), &language)?,
                    }
                }
            }),
        };
        let draft = self.named_draft(with_draft);
        Ok(Models { engine: Engine::new(target, drafter), language, draft })
    }

    /// A copy, computed by candle, of the weights of a target that llama.cpp computes.
    fn copy_beside(&self, path: &Path, own: Own) -> Result<(TransformerModel, Precision)> {
        let (loaded, kind) =
            self.open(path, "target", own).context("making a copy of the target with candle")?;
        loaded.copy.zip(kind).context("--draft self: expected a copy, got none")
    }

    /// A copy of the target at work as its draft.
    fn drafting(
        &self,
        copy: TransformerModel,
        target: &Facts,
        language: &Language,
    ) -> Result<Box<dyn Drafter>> {
        let copy = Box::new(self.cut(copy, language)?);
        Ok(Box::new(ModelDrafter::new(copy, &target.vocabulary)?))
    }

    /// What computes the target.
    fn target_backend(&self, path: &Path) -> Result<Backend> {
        let has_head = self.draft.as_deref().is_some_and(|draft| is_head(Path::new(draft)));
        let own = self.draft.as_deref().map(OwnCopy::named).transpose()?.flatten();
        let candle = self.dtype.map(|_| "--dtype");
        self.backend.of_target(path, candle, has_head || own.is_some())
    }

    /// The draft's name, if one drafts that is no copy of the target.
    fn named_draft(&self, with_draft: bool) -> Option<String> {
        if with_draft && self.has_default_draft() {
            note(
                "note: no draft was named: what the text itself has said before drafts for it (--draft ngram)",
            );
            return Some(FALLBACK.to_owned());
        }
        self.draft.clone().filter(|_| with_draft)
    }

    /// Loads target and draft as two models, for those who look at the distributions of both.
    pub fn load_both(&self) -> Result<(LanguageModel, LanguageModel)> {
        if self.drafter().is_some() || !matches!(self.own_copy()?, Own::No) {
            return Err(Usage::error(
                "two models are needed here: give --target MODEL and --draft MODEL",
            ));
        }
        let [target, draft] =
            [(&self.target, "target"), (&self.draft, "draft")].map(|(name, role)| {
                let path = match name {
                    Some(name) => locate(name, self.offline),
                    None => demo().map(|demo| demo.join(role)),
                };
                let path = path?;
                if is_head(&path) {
                    return Err(Usage::error(format_args!(
                        "{} is a draft head, not a model",
                        path.display()
                    )));
                }
                let is_draft = role == "draft";
                let backend =
                    if is_draft { self.draft_backend(&path) } else { self.target_backend(&path) };
                match backend? {
                    Backend::Llama if is_draft => self.backend.load_draft(&path, self.cache_type),
                    Backend::Llama => self.backend.load_target(&path, self.cache_type),
                    Backend::Candle => {
                        self.open(&path, role, Own::No).map(|(loaded, _)| loaded.into())
                    }
                }
            });
        let (target, draft) = (target?, draft?);
        target.language.vocabulary.check_draft(&draft.language.vocabulary)?;
        Ok((target, draft))
    }

    /// The models, where they are, how large and how held: where it is the same, so is what passes
    /// cost.
    pub(crate) fn identity(&self, models: &Models) -> Vec<String> {
        let [target, draft] = self.named(models, &|place| place.display().to_string());
        let words = self.draft_vocabulary.clone().unwrap_or_else(|| "all tokens".to_owned());
        let mut all = vec![
            target,
            draft,
            words,
            held(self.dtype),
            held(self.draft_dtype),
            // Where they are computed; costs that were kept before say it.
            "cpu".to_owned(),
        ];
        all.extend(self.corpus.as_ref().map(|file| format!("quotes {}", file.display())));
        all.extend(self.draft_layers.as_ref().map(|layers| format!("reads layers {layers:?}")));
        all.extend(self.rounded_cache());
        all.extend(self.on_llama());
        all
    }

    /// Whether a model on llama.cpp drafts.
    fn drafts_on_llama(&self) -> bool {
        self.is_on_llama(&self.draft, |path| self.draft_backend(path))
    }

    fn is_on_llama(
        &self,
        name: &Option<String>,
        backend: impl Fn(&Path) -> Result<Backend>,
    ) -> bool {
        let place = name.as_deref().and_then(|name| locate(name, true).ok());
        place.is_some_and(|path| matches!(backend(&path), Ok(Backend::Llama)))
    }

    /// Which of target and draft llama.cpp computes, and how.
    fn on_llama(&self) -> Vec<String> {
        let backends = [
            ("target", self.is_on_llama(&self.target, |path| self.target_backend(path))),
            ("draft", self.drafts_on_llama()),
        ];
        let on_llama = backends.into_iter().filter(|(_, on_llama)| *on_llama);
        on_llama.map(|(role, _)| format!("{role} on {}", self.backend.identity())).collect()
    }

    /// How keys and values are held, where it is not as they are computed.
    fn rounded_cache(&self) -> Option<String> {
        self.cache_type
            .filter(|kind| *kind != CacheType::F32)
            .map(|kind| format!("keys and values in {kind}"))
    }

    /// Target and draft for records that leave this machine: without their folders.
    pub fn ids(&self, models: &Models) -> [String; 2] {
        let last =
            |place: &Path| place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let [target, draft] = self.named(models, &last);
        let words = self
            .draft_vocabulary
            .as_ref()
            .map_or(String::new(), |words| format!(", tokens {words}"));
        let cache = self.rounded_cache().map_or(String::new(), |cache| format!(", {cache}"));
        [
            format!("{target}, {}{cache}", held(self.dtype)),
            format!("{draft}, {}{words}", held(self.draft_dtype)),
        ]
    }

    /// Target and draft, with how large they are; `show` says where.
    fn named(&self, models: &Models, show: &dyn Fn(&Path) -> String) -> [String; 2] {
        let of = |name: Option<&str>, role: &str| match name {
            None if role == "draft" && self.has_default_draft() => {
                models.draft.clone().unwrap_or_else(|| "none".to_owned())
            }
            Some(name)
                if DrafterKind::named(name).is_some()
                    || matches!(OwnCopy::named(name), Ok(Some(_))) =>
            {
                // With how a copy is held, which its name may leave open.
                models.draft.clone().unwrap_or_else(|| name.to_owned())
            }
            name => {
                let place = name
                    .map_or_else(|| demo().map(|demo| demo.join(role)), |name| locate(name, true));
                let place = place.unwrap_or_else(|_| role.into());
                let place = place.canonicalize().unwrap_or(place);
                format!("{} of {} bytes", show(&place), weight_bytes(&place))
            }
        };
        [of(self.target.as_deref(), "target"), of(self.draft.as_deref(), "draft")]
    }

    /// With how its own copy is held, if there is to be one.
    fn open(&self, path: &Path, role: &str, own: Own) -> Result<(Loaded, Option<Precision>)> {
        let precision = match role {
            "draft" => self.draft_dtype.unwrap_or_else(|| self.precision(path)),
            _ => self.precision(path),
        };
        let failed = |error| advise(error).context(format!("loading the {role} model"));
        let clock = Instant::now();
        let opened = Opened::new(path).map_err(failed)?;
        let beside = |own: OwnCopy| own.beside(&opened.description, precision);
        let copy = match own {
            Own::No => None,
            Own::IfItHelps(own) => beside(own).ok(),
            Own::Asked(own) => Some(beside(own).map_err(|problem| {
                Usage::error(format!("--draft self: {problem}; see --dtype and --draft-dtype"))
            })?),
        };
        if let Some((copy, bytes)) = &copy {
            note(format_args!(
                "note: the target's own weights in {copy} draft for it: {bytes} more"
            ));
        }
        let mut copy = copy.map(|(copy, _)| copy);
        let options = LoadOptions { precision, memory: None, cache: self.candle_cache()?, copy };
        let kept = copies::of(self.copies.as_deref());
        let kept = kept.and_then(|copies| copies.place(&opened.description, &options));
        let loaded = match opened.load_with(options, kept.as_ref()) {
            Err(polydraft_models::Error::Memory { .. })
                if copy.is_some() && matches!(own, Own::IfItHelps(_)) =>
            {
                note("note: there is no memory for that: the target alone");
                copy = None;
                Opened::new(path)
                    .and_then(|opened| opened.load(LoadOptions { copy: None, ..options }))
            }
            loaded => loaded,
        };
        let loaded = loaded.map_err(failed)?;
        if let (Some(file), Some(copy)) = (&kept, &loaded.copy) {
            copies::keep(file, copy, loaded.was_kept);
        }
        let (seconds, threads) = (clock.elapsed().as_secs_f64(), crate::threads::settled());
        let (path, dtype) = (path.display(), precision);
        detail(format_args!(
            "{role}: {path} in {dtype}, {threads} threads; loaded in {seconds:.2} s"
        ));
        Ok((loaded, copy))
    }

    /// The copy of the target that drafts: if that is what `--draft` names, or if nothing is named.
    fn own_copy(&self) -> Result<Own> {
        if self.has_default_draft() && self.corpus.is_none() {
            return OwnCopy::default().or(self.draft_dtype).map(Own::IfItHelps);
        }
        match self.draft.as_deref().map(OwnCopy::named).transpose()?.flatten() {
            Some(own) => own.or(self.draft_dtype).map(Own::Asked),
            None => Ok(Own::No),
        }
    }

    /// Whether nothing is named to draft for a target of the user's own: then it is the target's
    /// own copy where that is small enough, else what costs nothing.
    fn has_default_draft(&self) -> bool {
        self.target.is_some() && self.draft.is_none()
    }

    /// How candle holds keys and values.
    fn candle_cache(&self) -> Result<polydraft_models::CacheType> {
        match self.cache_type {
            None | Some(CacheType::F32) => Ok(polydraft_models::CacheType::F32),
            Some(CacheType::F16) => Ok(polydraft_models::CacheType::F16),
            // The target's then; what drafts for it here keeps to its own.
            Some(_) if self.is_on_llama(&self.target, |path| self.target_backend(path)) => {
                Ok(polydraft_models::CacheType::F32)
            }
            Some(other) => Err(Usage::error(format_args!(
                "--cache-type {other} is llama.cpp's: expected f32 or f16 for a model on candle"
            ))),
        }
    }

    /// How the weights of a model are held.
    fn precision(&self, path: &Path) -> Precision {
        self.dtype.unwrap_or(default_precision(path))
    }

    /// What computes a draft model.
    fn draft_backend(&self, path: &Path) -> Result<Backend> {
        let candle = match () {
            _ if self.draft_dtype.or(self.dtype).is_some() => Some("--dtype or --draft-dtype"),
            _ if self.draft_vocabulary.is_some() => Some("--draft-vocabulary"),
            _ => None,
        };
        self.backend.of_draft(path, candle)
    }

    /// What drafts for `target`.
    fn open_drafter(&self, target: &mut Loaded) -> Result<Box<dyn Drafter>> {
        let Loaded { model: target, language, .. } = target;
        if let Some(ngram) = self.ngram(target.facts(), language)? {
            return Ok(ngram);
        }
        let draft = self.draft_path()?;
        if !is_head(&draft) {
            return self.draft_model(&draft, target.facts(), language);
        }
        let options = self.head_options(language)?;
        let head = load_head(&draft, target, &options)
            .map_err(advise)
            .context("loading the draft head")?;
        Ok(Box::new(head))
    }

    /// A head that drafts for a target on llama.cpp, with what it borrows read from the target's
    /// file.
    fn head_beside(
        &self,
        head: &Path,
        path: &Path,
        target: &mut dyn Model,
        language: &Language,
    ) -> Result<Head> {
        let options = self.head_options(language)?;
        let ends = Ends::load(path, options.precision);
        let load = ends.and_then(|ends| load_head_beside(head, &ends, target, &options));
        load.map_err(advise).context("loading the draft head")
    }

    fn head_options(&self, language: &Language) -> Result<HeadOptions> {
        // Half a pass of wider weights; the text's law does not depend on it.
        let precision = self.draft_dtype.unwrap_or(Precision::Q8_0);
        let (layers, tokens) = (self.draft_layers.clone(), self.draft_tokens(language)?);
        Ok(HeadOptions { precision, layers, tokens, memory: None })
    }

    /// What drafts without a model, if that is what `--draft` names.
    fn ngram(&self, target: &Facts, language: &Language) -> Result<Option<Box<dyn Drafter>>> {
        let Some(mut kind) = self.drafter() else { return Ok(None) };
        if self.draft_dtype.is_some()
            || self.draft_vocabulary.is_some()
            || self.draft_layers.is_some()
        {
            return Err(Usage::error(
                "--draft-dtype, --draft-vocabulary and --draft-layers are for drafts with weights: n-grams have none",
            ));
        }
        let DrafterKind::Ngram(settings) = &mut kind;
        if let Some(file) = &self.corpus {
            let text = polydraft_files::read_text(file, polydraft_files::Kind::PROMPT)
                .with_context(|| format!("cannot read the corpus {}", file.display()))?;
            settings.corpus = language.text.encode_pieces(&text)?;
            settings.corpus_file = Some(file.clone());
        }
        Ok(Some(kind.build(target)?))
    }

    fn draft_path(&self) -> Result<PathBuf> {
        let Some(name) = &self.draft else { return Ok(demo()?.join("draft")) };
        let path = locate(name, self.offline)?;
        match path.exists() {
            true => Ok(path),
            false => bail!(
                "--draft {name}: expected a model directory, a .gguf file or a draft head, or self, self:TYPE or ngram, got nothing there; \
                 --verifier none drafts nothing"
            ),
        }
    }

    /// A model that drafts for `target`, on either backend.
    fn draft_model(
        &self,
        draft: &Path,
        target: &Facts,
        language: &Language,
    ) -> Result<Box<dyn Drafter>> {
        if self.draft_layers.is_some() {
            return Err(Usage::error(
                "--draft-layers is for draft heads, which read layers of the target",
            ));
        }
        let model: Box<dyn Model> = match self.draft_backend(draft)? {
            Backend::Llama => self.backend.load_draft(draft, self.cache_type)?.model,
            Backend::Candle => {
                let (draft, _) = self.open(draft, "draft", Own::No)?;
                Box::new(self.cut(draft.model, language)?)
            }
        };
        Ok(Box::new(ModelDrafter::new(model, &target.vocabulary)?))
    }

    /// A draft that proposes no other tokens than `--draft-vocabulary` says.
    fn cut(&self, mut draft: TransformerModel, language: &Language) -> Result<TransformerModel> {
        if let Some(tokens) = self.draft_tokens(language)? {
            draft.cut_output(&tokens)?;
        }
        Ok(draft)
    }

    /// The tokens that the draft may propose, ascending; those that end a text are among them.
    fn draft_tokens(&self, language: &Language) -> Result<Option<Vec<Token>>> {
        let Some(chosen) = &self.draft_vocabulary else { return Ok(None) };
        let vocabulary = language.vocabulary.size();
        let mut tokens: Vec<Token> = match chosen.parse::<usize>() {
            Ok(0) => return Err(Usage::error("--draft-vocabulary: expected at least 1, got 0")),
            Ok(count) => (0..count.min(vocabulary) as Token).collect(),
            Err(_) => read_tokens(Path::new(chosen), vocabulary)?,
        };
        tokens.extend(&language.end_tokens);
        tokens.sort_unstable();
        tokens.dedup();
        Ok(Some(tokens))
    }

    /// What `--draft` names, if it is no model.
    fn drafter(&self) -> Option<DrafterKind> {
        let fallback = self.has_default_draft().then_some(FALLBACK);
        DrafterKind::named(self.draft.as_deref().or(fallback)?)
    }
}

impl ModelArgs {
    /// The measured acceptances of the demo pair, if that is what is used.
    pub fn demo_acceptance(&self) -> Option<PathBuf> {
        let demo_pair = self.target.is_none() && self.draft.is_none();
        demo_pair.then(|| demo().ok().map(|demo| demo.join("acceptance.json"))).flatten()
    }

    /// Bytes that can be had, where the system says.
    pub fn available_memory(&self) -> Option<u64> {
        polydraft_models::available_memory()
    }

    /// How far apart a logit may be when computed in another pass. With our own kernels it is the
    /// same to the last bit.
    pub fn rounding(&self) -> f32 {
        let target = Path::new(self.target.as_deref().unwrap_or_default());
        match self.target_backend(target) {
            // Its products depend on how many rows are in a pass.
            Ok(Backend::Llama) => 0.3,
            _ => 1e-3,
        }
    }
}

/// How the weights of a model are held where nothing is said.
pub fn default_precision(path: &Path) -> Precision {
    if is_gguf(path) { Precision::File } else { Precision::F32 }
}

/// The error of a model that could not be loaded, and which option helps.
pub fn advise(error: polydraft_models::Error) -> anyhow::Error {
    use polydraft_models::Error;
    match &error {
        Error::Memory { fits, .. } if !fits.is_empty() => anyhow!("{error}; choose with --dtype"),
        Error::Memory { .. } => anyhow!("{error}; no --dtype is small enough"),
        _ => error.into(),
    }
}

/// Where two texts at temperature 0 part, how far apart the target's logits of the two tokens are;
/// `None` if the texts are equal.
pub fn parting(
    target: &mut dyn Model,
    prompt: &[Token],
    a: &[Token],
    b: &[Token],
) -> Result<Option<f32>> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (Some(&a_next), Some(&b_next)) = (a.get(common), b.get(common)) else {
        ensure!(
            a.len() == b.len(),
            "two texts of {} and {} tokens at temperature 0",
            a.len(),
            b.len()
        );
        return Ok(None);
    };
    let sequence = target.open()?;
    let text = [prompt, &a[..common]].concat();
    let scored = target
        .extend(sequence, &text)
        .and_then(|()| target.score(&[(sequence, &DraftTree::new())]));
    let gap = scored.map(|()| {
        let logits = target.logits(sequence, DraftTree::ROOT);
        (logits[a_next as usize] - logits[b_next as usize]).abs()
    });
    target.close(sequence);
    Ok(Some(gap?))
}

/// How weights are held, in words.
fn held(dtype: Option<Precision>) -> String {
    dtype.map_or_else(|| "as it comes".to_owned(), |dtype| dtype.to_string())
}
