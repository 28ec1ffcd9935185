//! What a model in a directory in Hugging Face layout, or in a GGUF file, is: all that can be said
//! without reading its weights.

mod foreign;
mod shapes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polydraft_gguf::{Architecture, Gguf, ModelDescription};
use polydraft_kernels::{CacheType, Format, available_memory};
use polydraft_text::Language;

use crate::config::Config;
use crate::error::{Bytes, Error, Result};
use crate::family::file::{assistant, block, file_architectures, of_gguf};
use crate::family::further::renamed_further;
use crate::family::nested;
use crate::names::Names;
use crate::precision::{Precision, Use};
use crate::weights::{Listed, Weights};

/// A quantised self-draft must take less than this share of the bytes of the model's own matrices:
/// otherwise its passes are no faster.
const COPY_SHARE: f64 = 0.7;

/// How to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// The type of the weight matrices.
    pub precision: Precision,
    /// Bytes that the model may take, with its self-draft; `None` is what the system says is free,
    /// if it says.
    pub memory: Option<u64>,
    /// The type of the KV cache, of the model and of its self-draft.
    pub cache: CacheType,
    /// The weight type of a quantised self-draft of the model, if there is to be one: see
    /// [`TransformerModel::rounded`](crate::TransformerModel::rounded).
    pub self_draft: Option<Precision>,
}

impl From<Precision> for LoadOptions {
    /// All else by default.
    fn from(precision: Precision) -> Self {
        Self { precision, ..Self::default() }
    }
}

/// Everything about a model but its weights: what can be said without reading them.
#[derive(Debug)]
pub struct Description {
    /// Where it is: a directory, or a GGUF file.
    pub directory: PathBuf,
    /// Its shape.
    pub config: Config,
    /// Its tokenizer, chat template and end tokens.
    pub language: Language,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Those that a token is computed with: of experts it uses a few, of the table of
    /// per-layer inputs one row.
    pub active_parameters: u64,
    /// How matrices are stored, for example `BF16`; of several types the one of most numbers first.
    pub stored: String,
    /// The files that the weights are in.
    pub files: Vec<PathBuf>,
    sizes: Sizes,
}

/// Tensors that are not read yet.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    matrices: Vec<Sized>,
    /// Bytes of all else, which is stored in f32.
    rest: u64,
}

impl Sizes {
    pub fn add(&mut self, tensor: &Listed, used: Use) {
        match tensor.shape[..] {
            [rows, columns] => {
                let shape = [rows, columns];
                self.matrices.push(Sized { count: 1, shape, exact: tensor.exact, used });
            }
            // Of all experts, each with tiles of its own; a convolution's have one row.
            [count, rows, columns] if rows > 1 => {
                let shape = [rows, columns];
                self.matrices.push(Sized { count, shape, exact: tensor.exact, used });
            }
            _ => self.rest = self.rest.saturating_add(tensor.numbers().saturating_mul(4)),
        }
    }

    /// Bytes that they take.
    pub fn bytes(&self, precision: Precision) -> u64 {
        let matrices = self.matrices.iter().map(|matrix| matrix.bytes(precision));
        matrices.fold(self.rest, u64::saturating_add)
    }
}

/// A matrix that is not read yet.
#[derive(Debug)]
struct Sized {
    /// How many there are in one tensor.
    count: usize,
    shape: [usize; 2],
    /// In which it loses nothing.
    exact: Format,
    used: Use,
}

impl Sized {
    fn bytes(&self, precision: Precision) -> u64 {
        let [rows, columns] = self.shape;
        let format = match precision.used_for(self.used) {
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
    /// As for [`load`](crate::load), but for what only the weights can show.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::open(path)?.0)
    }

    /// With the weights, of which no more than the headers are read.
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
            sizes: Sizes::default(),
        };
        if path.is_dir() {
            weights.prepend(model.config.names.prefix());
            weights.drop_others(|name| model.config.is_read_elsewhere(name));
            shapes::check(path, &model.config, &weights)?;
        }
        let mut types = BTreeMap::<String, u64>::new();
        let (mut of_experts, mut of_tables) = (0u64, 0u64);
        let own = |tensor: &Listed| !model.config.is_read_elsewhere(&tensor.name);
        for tensor in weights.tensors().into_iter().filter(own) {
            let numbers = tensor.numbers();
            model.parameters = model.parameters.saturating_add(numbers);
            if model.config.is_of_experts(&tensor.name) {
                of_experts = of_experts.saturating_add(numbers);
            }
            let used = model.config.use_of(&tensor.name);
            model.sizes.add(&tensor, used);
            // Of which a token's row is read.
            if let (Use::Table, [rows, columns]) = (used, &tensor.shape[..]) {
                let others = rows.saturating_sub(1) as u64;
                of_tables = of_tables.saturating_add(others.saturating_mul(*columns as u64));
            }
            if tensor.shape.len() >= 2 && used == Use::Products {
                let count = types.entry(tensor.stored).or_default();
                *count = count.saturating_add(numbers);
            }
        }
        let idle = model.config.experts.as_ref().map_or(0, |experts| {
            let idle = (experts.count - experts.used) as u128;
            (u128::from(of_experts) * idle / experts.count as u128) as u64
        });
        model.active_parameters = model.parameters - idle - of_tables;
        let mut types: Vec<_> = types.into_iter().collect();
        types.sort_by_key(|(_, numbers)| std::cmp::Reverse(*numbers));
        let names: Vec<String> = types.into_iter().map(|(name, _)| name).collect();
        model.stored = names.join(", ");
        Ok((model, weights))
    }

    /// Whether it has a layer that predicts further tokens, which
    /// [`load_mtp`](crate::load_mtp) loads.
    pub fn brings_mtp(&self) -> bool {
        self.config.drafts_itself()
    }

    /// Bytes that the weights take.
    pub fn weight_bytes(&self, precision: Precision) -> u64 {
        self.sizes.bytes(precision)
    }

    /// Bytes that a quantised self-draft takes besides: it shares all but the matrices of products.
    pub fn self_draft_bytes(&self, precision: Precision) -> u64 {
        let multiplied = self.sizes.matrices.iter().filter(|matrix| matrix.used == Use::Products);
        multiplied.map(|matrix| matrix.bytes(precision)).fold(0, u64::saturating_add)
    }

    /// Whether a quantised self-draft is so much smaller than the model's own matrices in
    /// `precision` that its passes are faster.
    pub fn is_self_draft_small(&self, copy: Precision, precision: Precision) -> bool {
        self.self_draft_bytes(copy) as f64 <= COPY_SHARE * self.self_draft_bytes(precision) as f64
    }

    /// The best type of a quantised self-draft of a model in `precision`; even this one may not be
    /// [small enough](Self::is_self_draft_small).
    pub fn best_self_draft(&self, precision: Precision) -> Precision {
        let kinds = Precision::OF_COPY;
        let small = kinds.iter().find(|copy| self.is_self_draft_small(**copy, precision));
        small.or(kinds.last()).copied().unwrap_or_default()
    }

    /// Bytes that the KV cache of so many tokens takes.
    pub fn cache_bytes(&self, tokens: usize, cache: CacheType) -> u64 {
        self.config.cache_bytes(cache.bytes()).saturating_mul(tokens as u64)
    }

    /// Bytes that weights and a context of 1,000 tokens take, those of a self-draft included.
    pub fn needed_bytes(&self, options: LoadOptions) -> u64 {
        let tokens = self.config.context.min(1_000);
        let cache = self.cache_bytes(tokens, options.cache);
        let copy =
            options.self_draft.map_or(0, |copy| self.self_draft_bytes(copy).saturating_add(cache));
        let weights = self.weight_bytes(options.precision);
        weights.saturating_add(cache).saturating_add(copy).saturating_add(self.config.state_bytes())
    }

    /// That there is memory enough.
    pub(crate) fn check_memory(&self, options: LoadOptions) -> Result<()> {
        let available = options.memory.or_else(available_memory);
        let needed = |precision| self.needed_bytes(LoadOptions { precision, ..options });
        check_memory(&self.directory, options.precision, available, needed)
    }
}

/// That what is `needed` in a precision is `available`, as far as that is known.
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

/// Whether a path is that of a GGUF file: by its ending, also where there is nothing.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// Leaves as many layers that predict further tokens as there are tensors for.
fn count_further(config: &mut Config, has: impl Fn(&str) -> bool) {
    let Names { layers, further, .. } = config.names;
    let is_there = |layer: &usize| has(&format!("{layers}.{layer}.{}.weight", further.join));
    let first = config.further_numbers().step_by(config.further_layers().len());
    config.extra_layers = first.take_while(is_there).count();
}

/// Gives the tensors of a directory the names that its family has for them.
fn rename(config: &Config, weights: &mut Weights) {
    if config.is_nested {
        weights.rename(nested::renamed);
    }
    if config.extra_layers > 0 {
        let (layers, numbers) = (config.names.layers, config.further_numbers());
        let further = |name: &str| renamed_further(name, layers, numbers.clone());
        weights.rename(|name| further(name).unwrap_or_else(|| name.to_owned()));
    }
}

/// A model's configuration, its text side and all its tensors.
pub(crate) fn open(path: &Path) -> Result<(Config, Language, Weights)> {
    let (mut config, language, weights) = match is_gguf(path) {
        true => open_file(path)?,
        false => open_directory(path)?,
    };
    // Files may leave out the layers that predict further tokens.
    count_further(&mut config, |name| weights.has(name));
    Ok((config, language, weights))
}

fn open_directory(directory: &Path) -> Result<(Config, Language, Weights)> {
    let mut weights = Weights::open(known(directory)?)?;
    let mut config = Config::read(&directory.join("config.json"))?;
    rename(&config, &mut weights);
    weights.drop_others(|name| !config.is_its(name));
    // As in transformers: an output matrix that is stored and differs counts, whatever the
    // configuration says; a copy is as good as none.
    let [head, embedding] = [config.names.head, config.names.embedding];
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
    let gguf = Gguf::open(path)?;
    let wrong = |problem| Error::File { path: path.to_owned(), problem };
    if let Some(found) = of_gguf(&gguf) {
        let (config, permuted) = found.map_err(wrong)?;
        let language = Language::from_gguf(&gguf, config.vocabulary)?;
        let config = Config { end_tokens: language.end_tokens.clone(), ..config };
        return Ok((config, language, Weights::of_family(gguf, permuted)?));
    }
    known_architecture(&gguf).map_err(wrong)?;
    let model = ModelDescription::read(&gguf)?;
    let config = Config::of_gguf(&model).map_err(wrong)?;
    let language = Language::from_gguf(&gguf, config.vocabulary)?;
    let config = Config { end_tokens: language.end_tokens.clone(), ..config };
    Ok((config, language, Weights::of_gguf(gguf, &model)?))
}

/// That a file's architecture is one of those that are computed here.
fn known_architecture(gguf: &Gguf) -> std::result::Result<(), String> {
    let Ok(name) = gguf.metadata().str("general.architecture") else { return Ok(()) };
    if block::is_block(gguf) || assistant::is_assistant(gguf) {
        return Err(format!(
            "key general.architecture: expected a model, got {name:?}, a draft head, which drafts \
             for the model that it was made for"
        ));
    }
    let described = Architecture::ALL.map(Architecture::name);
    if described.contains(&name) {
        return Ok(());
    }
    let all: Vec<&str> = described.into_iter().chain(file_architectures()).collect();
    let shown: String = name.chars().take(40).collect();
    Err(format!(
        "key general.architecture: expected one of {}, got {shown:?}; llama.cpp may run it (a \
         build with --features llama, and the backend llama)",
        all.join(", ")
    ))
}

/// That this is a model's directory, before its other files are asked for.
fn known(directory: &Path) -> Result<&Path> {
    if !directory.is_dir() {
        let got = if directory.exists() { "another file" } else { "nothing there" };
        return Err(Error::Directory { path: directory.to_owned(), got });
    }
    foreign::check(directory).map(|()| directory)
}
