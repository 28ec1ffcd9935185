//! Reads target and draft distributions: JSON, .npy, safetensors.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use polydraft::{Distribution, Drafting, Draws, Error, Problem, Proposal};
use polydraft_cli::usage::UsageError;
use polydraft_files::{FileKind, read_stream};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

/// A target distribution, and one draft distribution for all drafts or one for each.
pub struct Distributions {
    pub target: Distribution,
    pub drafts: Vec<Distribution>,
}

impl Distributions {
    /// Returns the default number of drafts: 2 with one draft distribution, else one per
    /// distribution.
    pub fn default_count(&self) -> usize {
        self.drafts.len().max(2)
    }

    /// Returns the problem with `count` drafts, drawn by this scheme.
    pub fn problem(&self, scheme: Drafting, count: usize) -> Result<Problem<'_>, Error> {
        let drafts: &[Distribution] = &self.drafts;
        Problem::new(&self.target, Proposal::new(Draws { scheme, count }, drafts)?)
    }
}

/// JSON format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Pair {
    target: Vec<f64>,
    draft: Drafts,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "\"draft\" should be a list of numbers, or a list of such lists")]
enum Drafts {
    One(Vec<f64>),
    Several(Vec<Vec<f64>>),
}

/// Reads a file in the format of its extension, or JSON from standard input.
pub fn from_file(path: Option<&Path>, normalize: bool) -> Result<Distributions> {
    let named = path.is_some();
    let path = path.filter(|path| path.as_os_str() != "-");
    let Some(path) = path else {
        let mut input = std::io::stdin().lock();
        if !named && input.is_terminal() {
            return Err(UsageError::error(
                "no distributions: give a file, --target and --draft, or JSON on standard input",
            ));
        }
        let text = read_stream(&mut input, FileKind::DISTRIBUTIONS)
            .context("cannot read the distributions from standard input")?;
        return json(&text, normalize).context("distributions on standard input");
    };
    let bytes = read(path)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    from_bytes(extension, &bytes, normalize).with_context(|| path.display().to_string())
}

/// Reads the contents of a file with this extension.
pub fn from_bytes(extension: Option<&str>, bytes: &[u8], normalize: bool) -> Result<Distributions> {
    match extension {
        Some("npy") => rows(bytes, normalize),
        Some("safetensors") => tensors(bytes, normalize),
        _ => json(bytes, normalize),
    }
}

/// Reads one-dimensional .npy files, one per distribution.
pub fn from_arrays(
    target: &Path,
    drafts: &[std::path::PathBuf],
    normalize: bool,
) -> Result<Distributions> {
    let probs = |path: &Path| {
        let read = || {
            let (shape, values) = npy(&read(path)?)?;
            ensure!(shape.len() == 1, "expected an array of one dimension, got shape {shape:?}");
            check(values, normalize)
        };
        read().with_context(|| path.display().to_string())
    };
    let drafts = drafts.iter().map(|path| probs(path)).collect::<Result<_>>()?;
    same_vocabulary(Distributions { target: probs(target)?, drafts })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    polydraft_files::read(path, FileKind::DISTRIBUTIONS)
        .with_context(|| format!("cannot read {}", path.display()))
}

fn json(bytes: &[u8], normalize: bool) -> Result<Distributions> {
    let pair: Pair = serde_json::from_slice(bytes).map_err(|error| {
        let error = error.to_string();
        anyhow::anyhow!(
            "expected JSON such as {{\"target\": [0.5, 0.5], \"draft\": [0.9, 0.1]}}: {error}"
        )
    })?;
    let drafts = match pair.draft {
        Drafts::One(draft) => vec![draft],
        Drafts::Several(drafts) => drafts,
    };
    collect(pair.target, drafts, normalize)
}

fn collect(target: Vec<f64>, drafts: Vec<Vec<f64>>, normalize: bool) -> Result<Distributions> {
    let target = check(target, normalize).context("target")?;
    let several = drafts.len() > 1;
    let name = |index: usize| if several { format!("draft {index}") } else { "draft".to_owned() };
    let drafts = drafts.into_iter().enumerate();
    let drafts = drafts.map(|(index, draft)| check(draft, normalize).with_context(|| name(index)));
    same_vocabulary(Distributions { target, drafts: drafts.collect::<Result<_>>()? })
}

fn check(values: Vec<f64>, normalize: bool) -> Result<Distribution> {
    if normalize {
        return Ok(Distribution::normalized(values)?);
    }
    Distribution::new(values.clone()).map_err(|error| {
        let hint = if Distribution::normalized(values).is_ok() {
            "; --normalize would accept it"
        } else {
            ""
        };
        anyhow::anyhow!("{error}{hint}")
    })
}

fn same_vocabulary(distributions: Distributions) -> Result<Distributions> {
    ensure!(!distributions.drafts.is_empty(), "expected at least one draft distribution, got none");
    let expected = distributions.target.vocabulary();
    for draft in &distributions.drafts {
        let got = draft.vocabulary();
        ensure!(got == expected, "target and draft differ in length: {expected} and {got} entries");
    }
    Ok(distributions)
}

/// Reads a .npy file with one distribution per row, the target's first.
fn rows(bytes: &[u8], normalize: bool) -> Result<Distributions> {
    let (shape, values) = npy(bytes)?;
    let [rows, vocabulary] = shape[..] else {
        bail!("expected an array of shape [2, vocabulary], got {shape:?}")
    };
    ensure!(
        rows >= 2 && vocabulary > 0,
        "expected an array of shape [2, vocabulary], got {shape:?}"
    );
    let mut distributions = values.chunks(vocabulary).map(<[f64]>::to_vec);
    let target = distributions.next().unwrap_or_default();
    collect(target, distributions.collect(), normalize)
}

/// Returns shape and values of a .npy file of little-endian 4- or 8-byte floats in C order.
fn npy(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f64>)> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").context("this is not a .npy file")?;
    let header_at = match rest {
        [1, _, low, high, ..] => (4, u16::from_le_bytes([*low, *high]) as usize),
        [2 | 3, _, a, b, c, d, ..] => (6, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
        _ => bail!("unknown version of the .npy format"),
    };
    let body = rest
        .get(header_at.0..)
        .filter(|body| body.len() >= header_at.1)
        .context("the .npy file is cut off")?;
    let (header, data) = body.split_at(header_at.1);
    let header = String::from_utf8_lossy(header);
    let field = |name: &str| {
        let start = header.find(&format!("'{name}':"))? + name.len() + 3;
        Some(header[start..].trim_start())
    };
    ensure!(
        field("fortran_order").is_some_and(|value| value.starts_with("False")),
        "the .npy file should be in C order"
    );
    let shape = field("shape")
        .and_then(|value| value.strip_prefix('(')?.split_once(')'))
        .context("no shape")?
        .0;
    let shape: Vec<usize> = shape
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().with_context(|| format!("shape ({shape})")))
        .collect::<Result<_>>()?;
    let size = shape
        .iter()
        .try_fold(1_usize, |size, dimension| size.checked_mul(*dimension))
        .context("shape")?;
    let kind = field("descr").context("no element type")?;
    let values: Vec<f64> = if kind.starts_with("'<f8'") {
        floats(data)
    } else if kind.starts_with("'<f4'") {
        singles(data)
    } else {
        bail!(
            "expected elements of type float32 or float64, got {}",
            kind.split(',').next().unwrap_or(kind)
        )
    };
    ensure!(
        values.len() == size,
        "shape {shape:?} needs {size} values, the file has {}",
        values.len()
    );
    Ok((shape, values))
}

fn floats(data: &[u8]) -> Vec<f64> {
    data.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

fn singles(data: &[u8]) -> Vec<f64> {
    data.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

/// Reads tensors 'target', shape [vocabulary], and 'draft', shape [vocabulary] or [drafts,
/// vocabulary].
fn tensors(bytes: &[u8], normalize: bool) -> Result<Distributions> {
    let file = SafeTensors::deserialize(bytes).context("this is not a safetensors file")?;
    let values = |name: &str| {
        let tensor = file.tensor(name).with_context(|| format!("no tensor '{name}'"))?;
        let values = match tensor.dtype() {
            Dtype::F64 => floats(tensor.data()),
            Dtype::F32 => singles(tensor.data()),
            other => bail!("tensor '{name}' should be F32 or F64, is {other:?}"),
        };
        Ok((tensor.shape().to_vec(), values))
    };
    let (_, target) = values("target")?;
    let (shape, draft) = values("draft")?;
    let vocabulary = shape
        .last()
        .copied()
        .filter(|vocabulary| *vocabulary > 0)
        .context("tensor 'draft' is empty")?;
    collect(target, draft.chunks(vocabulary).map(<[f64]>::to_vec).collect(), normalize)
}
