//! Creates the drafter of a loaded target from a draft.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use polydraft::Token;
use polydraft_engine::drafter::ngram::{self, SharedNgrams};
use polydraft_engine::drafter::remote::RemoteDrafter;
use polydraft_engine::{
    CombinedDrafter, Drafter, DrafterKind, Model, ModelDrafter, TranslatedDrafter,
};
use polydraft_models::{HeadOptions, Precision, load_block_head, load_head, load_mtp, read_tokens};
use polydraft_text::Language;

use crate::backend::LoadedTarget;
use crate::draft::{Corpus, Draft, DraftFiles, Ngrams};
use crate::message::{OptionName, message};
use crate::models::advise;
use crate::plan::Plan;
use crate::remote::connect;
use crate::tables;
use crate::translation::{Translated, translate};
use crate::usage::Usage;

/// Creates the drafters of a plan.
pub(crate) struct Drafters<'p, 'a> {
    pub plan: &'p Plan<'a>,
}

impl Drafters<'_, '_> {
    /// Creates the drafter of a target; `None` for plain decoding.
    ///
    /// # Errors
    /// Files that are missing, invalid, or for another target.
    pub fn open(&self, target: &mut dyn LoadedTarget) -> Result<Option<Box<dyn Drafter>>> {
        let drafter = match &self.plan.draft {
            Draft::None => return Ok(None),
            Draft::Several(all) => {
                let all = all.iter().map(|draft| self.open_one(draft, target));
                Box::new(CombinedDrafter::new(all.collect::<Result<_>>()?)?)
            }
            one => self.open_one(one, target)?,
        };
        if !self.plan.mixes_ngrams {
            return Ok(Some(drafter));
        }
        let ngrams = DrafterKind::Ngram(ngram::Settings::default()).build(target.info())?;
        Ok(Some(Box::new(CombinedDrafter::with_ngrams(drafter, ngrams))))
    }

    fn open_one(&self, draft: &Draft, target: &mut dyn LoadedTarget) -> Result<Box<dyn Drafter>> {
        let plan = self.plan;
        Ok(match draft {
            Draft::None | Draft::Several(_) => unreachable!("drafts of a draft are single ones"),
            Draft::Ngrams(ngrams) => self.ngrams(ngrams, target)?,
            Draft::Remote(url) => {
                let source = connect(url, target.language(), plan.listener)?;
                Box::new(RemoteDrafter::new(source, target.info()))
            }
            Draft::SelfDraft(_) => {
                let mut copy = target.take_self_draft().context("the self-draft was not made")?;
                if let Some(tokens) = self.tokens(target.language())? {
                    copy.restrict_output(&tokens)?;
                }
                Box::new(ModelDrafter::new(Box::new(copy), &target.info().vocabulary)?)
            }
            Draft::Model(files) => {
                let tokens = self.tokens(target.language())?;
                let backend = plan.backend(plan.draft_backend(files)?);
                let (model, language) = backend.load_draft(&files.path, tokens.as_deref())?;
                self.model(model, &language, target)?
            }
            Draft::Mtp => {
                let (path, options) = (&plan.target.path, self.head_options(target.language())?);
                let model = target.native().context("a target on the native backend")?;
                let head = load_mtp(path, model, &options).map_err(advise);
                Box::new(head.context("loading the MTP layer")?)
            }
            Draft::Head(files) | Draft::Assistant(files) | Draft::BlockHead(files) => {
                let is_block_head = matches!(draft, Draft::BlockHead(_));
                self.head(files, is_block_head, target).context("loading the draft head")?
            }
        })
    }

    /// Drafter of a model, whose tokens are translated if they are not the target's.
    fn model(
        &self,
        model: Box<dyn Model>,
        language: &Language,
        target: &dyn LoadedTarget,
    ) -> Result<Box<dyn Drafter>> {
        let vocabulary = &target.info().vocabulary;
        let Err(differs) = vocabulary.check_draft(&model.info().vocabulary) else {
            return Ok(Box::new(ModelDrafter::new(model, vocabulary)?));
        };
        let draft = (language, model.info().vocabulary.size());
        match translate((target.language(), vocabulary.size()), draft) {
            Translated::No => Err(differs.into()),
            Translated::TooFew(shared) => bail!(
                "{differs}. Translated, it would not pay: only {:.0} % of the smaller vocabulary's \
                 tokens are in both",
                100.0 * shared
            ),
            Translated::Yes(translation) => {
                let note = format!(
                    "note: the draft has another tokenizer: its tokens are translated; both have \
                     {:.0} % of those of the smaller vocabulary",
                    100.0 * translation.shared()
                );
                self.plan.listener.note(&note.into());
                Ok(Box::new(TranslatedDrafter::new(model, translation)))
            }
        }
    }

    fn head(
        &self,
        files: &DraftFiles,
        is_block_head: bool,
        target: &mut dyn LoadedTarget,
    ) -> Result<Box<dyn Drafter>> {
        let options = self.head_options(target.language())?;
        let head_target = target.for_head(options.precision)?;
        Ok(match is_block_head {
            true => {
                let path = &self.plan.target.path;
                Box::new(load_block_head(&files.path, head_target, path, &options).map_err(advise)?)
            }
            false => Box::new(load_head(&files.path, head_target, &options).map_err(advise)?),
        })
    }

    fn head_options(&self, language: &Language) -> Result<HeadOptions> {
        let options = self.plan.options;
        // Q8_0 halves the time of a head's pass; the output's distribution does not depend on it.
        let precision = options.draft_dtype.unwrap_or(Precision::Q8_0);
        let (layers, tokens) = (options.draft_layers.clone(), self.tokens(language)?);
        Ok(HeadOptions { precision, layers, tokens, memory: None })
    }

    fn ngrams(&self, ngrams: &Ngrams, target: &dyn LoadedTarget) -> Result<Box<dyn Drafter>> {
        let mut settings = ngram::Settings::default();
        if let Some(corpus) = &ngrams.corpus {
            match corpus {
                Corpus::Table(file) => {
                    settings.shared = Some(SharedNgrams::Table(Arc::new(tables::read(file)?)));
                }
                Corpus::Text(file) => {
                    let text = polydraft_files::read_text(file, polydraft_files::FileKind::PROMPT)
                        .with_context(|| format!("cannot read the corpus {}", file.display()))?;
                    settings.corpus = target.language().tokenizer.encode_chunks(&text)?;
                }
            }
            settings.corpus_file = Some(corpus.file().to_owned());
        }
        if let Some(file) = &ngrams.learn {
            let learning = tables::open_learning(file, &target.info().vocabulary)?;
            let (learned, shown) = (learning.learned(), file.display());
            let detail = format!("draft: n-grams in {shown}, {learned} tokens learned");
            self.plan.listener.detail(&detail.into());
            settings.shared = Some(SharedNgrams::Learning(learning));
            settings.corpus_file = Some(file.clone());
        }
        Ok(DrafterKind::Ngram(settings).build(target.info())?)
    }

    /// Returns the tokens that the draft may propose, ascending, including the end tokens.
    fn tokens(&self, language: &Language) -> Result<Option<Vec<Token>>> {
        let Some(chosen) = &self.plan.options.draft_vocabulary else { return Ok(None) };
        let vocabulary = language.vocabulary.size();
        let mut tokens: Vec<Token> = match chosen.parse::<usize>() {
            Ok(0) => {
                return Err(Usage::unknown(
                    OptionName::DraftVocabulary,
                    message![OptionName::DraftVocabulary, ": expected at least 1, got 0"],
                ));
            }
            Ok(count) => (0..count.min(vocabulary) as Token).collect(),
            Err(_) => read_tokens(Path::new(chosen), vocabulary)?,
        };
        tokens.extend(&language.end_tokens);
        tokens.sort_unstable();
        tokens.dedup();
        Ok(Some(tokens))
    }
}
