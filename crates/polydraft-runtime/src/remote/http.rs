//! HTTP requests to a drafting server.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

/// Timeouts of connecting, and of a request at the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum bytes of an answer at the start.
const MAX_START_BYTES: usize = 4 << 20;
/// Maximum characters of a server's message that are repeated.
const MAX_MESSAGE: usize = 200;

/// A server.
#[derive(Debug, Clone)]
pub struct Http {
    agent: Agent,
    base: String,
    key: Option<String>,
}

/// Answer of a server.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Reply {
    /// Describes an answer that is not the expected one.
    pub fn problem(&self) -> String {
        let text = printable(&String::from_utf8_lossy(&self.body));
        format!("it answered with status {}: {text}", self.status)
    }

    /// Parses the body of a successful answer.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        if self.status != 200 {
            return Err(self.problem());
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| format!("not the expected answer: {}", printable(&error.to_string())))
    }
}

/// Returns the beginning of untrusted text without control characters.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

impl Http {
    /// Creates a client of a base address; `key` is sent as a bearer token.
    pub fn new(base: &str, key: Option<String>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("polydraft/", env!("CARGO_PKG_VERSION")))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT));
        Self { agent: config.build().into(), base: base.to_owned(), key }
    }

    /// Returns the base address.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Fetches a path.
    ///
    /// # Errors
    /// A description of what failed.
    pub fn get(&self, path: &str) -> Result<Reply, String> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let request = request.config().timeout_global(Some(START_TIMEOUT)).build();
        read(request.call(), MAX_START_BYTES)
    }

    /// Posts JSON, at the start.
    ///
    /// # Errors
    /// A description of what failed.
    pub fn post_at_start(&self, path: &str, body: &impl Serialize) -> Result<Reply, String> {
        self.post(path, body, START_TIMEOUT, MAX_START_BYTES)
    }

    /// Posts JSON, and reads an answer of at most `max_bytes` within a time.
    ///
    /// # Errors
    /// A description of what failed.
    pub fn post(
        &self,
        path: &str,
        body: &impl Serialize,
        within: Duration,
        max_bytes: usize,
    ) -> Result<Reply, String> {
        if within.is_zero() {
            return Err("no answer in time".to_owned());
        }
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let mut request = self.agent.post(format!("{}{path}", self.base));
        request = request.header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let request = request.config().timeout_global(Some(within)).build();
        read(request.send(&body[..]), max_bytes)
    }
}

fn read(
    answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    max_bytes: usize,
) -> Result<Reply, String> {
    let describe = |error: ureq::Error| match error {
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        other => printable(&other.to_string()),
    };
    let mut answer = answer.map_err(describe)?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(max_bytes as u64).read_to_vec();
    Ok(Reply { status, body: body.map_err(describe)? })
}
