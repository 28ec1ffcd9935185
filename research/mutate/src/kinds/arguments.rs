//! Command lines, each run in its own process.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{repository, write};
use crate::clock::{Longest, Watch};
use crate::mutation::{self, Dice};

/// Words that polydraft's command line accepts.
const COMMANDS: [&[&str]; 12] = [
    &["generate", "-p", "fn", "-n", "4"],
    &["generate", "-p", "fn", "-n", "4", "--verifier", "traversal", "--tree", "3,2,1"],
    &[
        "generate",
        "-p",
        "fn",
        "-n",
        "4",
        "--tree",
        "sequoia:8",
        "--temperature",
        "0.7",
        "--top-k",
        "5",
    ],
    &["generate", "-p", "fn", "-n", "4", "--draft", "ngram", "--stop", "x"],
    &[
        "generate",
        "-p",
        "fn",
        "-n",
        "4",
        "--tree",
        "delayed:1,2,3",
        "--stop-below",
        "0.2",
        "--json",
    ],
    &["chat", "-n", "2"],
    &["inspect", "demo/target", "demo/draft", "--json"],
    &["list", "--json"],
    &[
        "couple",
        "--drafts",
        "2",
        "--rule",
        "recursive",
        "--drafting",
        "without-replacement",
        "--set",
        "x=1",
    ],
    &["efficiency", "--target", "t.json", "--draft", "t.json", "--paths", "2"],
    &["certify", "--runs", "2", "--max-prompts", "1", "--greedy-tokens", "2"],
    &[
        "bench",
        "decode",
        "--verifiers",
        "block",
        "-n",
        "1",
        "--rounds",
        "1",
        "--prompts",
        "p.jsonl",
    ],
];

const WORDS: [&str; 30] = [
    "--verifier",
    "walk:importance",
    "walk:priority",
    "specinfer",
    "none",
    "--tree",
    "binary",
    "1000-ary",
    "paths:1024,256",
    "fixed:0,0,1/top-k",
    "budget:1e9,1e9",
    "sequoia:4096",
    "--paths",
    "1024",
    "--depth",
    "256",
    "--dtype",
    "q4_0",
    "--threads",
    "-q",
    "-v",
    "--config",
    "/dev/zero",
    "--prompt-file",
    "--help",
    "--",
    "-",
    "--color",
    "always",
    "--seed",
];

/// Time limits of a command. The wall-clock limit is below that of the worker, which waits for it.
const LONGEST: Longest = Longest { cpu: 10.0, wall: 50.0 };
/// Commands that may run as long as their arguments specify.
const PATIENT: [&str; 3] = ["certify", "efficiency", "bench"];

pub fn run(dice: &mut Dice, folder: &Path) -> Result<()> {
    let program = repository("target/debug/polydraft");
    if !program.exists() {
        bail!("the program to test does not exist");
    }
    let mut words: Vec<String> =
        COMMANDS[dice.below(COMMANDS.len())].iter().map(|w| w.to_string()).collect();
    for _ in 0..1 + dice.below(4) {
        let offset = 1 + dice.below(words.len());
        match dice.below(4) {
            0 => words.insert(offset.min(words.len()), WORDS[dice.below(WORDS.len())].to_owned()),
            1 if offset < words.len() => drop(words.remove(offset)),
            2 if offset < words.len() => words[offset] = WORDS[dice.below(WORDS.len())].to_owned(),
            _ if offset < words.len() => mutation::text(dice, &mut words[offset]),
            _ => {}
        }
    }
    // The system rejects NUL bytes and overlong arguments.
    words.iter_mut().for_each(|word| *word = word.replace('\0', "").chars().take(10_000).collect());
    write(&folder.join("t.json"), br#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
    write(&folder.join("p.jsonl"), b"{\"prompt\": \"fn\"}\n")?;
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v 8000000 -d 1300000; exec \"$@\"", "sh"])
        .arg(program)
        .args(&words)
        .current_dir(folder)
        .env("POLYDRAFT_DEMO", repository("demo"))
        .env("XDG_CONFIG_HOME", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the program")?;
    let mut clock = Watch::new(child.id(), LONGEST);
    let mut stderr = child.stderr.take().context("no standard error")?;
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        let _ = stderr.read_to_end(&mut output);
        String::from_utf8_lossy(&output).into_owned()
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(how) = clock.exceeded() {
            child.kill()?;
            child.wait()?;
            assert!(
                words.first().is_some_and(|word| PATIENT.contains(&word.as_str())),
                "{words:?}: {how}"
            );
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let output = reader.join().unwrap_or_default();
    assert!(!output.contains("panicked at"), "{words:?}: {output}");
    assert!(status.code().is_some(), "{words:?} ended by a signal: {output}");
    match status.code() {
        Some(0) => Ok(()),
        _ => bail!("{}", output.lines().next().unwrap_or_default()),
    }
}
