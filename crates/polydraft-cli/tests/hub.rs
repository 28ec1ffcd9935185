//! Models by hub id, against a hub of our own on loopback.
#![cfg(feature = "hub")]

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::json;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The hub: one model of one commit, for those who have the token.
#[derive(Default)]
struct Hub {
    files: HashMap<String, Vec<u8>>,
    token: Option<&'static str>,
    /// Answers that break off in the middle of this file, so many times.
    broken: Option<(String, usize)>,
    /// Method and path of every request.
    requests: Vec<String>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/fixtures").join(name)
}

/// Serves until the test ends; returns the address.
fn serve(hub: Arc<Mutex<Hub>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let hub = hub.clone();
            std::thread::spawn(move || while answer(&stream, &hub).is_some() {});
        }
    });
    address
}

/// One request on a connection; `None` when it is over.
fn answer(stream: &TcpStream, hub: &Mutex<Hub>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let (mut token, mut header) = (None, String::new());
    while reader.read_line(&mut header).ok()? > 2 {
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            token = Some(value.trim().to_owned());
        }
        header.clear();
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut hub = hub.lock().unwrap();
    hub.requests.push(format!("{method} {path}"));
    let allowed = hub.token.is_none_or(|t| token == Some(format!("Bearer {t}")));
    let path = path.split('?').next().unwrap_or_default().to_owned();
    let (status, kind, body) = match path.strip_prefix("/api/models/org/tiny/") {
        _ if !allowed => ("401 Unauthorized", "text/plain", b"log in".to_vec()),
        Some(rest)
            if rest.starts_with("revision/main")
                || rest.starts_with(&format!("revision/{COMMIT}")) =>
        {
            let names: Vec<_> = hub.files.keys().map(|name| json!({"rfilename": name})).collect();
            let info =
                json!({"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": names});
            ("200 OK", "application/json", info.to_string().into_bytes())
        }
        Some(rest) if rest.starts_with("tree/") => {
            let entry = |(name, bytes): (&String, &Vec<u8>)| {
                json!({"type": "file", "oid": "0",
                "size": bytes.len(), "path": name})
            };
            let list: Vec<_> = hub.files.iter().map(entry).collect();
            ("200 OK", "application/json", json!(list).to_string().into_bytes())
        }
        _ => match path
            .strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"))
            .map(|name| hub.files.get(name))
        {
            Some(Some(bytes)) => ("200 OK", "application/octet-stream", bytes.clone()),
            _ => ("404 Not Found", "text/plain", b"nothing".to_vec()),
        },
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut sent = if method == "HEAD" { 0 } else { body.len() };
    if let Some((broken, times)) = &mut hub.broken
        && broken == name
        && *times > 0
        && method == "GET"
    {
        *times -= 1;
        sent /= 2;
    }
    drop(hub);
    let code = if status.starts_with("401") || !path.starts_with("/api/") {
        ""
    } else {
        "X-Error-Code: RevisionNotFound\r\n"
    };
    let extra = if status.starts_with("404") { code } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nETag: \
         \"{name}-1\"\r\nX-Repo-Commit: {COMMIT}\r\n{extra}\r\n",
        body.len()
    );
    let mut stream = stream;
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body[..sent]).ok()?;
    if sent < body.len() && method == "GET" {
        stream.shutdown(std::net::Shutdown::Both).ok();
        return None;
    }
    Some(())
}

/// A hub with a fixture.
fn hub() -> Arc<Mutex<Hub>> {
    let mut hub = Hub::default();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        hub.files.insert(name.to_owned(), std::fs::read(fixture("qwen3").join(name)).unwrap());
    }
    // What nobody asked for.
    hub.files.insert("pytorch_model.bin".to_owned(), vec![0; 100]);
    hub.files.insert("README.md".to_owned(), b"read me".to_vec());
    for name in
        ["consolidated.safetensors", "consolidated.safetensors.index.json", "onnx/config.json"]
    {
        hub.files.insert(name.to_owned(), vec![0; 100]);
    }
    Arc::new(Mutex::new(hub))
}

fn run(address: &str, cache: &Path, arguments: &[&str], token: Option<&str>) -> Output {
    let mut command = common::program(arguments);
    command.env("HF_ENDPOINT", address).env("HF_HOME", cache);
    for name in ["HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        command.env_remove(name);
    }
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    command.output().unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_fetched_once_and_then_found_offline() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let address = serve(hub.clone());
    let generate = [
        "generate",
        "--target",
        "org/tiny",
        "--verifier",
        "none",
        "--prompt",
        "ab",
        "-n",
        "5",
        "--seed",
        "1",
    ];
    let offline = [&generate[..], &["--offline"]].concat();
    let early = run(&address, cache.path(), &offline, None);
    assert_eq!(early.status.code(), Some(1));
    assert!(message(&early).contains("not downloaded before"), "{}", message(&early));
    assert!(hub.lock().unwrap().requests.is_empty());

    let first = run(&address, cache.path(), &generate, None);
    assert!(first.status.success(), "{}", message(&first));
    let requests = std::mem::take(&mut hub.lock().unwrap().requests);
    assert!(
        requests.iter().any(|r| r.starts_with("GET") && r.contains("model.safetensors")),
        "{requests:?}"
    );
    for unread in [".bin", "README", "consolidated", "onnx"] {
        assert!(!requests.iter().any(|r| r.contains(unread)), "{unread}: {requests:?}");
    }
    // The same as from the directory.
    let folder = fixture("qwen3");
    let here = [&generate[..2], &[folder.to_str().unwrap()], &generate[3..]].concat();
    assert_eq!(first.stdout, run(&address, cache.path(), &here, None).stdout);

    let second = run(&address, cache.path(), &generate, None);
    assert_eq!(second.stdout, first.stdout);
    let requests = std::mem::take(&mut hub.lock().unwrap().requests);
    assert!(!requests.iter().any(|r| r.contains("model.safetensors")), "{requests:?}");

    let cached = run(&address, cache.path(), &offline, None);
    assert_eq!(cached.stdout, first.stdout, "{}", message(&cached));
    assert!(hub.lock().unwrap().requests.is_empty());
    // By its commit, too, and for the other commands.
    let id = format!("org/tiny@{COMMIT}");
    let inspected = run(&address, cache.path(), &["inspect", &id, "org/tiny", "--offline"], None);
    assert!(
        String::from_utf8_lossy(&inspected.stdout).contains("it can draft"),
        "{}",
        message(&inspected)
    );
}

#[test]
fn a_download_that_broke_off_goes_on() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.lock().unwrap().broken = Some(("model.safetensors".to_owned(), usize::MAX));
    let address = serve(hub.clone());
    let inspect = ["inspect", "org/tiny"];
    let broken = run(&address, cache.path(), &inspect, None);
    assert_eq!(broken.status.code(), Some(1), "{}", message(&broken));
    hub.lock().unwrap().broken = None;
    hub.lock().unwrap().requests.clear();
    let whole = run(&address, cache.path(), &inspect, None);
    assert!(whole.status.success(), "{}", message(&whole));
}

#[test]
fn the_token_is_sent_and_its_absence_explained() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    hub.lock().unwrap().token = Some("secret");
    let address = serve(hub);
    let refused = run(&address, cache.path(), &["inspect", "org/tiny"], None);
    assert_eq!(refused.status.code(), Some(1));
    assert!(message(&refused).contains("HF_TOKEN"), "{}", message(&refused));
    let granted = run(&address, cache.path(), &["inspect", "org/tiny"], Some("secret"));
    assert!(granted.status.success(), "{}", message(&granted));
}

#[test]
fn failures_say_what_to_do() {
    let cache = tempfile::tempdir().unwrap();
    let address = serve(hub());
    for (id, expected) in [("org/tiny@nowhere", "org/tiny@nowhere"), ("org/other", "org/other")] {
        let output = run(&address, cache.path(), &["inspect", id], None);
        assert_eq!(output.status.code(), Some(1));
        assert!(message(&output).contains(expected), "{}", message(&output));
    }
    // Nobody there: as without a network.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(&format!("http://{closed}"), cache.path(), &["inspect", "org/tiny"], None);
    assert_eq!(output.status.code(), Some(1));
    assert!(message(&output).contains("--offline"), "{}", message(&output));
}
