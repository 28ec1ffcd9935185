//! From the sources of pinned crates to a tokenizer and two streams of token ids.
//!
//! `demo/corpus/Cargo.toml` names the crates and its lock file pins them; `cargo vendor` brings
//! them. Only the named packages are read, and only those under MIT or Apache-2.0. A file belongs
//! to the validation part when a hash of its path says so, so the split never depends on the order
//! of reading.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use polydraft_files::FileKind;
use rayon::prelude::*;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer, TokenizerImpl,
};

/// Marks the start of a document, and therefore also the end of the one before it.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Longer files are mostly tables and generated code.
const LONGEST_FILE: u64 = 100_000;
const LONGEST_LINE: usize = 400;
/// One file in this many is for validation.
const HELD_OUT_ONE_IN: u64 = 64;

/// The places that preparing and training use.
pub struct CorpusFiles {
    /// The manifest and lock file that pin the text.
    pub manifest: PathBuf,
    /// Everything that is made on the way and not shipped.
    pub work: PathBuf,
}

impl CorpusFiles {
    pub fn tokenizer(&self) -> PathBuf {
        self.work.join("tokenizer.json")
    }

    pub fn tokens(&self, held_out: bool) -> PathBuf {
        self.work.join(if held_out { "validation.u16" } else { "train.u16" })
    }
}

/// Makes the tokenizer and the token streams, unless they are there already.
pub fn prepare(places: &CorpusFiles, vocabulary: usize) -> Result<()> {
    if places.tokens(true).exists() {
        return Ok(());
    }
    let vendor = places.work.join("vendor");
    if !vendor.exists() {
        let partial = places.work.join("vendor.partial");
        eprintln!("fetching the sources of the crates in {}", places.manifest.display());
        let status = Command::new("cargo")
            .args(["vendor", "--locked", "--versioned-dirs", "--quiet", "--manifest-path"])
            .arg(&places.manifest)
            .arg(&partial)
            .stdout(std::process::Stdio::null())
            .status()
            .context("running cargo vendor")?;
        ensure!(status.success(), "cargo vendor failed: {status}");
        fs::rename(partial, &vendor)?;
    }
    let mut files = Vec::new();
    for package in packages(&places.manifest.with_file_name("Cargo.lock"))? {
        let root = vendor.join(&package);
        if permitted(&root)? {
            collect(&root, &mut files)?;
        } else {
            eprintln!("left out {package}: its licence is neither MIT nor Apache-2.0");
        }
    }
    files.sort();
    let documents: Vec<(bool, String)> = files
        .par_iter()
        .filter_map(|path| {
            let text = clean(&polydraft_files::read_text(path, FileKind::CONFIG).ok()?)?;
            let name = path.strip_prefix(&vendor).ok()?.to_string_lossy().into_owned();
            Some((hash(name.as_bytes()).is_multiple_of(HELD_OUT_ONE_IN), text))
        })
        .collect();
    let bytes: usize = documents.iter().map(|(_, text)| text.len()).sum();
    eprintln!("{} files, {:.1} MB", documents.len(), bytes as f64 / 1e6);

    let tokenizer = learn_tokenizer(&documents, vocabulary)?;
    tokenizer.save(places.tokenizer(), false).map_err(anyhow::Error::msg)?;
    for held_out in [false, true] {
        let chosen: Vec<&str> =
            documents.iter().filter(|(h, _)| *h == held_out).map(|(_, t)| t.as_str()).collect();
        let streams: Vec<Vec<u8>> = chosen
            .par_iter()
            .map(|text| {
                let encoding = tokenizer.encode(*text, true).map_err(anyhow::Error::msg)?;
                Ok(encoding.get_ids().iter().flat_map(|&id| (id as u16).to_le_bytes()).collect())
            })
            .collect::<Result<_>>()?;
        let stream = streams.concat();
        eprintln!(
            "{}: {} files, {:.2} M tokens",
            if held_out { "validation" } else { "training" },
            chosen.len(),
            stream.len() as f64 / 2e6
        );
        // The last of them says that all is there.
        let partial = places.work.join("tokens.partial");
        fs::write(&partial, stream)?;
        fs::rename(partial, places.tokens(held_out))?;
    }
    Ok(())
}

/// Tokens of a tokenizer that [`prepare`] made.
pub fn vocabulary(tokenizer: &Path) -> Result<usize> {
    let read = || -> Result<Tokenizer> {
        let bytes = polydraft_files::read(tokenizer, FileKind::TOKENIZER)?;
        Tokenizer::from_bytes(bytes).map_err(anyhow::Error::msg)
    };
    let found = read().with_context(|| format!("reading {}", tokenizer.display()))?;
    Ok(found.get_vocab_size(true))
}

/// Reads a stream that [`prepare`] made.
pub fn read_tokens(path: &Path) -> Result<Vec<u16>> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect())
}

/// The folders (`name-version`) of the packages that the manifest itself names.
fn packages(lock: &Path) -> Result<BTreeSet<String>> {
    let text = polydraft_files::read_text(lock, FileKind::CONFIG)
        .with_context(|| format!("reading {}", lock.display()))?;
    let field = |block: &str, key: &str| {
        let line = block.lines().find_map(|l| l.strip_prefix(key))?;
        Some(line.trim_matches(['=', ' ', '"']).to_owned())
    };
    let blocks: Vec<&str> = text.split("[[package]]").skip(1).collect();
    let own = blocks
        .iter()
        .find(|block| field(block, "name").as_deref() == Some("corpus"))
        .context("the lock file has no package named corpus")?;
    let wanted: Vec<Vec<&str>> = own
        .lines()
        .filter_map(|line| {
            Some(line.strip_prefix(" \"")?.trim_end_matches("\",").split(' ').collect())
        })
        .collect();
    let mut found = BTreeSet::new();
    for block in &blocks {
        let (Some(name), Some(version)) = (field(block, "name"), field(block, "version")) else {
            bail!("a package without name or version in {}", lock.display());
        };
        if wanted.iter().any(|w| w[0] == name && w.get(1).is_none_or(|v| *v == version)) {
            found.insert(format!("{name}-{version}"));
        }
    }
    Ok(found)
}

/// Whether the package may be used under MIT or Apache-2.0.
fn permitted(package: &Path) -> Result<bool> {
    let manifest = polydraft_files::read_text(&package.join("Cargo.toml"), FileKind::CONFIG)
        .with_context(|| format!("reading the manifest of {}", package.display()))?;
    let licence = manifest.lines().find_map(|line| line.strip_prefix("license = ")).unwrap_or("");
    Ok(licence
        .trim_matches('"')
        .split([' ', '/', '(', ')'])
        .any(|word| word == "MIT" || word == "Apache-2.0")
        && !licence.contains(" AND "))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if !matches!(name.as_str(), "tests" | "benches" | "test_data" | "generated") {
                collect(&path, files)?;
            }
        } else if (name.ends_with(".rs") || name == "README.md")
            && entry.metadata()?.len() < LONGEST_FILE
        {
            files.push(path);
        }
    }
    Ok(())
}

/// The text as the models should see it, or `None` for what looks like a table or generated.
fn clean(text: &str) -> Option<String> {
    let text = text.replace("\r\n", "\n").replace('\t', "    ");
    if text.contains("@generated") || text.lines().any(|line| line.len() > LONGEST_LINE) {
        return None;
    }
    // A licence header at the head of every file would teach the models little else.
    let is_header =
        |line: &str| line.starts_with("//") && !line.starts_with("//!") && !line.starts_with("///");
    let head: usize =
        text.lines().take_while(|line| is_header(line)).map(|line| line.len() + 1).sum();
    let head = head.min(text.len());
    let licence = text[..head].to_lowercase();
    let body = if licence.contains("licen") || licence.contains("copyright") {
        &text[head..]
    } else {
        &text
    };
    let body = body.trim();
    (body.len() > 200).then(|| format!("{body}\n"))
}

/// FNV-1a: short, and the same on every machine.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn learn_tokenizer(documents: &[(bool, String)], vocabulary: usize) -> Result<Tokenizer> {
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocabulary)
        .min_frequency(2)
        .show_progress(true)
        .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    type Plain =
        TokenizerImpl<BPE, NormalizerWrapper, ByteLevel, PostProcessorWrapper, DecoderWrapper>;
    let mut learner: Plain = TokenizerImpl::new(BPE::default());
    learner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    // A quarter of the text fixes 4,096 merges as well as all of it.
    let sample = documents
        .iter()
        .filter(|(held_out, _)| !held_out)
        .step_by(4)
        .map(|(_, text)| text.as_str());
    learner.train(&mut trainer, sample).map_err(anyhow::Error::msg)?;

    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(learner.get_model().clone()));
    tokenizer
        .with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true))))
        .with_decoder(Some(DecoderWrapper::ByteLevel(ByteLevel::default())))
        .with_post_processor(Some(PostProcessorWrapper::Template(
            TemplateProcessing::builder()
                .try_single(format!("{END_OF_TEXT} $A"))
                .map_err(anyhow::Error::msg)?
                .special_tokens(vec![(END_OF_TEXT, 0)])
                .build()?,
        )));
    tokenizer
        .add_special_tokens([AddedToken::from(END_OF_TEXT, true)])
        .map_err(anyhow::Error::msg)?;
    Ok(tokenizer)
}
