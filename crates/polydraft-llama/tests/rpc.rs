//! Layers on other machines: two servers on loopback, one that is lost during generation, and one
//! that does not exist.
#![cfg(feature = "native")]

mod support;

use std::error::Error as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use polydraft::{Sampling, Token};
use polydraft_engine::{Engine, Limits, OutputChunk, Request};
use polydraft_llama::{Error, LlamaOptions, load, serve_rpc};
use polydraft_text::Language;
use rand::SeedableRng;
use rand_chacha::{ChaCha8Rng, ChaCha12Rng};
use support::*;

const SERVER: &str = "POLYDRAFT_RPC_SERVER";
const MODEL: &str = "POLYDRAFT_RPC_MODEL";
const LENGTH: usize = 40;
/// Number of output chunks before the server is lost.
const CHUNKS_BEFORE_LOSS: usize = 7;

/// A server in a process of its own, which is killed when this is dropped.
struct Server {
    endpoint: String,
    process: Child,
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoint = format!("127.0.0.1:{port}");
        let mut command = child_test("child_serves_rpc", &[(SERVER, &endpoint)]);
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let mut server = Self { endpoint, process };
        while TcpStream::connect(&server.endpoint).is_err() {
            assert_eq!(server.process.try_wait().unwrap(), None, "the server has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
#[ignore = "a part of other tests"]
fn child_serves_rpc() {
    let Ok(endpoint) = std::env::var(SERVER) else { return };
    panic!("{}", serve_rpc(&endpoint, 1).unwrap_err());
}

fn with(servers: &[&Server]) -> LlamaOptions {
    LlamaOptions {
        rpc: servers.iter().map(|server| server.endpoint.clone()).collect(),
        ..options()
    }
}

fn greedy(language: &Language) -> Request<'static> {
    let prompt = random_tokens(&mut ChaCha12Rng::seed_from_u64(3), 20);
    let detokenizer = language.tokenizer.stream(&prompt);
    Request::new(prompt)
        .sampling(Sampling { temperature: 0.0, ..Sampling::default() })
        .limits(Limits::tokens(LENGTH))
        .detokenizer(detokenizer)
        .rng(ChaCha8Rng::seed_from_u64(1))
}

/// Tokens and text that a model generates greedily.
fn generate(path: &Path, options: &LlamaOptions) -> (Vec<Token>, String) {
    let (model, language) = load(path, options).unwrap();
    let mut text = String::new();
    let mut show = |chunk: OutputChunk| {
        text.push_str(&chunk.text);
        true
    };
    let generation = Engine::new(model, None).generate(greedy(&language), &mut show).unwrap();
    (generation.tokens, text)
}

#[test]
fn two_servers_generate_the_same_output_as_none() {
    let model = file(&writer(Kind::Plain, 1, 2.0));
    let local = generate(model.path(), &options());
    assert_eq!(local.0.len(), LENGTH);
    // Loaded twice: a server serves one client after another.
    let servers = [Server::start(), Server::start()];
    for servers in [vec![&servers[0], &servers[1]], vec![&servers[1]]] {
        assert_eq!(generate(model.path(), &with(&servers)), local, "{} servers", servers.len());
    }
}

/// Runs the ignored test `name` in a process of its own with a model.
fn passes_in_child_process(name: &str) {
    let model = file(&writer(Kind::Plain, 1, 2.0));
    let mut command = child_test(name, &[(MODEL, model.path().to_str().unwrap())]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // It exits itself, before the test harness does.
    assert_eq!(
        output.status.code(),
        Some(7),
        "{stderr}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// Whether an error is an abort of llama.cpp for this reason.
fn is_abort(error: &(dyn std::error::Error + 'static), reason: &str) -> bool {
    let ended = error.downcast_ref::<Error>();
    let is_this = matches!(ended, Some(Error::Ended { reason: got }) if got.contains(reason));
    is_this || error.source().is_some_and(|source| is_abort(source, reason))
}

#[test]
fn lost_server_is_an_error_and_output_before_it_is_kept() {
    passes_in_child_process("child_loses_server");
}

#[test]
#[ignore = "a part of another test"]
fn child_loses_server() {
    let Ok(model) = std::env::var(MODEL) else { return };
    let complete = generate(model.as_ref(), &options());
    let mut servers = [Server::start(), Server::start()];
    let (loaded, language) = load(model.as_ref(), &with(&[&servers[0], &servers[1]])).unwrap();
    let mut engine = Engine::new(loaded, None);
    let (mut text, mut chunks) = (String::new(), 0);
    let error = engine
        .generate(greedy(&language), &mut |chunk| {
            text.push_str(&chunk.text);
            chunks += 1;
            if chunks == CHUNKS_BEFORE_LOSS {
                servers[1].stop();
            }
            true
        })
        .expect_err("a server is gone");
    eprintln!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
    assert!(is_abort(&error, "RPC"), "{error:?}");
    assert!(
        chunks >= CHUNKS_BEFORE_LOSS && !text.is_empty() && complete.1.starts_with(&text),
        "{text:?} of {:?}",
        complete.1
    );
    // From then on every call fails at once, for this model and any other.
    let again = engine.generate(greedy(&language), &mut |_| true);
    assert!(is_abort(&again.unwrap_err(), "RPC"));
    assert!(is_abort(&load(model.as_ref(), &options()).map(drop).unwrap_err(), "RPC"));
    drop(engine);
    drop(servers);
    polydraft_llama::leave(7);
}

#[test]
fn unreachable_server_is_an_error() {
    passes_in_child_process("child_finds_no_server");
}

#[test]
#[ignore = "a part of another test"]
fn child_finds_no_server() {
    let Ok(model) = std::env::var(MODEL) else { return };
    let options = LlamaOptions { rpc: vec!["127.0.0.1:1".to_owned()], ..options() };
    let error = load(model.as_ref(), &options).map(drop).unwrap_err();
    eprintln!("{error}");
    assert!(is_abort(&error, "127.0.0.1:1"), "{error:?}");
    polydraft_llama::leave(7);
}
