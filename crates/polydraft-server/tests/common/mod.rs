//! A server on loopback with table models, and a client that sends requests byte by byte.

mod script;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use polydraft::policy::Costs;
use polydraft::{DraftTree, NodeId, PolicyKind, Sampling, Token};
use polydraft_engine::{
    Drafter, Engine, Model, ModelDrafter, ModelInfo, Result, Sequence, Sequences, TableModel,
};
use polydraft_runtime::Speculation;
use polydraft_runtime::costs::StepCosts;
use polydraft_server::{Defaults, ServedModel, Server, ServerOptions};
use polydraft_text::{ChatTemplate, Language, SpecialTokens, Tokenizer};
use serde_json::Value;
use tokio::sync::oneshot;

pub use script::{AGENT, start_script};

pub const TARGET: &str = r#"{"vocabulary": 6, "next": {
    "": [0.3, 0.2, 0.2, 0.2, 0.09, 0.01], "0": [0.1, 0.6, 0.1, 0.1, 0.1, 0],
    "1": [0.2, 0.2, 0.5, 0.05, 0.05, 0], "2": [0.25, 0.25, 0.25, 0.2, 0.05, 0],
    "0 1": [0.3, 0.1, 0.1, 0.45, 0.05, 0], "3": [0.6, 0.1, 0.1, 0.1, 0.1, 0]}}"#;
const DRAFT: &str = r#"{"vocabulary": 6, "next": {
    "": [0.25, 0.25, 0.2, 0.2, 0.1, 0], "0": [0.2, 0.5, 0.1, 0.1, 0.1, 0],
    "3": [0.5, 0.2, 0.1, 0.1, 0.1, 0]}}"#;
/// End token.
pub const END: Token = 4;

pub fn language() -> Language {
    let file = br#"{"model": {"type": "WordLevel",
        "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "end": 4, "x": 5},
        "unk_token": "a"}, "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false,
        "normalized": false}]}"#;
    let tokenizer = Tokenizer::parse(file, "/secret/place/tokenizer.json").unwrap();
    let template = "{% for m in messages %}\
        {% if m.content == 'bad' %}{{ raise_exception('no such words') }}{% endif %}\
        {{ m.content }} {% endfor %}";
    let special_tokens = SpecialTokens::from_roles([]);
    Language {
        name: "table".to_owned(),
        vocabulary: tokenizer.vocabulary(6).unwrap(),
        tokenizer,
        end_tokens: vec![END],
        chat: Some(
            ChatTemplate::from_source(template, special_tokens.clone(), "/secret/place/chat.jinja")
                .unwrap(),
        ),
        special_tokens,
        sampling: Default::default(),
        notes: Vec::new(),
    }
}

/// Language with a tokenizer and a chat template.
fn language_with_template(tokenizer: Tokenizer, template: &str) -> Language {
    let special_tokens = SpecialTokens::from_roles([]);
    let chat = ChatTemplate::from_source(template, special_tokens, "chat.jinja").unwrap();
    Language {
        vocabulary: tokenizer.vocabulary(tokenizer.size().max(6)).unwrap(),
        tokenizer,
        chat: Some(chat),
        ..language()
    }
}

/// A table model that takes a minimum time per pass, panics on prompts with the token `x`, and
/// counts open sequences and the sequences in a pass.
pub struct InstrumentedModel {
    inner: TableModel,
    min_pass_time: Duration,
    faulty: BTreeSet<Sequence>,
    /// Whether it reports that it caches closed sequences, with nothing cached for new ones.
    reports_cache: bool,
    pub open: Arc<AtomicUsize>,
    pub max_batch: Arc<AtomicUsize>,
}

impl InstrumentedModel {
    pub fn new(inner: TableModel, min_pass_time: Duration) -> Self {
        let (open, max_batch) = (Arc::default(), Arc::default());
        Self {
            inner,
            min_pass_time,
            faulty: BTreeSet::new(),
            reports_cache: false,
            open,
            max_batch,
        }
    }
}

impl Sequences for InstrumentedModel {
    fn open(&mut self) -> Result<Sequence> {
        self.open.fetch_add(1, Ordering::SeqCst);
        self.inner.open()
    }
    fn close(&mut self, sequence: Sequence) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.faulty.remove(&sequence);
        self.inner.close(sequence);
    }
    fn len(&self, sequence: Sequence) -> usize {
        self.inner.len(sequence)
    }
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        // Only in a prompt: an output may have it by chance.
        if self.inner.len(sequence) == 0 && tokens.contains(&5) {
            self.faulty.insert(sequence);
        }
        self.inner.extend(sequence, tokens)
    }
    fn caches_closed_sequences(&self) -> bool {
        self.reports_cache
    }
    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.inner.truncate(sequence, length);
    }
    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        match max_tokens {
            0 if self.reports_cache => Ok(self.inner.len(sequence).saturating_sub(1)),
            _ => self.inner.prepare(sequence, max_tokens),
        }
    }
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        self.max_batch.fetch_max(batch.len(), Ordering::SeqCst);
        std::thread::sleep(self.min_pass_time);
        assert!(
            !batch.iter().any(|(sequence, _)| self.faulty.contains(sequence)),
            "a planted fault"
        );
        self.inner.score(batch)
    }
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.inner.commit(sequence, tree, path)
    }
}

impl Model for InstrumentedModel {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.inner.logits(sequence, node)
    }
}

/// A server that runs until it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    /// Sequences that the target has open, and the maximum in one pass.
    pub open: Arc<AtomicUsize>,
    pub max_batch: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

/// Starts a server with table models and a minimum time per pass of the target.
pub fn start(min_pass_time: Duration, change: impl FnOnce(&mut ServerOptions)) -> TestServer {
    start_with_end_tokens(min_pass_time, vec![END], change)
}

/// Starts a server whose model reports that it caches closed sequences.
pub fn start_with_prefix_cache() -> TestServer {
    let table = TableModel::from_json("target", TARGET).unwrap().with_context_length(512);
    let target =
        InstrumentedModel { reports_cache: true, ..InstrumentedModel::new(table, Duration::ZERO) };
    start_server(target, vec![END], language(), DRAFT, |_| ())
}

/// Starts a server whose outputs have no end token.
pub fn start_without_end_tokens(
    min_pass_time: Duration,
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    start_with_end_tokens(min_pass_time, Vec::new(), change)
}

/// Starts a model that always answers with a call of the tool `f`.
pub fn start_tool_calling_model() -> TestServer {
    let target = r#"{"vocabulary": 6, "next": {
        "": [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], "3": [1, 0, 0, 0, 0, 0], "0": [0, 1, 0, 0, 0, 0],
        "1": [0, 0, 1, 0, 0, 0], "2": [0, 0, 0, 1, 0, 0], "2 3": [0, 0, 0, 0, 1, 0]}}"#;
    let file = br#"{"model": {"type": "WordLevel", "vocab": {
        "<tool_call>": 0, "{\"name\": \"f\",": 1, "\"arguments\": {\"a\":1}}": 2,
        "</tool_call>": 3, "end": 4, "x": 5}, "unk_token": "</tool_call>"},
            "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false,
        "normalized": false}]}"#;
    let tokenizer = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let template = "{% for tool in tools or [] %}a {% endfor %}\
        {% for m in messages %}b {% for call in m.tool_calls %}c {% endfor %}\
        {% endfor %}{# <tool_call>{\"name\": .., \"arguments\": ..}</tool_call> #}";
    let language = language_with_template(tokenizer, template);
    start_with_model(Duration::ZERO, vec![END], language, target, |_| ())
}

/// Starts a reasoning model: its prompt opens the reasoning `a`, and its answer is `b`.
pub fn start_reasoning_model() -> TestServer {
    let target = r#"{"vocabulary": 6, "next": {
        "": [0.5, 0.5, 0, 0, 0, 0], "2": [1, 0, 0, 0, 0, 0], "2 0": [0, 0, 0, 1, 0, 0],
        "3": [0, 1, 0, 0, 0, 0], "3 1": [0, 0, 0, 0, 1, 0]}}"#;
    let file = br#"{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<think>": 2,
        "</think>": 3, "end": 4, "x": 5}, "unk_token": "a"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}]}"#;
    let tokenizer = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}\
        {% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}";
    let language = language_with_template(tokenizer, template);
    start_with_model(Duration::ZERO, vec![END], language, target, |_| ())
}

/// Starts a model with byte tokens, which grammars support.
pub fn start_byte_tokens() -> TestServer {
    let file = br#"{"model": {"type": "BPE",
        "vocab": {"\"": 0, "a": 1, "{": 2, "}": 3, "end": 4, "b": 5}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false,
        "normalized": false}]}"#;
    let tokenizer = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let language =
        Language { vocabulary: tokenizer.vocabulary(6).unwrap(), tokenizer, ..language() };
    start_with_model(Duration::ZERO, vec![END], language, TARGET, |_| ())
}

/// Starts a server with another chat template.
pub fn start_with_template(template: &str, change: impl FnOnce(&mut ServerOptions)) -> TestServer {
    start_with_model(
        Duration::ZERO,
        vec![END],
        language_with_template(language().tokenizer, template),
        TARGET,
        change,
    )
}

/// Starts a model with this many tokens of equal probability.
pub fn start_with_vocabulary(
    vocabulary: usize,
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    let next = vec![format!("{}", 1.0 / vocabulary as f64); vocabulary].join(",");
    let target = format!(r#"{{"vocabulary": {vocabulary}, "next": {{"": [{next}]}}}}"#);
    let words: Vec<String> = (4..vocabulary).map(|n| format!("\"w{n}\": {n}")).collect();
    let file = format!(
        r#"{{"model": {{"type": "WordLevel", "vocab": {{"a": 0, "b": 1, "c": 2, "d": 3, {}}},
            "unk_token": "a"}}, "pre_tokenizer": {{"type": "Whitespace"}}}}"#,
        words.join(", ")
    );
    let tokenizer = Tokenizer::parse(file.as_bytes(), "tokenizer.json").unwrap();
    let language =
        Language { vocabulary: tokenizer.vocabulary(vocabulary).unwrap(), tokenizer, ..language() };
    start_with_model(Duration::ZERO, Vec::new(), language, &target, change)
}

fn start_with_end_tokens(
    min_pass_time: Duration,
    end_tokens: Vec<Token>,
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    start_with_model(min_pass_time, end_tokens, language(), TARGET, change)
}

fn start_with_model(
    min_pass_time: Duration,
    end_tokens: Vec<Token>,
    language: Language,
    target: &str,
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    let draft = if language.vocabulary.size() == 6 { DRAFT } else { target };
    let table = TableModel::from_json("target", target).unwrap().with_context_length(512);
    start_server(InstrumentedModel::new(table, min_pass_time), end_tokens, language, draft, change)
}

fn start_server(
    target: InstrumentedModel,
    end_tokens: Vec<Token>,
    language: Language,
    draft: &str,
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    let draft = TableModel::from_json("draft", draft).unwrap().with_context_length(512);
    let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary).unwrap();
    start_server_with(target, end_tokens, language, Box::new(drafter), change)
}

/// Starts a server with this drafter.
pub fn start_with_drafter(
    drafter: impl FnOnce(&ModelInfo) -> Box<dyn Drafter>,
    min_pass_time: Duration,
) -> TestServer {
    let table = TableModel::from_json("target", TARGET).unwrap().with_context_length(512);
    let target = InstrumentedModel::new(table, min_pass_time);
    let drafter = drafter(target.info());
    start_server_with(target, vec![END], language(), drafter, |_| ())
}

fn start_server_with(
    target: InstrumentedModel,
    end_tokens: Vec<Token>,
    language: Language,
    drafter: Box<dyn Drafter>,
    change: impl FnOnce(&mut ServerOptions),
) -> TestServer {
    let (open, max_batch) = (target.open.clone(), target.max_batch.clone());
    let sampling = Sampling::default();
    let defaults = |max_tokens| Defaults {
        max_tokens: Some(max_tokens),
        end_tokens: end_tokens.clone(),
        ..Defaults::default()
    };
    let served = ServedModel {
        engine: Engine::new(Box::new(target), Some(drafter)),
        language,
        draft: Some("draft".to_owned()),
        table_saver: None,
        acceptance: Some(vec![0.6, 0.2]),
        speculation: Some(Speculation {
            verifier: "nested-priority".parse().unwrap(),
            tree: PolicyKind::paths(2, 3),
            sampling,
            each: Vec::new(),
        }),
        costs: StepCosts::learning(Costs::default()),
        completions: defaults(16),
        chat: defaults(64),
        tokens: usize::MAX,
    };
    let names = vec!["table".to_owned(), "other".to_owned()];
    let mut options = ServerOptions::default();
    change(&mut options);
    let (address_sender, address_receiver) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = Server::start("127.0.0.1:0".parse().unwrap(), served, names, options)
                .await
                .unwrap();
            address_sender.send(server.address().unwrap()).unwrap();
            server.run(async { stopped.await.unwrap_or_default() }).await
        })
    });
    TestServer {
        address: address_receiver.recv().unwrap(),
        open,
        max_batch,
        stop: Some(stop),
        thread: Some(thread),
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Response of the server.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Parameters that the response reports as ignored.
    pub fn ignored(&self) -> Vec<&str> {
        let header = self.head.lines().find_map(|line| line.strip_prefix("x-polydraft-ignored: "));
        header.map(|names| names.split(", ").collect()).unwrap_or_default()
    }

    /// Data of a stream's events.
    pub fn events(&self) -> Vec<&str> {
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }
}

impl TestServer {
    /// Stops the server and waits. Returns whether all answers were sent.
    pub fn stop(&mut self) -> bool {
        self.request_stop();
        self.thread.take().is_none_or(|thread| thread.join().unwrap())
    }

    pub fn request_stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    pub fn send(&self, head: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{head}\r\nHost: here\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Reply {
        reply(self.send(&format!("GET {path} HTTP/1.1"), b""))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.send(&format!("POST {path} HTTP/1.1"), body.to_string().as_bytes()))
    }

    pub fn complete(&self, body: Value) -> Value {
        let reply = self.post("/v1/completions", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }
}

/// Reads a response to its end.
pub fn reply(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head:?}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let length = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; length + 2];
            reader.read_exact(&mut chunk).unwrap();
            body.extend(&chunk[..length]);
            if length == 0 {
                break;
            }
        }
    } else {
        reader.read_to_end(&mut body).unwrap();
    }
    Reply { status, head, body: String::from_utf8(body).unwrap() }
}
