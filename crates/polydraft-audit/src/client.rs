//! HTTP client: concurrent requests, with retries after transient failures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::Listener;
use crate::error::{Error, Result};
use crate::journal::{Journal, Reply};

/// Maximum number of attempts, and the first backoff.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum backoff, also where a server asks for a longer one.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Timeouts of connecting, and of receiving the head or the rest of a response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(300);

/// HTTP request: a path below the base address, and a body.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub path: &'static str,
    pub body: Value,
}

/// HTTP client of one server.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    base: String,
    key: Option<String>,
    connections: usize,
    sent: AtomicUsize,
    journal: Mutex<Journal>,
}

impl Client {
    /// Creates a client of an address with or without `/v1`; `key` is sent as a bearer token.
    pub fn new(url: &str, key: Option<String>, connections: usize, journal: Journal) -> Self {
        let url = url.trim_end_matches('/');
        let base = url.strip_suffix("/v1").unwrap_or(url);
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // No timeout for a request as a whole: the library would start a thread for each.
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_recv_body(Some(TIMEOUT))
            .max_idle_connections_per_host(connections)
            .max_idle_connections(connections)
            .build();
        let journal = Mutex::new(journal);
        Self { agent: config.into(), base, key, connections, sent: AtomicUsize::new(0), journal }
    }

    /// Returns the full URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Returns the number of requests sent.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// Fetches a path. The error is the cause in words, such as a status other than success.
    pub fn get(&self, path: &str) -> std::result::Result<String, String> {
        let mut request = self.agent.get(self.url(path));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().map_err(|error| error.to_string())?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("status {status}"));
        }
        response.body_mut().read_to_string().map_err(|error| error.to_string())
    }

    /// Sends one request.
    pub fn send(&self, call: &Call, listener: &dyn Listener) -> Result<Reply> {
        let mut replies = self.send_all(std::slice::from_ref(call), 1, listener)?;
        Ok(replies.remove(0))
    }

    /// Sends requests, at most `at_most` and at most `connections` at a time. Replies are in the
    /// order of the requests.
    pub fn send_all(
        &self,
        calls: &[Call],
        at_most: usize,
        listener: &dyn Listener,
    ) -> Result<Vec<Reply>> {
        let first = self.sent.fetch_add(calls.len(), Ordering::Relaxed);
        let next = AtomicUsize::new(0);
        let replies: Vec<Mutex<Option<Result<Reply>>>> =
            calls.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(call) = calls.get(at) else { return };
                let reply = self.reply(first + at, call, listener);
                let failed = reply.is_err();
                *replies[at].lock().expect("nothing panics with it") = Some(reply);
                if failed {
                    // Skips the remaining requests.
                    next.store(calls.len(), Ordering::Relaxed);
                }
            }
        };
        let workers = self.connections.min(at_most).min(calls.len());
        std::thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(work);
            }
            work();
        });
        let mut all = Vec::with_capacity(calls.len());
        for reply in replies {
            match reply.into_inner().expect("nothing panics with it") {
                Some(Ok(reply)) => all.push(reply),
                Some(Err(error)) => return Err(error),
                // Skipped because another request failed, whose error comes later in the list.
                None => {}
            }
        }
        Ok(all)
    }

    fn reply(&self, number: usize, call: &Call, listener: &dyn Listener) -> Result<Reply> {
        let request = serde_json::json!({ "path": call.path, "body": call.body });
        let lock = || self.journal.lock().expect("nothing panics with it");
        if let Some(reply) = lock().find(number, &request)? {
            return Ok(reply);
        }
        let reply = self.post(call, listener)?;
        lock().append(number, &request, &reply)?;
        Ok(reply)
    }

    fn post(&self, call: &Call, listener: &dyn Listener) -> Result<Reply> {
        let url = self.url(call.path);
        let body = call.body.to_string();
        let mut pause = PAUSE;
        let mut reason = String::new();
        for tried in 0..TRIES {
            if tried > 0 {
                wait(pause, listener)?;
                pause = (2 * pause).min(MAX_PAUSE);
            }
            if listener.is_stopped() {
                return Err(Error::Interrupted);
            }
            let mut request =
                self.agent.post(url.as_str()).header("Content-Type", "application/json");
            if let Some(key) = &self.key {
                request = request.header("Authorization", format!("Bearer {key}"));
            }
            let mut response = match request.send(body.as_str()) {
                Ok(response) => response,
                Err(error) => {
                    reason = error.to_string();
                    // A refused connection does not recover within a second.
                    if is_connection_refused(&error) && tried >= 2 {
                        break;
                    }
                    continue;
                }
            };
            let status = response.status().as_u16();
            if status == 429 || status >= 500 {
                if let Some(delay) = retry_after(&response) {
                    pause = delay.clamp(PAUSE, MAX_PAUSE);
                }
                let message = response.body_mut().read_to_string().unwrap_or_default();
                reason = format!("status {status}: {message}");
                continue;
            }
            let text = match response.body_mut().read_to_string() {
                Ok(text) => text,
                Err(error) => {
                    reason = error.to_string();
                    continue;
                }
            };
            return match status {
                200..300 => parse_body(&text)
                    .map(Reply::Body)
                    .map_err(|reason| Error::Unreadable { url, reason }),
                _ => Ok(Reply::Status(status, text)),
            };
        }
        Err(Error::Unreachable { url, reason })
    }
}

/// Parses a body; of a stream, the list of its events.
fn parse_body(text: &str) -> std::result::Result<Value, String> {
    if !text.starts_with("data:") && !text.starts_with(':') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let events = events.map(str::trim).filter(|event| !event.is_empty() && *event != "[DONE]");
    let events: std::result::Result<Vec<Value>, _> = events.map(serde_json::from_str).collect();
    events.map(Value::Array).map_err(|error| error.to_string())
}

/// Returns whether no server accepts connections there.
fn is_connection_refused(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Sleeps, unless the listener stops the audit.
fn wait(pause: Duration, listener: &dyn Listener) -> Result<()> {
    let until = Instant::now() + pause;
    while Instant::now() < until {
        if listener.is_stopped() {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(50).min(pause));
    }
    Ok(())
}
