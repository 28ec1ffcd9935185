//! A server on loopback with models given as tables, and a client that sends what it is told, byte
//! by byte.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use polydraft::{DraftTree, NodeId, PolicyKind, Sampling, Token};
use polydraft_engine::{
    Engine, Model, ModelDrafter, ModelInfo, Result, Sequence, Sequences, TableModel,
};
use polydraft_runtime::Speculation;
use polydraft_server::{Defaults, ServedModel, Server, ServerOptions};
use polydraft_text::{ChatTemplate, Language, SpecialTokens, Tokenizer};
use serde_json::Value;
use tokio::sync::oneshot;

const TARGET: &str = r#"{"vocabulary": 6, "next": {
    "": [0.3, 0.2, 0.2, 0.2, 0.09, 0.01], "0": [0.1, 0.6, 0.1, 0.1, 0.1, 0],
    "1": [0.2, 0.2, 0.5, 0.05, 0.05, 0], "2": [0.25, 0.25, 0.25, 0.2, 0.05, 0],
    "0 1": [0.3, 0.1, 0.1, 0.45, 0.05, 0], "3": [0.6, 0.1, 0.1, 0.1, 0.1, 0]}}"#;
const DRAFT: &str = r#"{"vocabulary": 6, "next": {
    "": [0.25, 0.25, 0.2, 0.2, 0.1, 0], "0": [0.2, 0.5, 0.1, 0.1, 0.1, 0],
    "3": [0.5, 0.2, 0.1, 0.1, 0.1, 0]}}"#;
/// The token that ends an output.
pub const END: Token = 4;

pub fn language() -> Language {
    let file = br#"{"model": {"type": "WordLevel",
        "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "end": 4, "x": 5},
        "unk_token": "a"}, "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false,
        "normalized": false}]}"#;
    let text = Tokenizer::parse(file, "/secret/place/tokenizer.json").unwrap();
    let template = "{% for m in messages %}\
        {% if m.content == 'bad' %}{{ raise_exception('no such words') }}{% endif %}\
        {{ m.content }} {% endfor %}";
    let special_tokens = SpecialTokens::from_roles([]);
    Language {
        name: "table".to_owned(),
        vocabulary: text.vocabulary(6).unwrap(),
        tokenizer: text,
        end_tokens: vec![END],
        chat: Some(
            ChatTemplate::from_source(template, special_tokens.clone(), "/secret/place/chat.jinja")
                .unwrap(),
        ),
        special_tokens,
        sampling: Default::default(),
    }
}

/// The language of a tokenizer and a chat template.
fn speaking(text: Tokenizer, template: &str) -> Language {
    let special = SpecialTokens::from_roles([]);
    let chat = ChatTemplate::from_source(template, special, "chat.jinja").unwrap();
    Language {
        vocabulary: text.vocabulary(6).unwrap(),
        tokenizer: text,
        chat: Some(chat),
        ..language()
    }
}

/// A table model that takes its time, panics at the token `x`, and counts.
pub struct Watched {
    inner: TableModel,
    pass: Duration,
    faulty: BTreeSet<Sequence>,
    /// Whether it says that it keeps what it computed, and has nothing of new sequences.
    keeps: bool,
    pub open: Arc<AtomicUsize>,
    pub widest: Arc<AtomicUsize>,
}

impl Watched {
    pub fn new(inner: TableModel, pass: Duration) -> Self {
        let (open, widest) = (Arc::default(), Arc::default());
        Self { inner, pass, faulty: BTreeSet::new(), keeps: false, open, widest }
    }
}

impl Sequences for Watched {
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
        // Of a prompt only: a text may come to say it by chance.
        if self.inner.len(sequence) == 0 && tokens.contains(&5) {
            self.faulty.insert(sequence);
        }
        self.inner.extend(sequence, tokens)
    }
    fn keeps_closed(&self) -> bool {
        self.keeps
    }
    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.inner.truncate(sequence, length);
    }
    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        match most {
            0 if self.keeps => Ok(self.inner.len(sequence).saturating_sub(1)),
            _ => self.inner.prepare(sequence, most),
        }
    }
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        self.widest.fetch_max(batch.len(), Ordering::SeqCst);
        std::thread::sleep(self.pass);
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

impl Model for Watched {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.inner.logits(sequence, node)
    }
}

/// A server that runs until it is dropped.
pub struct Running {
    pub address: SocketAddr,
    /// Sequences that the target has open, and the most that it had in one pass.
    pub open: Arc<AtomicUsize>,
    pub widest: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

/// Starts one with table models; `pass` is what a pass of the target takes at least.
pub fn start(pass: Duration, change: impl FnOnce(&mut ServerOptions)) -> Running {
    start_ending(pass, vec![END], change)
}

/// One whose model says that it keeps what it computed of closed sequences.
pub fn start_keeping() -> Running {
    let table = TableModel::from_json("target", TARGET).unwrap().with_context_length(512);
    let target = Watched { keeps: true, ..Watched::new(table, Duration::ZERO) };
    start_on(target, vec![END], language(), DRAFT, |_| ())
}

/// One whose texts no token ends.
pub fn start_endless(pass: Duration, change: impl FnOnce(&mut ServerOptions)) -> Running {
    start_ending(pass, Vec::new(), change)
}

/// A model that answers with a call of the tool `f`, whatever it is told, and ends.
pub fn start_calling() -> Running {
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
    let text = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let template = "{% for tool in tools %}a {% endfor %}\
        {% for m in messages %}b {% for call in m.tool_calls %}c {% endfor %}\
        {% endfor %}{# <tool_call>{\"name\": .., \"arguments\": ..}</tool_call> #}";
    let language = speaking(text, template);
    start_with(Duration::ZERO, vec![END], language, target, |_| ())
}

/// A reasoning model: its prompt opens what it thinks, `a`, and its answer is `b`.
pub fn start_thinking() -> Running {
    let target = r#"{"vocabulary": 6, "next": {
        "": [0.5, 0.5, 0, 0, 0, 0], "2": [1, 0, 0, 0, 0, 0], "2 0": [0, 0, 0, 1, 0, 0],
        "3": [0, 1, 0, 0, 0, 0], "3 1": [0, 0, 0, 0, 1, 0]}}"#;
    let file = br#"{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<think>": 2,
        "</think>": 3, "end": 4, "x": 5}, "unk_token": "a"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}]}"#;
    let text = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}\
        {% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}";
    let language = speaking(text, template);
    start_with(Duration::ZERO, vec![END], language, target, |_| ())
}

/// A model whose tokens are bytes, so that there are grammars for it.
pub fn start_bytes() -> Running {
    let file = br#"{"model": {"type": "BPE",
        "vocab": {"\"": 0, "a": 1, "{": 2, "}": 3, "end": 4, "b": 5}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "added_tokens": [{"id": 4, "content": "end", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false,
        "normalized": false}]}"#;
    let text = Tokenizer::parse(file, "tokenizer.json").unwrap();
    let language =
        Language { vocabulary: text.vocabulary(6).unwrap(), tokenizer: text, ..language() };
    start_with(Duration::ZERO, vec![END], language, TARGET, |_| ())
}

/// One with another chat template.
pub fn start_templated(template: &str, change: impl FnOnce(&mut ServerOptions)) -> Running {
    start_with(Duration::ZERO, vec![END], speaking(language().tokenizer, template), TARGET, change)
}

/// A model of so many tokens, all as likely.
pub fn start_wide(vocabulary: usize, change: impl FnOnce(&mut ServerOptions)) -> Running {
    let next = vec![format!("{}", 1.0 / vocabulary as f64); vocabulary].join(",");
    let target = format!(r#"{{"vocabulary": {vocabulary}, "next": {{"": [{next}]}}}}"#);
    let words: Vec<String> = (4..vocabulary).map(|n| format!("\"w{n}\": {n}")).collect();
    let file = format!(
        r#"{{"model": {{"type": "WordLevel", "vocab": {{"a": 0, "b": 1, "c": 2, "d": 3, {}}},
            "unk_token": "a"}}, "pre_tokenizer": {{"type": "Whitespace"}}}}"#,
        words.join(", ")
    );
    let text = Tokenizer::parse(file.as_bytes(), "tokenizer.json").unwrap();
    let language = Language {
        vocabulary: text.vocabulary(vocabulary).unwrap(),
        tokenizer: text,
        ..language()
    };
    start_with(Duration::ZERO, Vec::new(), language, &target, change)
}

fn start_ending(
    pass: Duration,
    end_tokens: Vec<Token>,
    change: impl FnOnce(&mut ServerOptions),
) -> Running {
    start_with(pass, end_tokens, language(), TARGET, change)
}

fn start_with(
    pass: Duration,
    end_tokens: Vec<Token>,
    language: Language,
    target: &str,
    change: impl FnOnce(&mut ServerOptions),
) -> Running {
    let draft = if language.vocabulary.size() == 6 { DRAFT } else { target };
    let table = TableModel::from_json("target", target).unwrap().with_context_length(512);
    start_on(Watched::new(table, pass), end_tokens, language, draft, change)
}

fn start_on(
    target: Watched,
    end_tokens: Vec<Token>,
    language: Language,
    draft: &str,
    change: impl FnOnce(&mut ServerOptions),
) -> Running {
    let (open, widest) = (target.open.clone(), target.widest.clone());
    let draft = TableModel::from_json("draft", draft).unwrap().with_context_length(512);
    let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary).unwrap();
    let sampling = Sampling::default();
    let defaults = |most| Defaults {
        max_tokens: Some(most),
        end_tokens: end_tokens.clone(),
        ..Defaults::default()
    };
    let served = ServedModel {
        engine: Engine::new(Box::new(target), Some(Box::new(drafter))),
        language,
        draft: Some("draft".to_owned()),
        learned: None,
        acceptance: Some(vec![0.6, 0.2]),
        speculation: Some(Speculation {
            verifier: "nested-priority".parse().unwrap(),
            tree: PolicyKind::paths(2, 3),
            sampling,
            each: Vec::new(),
        }),
        costs: Default::default(),
        completions: defaults(16),
        chat: defaults(64),
        tokens: usize::MAX,
    };
    let names = vec!["table".to_owned(), "other".to_owned()];
    let mut options = ServerOptions::default();
    change(&mut options);
    let (tell, told) = std::sync::mpsc::channel();
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
            tell.send(server.address().unwrap()).unwrap();
            server.run(async { stopped.await.unwrap_or_default() }).await
        })
    });
    Running { address: told.recv().unwrap(), open, widest, stop: Some(stop), thread: Some(thread) }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What came back.
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

    /// The parameters that the answer says were ignored.
    pub fn ignored(&self) -> Vec<&str> {
        let named = self.head.lines().find_map(|line| line.strip_prefix("x-polydraft-ignored: "));
        named.map(|names| names.split(", ").collect()).unwrap_or_default()
    }

    /// The data of a stream's events.
    pub fn events(&self) -> Vec<&str> {
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }
}

impl Running {
    /// Asks it to stop, and waits for that; whether all answers were sent.
    pub fn stop(&mut self) -> bool {
        self.ask_to_stop();
        self.thread.take().is_none_or(|thread| thread.join().unwrap())
    }

    pub fn ask_to_stop(&mut self) {
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

/// Reads an answer to its end.
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
