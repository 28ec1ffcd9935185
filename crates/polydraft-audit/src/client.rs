//! Requests to a server, many at a time; what fails for a moment is tried again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::Listener;
use crate::error::{Error, Result};
use crate::journal::{Journal, Reply};

/// How often a request is sent at most, and how long the first pause is.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(250);
/// A server may ask for a longer pause, up to this.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A connection, and an answer's beginning or its rest, that take longer are lost.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(300);

/// A request: a path below the address, and a body.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub path: &'static str,
    pub body: Value,
}

/// A server's address.
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
    /// Of an address with or without `/v1`; a key is sent as a bearer token.
    pub fn new(url: &str, key: Option<String>, connections: usize, journal: Journal) -> Self {
        let url = url.trim_end_matches('/');
        let base = url.strip_suffix("/v1").unwrap_or(url);
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Not for a request as a whole: the library would then begin a thread for each.
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_recv_body(Some(TIMEOUT))
            .max_idle_connections_per_host(connections)
            .max_idle_connections(connections)
            .build();
        let journal = Mutex::new(journal);
        Self { agent: config.into(), base, key, connections, sent: AtomicUsize::new(0), journal }
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Requests so far.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// What stands at a path; none if there is nothing, or the server does not answer.
    pub fn get(&self, path: &str) -> Option<String> {
        let mut request = self.agent.get(self.url(path));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().ok()?;
        let found = response.status().is_success();
        response.body_mut().read_to_string().ok().filter(|_| found)
    }

    /// Sends one request.
    pub fn send(&self, call: &Call, listener: &dyn Listener) -> Result<Reply> {
        let mut replies = self.send_all(std::slice::from_ref(call), 1, listener)?;
        Ok(replies.remove(0))
    }

    /// Sends requests, so many of them at a time as was said at the beginning, or fewer. The
    /// answers are in the requests' order.
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
                    // The others need not be asked.
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
                // Left out because another one failed, whose error comes later in the list.
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
                    // That will not change in a second.
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

/// A body; of a stream the list of its events.
fn parse_body(text: &str) -> std::result::Result<Value, String> {
    if !text.starts_with("data:") && !text.starts_with(':') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let events = events.map(str::trim).filter(|event| !event.is_empty() && *event != "[DONE]");
    let events: std::result::Result<Vec<Value>, _> = events.map(serde_json::from_str).collect();
    events.map(Value::Array).map_err(|error| error.to_string())
}

/// Whether nobody was there to be asked.
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

/// Waits, unless somebody stops it.
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
