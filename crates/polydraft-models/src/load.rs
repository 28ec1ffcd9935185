//! Loads a model and its tokenizer from a directory in Hugging Face layout or from a GGUF file.

use std::path::Path;

use polydraft_kernels::available_memory;
use polydraft_text::Language;

use crate::description::{Description, LoadOptions, TensorSizes, check_memory};
use crate::error::Result;
use crate::importance;
use crate::model::TransformerModel;
use crate::precision::Precision;
use crate::self_draft_file::SelfDraftFile;
use crate::transformer::Transformer;
use crate::weights::Weights;

/// A loaded model.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: TransformerModel,
    /// The quantised self-draft, if requested.
    pub self_draft: Option<TransformerModel>,
    /// Whether the self-draft was read from its cache file.
    pub was_cached: bool,
    /// Tokenizer, chat template and end tokens.
    pub language: Language,
}

/// Loads a model. From a directory this reads `config.json`, the tokenizer, the weights and, if
/// present, `generation_config.json` and the chat template; a path that ends in `.gguf` has all of
/// them in one file.
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
/// Missing, truncated, unknown or inconsistent data, and a model that does not fit into memory. The
/// message names the file and the field or tensor.
pub fn load(path: &Path, options: LoadOptions) -> Result<Loaded> {
    Opened::new(path)?.load(options)
}

/// A model whose weights are not loaded yet.
#[derive(Debug)]
pub struct Opened {
    /// Everything but the weights.
    pub description: Description,
    weights: Weights,
}

impl Opened {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// The errors of [`load`], except errors that only the weights reveal.
    pub fn new(path: &Path) -> Result<Self> {
        let (description, weights) = Description::open(path)?;
        Ok(Self { description, weights })
    }

    /// Checks that the available memory is enough to load with these options.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn check_memory(&self, options: LoadOptions) -> Result<()> {
        self.description.check_memory(options)
    }

    /// Loads the weights.
    ///
    /// # Errors
    /// The errors of [`load`].
    pub fn load(self, options: LoadOptions) -> Result<Loaded> {
        self.load_with(options, None)
    }

    /// Loads the weights, and the self-draft from `cache_file` if it is cached there. Otherwise the
    /// self-draft is computed and can be [written](SelfDraftFile::write) to the file.
    ///
    /// # Errors
    /// The errors of [`load`].
    pub fn load_with(
        self,
        options: LoadOptions,
        cache_file: Option<&SelfDraftFile>,
    ) -> Result<Loaded> {
        let Self { description, weights } = self;
        description.check_memory(options)?;
        let Description { config, language, .. } = description;
        let vocabulary = language.vocabulary.clone();
        let (tokens, layers) = (vocabulary.size(), config.layers);
        let mut transformer =
            Transformer::load(&config, weights, tokens, layers, options.precision)?;
        transformer.cache_type = options.cache;
        let mut model = TransformerModel::new(language.name.clone(), vocabulary, transformer)?;
        let cached = options.self_draft.zip(cache_file);
        let cached =
            cached.and_then(|(kind, file)| model.load_cached(kind, &file.open().ok()?).ok());
        let was_cached = cached.is_some();
        let self_draft = match options.self_draft {
            Some(kind) if !was_cached => {
                // Skips lines that the tokenizer cannot encode and tokens without an embedding row.
                let lines = importance::SAMPLE.split_inclusive('\n');
                let lines =
                    lines.filter_map(|line| language.tokenizer.encode_plain(line).ok()).flatten();
                let sample: Vec<_> = lines.filter(|token| (*token as usize) < tokens).collect();
                Some(model.rounded(kind, &sample)?)
            }
            _ => cached,
        };
        Ok(Loaded { model, self_draft, was_cached, language })
    }
}

/// The embedding and the output matrix of a target, without its layers: the tensors that a draft
/// head may share with a target on another backend.
#[derive(Debug)]
pub struct EmbeddingAndOutput(Transformer);

impl EmbeddingAndOutput {
    /// Reads the two matrices from a model's file or directory.
    ///
    /// # Errors
    /// The errors of [`load`].
    pub fn load(path: &Path, precision: Precision) -> Result<Self> {
        let (description, weights) = Description::open(path)?;
        let Description { config, language, .. } = description;
        let (mut sizes, layers) = (TensorSizes::default(), format!("{}.", config.names.layers));
        for tensor in weights.tensors().iter().filter(|tensor| !tensor.name.starts_with(&layers)) {
            sizes.add(tensor, config.matrix_use(&tensor.name));
        }
        check_memory(path, precision, available_memory(), |precision| sizes.bytes(precision))?;
        Transformer::load(&config, weights, language.vocabulary.size(), 0, precision).map(Self)
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.0
    }
}
