//! Description of a model in a directory in Hugging Face layout or in a GGUF file, without reading
//! its weights.

mod foreign;
mod shapes;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use polydraft_gguf::{Architecture, Gguf, ModelDescription};
use polydraft_kernels::{CacheType, Format, available_memory};
use polydraft_text::Language;

use crate::config::Config;
use crate::error::{Bytes, Error, Result};
use crate::family::gguf::{assistant, block, config_from_gguf, gguf_architectures, has_mtp_only};
use crate::family::mtp::rename_mtp_tensor;
use crate::family::multimodal;
use crate::precision::{MatrixUse, Precision};
use crate::weights::{TensorHeader, Weights};

/// Maximum bytes of a quantised self-draft, relative to the model's matrices: with more, its passes
/// are no faster.
const MAX_SELF_DRAFT_SHARE: f64 = 0.7;

/// Options of loading a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Type of the weight matrices.
    pub precision: Precision,
    /// Maximum bytes of the model with its self-draft; `None` is the free memory that the system
    /// reports, or no limit if it reports none.
    pub memory: Option<u64>,
    /// Type of the KV cache of the model and of its self-draft.
    pub cache: CacheType,
    /// Weight type of a quantised self-draft; `None` for no self-draft. See
    /// [`TransformerModel::rounded`](crate::TransformerModel::rounded).
    pub self_draft: Option<Precision>,
}

impl From<Precision> for LoadOptions {
    /// Options with this weight type and defaults for the rest.
    fn from(precision: Precision) -> Self {
        Self { precision, ..Self::default() }
    }
}

/// Description of a model: everything but its weights.
#[derive(Debug)]
pub struct Description {
    /// Path of the directory or of the GGUF file.
    pub directory: PathBuf,
    /// Shape of the model.
    pub config: Config,
    /// Tokenizer, chat template and end tokens.
    pub language: Language,
    /// Number of parameters in all tensors.
    pub parameters: u64,
    /// Number of parameters that compute a token: only the used experts, and one row of the table
    /// of per-layer embeddings.
    pub active_parameters: u64,
    /// Types of the stored matrices, for example `BF16`, the one with the most parameters first.
    pub stored: String,
    /// Files with the weights.
    pub files: Vec<PathBuf>,
    sizes: TensorSizes,
}

/// Sizes of tensors that are not read yet.
#[derive(Debug, Default)]
pub(crate) struct TensorSizes {
    matrices: Vec<MatrixSize>,
    /// Bytes of all other tensors, which are stored in f32.
    rest: u64,
}

impl TensorSizes {
    pub fn add(&mut self, tensor: &TensorHeader, used: MatrixUse) {
        match tensor.shape[..] {
            [rows, columns] => {
                let shape = [rows, columns];
                self.matrices.push(MatrixSize { count: 1, shape, exact: tensor.exact, used });
            }
            // Matrices of all experts, which are stored one by one. Convolutions have one row.
            [count, rows, columns] if rows > 1 => {
                let shape = [rows, columns];
                self.matrices.push(MatrixSize { count, shape, exact: tensor.exact, used });
            }
            _ => self.rest = self.rest.saturating_add(tensor.numbers().saturating_mul(4)),
        }
    }

    /// Bytes of the tensors with matrices of type `precision`.
    pub fn bytes(&self, precision: Precision) -> u64 {
        let matrices = self.matrices.iter().map(|matrix| matrix.bytes(precision));
        matrices.fold(self.rest, u64::saturating_add)
    }
}

/// Size of matrices of one tensor that is not read yet.
#[derive(Debug)]
struct MatrixSize {
    /// Number of matrices in the tensor.
    count: usize,
    shape: [usize; 2],
    /// Format that represents the stored weights exactly.
    exact: Format,
    used: MatrixUse,
}

impl MatrixSize {
    fn bytes(&self, precision: Precision) -> u64 {
        let [rows, columns] = self.shape;
        let format = match precision.for_use(self.used) {
            Precision::File => self.exact,
            precision => precision.fitting(columns).format(),
        };
        format.bytes(rows, columns).saturating_mul(self.count as u64)
    }
}

impl Description {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// The errors of [`load`](crate::load), except errors that only the weights reveal.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::open(path)?.0)
    }

    /// Reads everything but the weights. Opens the weights, reading only their headers.
    pub(crate) fn open(path: &Path) -> Result<(Self, Weights)> {
        let (config, language, mut weights) = open(path)?;
        let mut model = Self {
            directory: path.to_owned(),
            config,
            language,
            parameters: 0,
            active_parameters: 0,
            stored: String::new(),
            files: weights.files(),
            sizes: TensorSizes::default(),
        };
        if path.is_dir() {
            weights.prepend(model.config.names.prefix());
            weights.drop_tensors(|name| model.config.skips_tensor(name));
            shapes::check(path, &model.config, &weights)?;
        }
        let mut types = BTreeMap::<String, u64>::new();
        let (mut expert_numbers, mut unused_rows) = (0u64, 0u64);
        let is_loaded = |tensor: &TensorHeader| !model.config.skips_tensor(&tensor.name);
        for tensor in weights.tensors().into_iter().filter(is_loaded) {
            let numbers = tensor.numbers();
            model.parameters = model.parameters.saturating_add(numbers);
            if model.config.is_expert_tensor(&tensor.name) {
                expert_numbers = expert_numbers.saturating_add(numbers);
            }
            let used = model.config.matrix_use(&tensor.name);
            model.sizes.add(&tensor, used);
            // A token needs one row of the table.
            if let (MatrixUse::LargeTable, [rows, columns]) = (used, &tensor.shape[..]) {
                let others = rows.saturating_sub(1) as u64;
                unused_rows = unused_rows.saturating_add(others.saturating_mul(*columns as u64));
            }
            if tensor.shape.len() >= 2 && used == MatrixUse::Product {
                let count = types.entry(tensor.stored).or_default();
                *count = count.saturating_add(numbers);
            }
        }
        let idle = model.config.experts.as_ref().map_or(0, |experts| {
            let idle = (experts.count - experts.used) as u128;
            (u128::from(expert_numbers) * idle / experts.count as u128) as u64
        });
        model.active_parameters = model.parameters - idle - unused_rows;
        let mut types: Vec<_> = types.into_iter().collect();
        types.sort_by_key(|(_, numbers)| std::cmp::Reverse(*numbers));
        let names: Vec<String> = types.into_iter().map(|(name, _)| name).collect();
        model.stored = names.join(", ");
        Ok((model, weights))
    }

    /// Whether the model has an MTP module that [`load_mtp`](crate::load_mtp) can load.
    pub fn has_mtp(&self) -> bool {
        self.config.can_draft_with_mtp()
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self, precision: Precision) -> u64 {
        self.sizes.bytes(precision)
    }

    /// Additional bytes of a quantised self-draft, which shares all tensors but the matrices of
    /// products.
    pub fn self_draft_bytes(&self, precision: Precision) -> u64 {
        let matrices = self.sizes.matrices.iter();
        let rounded = matrices.filter(|matrix| matrix.used == MatrixUse::Product);
        rounded.map(|matrix| matrix.bytes(precision)).fold(0, u64::saturating_add)
    }

    /// Whether a self-draft of type `self_draft` is so much smaller than a model in `precision`
    /// that its passes are faster.
    pub fn is_self_draft_small(&self, self_draft: Precision, precision: Precision) -> bool {
        self.self_draft_bytes(self_draft) as f64
            <= MAX_SELF_DRAFT_SHARE * self.self_draft_bytes(precision) as f64
    }

    /// The most accurate type of a quantised self-draft of a model in `precision` that is small
    /// enough, else the smallest; check [`is_self_draft_small`](Self::is_self_draft_small).
    pub fn best_self_draft(&self, precision: Precision) -> Precision {
        let kinds = Precision::SELF_DRAFT_TYPES;
        let small = kinds.iter().find(|kind| self.is_self_draft_small(**kind, precision));
        small.or(kinds.last()).copied().unwrap_or_default()
    }

    /// Bytes of the KV cache of `tokens` tokens.
    pub fn cache_bytes(&self, tokens: usize, cache: CacheType) -> u64 {
        self.config.cache_bytes(cache.bytes()).saturating_mul(tokens as u64)
    }

    /// Bytes of the weights and a context of 1,000 tokens, including those of a self-draft.
    pub fn needed_bytes(&self, options: LoadOptions) -> u64 {
        let tokens = self.config.context.min(1_000);
        let cache = self.cache_bytes(tokens, options.cache);
        let self_draft =
            options.self_draft.map_or(0, |kind| self.self_draft_bytes(kind).saturating_add(cache));
        let others = cache.saturating_add(self_draft).saturating_add(self.config.state_bytes());
        self.weight_bytes(options.precision).saturating_add(others)
    }

    /// Checks that the available memory is enough.
    pub(crate) fn check_memory(&self, options: LoadOptions) -> Result<()> {
        let available = options.memory.or_else(available_memory);
        let needed = |precision| self.needed_bytes(LoadOptions { precision, ..options });
        check_memory(&self.directory, options.precision, available, needed)
    }
}

/// Checks that `available` bytes, if known, are enough for the bytes `needed` in `precision`.
pub(crate) fn check_memory(
    directory: &Path,
    precision: Precision,
    available: Option<u64>,
    needed: impl Fn(Precision) -> u64,
) -> Result<()> {
    let Some(available) = available.filter(|available| needed(precision) > *available) else {
        return Ok(());
    };
    let fits =
        Precision::ALL.into_iter().map(|p| (p, Bytes(needed(p)))).filter(|(_, n)| n.0 <= available);
    Err(Error::Memory {
        directory: directory.to_owned(),
        precision,
        needed: Bytes(needed(precision)),
        available: Bytes(available),
        fits: fits.collect(),
    })
}

/// Whether a path has the extension of a GGUF file, which need not exist, or is a file that begins
/// as one: Ollama and registries of containers name files by their sums.
pub fn is_gguf(path: &Path) -> bool {
    let begins_so = || {
        let mut start = [0; 4];
        path.is_file()
            && File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
            && start == *b"GGUF"
    };
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) || begins_so()
}

/// Renames the tensors of a directory to the names of its family.
fn rename(config: &Config, weights: &mut Weights) {
    if config.is_multimodal {
        weights.rename(multimodal::rename_text_tensor);
    }
    if config.mtp_modules > 0 {
        let (layers, numbers) = (config.names.layers, config.mtp_layer_numbers());
        let renamed = |name: &str| rename_mtp_tensor(name, layers, numbers.clone());
        weights.rename(|name| renamed(name).unwrap_or_else(|| name.to_owned()));
    }
}

/// Opens a model: its configuration, its tokenizer and templates, and all its tensors.
pub(crate) fn open(path: &Path) -> Result<(Config, Language, Weights)> {
    let (mut config, language, weights) = match is_gguf(path) {
        true => open_file(path)?,
        false => open_directory(path)?,
    };
    // Files may omit MTP modules.
    config.count_mtp_modules(|name| weights.has(name));
    Ok((config, language, weights))
}

fn open_directory(directory: &Path) -> Result<(Config, Language, Weights)> {
    let mut weights = Weights::open(check_directory(directory)?)?;
    let mut config = Config::read(&directory.join("config.json"))?;
    rename(&config, &mut weights);
    weights.drop_tensors(|name| !config.is_text_tensor(name));
    // As in transformers: a stored output matrix that differs from the embedding is used even if
    // the configuration ties them; an equal one is ignored.
    let [head, embedding] = [config.names.lm_head, config.names.embedding];
    let [head, embedding] = [head, embedding].map(|name| format!("{name}.weight"));
    if config.tied && weights.are_same(&head, &embedding)? == Some(false) {
        config.tied = false;
    }
    let language = Language::read(directory, config.vocabulary, &config.end_tokens)?;
    Ok((config, language, weights))
}

fn open_file(path: &Path) -> Result<(Config, Language, Weights)> {
    if !path.exists() {
        return Err(Error::Directory { path: path.to_owned(), got: "nothing there" });
    }
    if foreign::is_pointer(path) {
        let problem = "this is a pointer of Git LFS, not the file itself: run 'git lfs pull' in \
                       its directory";
        return Err(Error::File { path: path.to_owned(), problem: problem.to_owned() });
    }
    if path.metadata().is_ok_and(|found| found.is_file() && found.len() == 0) {
        let problem = "an empty file: fetch it again".to_owned();
        return Err(Error::File { path: path.to_owned(), problem });
    }
    let gguf = Gguf::open(path)?;
    let invalid = |problem| Error::File { path: path.to_owned(), problem };
    if let Some(found) = config_from_gguf(&gguf) {
        let (config, permuted) = found.map_err(invalid)?;
        if has_mtp_only(&gguf, &config) {
            let problem = "expected a model, got multi-token prediction (MTP) layers, which draft \
                           for the model that they lie beside";
            return Err(invalid(problem.to_owned()));
        }
        let language = Language::from_gguf(&gguf, config.vocabulary)?;
        let config = Config { end_tokens: language.end_tokens.clone(), ..config };
        return Ok((config, language, Weights::from_family_file(gguf, permuted)?));
    }
    check_architecture(&gguf).map_err(invalid)?;
    let model = ModelDescription::read(&gguf)?;
    let config = Config::from_gguf(&model).map_err(invalid)?;
    let language = Language::from_gguf(&gguf, config.vocabulary)?;
    let config = Config { end_tokens: language.end_tokens.clone(), ..config };
    Ok((config, language, Weights::from_gguf(gguf, &model)?))
}

/// Checks that the architecture of a file is supported.
fn check_architecture(gguf: &Gguf) -> std::result::Result<(), String> {
    let Ok(name) = gguf.metadata().str("general.architecture") else { return Ok(()) };
    if block::is_block(gguf) || assistant::is_assistant(gguf) {
        return Err(format!(
            "key general.architecture: expected a model, got {name:?}, a draft head for another \
             model"
        ));
    }
    let described = Architecture::ALL.map(Architecture::name);
    if described.contains(&name) {
        return Ok(());
    }
    let all: Vec<&str> = described.into_iter().chain(gguf_architectures()).collect();
    let shown: String = name.chars().take(40).collect();
    Err(format!(
        "key general.architecture: expected one of {}, got {shown:?}; llama.cpp may run it (a \
         build with --features llama, and the backend llama)",
        all.join(", ")
    ))
}

/// Checks that a directory has a model, before its other files are read.
fn check_directory(directory: &Path) -> Result<&Path> {
    if !directory.is_dir() {
        let got = if directory.exists() { "another file" } else { "nothing there" };
        return Err(Error::Directory { path: directory.to_owned(), got });
    }
    foreign::check(directory).map(|()| directory)
}
