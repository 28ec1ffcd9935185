//! Models by hub id, with a test hub on loopback.

mod server;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::common;
use server::{COMMIT, Quirk, Running, fixture, serve};
use tempfile::{TempDir, tempdir};

/// Starts a hub with a fixture, and with files that are not needed.
fn hub() -> (Running, TempDir) {
    let mut files = BTreeMap::new();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        files.insert(name.to_owned(), std::fs::read(fixture("qwen3").join(name)).unwrap());
    }
    for name in [
        "README.md",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "consolidated.safetensors.index.json",
        "onnx/config.json",
    ] {
        files.insert(name.to_owned(), vec![0; 100]);
    }
    (serve(files), tempdir().unwrap())
}

/// Starts a hub with GGUF files, one of them in two shards.
fn gguf_hub() -> (Running, TempDir) {
    let model = std::fs::read(fixture("lfm2").join("model.gguf")).unwrap();
    let names = ["Tiny-Q8_0.gguf", "Tiny-Q4_K_M.gguf", "big/Tiny-BF16-00001-of-00002.gguf"];
    let mut files: BTreeMap<_, _> = names.map(|name| (name.to_owned(), model.clone())).into();
    files.insert("big/Tiny-BF16-00002-of-00002.gguf".to_owned(), b"GGUF".to_vec());
    files.insert("mmproj-F16.gguf".to_owned(), b"GGUF".to_vec());
    // Contents are distinct, because blobs are shared.
    for (at, bytes) in files.values_mut().enumerate() {
        bytes.extend_from_slice(&at.to_le_bytes());
    }
    (serve(files), tempdir().unwrap())
}

fn hub_command(address: &str, cache: &Path, arguments: &[&str]) -> Command {
    let mut command = common::program(arguments);
    command.env("HF_ENDPOINT", address).env("HF_HOME", cache);
    for name in ["HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        command.env_remove(name);
    }
    command
}

fn run(hub: &Running, cache: &TempDir, arguments: &[&str]) -> Output {
    hub_command(&hub.address, cache.path(), arguments).output().unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn succeeds(hub: &Running, cache: &TempDir, arguments: &[&str]) -> Output {
    let output = run(hub, cache, arguments);
    assert!(output.status.success(), "{}", message(&output));
    output
}

#[track_caller]
fn fails(hub: &Running, cache: &TempDir, arguments: &[&str], expected: &[&str]) {
    let output = run(hub, cache, arguments);
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    for words in expected {
        assert!(message(&output).contains(words), "{words}: {}", message(&output));
    }
}

fn generate(model: &str) -> Vec<&str> {
    let rest = "--verifier none --prompt ab -n 5 --seed 1";
    ["generate", "--target", model].into_iter().chain(rest.split(' ')).collect()
}

#[test]
fn downloads_model_once_and_finds_it_offline() {
    let (hub, cache) = hub();
    let generate_command = generate("org/tiny");
    let offline = [&generate_command[..], &["--offline"]].concat();
    fails(&hub, &cache, &offline, &["not downloaded before"]);
    assert!(hub.requests().is_empty());

    let first = succeeds(&hub, &cache, &generate_command);
    assert!(message(&first).contains("downloading org/tiny: 3 files"), "{}", message(&first));
    let requests = hub.requests();
    assert!(requests.iter().any(|r| r.contains("model.safetensors")), "{requests:?}");
    for unread in [".bin", "README", "consolidated", "onnx"] {
        assert!(!requests.iter().any(|r| r.contains(unread)), "{unread}: {requests:?}");
    }
    // The output is the same as with a local directory.
    let folder = fixture("qwen3");
    assert_eq!(first.stdout, run(&hub, &cache, &generate(folder.to_str().unwrap())).stdout);

    // The layout is that of the hub's own tools, so that both share downloads.
    let repository = cache.path().join("hub/models--org--tiny");
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    let weights = repository.join("snapshots").join(COMMIT).join("model.safetensors");
    assert!(std::fs::read_link(&weights).unwrap().starts_with("../../blobs"));
    assert_eq!(std::fs::read_dir(repository.join("blobs")).unwrap().count(), 3);

    let second = succeeds(&hub, &cache, &generate_command);
    assert_eq!(second.stdout, first.stdout);
    assert_eq!(hub.requests().len(), 1);

    assert_eq!(succeeds(&hub, &cache, &offline).stdout, first.stdout);
    assert!(hub.requests().is_empty());
    // The model is also found by commit, and by other commands.
    let id = format!("org/tiny@{COMMIT}");
    let inspected = succeeds(&hub, &cache, &["inspect", &id, "org/tiny", "--offline"]);
    assert!(String::from_utf8_lossy(&inspected.stdout).contains("it can draft"));
    // A branch name with slashes.
    succeeds(&hub, &cache, &["inspect", "org/tiny@refs/pr/1"]);
    succeeds(&hub, &cache, &["inspect", "org/tiny@refs/pr/1", "--offline"]);

    // The downloaded model is used if the hub is unreachable or busy.
    hub.lock().quirk = Quirk::Busy;
    let cached = succeeds(&hub, &cache, &generate_command);
    assert_eq!(cached.stdout, first.stdout);
    assert!(message(&cached).contains("status 503"), "{}", message(&cached));
    assert!(message(&cached).contains("as it was downloaded before"), "{}", message(&cached));
}

#[test]
fn resumes_interrupted_download() {
    let (hub, cache) = hub();
    // Three interruptions of one file do not fail the download.
    hub.lock().broken = Some(("model.safetensors".to_owned(), 3));
    succeeds(&hub, &cache, &["inspect", "org/tiny"]);
    let all = hub.lock().files["model.safetensors"].len();
    let parts: Vec<_> = hub.requests().into_iter().filter(|r| r.contains("/elsewhere/")).collect();
    let from = [0, all / 2, all - all / 4, all - all / 8];
    assert_eq!(parts.len(), 4, "{parts:?}");
    for (part, from) in parts.iter().zip(from).skip(1) {
        let (_, rest) = part.split_once("bytes=").unwrap();
        let start: usize = rest.split('-').next().unwrap().parse().unwrap();
        assert!(start.abs_diff(from) <= 2, "{part}, not {from}");
    }

    // A later run continues a partial file.
    let cache = tempdir().unwrap();
    let blobs = cache.path().join("hub/models--org--tiny/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let name = hub.lock().sha256("model.safetensors");
    let (begun, coming) = (all / 3, blobs.join(format!("{name}.incomplete")));
    let bytes = hub.lock().files["model.safetensors"].clone();
    std::fs::write(&coming, &bytes[..begun]).unwrap();
    succeeds(&hub, &cache, &["inspect", "org/tiny"]);
    let range = format!("bytes={begun}-");
    assert!(hub.requests().iter().any(|request| request.contains(&range)));
    assert!(!coming.exists());

    // The partial file may be complete, too long, or different.
    for (left, is_refused) in [
        (bytes.clone(), false),
        ([&bytes[..], b"more"].concat(), false),
        (b"something else".to_vec(), true),
    ] {
        let cache = tempdir().unwrap();
        let blobs = cache.path().join("hub/models--org--tiny/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{name}.incomplete")), left).unwrap();
        if is_refused {
            fails(&hub, &cache, &["inspect", "org/tiny"], &["SHA-256", "run it again"]);
        }
        succeeds(&hub, &cache, &["inspect", "org/tiny"]);
    }

    // A hub that ignores ranges.
    let cache = tempdir().unwrap();
    hub.lock().quirk = Quirk::IgnoresRange;
    hub.lock().broken = Some(("model.safetensors".to_owned(), 2));
    succeeds(&hub, &cache, &["inspect", "org/tiny"]);
    // A hub that never completes the file.
    let cache = tempdir().unwrap();
    hub.lock().broken = Some(("model.safetensors".to_owned(), usize::MAX));
    fails(&hub, &cache, &["inspect", "org/tiny"], &["org/tiny: model.safetensors: "]);
    hub.lock().broken = None;
    succeeds(&hub, &cache, &["inspect", "org/tiny"]);
}

#[test]
fn verifies_contents_and_stays_in_cache() {
    let (hub, cache) = hub();
    hub.lock().quirk = Quirk::Damaged;
    fails(&hub, &cache, &["inspect", "org/tiny"], &["model.safetensors", "SHA-256"]);
    hub.lock().quirk = Quirk::None;
    succeeds(&hub, &cache, &["inspect", "org/tiny"]);

    // A list of names has no hashes, but each file's response does.
    let cache = tempdir().unwrap();
    hub.lock().quirk = Quirk::Names;
    succeeds(&hub, &cache, &["inspect", "org/tiny"]);
    let blob = hub.lock().sha256("model.safetensors");
    assert!(cache.path().join("hub/models--org--tiny/blobs").join(blob).exists());
    assert!(hub.requests().iter().any(|request| request.starts_with("HEAD")));

    // Nothing is written outside the cache, whatever the hub sends.
    for name in ["../../../../stray.safetensors", "/tmp/polydraft-stray.safetensors"] {
        let (hub, cache) = (serve([(name.to_owned(), vec![0])].into()), tempdir().unwrap());
        hub.lock().files.insert("config.json".to_owned(), b"{}".to_vec());
        let _ = run(&hub, &cache, &["inspect", "org/tiny"]);
        assert!(!Path::new("/tmp/polydraft-stray.safetensors").exists());
        assert!(!cache.path().parent().unwrap().join("stray.safetensors").exists());
    }
}

#[test]
fn selects_one_gguf_file() {
    let (hub, cache) = gguf_hub();
    let fetched = |id: &str| {
        hub.requests();
        let output = run(&hub, &cache, &["inspect", id]);
        let requests = hub.requests().into_iter().filter(|r| r.contains("/elsewhere/"));
        let name = |r: String| r.split(' ').nth(1).unwrap().replace("/elsewhere/", "");
        (requests.map(name).collect::<Vec<_>>(), output)
    };
    assert_eq!(fetched("org/tiny").0, ["Tiny-Q4_K_M.gguf"]);
    assert!(fetched("org/tiny:q4_k_m").0.is_empty());
    assert_eq!(fetched("hf.co/org/tiny:Q8_0").0, ["Tiny-Q8_0.gguf"]);
    let page = format!("https://huggingface.co/org/tiny/blob/{COMMIT}/Tiny-Q8_0.gguf");
    let (again, output) = fetched(&page);
    assert!(again.is_empty() && output.status.success(), "{}", message(&output));
    assert_eq!(fetched("org/tiny:BF16").0.len(), 2);
    let unknown = ["no GGUF file Q5_K_M", "BF16, Q4_K_M, Q8_0"];
    fails(&hub, &cache, &["inspect", "org/tiny:Q5_K_M"], &unknown);
    // It also runs, and is found offline.
    let online = succeeds(&hub, &cache, &generate("org/tiny:Q8_0"));
    hub.requests();
    let generate_command = generate("org/tiny:Q8_0");
    let offline = succeeds(&hub, &cache, &[&generate_command[..], &["--offline"]].concat());
    assert_eq!(offline.stdout, online.stdout);
    assert!(hub.requests().is_empty());
}

#[test]
fn sends_token_to_hub_only_and_explains_its_absence() {
    let (hub, cache) = hub();
    hub.lock().token = Some("secret");
    fails(&hub, &cache, &["inspect", "org/tiny"], &["HF_TOKEN", "Please log in."]);
    hub.requests();
    let with_token = |cache: &Path| hub_command(&hub.address, cache, &["inspect", "org/tiny"]);
    let granted = with_token(cache.path()).env("HF_TOKEN", " secret\n").output().unwrap();
    assert!(granted.status.success(), "{}", message(&granted));
    for request in hub.requests() {
        assert_eq!(request.contains("secret"), !request.contains("/elsewhere/"), "{request}");
    }
    // Also a token stored by the hub's tools.
    let cache = tempdir().unwrap();
    std::fs::write(cache.path().join("token"), "secret\n").unwrap();
    let granted = with_token(cache.path()).output().unwrap();
    assert!(granted.status.success(), "{}", message(&granted));
}

#[test]
fn errors_name_a_remedy() {
    let (hub, cache) = hub();
    let branch = ["org/tiny@nowhere", "a branch, a tag or a commit"];
    fails(&hub, &cache, &["inspect", "org/tiny@nowhere"], &branch);
    fails(&hub, &cache, &["inspect", "org/other"], &["org/other", "if the id is right"]);
    fails(&hub, &cache, &["inspect", "org/tiny:Q4_0"], &["no GGUF files"]);
    hub.lock().files.retain(|name, _| name == "README.md");
    fails(&hub, &cache, &["inspect", "org/tiny"], &["no weights in a supported format"]);
    // Connection refused, as without a network.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command =
        hub_command(&format!("http://{closed}"), cache.path(), &["inspect", "org/tiny"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message(&output).contains("without a network"), "{}", message(&output));
    // A server that is not a hub.
    let (other, cache) = (serve(BTreeMap::new()), tempdir().unwrap());
    let mut command =
        hub_command(&format!("{}/elsewhere", other.address), cache.path(), &["inspect"]);
    let output = command.arg("org/tiny").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
}
