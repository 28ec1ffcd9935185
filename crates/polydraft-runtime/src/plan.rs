//! Resolves options into a plan of what to load: files are found, draft types determined,
//! contradictions rejected and defaults chosen, before any weights are read.

mod expected;

use std::path::PathBuf;

use anyhow::{Context, Result};
use polydraft_models::{Bytes, Description, Opened, Precision};

use crate::backend::llama::Llama;
use crate::backend::native::Native;
use crate::backend::{Backend, BackendKind};
use crate::draft::{Corpus, Draft, DraftFiles, Ngrams, check_copy};
use crate::listen::{Listener, Silent};
use crate::message::{Message, OptionName, message};
use crate::model_files::{demo_folder, locate, weight_bytes};
use crate::models::ModelOptions;
use crate::target::ResolvedTarget;
use crate::usage::Usage;

/// The resolved models of a run.
pub(crate) struct Plan<'a> {
    pub options: &'a ModelOptions,
    pub listener: &'a dyn Listener,
    pub target: ResolvedTarget,
    pub draft: Draft,
    /// Whether the draft lies beside the target and was not named.
    pub is_sidecar: bool,
    /// Whether n-grams of the sequence are mixed into the draft's distribution.
    pub mixes_ngrams: bool,
    /// The target without its weights, if the native backend needs it.
    pub opened: Option<Opened>,
}

impl<'a> Plan<'a> {
    /// Resolves the target and, if `with_draft`, its draft.
    ///
    /// # Errors
    /// [`Usage`] for contradictory options; missing or invalid files.
    pub fn new(
        options: &'a ModelOptions,
        with_draft: bool,
        listener: &'a dyn Listener,
    ) -> Result<Self> {
        let named = match with_draft {
            true => named_draft(options, listener)?,
            false => {
                note_unused(options, listener);
                Some(Draft::None)
            }
        };
        let target = find_target(options, named.as_ref(), listener)?;
        let mut plan = Self {
            options,
            listener,
            target,
            draft: Draft::None,
            is_sidecar: false,
            mixes_ngrams: false,
            opened: None,
        };
        if !plan.target.is_on_llama() {
            if !plan.has_draft_on_llama(named.as_ref())? {
                options.backend.check_unused()?;
            }
            let opened = Native::open(&plan.target.path)?;
            for note in &opened.description.language.notes {
                listener.note(&format!("note: {note}").into());
            }
            plan.opened = Some(opened);
        }
        plan.draft = match named {
            Some(draft) => plan.with_self_draft(draft)?,
            None => plan.default_draft()?,
        };
        check_draft_options(options, &plan.draft)?;
        plan.mixes_ngrams = mixes_ngrams(options, &plan.draft)?;
        Ok(plan)
    }

    /// Returns the bytes of the files of target and drafts.
    pub fn bytes(&self) -> u64 {
        let drafts = self.draft.components().iter().filter_map(Draft::files);
        let drafts = drafts.map(|files| weight_bytes(&files.path));
        weight_bytes(&self.target.path) + drafts.sum::<u64>()
    }

    /// Returns the weight type of the quantised self-draft, if there is one.
    pub fn self_draft(&self) -> Option<Precision> {
        self.draft.components().iter().find_map(|draft| match draft {
            Draft::SelfDraft(kind) => *kind,
            _ => None,
        })
    }

    /// Returns the backend of this kind.
    pub fn backend(&self, kind: BackendKind) -> Box<dyn Backend + 'a> {
        backend_of(kind, self.native())
    }

    /// Returns the native backend.
    pub fn native(&self) -> Native<'a> {
        let target_on_llama = self.target.is_on_llama();
        Native { options: self.options, target_on_llama, listener: self.listener }
    }

    /// Returns the backend of a draft model.
    ///
    /// # Errors
    /// [`Usage`] for options that contradict the given backend.
    pub fn draft_backend(&self, files: &DraftFiles) -> Result<BackendKind> {
        draft_backend(self.options, files)
    }

    fn has_draft_on_llama(&self, draft: Option<&Draft>) -> Result<bool> {
        for draft in draft.into_iter().flat_map(Draft::components) {
            if let Draft::Model(files) = draft
                && self.draft_backend(files)? == BackendKind::Llama
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Determines the weight type of the self-draft, if the draft is or contains one.
    fn with_self_draft(&mut self, draft: Draft) -> Result<Draft> {
        match draft {
            Draft::SelfDraft(kind) => self.required_copy(kind).map(Draft::SelfDraft),
            Draft::Several(mut all) => {
                if let Some(Draft::SelfDraft(kind)) = all.first().cloned() {
                    all[0] = Draft::SelfDraft(self.required_copy(kind)?);
                }
                Ok(Draft::Several(all))
            }
            Draft::Mtp if self.target.is_on_llama() => Err(Usage::conflict(
                &[OptionName::Draft, OptionName::Backend],
                message![
                    OptionName::Draft.with("mtp"),
                    " is for targets on the native backend: give ",
                    OptionName::Backend.with("native"),
                ],
            )),
            other => Ok(other),
        }
    }

    fn required_copy(&mut self, kind: Option<Precision>) -> Result<Option<Precision>> {
        let kind = self_draft_type(kind, self.options.draft_dtype)?;
        if self.opened.is_none() {
            let opened = Native::open(&self.target.path);
            self.opened =
                Some(opened.context("making a copy of the target on the native backend")?);
        }
        match self.copy(kind) {
            Some(Ok((kind, bytes))) => {
                self.note_copy(kind, bytes);
                Ok(Some(kind))
            }
            Some(Err(problem)) => Err(Usage::unknown(
                OptionName::Draft,
                message![OptionName::Draft.with(Draft::SelfDraft(kind)), ": "].join(problem).and([
                    "; see ".into(),
                    OptionName::Dtype.into(),
                    " and ".into(),
                    OptionName::DraftDtype.into(),
                ]),
            )),
            None => Ok(kind),
        }
    }

    /// Chooses the default draft: what was made for the target, as a file beside it or as its MTP
    /// layer; the quantised self-draft if it fits the memory and is expected to pay within the
    /// output; otherwise n-grams, which cost nothing.
    fn default_draft(&mut self) -> Result<Draft> {
        let options = self.options;
        let corpus = options.corpus.clone().map(Corpus::from_file);
        let has_mtp = self.opened.as_ref().is_some_and(|o| o.description.has_mtp());
        if corpus.is_none()
            && let Some(draft) = self.take_sidecar(has_mtp)
        {
            return Ok(draft);
        }
        if corpus.is_none() && options.draft_dtype.is_none() && has_mtp {
            self.listener.note(&message![
                "note: no draft was given: drafting with the model's own multi-token prediction \
                 layer (",
                OptionName::Draft.with("mtp"),
                ")",
            ]);
            return Ok(Draft::Mtp);
        }
        if corpus.is_none() && !self.target.is_on_llama() {
            let kind = self_draft_type(None, options.draft_dtype)?;
            if let Some(Ok((kind, bytes))) = self.copy(kind)
                && self.self_draft_pays(kind, bytes)?
            {
                let load_options = self.native().load_options(&self.target.path, Some(kind))?;
                let fits = self.opened.as_ref().map(|opened| opened.check_memory(load_options));
                match fits {
                    Some(Err(_)) => self
                        .listener
                        .note(&"note: not enough memory for a quantised self-draft".into()),
                    _ => {
                        self.note_copy(kind, bytes);
                        return Ok(Draft::SelfDraft(Some(kind)));
                    }
                }
            }
        }
        self.listener.note(&message![
            "note: no draft was given: drafting with n-grams of the sequence itself (",
            OptionName::Draft.with("ngram"),
            ")",
        ]);
        Ok(Draft::Ngrams(Ngrams { corpus, learn: None }))
    }

    /// Returns the weight type and the bytes of a quantised copy of the target, or why it would be
    /// useless; `None` if the target is not open.
    fn copy(&self, kind: Option<Precision>) -> Option<Result<(Precision, Bytes), Message>> {
        let target = &self.opened.as_ref()?.description;
        let (copy, checked) =
            check_self_draft(target, kind, self.options.precision(&self.target.path));
        Some(checked.map(|bytes| (copy, bytes)))
    }

    fn note_copy(&self, kind: Precision, bytes: Bytes) {
        let note = format!(
            "note: quantised self-draft: drafting with the target's own weights in {kind}, which \
             take {bytes} more"
        );
        self.listener.note(&note.into());
    }
}

/// Returns the weight type of a quantised self-draft for a target in `precision`, and its bytes, or
/// why it would be useless.
pub fn check_self_draft(
    target: &Description,
    kind: Option<Precision>,
    precision: Precision,
) -> (Precision, Result<Bytes, Message>) {
    let copy = kind.unwrap_or_else(|| target.best_self_draft(precision));
    let bytes = Bytes(target.self_draft_bytes(copy));
    if target.is_self_draft_small(copy, precision) {
        return (copy, Ok(bytes));
    }
    let target_bytes = Bytes(target.self_draft_bytes(precision));
    let own = match precision {
        Precision::File => "their types in the file".to_owned(),
        other => other.to_string(),
    };
    let problem = format!(
        "a copy in {copy} would take {bytes}, the target's own matrices in {own} take \
         {target_bytes}: it would not be faster. Use "
    );
    let message = message![
        problem,
        OptionName::Draft.with("ngram"),
        ", or load the target in a larger type, such as ",
        OptionName::Dtype.with("bf16"),
    ];
    (copy, Err(message))
}

/// Determines the weight type of a self-draft from its name and from the draft's option.
fn self_draft_type(
    named: Option<Precision>,
    given: Option<Precision>,
) -> Result<Option<Precision>> {
    match (named, given) {
        (Some(named), Some(other)) if named != other => Err(Usage::conflict(
            &[OptionName::Draft, OptionName::DraftDtype],
            message![
                OptionName::Draft.with(format_args!("self:{named}")),
                " and ",
                OptionName::DraftDtype.with(other),
                " contradict each other: give only one of them",
            ],
        )),
        (named, given) => {
            let kind = named.or(given);
            kind.map_or(Ok(()), check_copy)?;
            Ok(kind)
        }
    }
}

/// Finds the target and chooses its backend.
fn find_target(
    options: &ModelOptions,
    draft: Option<&Draft>,
    listener: &dyn Listener,
) -> Result<ResolvedTarget> {
    let path = match &options.target {
        Some(name) => locate(name, options.offline, listener)?,
        None => demo_folder()?.join("target"),
    };
    // Drafts that were given count even if they are not used, so that the target runs on the same
    // backend with and without them.
    let is_native =
        |name: &String| Draft::resolve(name, true, &Silent).is_ok_and(|draft| draft.is_native());
    let prefers_native = match draft {
        Some(Draft::None) => options.drafts.iter().any(is_native),
        draft => draft.is_some_and(|draft| draft.components().iter().any(Draft::is_native)),
    };
    let native: &[_] = if options.dtype.is_some() { &[OptionName::Dtype] } else { &[] };
    let backend = options.backend.target_backend(&path, native, prefers_native)?;
    Ok(ResolvedTarget { path, backend })
}

/// Returns the backend of this kind, with the options of the native one.
pub(crate) fn backend_of(kind: BackendKind, native: Native<'_>) -> Box<dyn Backend + '_> {
    match kind {
        BackendKind::Native => Box::new(native),
        BackendKind::Llama => Box::new(Llama { native }),
    }
}

/// Returns the backend of a draft model.
pub(crate) fn draft_backend(options: &ModelOptions, files: &DraftFiles) -> Result<BackendKind> {
    let native: &[_] = match () {
        () if options.draft_dtype.or(options.dtype).is_some() => {
            &[OptionName::Dtype, OptionName::DraftDtype]
        }
        () if options.draft_vocabulary.is_some() => &[OptionName::DraftVocabulary],
        () => &[],
    };
    options.backend.draft_backend(&files.path, native)
}

/// Resolves the drafts named in the options; `None` if a default must be chosen.
fn named_draft(options: &ModelOptions, listener: &dyn Listener) -> Result<Option<Draft>> {
    if let Some(file) = &options.learn {
        return learning_draft(options, file.clone()).map(Some);
    }
    options.check_none()?;
    let mut drafts = Vec::new();
    for name in &options.drafts {
        drafts.push(Draft::resolve(name, options.offline, listener)?);
    }
    if drafts.is_empty() {
        if options.target.is_some() {
            return Ok(None);
        }
        drafts.push(Draft::Model(DraftFiles { name: None, path: demo_folder()?.join("draft") }));
    }
    if drafts.iter().skip(1).any(|draft| matches!(draft, Draft::SelfDraft(_))) {
        let message =
            message![OptionName::Draft.with("self"), " must be the first draft, and only once"];
        return Err(Usage::conflict(&[OptionName::Draft], message));
    }
    give_corpus(options, &mut drafts)?;
    let one = (drafts.len() == 1).then(|| drafts.remove(0));
    Ok(Some(one.unwrap_or(Draft::Several(drafts))))
}

/// Returns learning n-grams, which must be the only draft.
fn learning_draft(options: &ModelOptions, file: PathBuf) -> Result<Draft> {
    if options.drafts.iter().any(|name| name != crate::draft::NGRAM) || options.drafts.len() > 1 {
        return Err(Usage::conflict(
            &[OptionName::Learn, OptionName::Draft],
            message![
                OptionName::Learn.with("FILE"),
                ": learning n-grams must be the only draft: give no ",
                OptionName::Draft,
                " with it",
            ],
        ));
    }
    let corpus = options.corpus.clone().map(Corpus::from_file);
    if matches!(corpus, Some(Corpus::Table(_))) {
        return Err(Usage::conflict(
            &[OptionName::Learn, OptionName::Corpus],
            message![
                OptionName::Learn.with("FILE"),
                ": expected no second table of n-grams as ",
                OptionName::Corpus,
                "; to continue that table, give it here",
            ],
        ));
    }
    Ok(Draft::Ngrams(Ngrams { corpus, learn: Some(file) }))
}

/// Assigns the corpus to n-gram drafts: a table among the drafts, or the option's file.
fn give_corpus(options: &ModelOptions, drafts: &mut [Draft]) -> Result<()> {
    let mut corpus = options.corpus.clone().map(Corpus::from_file);
    let mut ngrams: Vec<&mut Ngrams> = drafts
        .iter_mut()
        .filter_map(|draft| match draft {
            Draft::Ngrams(ngrams) => Some(ngrams),
            _ => None,
        })
        .collect();
    if corpus.is_some() && ngrams.is_empty() {
        return Err(Usage::unused(
            OptionName::Corpus,
            message![
                OptionName::Corpus,
                " is for ",
                OptionName::Draft.with("ngram"),
                ": give both, or neither",
            ],
        ));
    }
    for table in ngrams.iter_mut().filter_map(|ngrams| ngrams.corpus.take()) {
        if corpus.replace(table).is_some() {
            return Err(Usage::conflict(
                &[OptionName::Draft, OptionName::Corpus],
                message![
                    OptionName::Draft.with("FILE.ngrams"),
                    ": expected one table of n-grams, and no ",
                    OptionName::Corpus,
                    " with it",
                ],
            ));
        }
    }
    ngrams.into_iter().for_each(|ngrams| ngrams.corpus.clone_from(&corpus));
    Ok(())
}

/// Rejects draft options that do not apply to the drafts.
fn check_draft_options(options: &ModelOptions, draft: &Draft) -> Result<()> {
    let weight_options = [
        (OptionName::DraftDtype, options.draft_dtype.is_some()),
        (OptionName::DraftVocabulary, options.draft_vocabulary.is_some()),
        (OptionName::DraftLayers, options.draft_layers.is_some()),
    ];
    let given = weight_options.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
    let is_light =
        |draft: &Draft| matches!(draft, Draft::Ngrams(_) | Draft::Remote(_) | Draft::None);
    let has_weights = |draft: &Draft| !is_light(draft);
    if let (false, Some(option)) = (draft.components().iter().any(has_weights), given) {
        let is_remote = draft.components().iter().any(|draft| matches!(draft, Draft::Remote(_)));
        let has_none =
            if is_remote { "those of a server are on its side" } else { "n-grams have none" };
        let message = Message::new(Message::list(weight_options.map(|(option, _)| option.into())))
            .and([" are for drafts with weights: ".into(), has_none.into()]);
        return Err(Usage::unused(option, message));
    }
    let has_layers = |draft: &Draft| draft.is_head() || matches!(draft, Draft::Ngrams(_));
    let drafts = draft.components().iter().filter(|draft| **draft != Draft::None);
    if options.draft_layers.is_some() && !drafts.into_iter().all(has_layers) {
        return Err(Usage::unused(
            OptionName::DraftLayers,
            message![
                OptionName::DraftLayers,
                " is for draft heads, which read layers of the target",
            ],
        ));
    }
    Ok(())
}

/// Returns whether n-grams are mixed into the draft's distribution. Draft heads do not copy from
/// the context; a full model copies better than n-grams do.
fn mixes_ngrams(options: &ModelOptions, draft: &Draft) -> Result<bool> {
    let refused = |message: Message| Err(Usage::unused(OptionName::MixNgrams, message));
    match (options.mix_ngrams, draft) {
        (Some(true), Draft::Several(_)) => refused(message![
            OptionName::MixNgrams,
            " is for one draft: ",
            OptionName::Draft.with("ngram"),
            " as one of several drafts draws its own paths",
        ]),
        (Some(true), Draft::Ngrams(_)) if !options.drafts.is_empty() => {
            refused(message![OptionName::MixNgrams, ": n-grams are the draft already"])
        }
        (_, Draft::None | Draft::Several(_) | Draft::Ngrams(_)) => Ok(false),
        (given, draft) => Ok(given.unwrap_or(draft.is_head() || *draft == Draft::Mtp)),
    }
}

/// Notes draft options that have no effect without drafting.
fn note_unused(options: &ModelOptions, listener: &dyn Listener) {
    let given = [
        (OptionName::Draft, options.drafts.iter().any(|name| name != crate::draft::NONE)),
        (OptionName::Learn, options.learn.is_some()),
        (OptionName::Corpus, options.corpus.is_some()),
        (OptionName::MixNgrams, options.mix_ngrams.is_some()),
        (OptionName::DraftDtype, options.draft_dtype.is_some()),
        (OptionName::DraftVocabulary, options.draft_vocabulary.is_some()),
        (OptionName::DraftLayers, options.draft_layers.is_some()),
    ];
    for (option, _) in given.into_iter().filter(|(_, given)| *given) {
        let message = message!["note: ", option, " is not used: nothing is drafted here"];
        listener.note(&message);
    }
}
