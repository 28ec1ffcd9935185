//! From a directory in Hugging Face layout, or from a GGUF file, to a model with its tokenizer.

use std::path::Path;

use polydraft_kernels::available_memory;
use polydraft_text::Language;

use crate::description::{Description, LoadOptions, Sizes, check_memory};
use crate::error::Result;
use crate::importance;
use crate::model::TransformerModel;
use crate::precision::Precision;
use crate::self_draft_file::SelfDraftFile;
use crate::transformer::Transformer;
use crate::weights::Weights;

/// A model, ready to use.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: TransformerModel,
    /// Its quantised self-draft, if that was asked for.
    pub self_draft: Option<TransformerModel>,
    /// Whether the self-draft came from the file where it was cached.
    pub was_cached: bool,
    /// Its tokenizer, chat template and end tokens.
    pub language: Language,
}

/// Loads a model: of a directory `config.json`, the tokenizer, `generation_config.json`, the chat
/// template (where there are such) and the weights; all of it from a path that ends in `.gguf`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use polydraft::{PolicyKind, Sampling, VerifierKind};
/// use polydraft_models::{LoadOptions, load};
/// use polydraft_engine::{Engine, Limits, Model, ModelDrafter, Request, Speculation};
/// use rand::SeedableRng;
///
/// let target = load("models/big".as_ref(), LoadOptions::default())?;
/// let draft = load("models/small".as_ref(), LoadOptions::default())?;
/// let drafter = ModelDrafter::new(Box::new(draft.model), &target.model.info().vocabulary)?;
/// let mut engine = Engine::new(Box::new(target.model), Some(Box::new(drafter)));
///
/// let tokenizer = &target.language.tokenizer;
/// let verifier = "nested-priority".parse::<VerifierKind>()?;
/// let prompt = tokenizer.encode("Once upon a time")?;
/// let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
/// let speculation = Speculation::new(verifier.build()?, PolicyKind::paths(2, 3).build()?)?;
/// let end_tokens = target.language.end_tokens.clone();
/// let request = Request::new(&prompt[..])
///     .sampling(sampling)
///     .speculation(speculation.with_sampling(sampling))
///     .limits(Limits { end_tokens, ..Limits::tokens(100) })
///     .detokenizer(tokenizer.stream(&prompt))
///     .rng(rand_chacha::ChaCha8Rng::seed_from_u64(1));
/// let generation = engine.generate(request, &mut |piece| {
///     print!("{}", piece.text);
///     true
/// })?;
/// println!("\n{:.2} tokens per call of the target", generation.statistics.block_efficiency());
/// # Ok(()) }
/// ```
///
/// # Errors
/// Anything that is missing, cut short, unknown, too large for the memory, or contradicts another
/// part; file and field or tensor are named.
pub fn load(path: &Path, options: LoadOptions) -> Result<Loaded> {
    Opened::new(path)?.load(options)
}

/// A model of which all is known but its weights, which can then be loaded.
#[derive(Debug)]
pub struct Opened {
    /// What is known.
    pub description: Description,
    weights: Weights,
}

impl Opened {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// As for [`load`], but for what only the weights can show.
    pub fn new(path: &Path) -> Result<Self> {
        let (description, weights) = Description::open(path)?;
        Ok(Self { description, weights })
    }

    /// Checks that there is memory enough to load with these options.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn check_memory(&self, options: LoadOptions) -> Result<()> {
        self.description.check_memory(options)
    }

    /// Loads the weights.
    ///
    /// # Errors
    /// As for [`load`].
    pub fn load(self, options: LoadOptions) -> Result<Loaded> {
        self.load_with(options, None)
    }

    /// Loads the weights, and the self-draft from a file if it is cached there. If it is not, it is
    /// made, and can be [written](SelfDraftFile::write) there.
    ///
    /// # Errors
    /// As for [`load`].
    pub fn load_with(self, options: LoadOptions, kept: Option<&SelfDraftFile>) -> Result<Loaded> {
        let Self { description, weights } = self;
        description.check_memory(options)?;
        let Description { config, language, .. } = description;
        let vocabulary = language.vocabulary.clone();
        let (tokens, layers) = (vocabulary.size(), config.layers);
        let mut transformer =
            Transformer::load(&config, weights, tokens, layers, options.precision)?;
        transformer.held = options.cache;
        let mut model = TransformerModel::new(language.name.clone(), vocabulary, transformer)?;
        let kept = options.self_draft.zip(kept);
        let kept = kept.and_then(|(copy, file)| model.kept(copy, &file.open().ok()?).ok());
        let was_cached = kept.is_some();
        let copy = match options.self_draft {
            Some(copy) if !was_cached => {
                // What a tokenizer of few characters cannot write is left out, and what the model
                // has no row of.
                let lines = importance::SAMPLE.split_inclusive('\n');
                let lines =
                    lines.filter_map(|line| language.tokenizer.encode_plain(line).ok()).flatten();
                let text: Vec<_> = lines.filter(|token| (*token as usize) < tokens).collect();
                Some(model.rounded(copy, &text)?)
            }
            _ => kept,
        };
        Ok(Loaded { model, self_draft: copy, was_cached, language })
    }
}

/// The embedding and the output matrix of a target, without its layers: what a draft head may share
/// with it. For targets on another backend.
#[derive(Debug)]
pub struct EmbeddingAndHead(Transformer);

impl EmbeddingAndHead {
    /// Reads them from a model's file or directory.
    ///
    /// # Errors
    /// As for [`load`].
    pub fn load(path: &Path, precision: Precision) -> Result<Self> {
        let (description, weights) = Description::open(path)?;
        let Description { config, language, .. } = description;
        let (mut sizes, layers) = (Sizes::default(), format!("{}.", config.names.layers));
        for tensor in weights.tensors().iter().filter(|tensor| !tensor.name.starts_with(&layers)) {
            sizes.add(tensor, config.use_of(&tensor.name));
        }
        check_memory(path, precision, available_memory(), |precision| sizes.bytes(precision))?;
        Transformer::load(&config, weights, language.vocabulary.size(), 0, precision).map(Self)
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.0
    }
}
