//! Untrusted input and interrupts: no hang, no abort, no remaining files.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{end, fails, interrupt, program, text};

/// Copies the demo draft.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/draft");
    for entry in fs::read_dir(demo).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
#[cfg(target_os = "linux")]
fn rejects_devices_and_pipes_as_files() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in
        ["/dev/zero", "/dev/urandom", folder.path().to_str().unwrap(), pipe.to_str().unwrap()]
    {
        fails(&["generate", "-f", path], 1, &[path, "expected a regular file"]);
        fails(
            &["generate", "-p", "x", "--draft", "ngram", "--corpus", path],
            1,
            &[path, "expected a regular file"],
        );
        let model = copy();
        let target = [
            "generate",
            "-p",
            "x",
            "--verifier",
            "none",
            "--target",
            model.path().to_str().unwrap(),
        ];
        for file in [
            "config.json",
            "tokenizer.json",
            "generation_config.json",
            "tokenizer_config.json",
            "model.safetensors",
        ] {
            let link = model.path().join(file);
            let before = fs::read(&link).unwrap();
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(path, &link).unwrap();
            fails(&target, 1, &[file, "expected a regular file"]);
            fs::remove_file(&link).unwrap();
            fs::write(&link, before).unwrap();
        }
    }
    // Pipes of the shell are accepted.
    let mut child = program(&["generate", "-f", "/dev/stdin", "-n", "3"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"fn ").unwrap();
    assert!(end(child).status.success());
}

#[test]
#[cfg(target_os = "linux")]
fn rejects_huge_prompt_in_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    fs::write(&file, "let x = 1;\n".repeat(5_000_000)).unwrap();
    let mut child = program(&["generate", "-f", file.to_str().unwrap()]).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let (mut peak, start) = (0, Instant::now());
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        peak = peak.max(kilobytes.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("55000000 bytes") && message.contains("context holds 512"),
        "{message}"
    );
    assert!(peak < 400_000, "{peak} kB");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
#[cfg(unix)]
fn interrupted_generation_prints_summary() {
    let mut child =
        program(&["generate", "-p", "fn main", "-n", "0", "--ignore-end", "-v"]).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    interrupt(&child, "-INT");
    let output = end(child);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(
        message.contains(", interrupted") && message.contains("tokens per target pass"),
        "{message}"
    );
}

#[test]
#[cfg(unix)]
fn interrupted_score_reports_scored_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long");
    fs::write(&file, "let x = 1;\n".repeat(50_000)).unwrap();
    let child = program(&["score", "--json", file.to_str().unwrap()]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(4));
    interrupt(&child, "-INT");
    let output = end(child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |field: &str| json[field].as_u64().unwrap();
    assert!(0 < count("scored") && count("scored") + 1 < count("tokens"));
    // The number of scored bytes is unknown.
    assert!(json["bits_per_byte"].is_null() && json["perplexity"].as_f64().unwrap() > 1.0);
}

#[test]
#[cfg(unix)]
fn interrupted_benchmark_removes_temporary_model() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let args = ["bench", "model", "--random", "200", "--dtypes", "f32"];
        let child = program(&args).env("TMPDIR", folder.path()).spawn().unwrap();
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let start = Instant::now();
        while count() == 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(count(), 1);
        interrupt(&child, signal);
        assert_eq!(end(child).status.code(), Some(130));
        assert_eq!(count(), 0, "{signal}");
    }
}

#[test]
fn reads_defaults_from_config_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("polydraft")).unwrap();
    let file = folder.path().join("polydraft/config.toml");
    let run = |contents: &str, args: &[&str]| {
        fs::write(&file, contents).unwrap();
        let output = end(program(args).env("XDG_CONFIG_HOME", folder.path()).spawn().unwrap());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let tokens = |out: &str| {
        serde_json::from_str::<serde_json::Value>(out).unwrap()["tokens"].as_array().unwrap().len()
    };
    let defaults = "max-tokens = 5\n[generate]\njson = true\nprompt = 'fn'\n";
    let (code, out, err) = run(defaults, &["generate"]);
    assert_eq!((code, tokens(&out)), (Some(0), 5), "{err}");
    let (_, out, _) = run(defaults, &["generate", "-n", "3"]);
    assert_eq!(tokens(&out), 3);
    let (code, _, err) = run(defaults, &["generate", "--no-config", "-p", "fn"]);
    assert!(code == Some(0) && err.contains("tokens/s"), "{err}");
    let other = folder.path().join("other.toml");
    fs::write(&other, "max-tokens = 4\n").unwrap();
    let args = ["generate", "--json", "-p", "fn", "--config", other.to_str().unwrap()];
    assert_eq!(tokens(&run(defaults, &args).1), 4);
    let (code, _, err) = run("\nmax-tokns = 5\n", &["generate", "-p", "fn"]);
    assert!(
        code == Some(2) && err.contains("config.toml, line 2") && err.contains("max-tokns"),
        "{err}"
    );
    // Help works with an invalid file, and errors about options from the file name it.
    for help in [&["--help"][..], &["generate", "--help"], &["--version"]] {
        assert_eq!(run("max-tokns = 5\n", help).0, Some(0), "{help:?}");
    }
    let (code, _, err) =
        run("[generate]\npaths = 2\nverifier = 'none'\n", &["generate", "-p", "fn"]);
    assert!(code == Some(2) && err.contains("--paths") && err.contains("config.toml"), "{err}");
    let (code, _, err) = run("", &["generate", "--config", "/no/such/file"]);
    assert!(code == Some(1) && err.contains("/no/such/file"), "{err}");
}

#[test]
fn quiet_and_verbose_set_message_level() {
    let messages = |option: &[&str]| {
        let args = [&["generate", "-p", "fn", "-n", "3", "--threads", "1024"], option].concat();
        let output = end(program(&args).spawn().unwrap());
        assert!(output.status.success());
        text(&output.stderr)
    };
    assert_eq!(messages(&["-q"]), "");
    let normal = messages(&[]);
    assert!(
        normal.contains("tokens/s")
            && normal.contains("--threads 1024")
            && !normal.contains("verifier nested")
    );
    let verbose = messages(&["-v"]);
    assert!(
        verbose.contains("verifier nested-priority") && verbose.contains("target"),
        "{verbose}"
    );
    fails(&["-q", "generate", "-p", "fn", "--depth", "0"], 2, &["error:"]);
}
