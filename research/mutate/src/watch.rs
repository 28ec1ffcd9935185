//! Starts workers and watches them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args as ClapArgs;

use crate::clock::{Longest, Watch};
use crate::folder;
use crate::kinds::Kind;

/// Options of `mutate`.
#[derive(ClapArgs, Debug, Clone)]
pub struct Args {
    /// Hours to run.
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Minutes to run [default: 1, or as long as --count takes].
    #[arg(long)]
    minutes: Option<f64>,
    /// Inputs to run.
    #[arg(long)]
    count: Option<u64>,
    /// Number of the first input, to continue an earlier run.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The seed of all inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of concurrent workers [default: number of CPUs].
    #[arg(long)]
    jobs: Option<u64>,
    /// Inputs of this kind only.
    #[arg(long)]
    only: Option<Kind>,
    #[command(flatten)]
    longest: Longest,
}

/// Statistics of the run.
#[derive(Default)]
struct Seen {
    inputs: u64,
    /// Highest input number.
    last: u64,
    /// Numbers of accepted and rejected inputs, by kind.
    counts: BTreeMap<String, (u64, u64)>,
    findings: Vec<String>,
}

/// Runs workers, prints the results, and returns whether there was no finding.
pub fn run(args: &Args) -> Result<bool> {
    let minutes = args.minutes.or(args.hours.map(|hours| 60.0 * hours));
    let minutes = minutes.or(args.count.is_none().then_some(1.0));
    let deadline = minutes
        .map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes.clamp(0.0, 1e6)));
    let jobs = args
        .jobs
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, |n| n.get() as u64))
        .max(1);
    let clock = Instant::now();
    let all: Vec<Result<Seen>> = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|job| scope.spawn(move || watch(args, job, jobs, deadline))).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|seen| seen.unwrap_or_else(|_| Err(anyhow!("a job of this program panicked"))))
            .collect()
    });
    let mut sum = Seen::default();
    for seen in all {
        let seen = seen?;
        sum.inputs += seen.inputs;
        sum.last = sum.last.max(seen.last);
        for (kind, (taken, refused)) in seen.counts {
            let count = sum.counts.entry(kind).or_default();
            *count = (count.0 + taken, count.1 + refused);
        }
        sum.findings.extend(seen.findings);
    }
    println!(
        "seed {}: {} inputs in {:.0} s, numbers {} to {}; {} findings",
        args.seed,
        sum.inputs,
        clock.elapsed().as_secs_f64(),
        args.first,
        sum.last,
        sum.findings.len()
    );
    for (kind, (taken, refused)) in &sum.counts {
        println!("  {kind:<10} {taken:>8} taken {refused:>8} refused");
    }
    sum.findings.iter().for_each(|finding| println!("FINDING {finding}"));
    // A time limit may end the run before `--count` inputs, but not before the first one.
    let expected = args.count.filter(|_| deadline.is_none()).unwrap_or(1);
    ensure!(sum.inputs >= expected, "expected {expected} inputs to be run, got {}", sum.inputs);
    Ok(sum.findings.is_empty())
}

/// Runs one job: starts a worker, and a new one whenever an input has ended the worker.
fn watch(args: &Args, job: u64, jobs: u64, deadline: Option<Instant>) -> Result<Seen> {
    let mut seen = Seen::default();
    let folder = folder::make()?;
    let mut first = args.first + job;
    let end = args.count.map_or(u64::MAX, |count| args.first.saturating_add(count));
    while first < end && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let mut child = start(args, first, jobs, end, folder.path())?;
        let (last, ended) = follow(&mut child, args, deadline, &mut seen)?;
        let Ended::Badly(how) = ended else { break };
        let last = last.with_context(|| format!("a worker ended before its first input: {how}"))?;
        let finding = format!("{} {last}: {how}", args.seed);
        eprintln!("{finding}");
        seen.findings.push(finding);
        first = last + jobs;
    }
    Ok(seen)
}

fn start(args: &Args, first: u64, step: u64, end: u64, folder: &Path) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let numbers = [("--seed", args.seed), ("--first", first), ("--step", step), ("--end", end)];
    let mut command = Command::new(program);
    command.arg("worker");
    for (option, number) in numbers {
        command.args([option, &number.to_string()]);
    }
    command.arg("--folder").arg(folder);
    if let Some(only) = args.only {
        let name = clap::ValueEnum::to_possible_value(&only).context("a kind without a name")?;
        command.args(["--only", name.get_name()]);
    }
    command.env("RAYON_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start a worker")
}

enum Ended {
    Done,
    Time,
    Badly(String),
}

/// Watches a worker until it ends. Returns the number of its last input.
fn follow(
    child: &mut Child,
    args: &Args,
    deadline: Option<Instant>,
    seen: &mut Seen,
) -> Result<(Option<u64>, Ended)> {
    let out = child.stdout.take().context("no standard output")?;
    let mut err = child.stderr.take().context("no standard error")?;
    let (sender, lines) = mpsc::sync_channel(1_000);
    thread::spawn(move || {
        BufReader::new(out)
            .lines()
            .map_while(|l| l.ok())
            .try_for_each(|line| sender.send(line).ok())
    });
    let output = thread::spawn(move || {
        let mut output = Vec::new();
        let _ = err.by_ref().take(1 << 16).read_to_end(&mut output);
        let _ = std::io::copy(&mut err, &mut std::io::sink());
        String::from_utf8_lossy(&output).into_owned()
    });
    let mut last = None;
    let mut clock = Watch::new(child.id(), args.longest);
    let ended = loop {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break Ended::Time;
        }
        match lines.recv_timeout(Watch::PAUSE) {
            Ok(line) => {
                clock.again();
                let mut words = line.split_whitespace();
                match words.next() {
                    Some("!") => seen.findings.push(line[2..].to_owned()),
                    Some("=") => {
                        let (kind, taken, refused) = (words.next(), words.next(), words.next());
                        let number = |word: Option<&str>| {
                            word.and_then(|word| word.parse().ok()).unwrap_or(0u64)
                        };
                        let count =
                            seen.counts.entry(kind.unwrap_or_default().to_owned()).or_default();
                        *count = (count.0 + number(taken), count.1 + number(refused));
                    }
                    Some(number) => {
                        last = number.parse().ok();
                        seen.inputs += 1;
                        seen.last = seen.last.max(last.unwrap_or(0));
                    }
                    None => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(how) = clock.exceeded() {
                    break Ended::Badly(how);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait()?;
                if status.success() {
                    break Ended::Done;
                }
                let output = output.join().unwrap_or_default();
                let output: String = output.lines().take(3).collect::<Vec<_>>().join(" ");
                return Ok((last, Ended::Badly(format!("{status}: {output}"))));
            }
        }
    };
    // Kill the worker only if it still runs.
    if child.try_wait()?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok((last, ended))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn refusal(options: &str) -> String {
        let line = Line::parse_from(["mutate"].into_iter().chain(options.split(' ')));
        format!("{:#}", run(&line.args).unwrap_err())
    }

    #[test]
    fn run_without_inputs_fails() {
        // In this test the current executable is the test binary, which exits at once as a worker.
        let refused = refusal("--count 4 --jobs 2");
        assert!(refused.contains("before its first input: exit status"), "{refused}");
        assert!(refusal("--minutes 0").contains("expected 1 inputs to be run, got 0"));
    }
}
