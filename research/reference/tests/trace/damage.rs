//! Damaged, foreign and interrupted traces.

use std::fs;
use std::path::Path;

use polydraft::PolicyKind;
use polydraft::VerifierKind;
use polydraft_reference::trace::{Error, Header, Replay, Trace, Writer, replay};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{PROMPTS, header, record, recording};

/// Returns all contents of a trace, or the error.
fn contents(folder: &Path) -> Result<String, Error> {
    let trace = Trace::open(folder)?;
    let tree: &PolicyKind = &trace.header().tree;
    let verifiers = ["nested-priority".parse::<VerifierKind>().unwrap()];
    let replays = [Replay::new(tree, tree, &verifiers)?];
    let mut all = format!("{:?}", trace.header());
    for number in 0..trace.len() {
        let shard = trace.shard(number)?;
        all += &format!("{:?} {:?} {}", shard.prompt(), shard.sequences(), shard.made());
        all += &format!("{:?}", replay(&shard, &replays, number)?);
    }
    Ok(all)
}

fn refused(folder: &Path, expected: &[&str]) {
    let error = contents(folder).unwrap_err().to_string();
    for part in expected {
        assert!(error.contains(part), "expected {part:?} in: {error}");
    }
}

fn file(number: usize) -> String {
    format!("prompt-{number:06}.safetensors.gz")
}

#[test]
fn flipped_bits_are_refused_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    record(here, &header("paths:3,2", 4, 0.95));
    let (expected, mut random, mut harmless) =
        (contents(here).unwrap(), ChaCha8Rng::seed_from_u64(1), 0);
    let mut names: Vec<_> = fs::read_dir(here).unwrap().map(|file| file.unwrap().path()).collect();
    names.sort();
    for _ in 0..600 {
        let path = &names[random.next_u64() as usize % names.len()];
        let sound = fs::read(path).unwrap();
        let mut damaged = sound.clone();
        let bit = random.next_u64() as usize % (8 * damaged.len());
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, &damaged).unwrap();
        match contents(here) {
            Err(error) => assert!(error.to_string().contains(&*here.to_string_lossy()), "{error}"),
            Ok(got) => {
                assert_eq!(got, expected, "bit {bit} of {}", path.display());
                harmless += 1;
            }
        }
        fs::write(path, &sound).unwrap();
    }
    assert!(harmless < 60, "{harmless}");
}

#[test]
fn cut_and_foreign_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    record(here, &header("paths:3,2", 4, 1.0));
    let second = here.join(file(1));
    let sound = fs::read(&second).unwrap();
    fs::write(&second, &sound[..sound.len() / 2]).unwrap();
    refused(here, &[&file(1), "bytes", "index.jsonl"]);
    fs::copy(here.join(file(0)), &second).unwrap();
    refused(here, &[&file(1), "index.jsonl"]);
    fs::remove_file(&second).unwrap();
    refused(here, &[&file(1)]);
    fs::write(&second, &sound).unwrap();

    // The index names a shard of another trace.
    let other = tempfile::tempdir().unwrap();
    record(other.path(), &Header { seed: 5, ..header("paths:3,2", 4, 1.0) });
    fs::copy(other.path().join("trace.json"), here.join("trace.json")).unwrap();
    refused(here, &[&file(0), "trace.json", "checksum"]);

    let index = here.join("index.jsonl");
    let lines = fs::read_to_string(&index).unwrap();
    fs::write(&index, lines.lines().next().unwrap().to_owned() + "\n").unwrap();
    refused(here, &["index.jsonl", "none for 2"]);
    fs::write(&index, lines.replace(&file(0), "../../etc/passwd")).unwrap();
    refused(here, &["index.jsonl, line 1", "passwd"]);
    fs::write(&index, lines).unwrap();
    fs::write(here.join("trace.json"), "{}").unwrap();
    refused(here, &["trace.json"]);
    fs::remove_file(here.join("trace.json")).unwrap();
    refused(here, &["a folder with trace.json"]);
    let error = Trace::open(&here.join(file(0))).err().unwrap().to_string();
    assert!(error.contains(&file(0)), "{error}");
}

#[test]
fn one_shard_can_be_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), &header("paths:3,2", 4, 1.0));
    let one = Trace::open(&folder.path().join(file(2))).unwrap();
    assert_eq!((one.len(), one.shard(0).unwrap().prompt()), (1, &PROMPTS[2][..]));
    assert_eq!(one.files().collect::<Vec<_>>(), [folder.path().join(file(2))]);
    assert!(Trace::open(&folder.path().join("index.jsonl")).is_err());
}

/// Duplicates are rejected: the same folder, one of its files, or a copy under another name.
#[test]
fn rejects_duplicates_by_name() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = header("paths:2,2", 3, 1.0);
    [&folder, &copy].iter().for_each(|folder| record(folder.path(), &own));
    let (complete, copy, shard) = (folder.path(), copy.path(), &*folder.path().join(file(1)));
    for (twice, number) in
        [([complete, complete], 0), ([complete, shard], 1), ([shard, shard], 1), ([copy, shard], 1)]
    {
        let error = Trace::open_all(&twice).err().unwrap().to_string();
        let first =
            twice[0].parent().filter(|_| twice[0].is_file()).unwrap_or(twice[0]).join(file(number));
        let expected = format!("once, got that of {} again", first.display());
        assert!(
            error.starts_with(&complete.display().to_string()) && error.contains(&expected),
            "{error}"
        );
    }
    assert_eq!(Trace::open_all(&[shard, &complete.join(file(2))]).unwrap().len(), 2);
    let other = tempfile::tempdir().unwrap();
    record(other.path(), &Header { seed: 5, ..own.clone() });
    assert_eq!(Trace::open_all(&[complete, other.path()]).unwrap().len(), 2);
    let other = tempfile::tempdir().unwrap();
    record(other.path(), &Header { mass: 0.9, ..own });
    assert!(
        Trace::open_all(&[complete, other.path()])
            .is_err_and(|error| error.to_string().contains("stored probability mass"))
    );
}

/// A recording that is interrupted at any time can be continued, and the result equals that of an
/// uninterrupted one.
#[test]
fn an_interruption_loses_the_last_prompt_at_most() {
    let header = header("paths:2,2", 3, 1.0);
    let complete = tempfile::tempdir().unwrap();
    record(complete.path(), &header);
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    // Interrupted after creating the index, before the first shard.
    fs::write(here.join("index.jsonl"), "").unwrap();
    fs::write(here.join("trace.json.part"), "{").unwrap();
    let mut writer = Writer::create(here, &header).unwrap();
    writer.add(&recording(&header, 0), &header.made).unwrap();
    assert!(
        Writer::append(here, &header)
            .is_err_and(|error| error.to_string().contains("somebody else"))
    );
    drop(writer);
    // Interrupted while writing the second shard, after writing it, and while writing its index
    // line.
    fs::write(here.join(file(1) + ".part"), "half").unwrap();
    fs::copy(complete.path().join(file(0)), here.join(file(1))).unwrap();
    let index = here.join("index.jsonl");
    let line = fs::read_to_string(&index).unwrap();
    fs::write(&index, line.clone() + &line[..20]).unwrap();
    assert_eq!(Trace::open(here).unwrap().len(), 1);
    assert!(contents(here).is_ok());

    assert!(Writer::create(here, &header).is_err());
    let mut writer = Writer::append(here, &header).unwrap();
    assert!(writer.has(&PROMPTS[0]) && !writer.has(&PROMPTS[0]) && !writer.has(&PROMPTS[1]));
    for prompt in 1..3 {
        assert_eq!(writer.next(), prompt);
        writer.add(&recording(&header, prompt), &header.made).unwrap();
    }
    for name in ["trace.json".to_owned(), "index.jsonl".to_owned(), file(0), file(1), file(2)] {
        let same =
            fs::read(here.join(&name)).unwrap() == fs::read(complete.path().join(&name)).unwrap();
        assert!(same, "{name}");
    }
}

#[test]
fn rejects_trace_recorded_with_other_settings() {
    let folder = tempfile::tempdir().unwrap();
    let own = header("paths:2,2", 3, 1.0);
    record(folder.path(), &own);
    for (other, name) in [
        (Header { target: "a third".to_owned(), ..own.clone() }, "target"),
        (Header { mass: 0.9, ..own.clone() }, "stored probability mass"),
        (Header { seed: 1, ..own.clone() }, "seed"),
        (Header { tree: "paths:2,1".parse().unwrap(), ..own.clone() }, "tree"),
        (
            Header { sampling: polydraft::Sampling { top_p: 0.9, ..own.sampling }, ..own.clone() },
            "sampling",
        ),
    ] {
        let error = Writer::append(folder.path(), &other).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
    let full = tempfile::tempdir().unwrap();
    fs::write(full.path().join("letter.txt"), "dear").unwrap();
    assert!(
        Writer::create(full.path(), &own)
            .is_err_and(|error| error.to_string().contains("letter.txt"))
    );
    let error = Writer::create(&full.path().join("letter.txt"), &own).err().unwrap().to_string();
    assert!(error.contains("letter.txt: expected a folder"), "{error}");
    let error = Writer::append(full.path(), &own).err().unwrap().to_string();
    assert!(error.contains("expected a trace to go on with"), "{error}");
    assert!(!full.path().join("index.jsonl").exists());
}
