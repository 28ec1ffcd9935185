//! `polydraft bench model`: loading time relative to reading the file, and time of a pass relative
//! to reading the weights from memory.

mod batches;
mod memory;
mod random;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;
use polydraft::{DraftTree, Token};
use polydraft_engine::{Model, Sequences};
use polydraft_models::{Description, LoadOptions, Precision, TransformerModel, is_gguf, load};
use serde::Serialize;

use super::median;
use crate::interrupts::InterruptGuard;
use crate::output;
use crate::provenance::MadeBy;
use polydraft_runtime::{model_files, threads};

/// Measure loading, decoding and the cost of passes of a model.
///
/// Loading is compared with reading the file, decoding with reading the memory, and a pass over
/// several tokens with a pass over one. Before that, the scores of a tree are checked to equal the
/// scores of its tokens one by one. The costs of a MODEL's passes are stored: --tree auto chooses
/// draft lengths by them from then on, also with a seed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model [default: one with random weights, made in a temporary folder].
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Approximate size of the random model in millions of parameters.
    ///
    /// At least 79, since its vocabulary has 8,192 tokens.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 500,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=20_000),
        conflicts_with = "model",
    )]
    random: usize,
    /// Weight types [default: f32, bf16, q8_0, q4_0 and q4_k; for a .gguf file its own].
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',')]
    dtypes: Vec<Precision>,
    /// Numbers of tokens per pass.
    #[arg(
        long,
        value_name = "N,..",
        default_value = "1,2,4,8,16,32,64",
        value_delimiter = ',',
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=256),
    )]
    nodes: Vec<usize>,
    /// Batch sizes: sequences decoded together, one token each per pass.
    #[arg(
        long,
        value_name = "N,..",
        default_value = "1,2,4,8",
        value_delimiter = ',',
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=256),
    )]
    sequences: Vec<usize>,
    /// Number of tokens in the context.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..),
    )]
    context: usize,
    /// Number of passes of each kind.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 15,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..),
    )]
    passes: usize,
    /// Number of threads to compute with [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

const DTYPES: [Precision; 5] =
    [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::Q4_0, Precision::Q4K];

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    parameters: u64,
    file_bytes: u64,
    /// Memory bandwidth of all threads, measured by a plain sum.
    memory_bytes_per_second: f64,
    /// Time to read the file from the system's cache in small buffers, with the same number of
    /// threads.
    read_seconds: f64,
    context: usize,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    dtype: &'static str,
    load_seconds: f64,
    /// Peak memory of the process during loading, minus its memory before.
    load_peak_bytes: Option<u64>,
    /// Size of the weights in bytes.
    weight_bytes: usize,
    seconds_per_token: f64,
    tokens_per_second: f64,
    bytes_per_second: f64,
    /// Share of the memory bandwidth.
    bandwidth_share: f64,
    passes: Vec<Pass>,
    /// Batches of several sequences, one token each per pass.
    sequences: Vec<batches::Throughput>,
}

#[derive(Serialize)]
struct Pass {
    nodes: usize,
    seconds: f64,
    /// Ratio to a pass over one token.
    relative: f64,
}

/// Measures and prints.
///
/// # Errors
/// Fails if the model cannot be loaded, or the output is closed.
pub fn run(args: Args) -> Result<()> {
    let threads = threads();
    let random_model = match args.model {
        Some(_) => None,
        None => {
            Some(random::write(args.random * 1_000_000).context("cannot write a random model")?)
        }
    };
    let directory: PathBuf = match (&args.model, &random_model) {
        (Some(name), _) => model_files::locate_offline(name)?,
        (None, Some(random_model)) => random_model.path().to_owned(),
        (None, None) => unreachable!("one of them was given"),
    };
    let description = Description::read(&directory)?;
    let files = weight_files(&description)?;
    // Leaves room for the largest tree.
    let nodes = args.nodes.iter().copied().max().unwrap_or(1);
    let context = args.context.min(description.config.context.saturating_sub(nodes)).max(1);
    let file_bytes = files.iter().map(|(_, bytes)| bytes).sum();
    // The first read fills the system's cache, the others are timed.
    read_files(&files, threads)?;
    let read_seconds = (0..3).map(|_| read_files(&files, threads)).collect::<Result<Vec<_>>>()?;
    let bandwidth = memory::bandwidth(threads);
    let mut results = Vec::new();
    let dtypes: &[Precision] = match &args.dtypes[..] {
        [] if is_gguf(&directory) => &[Precision::File],
        [] => &DTYPES,
        requested => requested,
    };
    // Until the first result exists, an interrupt ends the program at once.
    let mut guard: Option<InterruptGuard> = None;
    for &precision in dtypes {
        let check_interrupt = || match &guard {
            Some(guard) if guard.is_interrupted() => Err(Interrupted.into()),
            _ => Ok(()),
        };
        match measure(&args, &directory, precision, bandwidth, context, &check_interrupt) {
            Err(error) if error.is::<Interrupted>() => break,
            row => results.push(row?),
        }
        guard.get_or_insert_with(InterruptGuard::install);
    }
    let interrupted = results.len() < dtypes.len();
    let report = Report {
        made_by: MadeBy::current(),
        parameters: description.parameters,
        file_bytes,
        memory_bytes_per_second: bandwidth,
        read_seconds: median(read_seconds.into_iter()),
        context,
        results,
    };
    if args.json {
        output::json(&report)?
    } else {
        report.print()?
    }
    output::finish(interrupted)
}

fn weight_files(description: &Description) -> Result<Vec<(PathBuf, u64)>> {
    // Follows links, which the hub's cache consists of.
    let size = |path: &PathBuf| Ok((path.clone(), std::fs::metadata(path)?.len()));
    description.files.iter().map(size).collect()
}

/// Reads every byte in small buffers, split between threads; returns the seconds.
fn read_files(files: &[(PathBuf, u64)], threads: usize) -> Result<f64> {
    const BUFFER: usize = 1 << 20;
    let start = Instant::now();
    for (path, bytes) in files {
        let share = bytes.div_ceil(threads as u64);
        let part = |number: u64| -> std::io::Result<()> {
            use std::io::Seek;
            let mut file = std::fs::File::open(path)?;
            file.seek(std::io::SeekFrom::Start(number * share))?;
            let mut part = file.take(share);
            let mut buffer = vec![0; BUFFER];
            while part.read(&mut buffer)? > 0 {}
            Ok(())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads as u64).map(|n| scope.spawn(move || part(n))).collect();
            all.into_iter().try_for_each(|t| {
                t.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
            })
        })
        .with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Error of a row whose measurement the user interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// Measures one weight type; `check_interrupt` is called before each pass.
fn measure(
    args: &Args,
    directory: &Path,
    precision: Precision,
    bandwidth: f64,
    context: usize,
    check_interrupt: &impl Fn() -> Result<()>,
) -> Result<Row> {
    check_interrupt()?;
    let before = memory::reset_peak();
    let start = Instant::now();
    let mut model = load(directory, LoadOptions { precision, ..LoadOptions::default() })
        .map_err(polydraft_runtime::advise)?
        .model;
    let load_seconds = start.elapsed().as_secs_f64();
    let load_peak_bytes = before.and_then(|before| Some(memory::peak()?.saturating_sub(before)));
    check(&mut model, context)?;

    let mut passes = Vec::new();
    for &nodes in std::iter::once(&1).chain(args.nodes.iter().filter(|n| **n != 1)) {
        let seconds = time_pass(&mut model, nodes, context, args.passes, check_interrupt)?;
        passes.push((nodes, seconds));
    }
    let one = passes[0].1;
    if args.model.is_some() {
        let mut stored = passes.clone();
        stored.sort_by_key(|(nodes, _)| *nodes);
        stored.dedup_by_key(|(nodes, _)| *nodes);
        // A cache that cannot be written keeps the estimated costs.
        let _ = polydraft_runtime::costs::store_passes(directory, precision, &stored);
    }
    let sequences =
        batches::measure(&mut model, &args.sequences, context, args.passes, check_interrupt)?;
    let bytes_per_second = model.bytes_per_pass() as f64 / one;
    Ok(Row {
        dtype: precision.name(),
        load_seconds,
        load_peak_bytes,
        weight_bytes: model.weight_bytes(),
        seconds_per_token: one,
        tokens_per_second: 1.0 / one,
        bytes_per_second,
        bandwidth_share: bytes_per_second / bandwidth,
        passes: passes
            .iter()
            .map(|&(nodes, s)| Pass { nodes, seconds: s, relative: s / one })
            .collect(),
        sequences,
    })
}

/// Returns `length` tokens of the vocabulary.
fn prompt_tokens(model: &TransformerModel, length: usize) -> Vec<Token> {
    (0..length).map(|i| ((i * 7919 + 13) % model.info().vocabulary.size()) as Token).collect()
}

/// Builds a tree of two branches with two tokens each.
fn forked_tree() -> DraftTree {
    let mut tree = DraftTree::new();
    for (parent, token) in [(0, 1), (1, 2), (0, 3), (3, 4)] {
        tree.add(parent, token);
    }
    tree
}

/// Checks that a tree's scores equal the scores of its tokens one by one.
fn check(model: &mut TransformerModel, context: usize) -> Result<()> {
    let before = prompt_tokens(model, context.min(16));
    let tree = forked_tree();
    let mut after = |prompt_tokens: &[Token], tree: &DraftTree, node| -> Result<Vec<f32>> {
        let sequence = model.open()?;
        model.extend(sequence, prompt_tokens)?;
        model.score(&[(sequence, tree)])?;
        let logits = model.logits(sequence, node).to_vec();
        model.close(sequence);
        Ok(logits)
    };
    let at_once = after(&before, &tree, 4)?;
    let alone = after(&[&before[..], &[3, 4]].concat(), &DraftTree::new(), DraftTree::ROOT)?;
    let size = alone.iter().fold(0f32, |m, x| m.max(x.abs()));
    let worst = alone.iter().zip(&at_once).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    ensure!(
        worst <= 0.02 * size,
        "a tree's scores are {worst:e} from those of its tokens one by one"
    );
    Ok(())
}

/// Returns the median time of a pass over `nodes` tokens after the context, in seconds.
fn time_pass(
    model: &mut TransformerModel,
    nodes: usize,
    context: usize,
    passes: usize,
    check_interrupt: &impl Fn() -> Result<()>,
) -> Result<f64> {
    let mut tree = DraftTree::new();
    for number in 1..nodes {
        // Pairs of siblings: neither a chain nor a star.
        tree.add((number - 1) / 2, number as Token % model.info().vocabulary.size() as Token);
    }
    let sequence = model.open()?;
    model.extend(sequence, &prompt_tokens(model, context))?;
    model.score(&[(sequence, &DraftTree::new())])?;
    let mut seconds = Vec::new();
    for pass in 0..passes + 2 {
        check_interrupt()?;
        model.commit(sequence, &tree, &[])?;
        let start = Instant::now();
        model.score(&[(sequence, &tree)])?;
        // The first passes run with cold caches and low clock rates.
        if pass >= 2 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    model.close(sequence);
    Ok(median(seconds.into_iter()))
}

impl Report {
    fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let gigabytes = |bytes: f64| bytes / 1e9;
        writeln!(
            out,
            "{}\n{:.0} million parameters; memory {:.1} GB/s; reading the file of {:.2} GB {:.2} \
             s; context {}\n",
            self.made_by.machine,
            self.parameters as f64 / 1e6,
            gigabytes(self.memory_bytes_per_second),
            gigabytes(self.file_bytes as f64),
            self.read_seconds,
            self.context
        )?;
        writeln!(
            out,
            "{:<8} {:>8} {:>10} {:>10} {:>9} {:>8} {:>10}   cost of a pass by number of tokens, \
             relative to one",
            "dtype", "load, s", "peak, GB", "size, GB", "tokens/s", "GB/s", "of memory"
        )?;
        for row in &self.results {
            let costs: Vec<String> =
                row.passes.iter().map(|p| format!("{}: {:.2}", p.nodes, p.relative)).collect();
            let peak = row
                .load_peak_bytes
                .map_or("?".to_owned(), |b| format!("{:.2}", gigabytes(b as f64)));
            writeln!(
                out,
                "{:<8} {:>8.2} {:>10} {:>10.2} {:>9.2} {:>8.1} {:>8.0} %   {}",
                row.dtype,
                row.load_seconds,
                peak,
                gigabytes(row.weight_bytes as f64),
                row.tokens_per_second,
                gigabytes(row.bytes_per_second),
                100.0 * row.bandwidth_share,
                costs.join("  ")
            )?;
        }
        writeln!(out, "\nsequences in a batch: tokens/s of all, relative to one sequence")?;
        for row in &self.results {
            let all: Vec<String> = row
                .sequences
                .iter()
                .map(|t| format!("{}: {:.1} ({:.2})", t.sequences, t.tokens_per_second, t.relative))
                .collect();
            writeln!(out, "{:<6} {}", row.dtype, all.join("  "))?;
        }
        Ok(())
    }
}
