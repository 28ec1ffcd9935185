//! Drafters of a target: a model, a head, a quantised self-draft, or n-grams.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use polydraft::Token;
use polydraft_engine::drafter::ngram::Known;
use polydraft_engine::{Drafter, DrafterKind, Model, ModelDrafter, ModelInfo};
use polydraft_models::{
    EmbeddingAndHead, Head, HeadOptions, Loaded, Precision, TransformerModel, is_block_head,
    is_head, load_block_head, load_block_head_beside, load_head, load_head_beside, load_mtp,
    read_tokens,
};
use polydraft_text::Language;

use crate::backend::Backend;
use crate::load::Loader;
use crate::models::{Own, advise};
use crate::{Usage, tables};

/// What is done when a head cannot be loaded.
const LOADING: &str = "loading the draft head";

fn boxed(drafter: impl Drafter + 'static) -> Box<dyn Drafter> {
    Box::new(drafter)
}

impl Loader<'_> {
    /// The drafter of a target on the native backend, whose files are in `path`.
    pub fn open_drafter(&self, path: &Path, target: &mut Loaded) -> Result<Box<dyn Drafter>> {
        let Loaded { model: target, language, .. } = target;
        if self.options.drafts_by_mtp() {
            return Ok(Box::new(self.mtp(path, target, language)?));
        }
        if let Some(ngram) = self.ngram(target.info(), language)? {
            return Ok(ngram);
        }
        let draft = self.draft_path()?;
        if !is_head(&draft) {
            return self.draft_model(&draft, target.info(), language);
        }
        let options = self.head_options(language)?;
        let head = match is_block_head(&draft) {
            true => load_block_head(&draft, target, path, &options).map(boxed),
            false => load_head(&draft, target, &options).map(boxed),
        };
        head.map_err(advise).context(LOADING)
    }

    /// The drafter of a target on llama.cpp that is in `path`.
    pub fn drafter_beside(
        &self,
        path: &Path,
        target: &mut dyn Model,
        language: &Language,
    ) -> Result<Box<dyn Drafter>> {
        if let Some(ngram) = self.ngram(target.info(), language)? {
            return Ok(ngram);
        }
        if self.options.drafts_by_mtp() {
            return Err(Usage::error(
                "--draft mtp is for targets on the native backend, which gives the layer what it \
                 reads: give --backend native",
            ));
        }
        let draft = self.draft_path()?;
        match is_head(&draft) {
            true => self.head_beside(&draft, path, target, language),
            false => self.draft_model(&draft, target.info(), language),
        }
    }

    /// The target's own layer that predicts further tokens.
    fn mtp(&self, path: &Path, target: &mut TransformerModel, language: &Language) -> Result<Head> {
        if self.options.draft_layers.is_some() {
            return Err(Usage::error(
                "--draft-layers is for draft heads, which read layers of the target",
            ));
        }
        let options = self.head_options(language)?;
        load_mtp(path, target, &options).map_err(advise).context("loading the MTP layer")
    }

    /// A head that drafts for a target on llama.cpp, with its shared tensors read from the target's
    /// file.
    fn head_beside(
        &self,
        head: &Path,
        path: &Path,
        target: &mut dyn Model,
        language: &Language,
    ) -> Result<Box<dyn Drafter>> {
        let options = self.head_options(language)?;
        let shared = EmbeddingAndHead::load(path, options.precision);
        let load = shared.and_then(|shared| match is_block_head(head) {
            true => load_block_head_beside(head, &shared, target, path, &options).map(boxed),
            false => load_head_beside(head, &shared, target, &options).map(boxed),
        });
        load.map_err(advise).context(LOADING)
    }

    fn head_options(&self, language: &Language) -> Result<HeadOptions> {
        // Half a pass of wider weights; the output's distribution does not depend on it.
        let precision = self.options.draft_dtype.unwrap_or(Precision::Q8_0);
        let (layers, tokens) = (self.options.draft_layers.clone(), self.draft_tokens(language)?);
        Ok(HeadOptions { precision, layers, tokens, memory: None })
    }

    /// A drafter without a model, if one is named.
    fn ngram(&self, target: &ModelInfo, language: &Language) -> Result<Option<Box<dyn Drafter>>> {
        let options = self.options;
        let Some(mut kind) = options.drafter() else { return Ok(None) };
        if options.draft_dtype.is_some()
            || options.draft_vocabulary.is_some()
            || options.draft_layers.is_some()
        {
            return Err(Usage::error(
                "--draft-dtype, --draft-vocabulary and --draft-layers are for drafts with weights: \
                 n-grams have none",
            ));
        }
        let DrafterKind::Ngram(settings) = &mut kind;
        if let Some(file) = &options.corpus {
            let what = || format!("cannot read the corpus {}", file.display());
            if tables::is_table(file) {
                settings.known = Some(Known::Table(Arc::new(tables::read(file)?)));
            } else {
                let text = polydraft_files::read_text(file, polydraft_files::Kind::PROMPT)
                    .with_context(what)?;
                settings.corpus = language.tokenizer.encode_pieces(&text)?;
            }
            settings.corpus_file = Some(file.clone());
        }
        if let Some(file) = &options.learn {
            let ngrams = tables::learning(file, &target.vocabulary)?;
            let (learned, file_name) = (ngrams.learned(), file.display());
            self.listener
                .detail(&format!("draft: n-grams in {file_name}, {learned} tokens learned"));
            settings.known = Some(Known::Learning(ngrams));
            settings.corpus_file = Some(file.clone());
        }
        Ok(Some(kind.build(target)?))
    }

    /// A model that drafts for `target`, on either backend.
    fn draft_model(
        &self,
        draft: &Path,
        target: &ModelInfo,
        language: &Language,
    ) -> Result<Box<dyn Drafter>> {
        let options = self.options;
        if options.draft_layers.is_some() {
            return Err(Usage::error(
                "--draft-layers is for draft heads, which read layers of the target",
            ));
        }
        let model: Box<dyn Model> = match options.draft_backend(draft)? {
            Backend::Llama => {
                options.backend.load_draft(draft, options.cache_type, self.listener)?.model
            }
            Backend::Native => {
                let (draft, _) = self.open(draft, "draft", Own::No)?;
                Box::new(self.cut(draft.model, language)?)
            }
        };
        Ok(Box::new(ModelDrafter::new(model, &target.vocabulary)?))
    }

    /// A draft that proposes no other tokens than the draft vocabulary says.
    pub fn cut(
        &self,
        mut draft: TransformerModel,
        language: &Language,
    ) -> Result<TransformerModel> {
        if let Some(tokens) = self.draft_tokens(language)? {
            draft.cut_output(&tokens)?;
        }
        Ok(draft)
    }

    /// The tokens that the draft may propose, ascending; those that end a text are among them.
    fn draft_tokens(&self, language: &Language) -> Result<Option<Vec<Token>>> {
        let Some(chosen) = &self.options.draft_vocabulary else { return Ok(None) };
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
}
