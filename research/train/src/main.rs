//! Makes polydraft's demo models: text, tokenizer, training, export (see demo/README.md).

mod corpus;
mod export;
mod model;
mod ops;
mod optimizer;
mod train;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

use corpus::CorpusFiles;
use train::{Batch, Pair, Plan};

/// Makes the demo models that polydraft ships.
///
/// Everything on the way lies in the work folder, and every command goes on from what it finds
/// there: the fetched sources, the tokenizer, the token streams, the last checkpoint. Delete a part
/// to make it again.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The folder of the demo: corpus/ in it pins the text, target/ and draft/ receive the models.
    #[arg(long, default_value = "demo", global = true)]
    demo: PathBuf,
    /// The folder for what is made on the way (about 2 GB) [default: .train in the demo folder].
    #[arg(long, global = true)]
    work: Option<PathBuf>,
    /// Tokens of the vocabulary, when the tokenizer is made.
    #[arg(
        long,
        default_value_t = 4096,
        global = true,
        value_parser = RangedU64ValueParser::<usize>::new().range(257..=65_536),
    )]
    vocabulary: usize,
}

#[derive(Subcommand)]
enum Command {
    /// Fetch the text and make the tokenizer and the token streams.
    Prepare,
    /// Prepare, train both models (going on from the last checkpoint) and export them.
    Train(TrainArgs),
    /// Write the last checkpoint as the demo models.
    Export,
}

#[derive(Args)]
struct TrainArgs {
    /// Steps in which target and draft learn side by side, counted from the first run; it can be
    /// prolonged.
    #[arg(long, default_value_t = 2800)]
    steps: usize,
    /// Steps in which the draft then learns alone, to be accepted more often.
    #[arg(long, default_value_t = 500)]
    draft_steps: usize,
    /// Part of the steps of each kind, at the end, over which the learning rate falls to zero.
    #[arg(long, default_value_t = 0.3)]
    decay: f64,
    /// Learning rate on the plateau.
    #[arg(long, default_value_t = 0.003)]
    rate: f64,
    /// Sequences of 512 tokens in a step; a multiple of workers times micro-batch.
    #[arg(long, default_value_t = 8, value_parser = at_least(1))]
    batch: usize,
    /// Sequences in one pass of one worker.
    #[arg(long, default_value_t = 4, value_parser = at_least(1))]
    micro_batch: usize,
    /// Threads.
    #[arg(long, default_value_t = 2, value_parser = at_least(1))]
    workers: usize,
    /// Steps between checkpoints.
    #[arg(long, default_value_t = 50, value_parser = at_least(1))]
    save_every: usize,
    /// Steps between checks on validation text.
    #[arg(long, default_value_t = 100, value_parser = at_least(1))]
    check_every: usize,
}

fn main() -> Result<()> {
    // Each worker computes on its own core; parallel products inside would only get in each other's
    // way. candle asks this variable for every product; rayon's pool, which prepares the text, is
    // built with all the cores.
    // SAFETY: no other thread runs yet.
    #[expect(unsafe_code, reason = "candle is told in no other way")]
    unsafe {
        std::env::set_var("RAYON_NUM_THREADS", "1")
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cli = Cli::parse();
    rayon::ThreadPoolBuilder::new().num_threads(cores).build_global()?;
    demo(cli.command, &cli.demo, cli.work, cli.vocabulary)
}

/// Numbers from `least` on.
fn at_least(least: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least as u64..)
}

/// Where there is no checkpoint there are but random weights, which would be written over a model
/// that was trained.
///
/// # Errors
/// There is no checkpoint.
fn trained(checkpoint: &Path) -> Result<()> {
    ensure!(
        checkpoint.exists(),
        "no checkpoint at {}: expected one that training has left there; see --work",
        checkpoint.display()
    );
    Ok(())
}

/// The demo pair.
fn demo(command: Command, folder: &Path, work: Option<PathBuf>, vocabulary: usize) -> Result<()> {
    let files = CorpusFiles {
        manifest: folder.join("corpus/Cargo.toml"),
        work: work.unwrap_or_else(|| folder.join(".train")),
    };
    let checkpoint = files.work.join("checkpoint.safetensors");
    if matches!(command, Command::Export) {
        trained(&checkpoint)?;
    }
    std::fs::create_dir_all(&files.work)?;
    corpus::prepare(&files, vocabulary)?;
    let args = match command {
        Command::Prepare => return Ok(()),
        Command::Export => None,
        Command::Train(args) => Some(args),
    };
    // What the tokenizer has: it may have been made with another --vocabulary.
    let vocabulary = corpus::vocabulary(&files.tokenizer())?;
    let mut pair = Pair::open(vocabulary, &checkpoint).with_context(|| {
        format!("{} with a tokenizer of {vocabulary} tokens", checkpoint.display())
    })?;
    eprintln!(
        "target: {:.2} M parameters, draft: {:.2} M",
        pair.target.parameter_count() as f64 / 1e6,
        pair.draft.parameter_count() as f64 / 1e6
    );
    if let Some(args) = args {
        ensure!(
            args.batch % (args.workers * args.micro_batch) == 0,
            "--batch {} is not a multiple of --workers {} times --micro-batch {}",
            args.batch,
            args.workers,
            args.micro_batch
        );
        let (tokens, held_out) =
            (corpus::read_tokens(&files.tokens(false))?, corpus::read_tokens(&files.tokens(true))?);
        for (lesson, steps) in [(Batch::Both, args.steps), (Batch::Draft, args.draft_steps)] {
            let plan = Plan {
                lesson,
                steps,
                decay: args.decay,
                rate: args.rate,
                batch: args.batch,
                micro_batch: args.micro_batch,
                workers: args.workers,
                save_every: args.save_every,
                check_every: args.check_every,
                checkpoint: checkpoint.clone(),
            };
            pair.train(&plan, &tokens, &held_out)?;
            println!("validation, 256 sequences: {}", pair.check(&plan, &held_out, 256)?);
        }
    }
    for (model, name) in [(&pair.target, "target"), (&pair.draft, "draft")] {
        export::export(model, &files.tokenizer(), &folder.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_export_without_checkpoint() {
        let made = tempfile::tempdir().unwrap();
        let refused = demo(Command::Export, made.path(), None, 4096).unwrap_err();
        assert!(refused.to_string().contains("no checkpoint at"), "{refused}");
        assert_eq!(std::fs::read_dir(made.path()).unwrap().count(), 0);
    }

    #[test]
    fn rejects_unusable_numbers() {
        let wrong = [
            ("train", "--workers 0"),
            ("train", "--batch 0"),
            ("train", "--micro-batch 0"),
            ("train", "--save-every 0"),
            ("train", "--check-every 0"),
            ("train", "--vocabulary 256"),
            ("train", "--vocabulary 65537"),
        ];
        for (command, option) in wrong {
            let line = |option: &str| {
                let words = ["polydraft-train"].into_iter().chain(command.split(' '));
                Cli::try_parse_from(words.chain(option.split(' ').filter(|word| !word.is_empty())))
            };
            assert!(line("").is_ok() && line(option).is_err(), "{command} {option}");
        }
    }
}
