//! Test hub with one model of one commit, on loopback.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Deviation from a regular hub.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quirk {
    None,
    /// Ignores ranges and sends complete files.
    IgnoresRange,
    /// Lists only names.
    Names,
    /// Contents of large files do not match their hashes.
    Damaged,
    /// Responds with status 503 to everything.
    Busy,
}

pub struct Hub {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Required token.
    pub token: Option<&'static str>,
    /// File whose responses break off in the middle, and the number of times.
    pub broken: Option<(String, usize)>,
    pub quirk: Quirk,
    /// Method, path, range and token of every request.
    pub requests: Vec<String>,
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/fixtures").join(name)
}

/// Running hub; it serves until the test ends.
#[derive(Clone)]
pub struct Running {
    pub address: String,
    hub: Arc<Mutex<Hub>>,
}

impl Running {
    pub fn lock(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap()
    }

    /// Returns the requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().requests)
    }
}

pub fn serve(files: BTreeMap<String, Vec<u8>>) -> Running {
    let hub = Hub { files, token: None, broken: None, quirk: Quirk::None, requests: Vec::new() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hub = Arc::new(Mutex::new(hub));
    let served = hub.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let hub = served.clone();
            std::thread::spawn(move || while answer(&stream, &hub, port).is_some() {});
        }
    });
    Running { address: format!("http://127.0.0.1:{port}"), hub }
}

struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: &'static str, headers: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: headers.into(), body: body.into() }
    }
}

/// Answers one request of a connection; `None` at its end.
fn answer(mut stream: &TcpStream, hub: &Mutex<Hub>, port: u16) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut header, mut headers) = (String::new(), String::new(), HashMap::new());
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    while reader.read_line(&mut header).ok()? > 2 {
        if let Some((name, value)) = header.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        header.clear();
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?, words.next()?);
    let mut hub = hub.lock().unwrap();
    let (token, range) = (headers.get("authorization"), headers.get("range"));
    hub.requests.push(format!("{method} {path} {range:?} {token:?}"));
    let given = hub.answer(path, range, token, port);
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut sent = if method == "HEAD" { 0 } else { given.body.len() };
    let breaks = hub.broken.as_mut().filter(|(file, times)| file == name && *times > 0);
    if let Some((_, times)) = breaks.filter(|_| sent > 0) {
        *times -= 1;
        sent /= 2;
    }
    drop(hub);
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n",
        given.status,
        given.body.len(),
        given.headers
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&given.body[..sent]).ok()?;
    if method != "HEAD" && sent < given.body.len() {
        stream.shutdown(Shutdown::Both).ok();
        return None;
    }
    Some(())
}

impl Hub {
    fn answer(
        &self,
        path: &str,
        range: Option<&String>,
        token: Option<&String>,
        port: u16,
    ) -> Answer {
        let path = path.split('?').next().unwrap_or_default();
        if self.quirk == Quirk::Busy {
            return Answer::new("503 Service Unavailable", "", "");
        }
        if let Some(name) = path.strip_prefix("/elsewhere/") {
            return self.contents(name, range);
        }
        if self.token.is_some_and(|t| token != Some(&format!("Bearer {t}"))) {
            let why = "X-Error-Code: GatedRepo\r\nX-Error-Message: Please log in.\r\n";
            return Answer::new("401 Unauthorized", why, "");
        }
        let Some(rest) = path.strip_prefix("/api/models/org/tiny/revision/") else {
            let name = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
            return match name.filter(|name| self.files.contains_key(*name)) {
                // Large files are redirected.
                Some(name) if is_large(name) => {
                    let headers = format!(
                        "Location: http://localhost:{port}/elsewhere/{name}\r\nX-Linked-Etag: \
                         \"{}\"\r\nX-Linked-Size: {}\r\n",
                        self.sha256(name),
                        self.files[name].len()
                    );
                    Answer::new("302 Found", headers, "")
                }
                Some(name) => self.contents(name, range),
                None => Answer::new("404 Not Found", "X-Error-Code: RepoNotFound\r\n", ""),
            };
        };
        if !["main", COMMIT, "refs%2Fpr%2F1"].contains(&rest) {
            return Answer::new("404 Not Found", "X-Error-Code: RevisionNotFound\r\n", "");
        }
        let files: Vec<_> = self.files.keys().map(|name| self.listed(name)).collect();
        let list = json!({"id": "org/tiny", "sha": COMMIT, "siblings": files});
        Answer::new("200 OK", "Content-Type: application/json\r\n", list.to_string())
    }

    fn listed(&self, name: &str) -> Value {
        let size = self.files[name].len();
        match is_large(name) {
            _ if self.quirk == Quirk::Names => json!({"rfilename": name}),
            true => json!({"rfilename": name, "size": size, "blobId": "b1", "lfs": {
                "sha256": self.sha256(name), "size": size, "pointerSize": 134
            }}),
            false => json!({"rfilename": name, "size": size, "blobId": blob(name)}),
        }
    }

    pub fn sha256(&self, name: &str) -> String {
        let hash = digest(&SHA256, &self.files[name]);
        hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn contents(&self, name: &str, range: Option<&String>) -> Answer {
        let Some(bytes) = self.files.get(name) else {
            return Answer::new("404 Not Found", "X-Error-Code: EntryNotFound\r\n", "");
        };
        let (mut bytes, all) = (bytes.clone(), bytes.len());
        if self.quirk == Quirk::Damaged && is_large(name) {
            bytes[all / 3] ^= 1;
        }
        let tag = format!("ETag: \"{}\"\r\n", blob(name));
        let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        match from.map(|from| from.parse::<usize>().unwrap()) {
            Some(from) if self.quirk != Quirk::IgnoresRange => {
                let range = format!("{tag}Content-Range: bytes {from}-{}/{all}\r\n", all - 1);
                Answer::new("206 Partial Content", range, &bytes[from..])
            }
            _ => Answer::new("200 OK", tag, bytes),
        }
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

/// Returns a name for the blob of a file.
fn blob(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}
