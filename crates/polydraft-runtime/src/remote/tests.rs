//! Answers of hostile servers, over HTTP on loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::remote::{DraftQuery, DraftSource, DraftedTree};

use super::*;
use crate::Silent;

const SOON: Duration = Duration::from_millis(300);

/// Starts a server that gives each connection the next answer, and the last one to all others.
fn serve(answers: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let answer = answers[number.min(answers.len() - 1)].clone();
            std::thread::spawn(move || respond(stream.unwrap(), &answer));
        }
    });
    address
}

fn respond(mut stream: TcpStream, answer: &[u8]) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    let is_complete = |request: &[u8]| {
        let text = String::from_utf8_lossy(request).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        body.len() >= length.map_or(0, |length| length.parse().unwrap())
    };
    while !is_complete(&request) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
    // Clients may have gone away.
    let _ = stream.write_all(answer);
    if answer.is_empty() {
        std::thread::sleep(4 * SOON);
    }
}

fn with_status(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .into()
}

fn ok(body: &str) -> Vec<u8> {
    with_status("200 OK", body)
}

fn vocabulary() -> Vocabulary {
    Vocabulary::new(["a", "b", "c"].map(|token| Some(token.into())).to_vec())
}

fn language() -> Language {
    let folder = crate::model_files::demo_folder().unwrap().join("draft");
    polydraft_models::Description::read(&folder).unwrap().language
}

fn description(fingerprint: &str) -> Vec<u8> {
    ok(&format!(
        r#"{{"model": "m", "vocabulary": 3, "fingerprint": "{fingerprint}", "context": 9,
            "sequences": 4}}"#
    ))
}

fn open(answers: Vec<Vec<u8>>) -> Result<Box<dyn DraftSource>> {
    let language = Language { vocabulary: vocabulary(), ..language() };
    connect(&format!("http://{}", serve(answers)), &language, &Silent)
}

/// Returns a server's answer to one query.
fn draft(answer: Vec<u8>) -> Result<Vec<DraftedTree>, String> {
    let mut source = open(vec![description(&fingerprint(&vocabulary())), answer]).unwrap();
    assert_eq!((source.context(), source.max_queries()), (9, 4));
    let query = DraftQuery { tokens: vec![1], levels: 2, width: 1, top: 2, temperature: 1.0 };
    source.draft(&[query], SOON)
}

#[test]
fn fingerprints_tell_vocabularies_apart() {
    let own = fingerprint(&vocabulary());
    let with = |tokens: &[Option<&str>]| {
        let tokens = tokens.iter().map(|token| token.map(Box::from)).collect();
        fingerprint(&Vocabulary::new(tokens))
    };
    assert_eq!(own, with(&[Some("a"), Some("b"), Some("c"), None]));
    for other in [
        &[Some("a"), Some("b")][..],
        &[Some("a"), Some("c"), Some("b")],
        &[Some("ab"), Some(""), Some("c")],
        &[Some("a"), None, Some("b"), Some("c")],
        &[Some("a"), Some("b"), Some("c"), Some("d")],
    ] {
        assert_ne!(own, with(other), "{other:?}");
    }
}

#[test]
fn reads_answers() {
    let answer = r#"{"drafts": [{"nodes": [{"tokens": [2], "logprobs": [-0.5]},
        {"from": [0, 2], "tokens": [0], "logprobs": [-0.25]}]}]}"#;
    let trees = draft(ok(answer)).unwrap();
    assert_eq!(trees[0].nodes[1].from, Some((0, 2)));
    assert_eq!(trees[0].nodes[1].logprobs, [-0.25]);
}

#[test]
fn reports_hostile_answers() {
    let huge = format!(r#"{{"drafts": [{}]}}"#, " ".repeat(1 << 20));
    let nested = "[".repeat(60_000);
    for (answer, expected) in [
        (ok("{"), "not the expected answer"),
        (ok(r#"{"drafts": [{"nodes": [{"tokens": [-1], "logprobs": [0]}]}]}"#), "not the expected"),
        (
            ok(r#"{"drafts": [{"nodes": [{"tokens": [1], "logprobs": [NaN]}]}]}"#),
            "not the expected",
        ),
        (ok(&nested), "not the expected answer"),
        (ok(&huge), "limit"),
        (with_status("500 Oops", "\u{1b}[31mred\n"), "status 500: [31mred"),
        (with_status("302 Found\r\nLocation: http://127.0.0.1:1/", ""), "status 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_vec(), ""),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), ""),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(80)]).into_owned();
        let problem = draft(answer).unwrap_err();
        assert!(problem.contains(expected), "{shown}: {problem}");
        assert!(!problem.contains('\u{1b}'), "{problem}");
    }
}

#[test]
fn does_not_wait_longer_than_told() {
    let started = Instant::now();
    assert!(draft(Vec::new()).unwrap_err().contains("no answer in time"));
    assert!((SOON..3 * SOON).contains(&started.elapsed()), "{:?}", started.elapsed());
}

#[test]
fn refuses_servers_with_other_tokens() {
    let llama = |tokens: &str| {
        let missing = with_status("404 Not Found", "");
        open(vec![missing, ok(&format!(r#"{{"tokens": {tokens}}}"#)), ok("{}")])
    };
    for (opened, expected) in [
        (open(vec![description("00")]), "has other tokens than the target (3 and 3)"),
        (open(vec![ok("{}")]), "not the expected description"),
        (open(vec![with_status("401 Unauthorized", "no key")]), "status 401: no key"),
        (llama("[1, 2]"), "another tokenizer than the target"),
        (open(vec![with_status("404 Not Found", "")]), "neither a polydraft server nor"),
    ] {
        let error = format!("{:#}", opened.err().unwrap());
        assert!(error.contains(expected), "{error}");
    }
    let tokens = language().tokenizer.encode_plain(llama::SAMPLE).unwrap();
    assert!(llama(&format!("{tokens:?}")).is_ok());
}
