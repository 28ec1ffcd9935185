//! Layers on other machines: two servers on loopback, one that goes away in the middle of a text,
//! and one that is not there.
#![cfg(feature = "native")]

mod support;

use std::error::Error as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use polydraft::{Sampling, Token};
use polydraft_engine::{Engine, Limits, Piece, Request};
use polydraft_llama::{Error, LlamaOptions, load, serve_rpc};
use polydraft_text::Language;
use rand::SeedableRng;
use rand_chacha::{ChaCha8Rng, ChaCha12Rng};
use support::*;

const SERVER: &str = "POLYDRAFT_RPC_SERVER";
const MODEL: &str = "POLYDRAFT_RPC_MODEL";
const LENGTH: usize = 40;
/// A text is this long when its server is lost.
const LOST: usize = 7;

/// A server in a process of its own, which ends with this.
struct Server {
    endpoint: String,
    process: Child,
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoint = format!("127.0.0.1:{port}");
        let mut command = apart("serves", &[(SERVER, &endpoint)]);
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
fn serves() {
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
    let prompt = random_text(&mut ChaCha12Rng::seed_from_u64(3), 20);
    let text = language.tokenizer.stream(&prompt);
    Request::new(prompt)
        .sampling(Sampling { temperature: 0.0, ..Sampling::default() })
        .limits(Limits::tokens(LENGTH))
        .detokenizer(text)
        .rng(ChaCha8Rng::seed_from_u64(1))
}

fn text(path: &Path, options: &LlamaOptions) -> (Vec<Token>, String) {
    let (model, language) = load(path, options).unwrap();
    let mut text = String::new();
    let mut show = |piece: Piece| {
        text.push_str(&piece.text);
        true
    };
    let generation = Engine::new(model, None).generate(greedy(&language), &mut show).unwrap();
    (generation.tokens, text)
}

#[test]
fn two_servers_compute_the_same_text() {
    let model = file(&writer(Kind::Plain, 1, 2.0));
    let here = text(model.path(), &options());
    assert_eq!(here.0.len(), LENGTH);
    // Loaded twice: a server takes one client behind another.
    let servers = [Server::start(), Server::start()];
    for servers in [vec![&servers[0], &servers[1]], vec![&servers[1]]] {
        assert_eq!(text(model.path(), &with(&servers)), here, "{} servers", servers.len());
    }
}

/// Runs the ignored test `name` by itself with a model.
fn passes_apart(name: &str) {
    let model = file(&writer(Kind::Plain, 1, 2.0));
    let mut command = apart(name, &[(MODEL, model.path().to_str().unwrap())]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // It leaves by itself, past what a test prints at its end.
    assert_eq!(
        output.status.code(),
        Some(7),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// Whether an error is llama.cpp's end, for this reason.
fn is_end(error: &(dyn std::error::Error + 'static), reason: &str) -> bool {
    let own = error.downcast_ref::<Error>();
    let here = matches!(own, Some(Error::Ended { said }) if said.contains(reason));
    here || error.source().is_some_and(|source| is_end(source, reason))
}

#[test]
fn a_server_that_goes_away_is_an_error_and_the_text_stays() {
    passes_apart("loses_a_server");
}

#[test]
#[ignore = "a part of another test"]
fn loses_a_server() {
    let Ok(model) = std::env::var(MODEL) else { return };
    let whole = text(model.as_ref(), &options());
    let mut servers = [Server::start(), Server::start()];
    let loaded = load(model.as_ref(), &with(&[&servers[0], &servers[1]])).unwrap();
    let mut engine = Engine::new(loaded.model, None);
    let (mut kept, mut pieces) = (String::new(), 0);
    let error = engine
        .generate(greedy(&loaded.language), &mut |piece| {
            kept.push_str(&piece.text);
            pieces += 1;
            if pieces == LOST {
                servers[1].stop();
            }
            true
        })
        .expect_err("a server is gone");
    eprintln!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
    assert!(is_end(&error, "RPC"), "{error:?}");
    assert!(
        pieces >= LOST && !kept.is_empty() && whole.1.starts_with(&kept),
        "{kept:?} of {:?}",
        whole.1
    );
    // From then on at once, for this model and any other.
    let again = engine.generate(greedy(&loaded.language), &mut |_| true);
    assert!(is_end(&again.unwrap_err(), "RPC"));
    assert!(is_end(&load(model.as_ref(), &options()).map(drop).unwrap_err(), "RPC"));
    drop(engine);
    drop(servers);
    polydraft_llama::leave(7);
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    passes_apart("finds_no_server");
}

#[test]
#[ignore = "a part of another test"]
fn finds_no_server() {
    let Ok(model) = std::env::var(MODEL) else { return };
    let options = LlamaOptions { rpc: vec!["127.0.0.1:1".to_owned()], ..options() };
    let error = load(model.as_ref(), &options).map(drop).unwrap_err();
    eprintln!("{error}");
    assert!(is_end(&error, "127.0.0.1:1"), "{error:?}");
    polydraft_llama::leave(7);
}
