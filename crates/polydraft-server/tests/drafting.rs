//! Drafts for other servers: the route `/v1/draft`, and clients that draw from it over HTTP.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_engine::drafter::remote::RemoteDrafter;
use polydraft_engine::{
    Engine, Generation, Limits, Model, Request, Result, Speculation, TableModel,
};
use polydraft_runtime::remote::{connect, fingerprint};
use polydraft_runtime::{Silent, seeded};
use serde_json::{Value, json};

use crate::common::{InstrumentedModel, TARGET, TestServer, language, start, start_with_drafter};

const NOW: Duration = Duration::ZERO;

fn query(tokens: Value) -> Value {
    json!({ "tokens": tokens, "levels": 2, "width": 1, "top": 2, "temperature": 1.0 })
}

#[test]
fn returns_distributions_along_probable_continuations() {
    let server = start(NOW, |_| ());
    let described = server.get("/v1/draft").json();
    assert_eq!(described["fingerprint"], fingerprint(&language().vocabulary));
    assert_eq!((&described["vocabulary"], &described["context"]), (&json!(6), &json!(512)));
    let body = json!({ "sequences": [query(json!([0])), query(json!([0, 1]))] });
    let answer = server.post("/v1/draft", &body).json();
    let nodes = |number: usize| answer["drafts"][number]["nodes"].as_array().unwrap();
    assert_eq!((nodes(0).len(), nodes(1).len()), (2, 2));
    // After 0 most probably 1 with 0.6; after 0 1 most probably 3 with 0.45.
    assert_eq!(nodes(0)[1]["from"], json!([0, 1]));
    assert_eq!(nodes(1)[1]["from"], json!([0, 3]));
    let logprob = |node: &Value, token: u64| {
        let at = node["tokens"].as_array().unwrap().iter().position(|id| id == token).unwrap();
        node["logprobs"][at].as_f64().unwrap()
    };
    assert!((logprob(&nodes(0)[0], 1) - 0.6_f64.ln()).abs() < 1e-6);
    assert_eq!(nodes(0)[1]["tokens"], nodes(1)[0]["tokens"]);
    assert_eq!(server.open.load(Ordering::SeqCst), 0);
}

#[test]
fn rejects_invalid_queries() {
    let server = start(NOW, |options| options.capacity.sequences = 2);
    let with = |name: &str, value: Value| {
        let mut query = query(json!([0]));
        query[name] = value;
        json!([query])
    };
    for (sequences, expected) in [
        (json!([]), "expected 1 to 2, got 0"),
        (
            json!([query(json!([0])), query(json!([0])), query(json!([0]))]),
            "expected 1 to 2, got 3",
        ),
        (with("tokens", json!([])), "sequences[0].tokens: expected at least one token"),
        (with("tokens", json!([6])), "expected ids below 6, got 6"),
        (with("tokens", json!(vec![0; 513])), "expected at most 512 tokens, got 513"),
        (with("levels", json!(17)), "sequences[0].levels: expected 0 to 16, got 17"),
        (with("width", json!(0)), "width: expected 1 to 8, got 0"),
        (with("top", json!(1000)), "top: expected 1 to 256"),
        (with("temperature", json!(-1)), "temperature: expected at least 0"),
        (with("levles", json!(1)), "unknown field \"levles\""),
    ] {
        let reply = server.post("/v1/draft", &json!({ "sequences": sequences }));
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(reply.status, 400, "{message}");
        assert!(message.contains(expected), "{expected}: {message}");
    }
    // A panic of the model ends only this request.
    let reply = server.post("/v1/draft", &json!({ "sequences": [query(json!([5]))] }));
    assert_eq!(reply.status, 500, "{reply:?}");
    assert_eq!(server.post("/v1/draft", &json!({ "sequences": [query(json!([0]))] })).status, 200);
    assert_eq!(server.open.load(Ordering::SeqCst), 0);
}

#[test]
fn needs_the_key() {
    let server = start(NOW, |options| options.api_key = Some("secret-key".to_owned()));
    assert_eq!(server.get("/v1/draft").status, 401);
}

/// Forwards connections to a server, each chunk of a request after a delay, until it is killed.
struct Proxy {
    address: SocketAddr,
    is_dead: Arc<AtomicBool>,
}

impl Proxy {
    fn new(server: &TestServer, delay: Duration, hides_route: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_dead = Arc::new(AtomicBool::new(false));
        let (upstream, dead) = (server.address, is_dead.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if dead.load(Ordering::SeqCst) {
                    return;
                }
                let (dead, client) = (dead.clone(), client.unwrap());
                std::thread::spawn(move || {
                    let Ok(server) = TcpStream::connect(upstream) else { return };
                    let (back, front) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    let is_dead = dead.clone();
                    std::thread::spawn(move || {
                        forward(back, front, &is_dead, &|_| ());
                    });
                    forward(client, server, &dead, &|chunk| {
                        std::thread::sleep(delay);
                        let route = b"/v1/draft";
                        let at = chunk.windows(route.len()).position(|bytes| bytes == route);
                        if let (true, Some(at)) = (hides_route, at) {
                            chunk[at + 4] = b'x';
                        }
                    });
                });
            }
        });
        Self { address, is_dead }
    }

    fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        // Wakes the listener up.
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    is_dead: &AtomicBool,
    change: &dyn Fn(&mut [u8]),
) {
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while !is_dead.load(Ordering::SeqCst) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                change(&mut buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// An engine whose passes take at least this time, and which draws from the server behind a proxy.
fn engine(proxy: &Proxy, pass_time: Duration) -> Engine {
    let table = TableModel::from_json("target", TARGET).unwrap();
    let target = InstrumentedModel::new(table, pass_time);
    let info = target.info().clone();
    let url = format!("http://{}", proxy.address);
    let source = connect(&url, &language(), &Silent).unwrap();
    let drafter = RemoteDrafter::new(source, &info);
    Engine::new(Box::new(target), Some(Box::new(drafter)))
}

fn generate(engine: &mut Engine, tree: PolicyKind, seed: Option<u64>) -> Result<Generation> {
    generate_tokens(engine, tree, seed, 30)
}

fn generate_tokens(
    engine: &mut Engine,
    tree: PolicyKind,
    seed: Option<u64>,
    tokens: usize,
) -> Result<Generation> {
    let block: VerifierKind = "block".parse()?;
    let speculation = Speculation::new(block.build()?, tree.build()?)?;
    let request = Request::new([0, 1])
        .sampling(Sampling { temperature: 0.5, ..Sampling::default() })
        .speculation(
            speculation.with_sampling(Sampling { temperature: 0.5, ..Sampling::default() }),
        )
        .limits(Limits::tokens(tokens))
        .rng(seeded(seed.unwrap_or(5)));
    engine.generate(request.reproducible(seed.is_some()), &mut |_| true)
}

#[test]
fn seeded_output_does_not_depend_on_the_delay() {
    let server = start(NOW, |_| ());
    let mut outputs = Vec::new();
    for milliseconds in [0, 1, 10, 50] {
        let delay = Duration::from_millis(milliseconds);
        let proxy = Proxy::new(&server, delay, false);
        let generation = generate(&mut engine(&proxy, NOW), PolicyKind::chain(4), Some(3)).unwrap();
        let statistics = &generation.statistics;
        // The draft is the target itself, so most drafts are accepted; one round trip per step.
        assert!(statistics.target_calls < 20, "{statistics:?}");
        let waits = delay * (statistics.target_calls as u32 - 1);
        assert!(statistics.draft_time >= waits, "{:?} {waits:?}", statistics.draft_time);
        outputs.push(generation.tokens);
    }
    assert!(outputs.iter().all(|tokens| *tokens == outputs[0]), "{outputs:?}");
}

#[test]
fn decodes_on_when_the_server_is_killed() {
    let server = start(NOW, |_| ());
    let proxy = Proxy::new(&server, Duration::from_millis(1), false);
    let mut engine = engine(&proxy, Duration::from_millis(2));
    // A seed waits for answers, however busy the machine is.
    let alive = generate(&mut engine, PolicyKind::chain(4), Some(3)).unwrap();
    assert!(alive.statistics.target_calls < 25, "{:?}", alive.statistics);
    assert_eq!(engine.take_warning(), None);
    proxy.kill();
    let started = Instant::now();
    let plain = generate(&mut engine, PolicyKind::chain(4), None).unwrap();
    assert_eq!((plain.tokens.len(), plain.statistics.target_calls), (30, 30));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let warning = engine.take_warning().unwrap();
    assert!(warning.contains("does not draft: ") && warning.contains("127.0.0.1"), "{warning}");
    assert_eq!(engine.take_warning(), None);
}

/// Without a seed a server drafts with another one, and decodes on when that is killed. With a seed
/// it does not, so that one request never delays the others.
#[test]
fn a_server_drafts_with_another_one() {
    let drafting = start(NOW, |_| ());
    let proxy = Proxy::new(&drafting, NOW, false);
    let source = connect(&format!("http://{}", proxy.address), &language(), &Silent).unwrap();
    let server = start_with_drafter(
        |target| Box::new(RemoteDrafter::new(source, target)),
        Duration::from_millis(2),
    );
    let complete = |seed: Option<u64>| {
        let body = json!({ "prompt": "a b", "seed": seed, "max_tokens": 40, "temperature": 0.5,
            "ignore_eos": true });
        let answer = server.complete(body);
        let drafted = answer["usage"]["speculation"]["draft_tokens"].as_u64();
        (answer["choices"][0]["text"].clone(), drafted.unwrap_or(0))
    };
    let (seeded, drafted) = complete(Some(7));
    assert_eq!(drafted, 0);
    assert!((0..5).any(|_| complete(None).1 > 0));
    proxy.kill();
    let started = Instant::now();
    assert_eq!(complete(Some(7)).0, seeded);
    (0..3).for_each(|_| assert!(complete(None).0.is_string()));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

/// llama.cpp's route, as this server has it too.
#[test]
fn drafts_by_llama_cpps_route() {
    let server = start(NOW, |_| ());
    let proxy = Proxy::new(&server, NOW, true);
    let generation = generate(&mut engine(&proxy, NOW), PolicyKind::chain(4), Some(3)).unwrap();
    assert!(generation.statistics.target_calls < 27, "{:?}", generation.statistics);
}

#[test]
fn drafts_beside_running_requests() {
    let server = start(Duration::from_millis(2), |_| ());
    std::thread::scope(|scope| {
        let complete = || {
            let body = json!({ "prompt": "a b", "seed": 7, "max_tokens": 40, "ignore_eos": true });
            server.complete(body)["choices"][0]["text"].clone()
        };
        let running: Vec<_> = (0..3).map(|_| scope.spawn(complete)).collect();
        let body = json!({ "sequences": [query(json!([0])), query(json!([3]))] });
        let first = server.post("/v1/draft", &body).json();
        for _ in 0..10 {
            assert_eq!(server.post("/v1/draft", &body).json(), first);
        }
        let outputs: Vec<_> = running.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(outputs.iter().all(|output| *output == complete()), "{outputs:?}");
    });
    assert_eq!(server.open.load(Ordering::SeqCst), 0);
}
