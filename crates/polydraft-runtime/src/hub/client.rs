//! Requests to the hub.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::cache::token;
use super::reference::{ADDRESS, Reference};

/// A connection and a silence that take longer are given up. Python, interrupted, waits for them.
const CONNECTS: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(20);
/// A list of files is never longer, in bytes.
const LONGEST: u64 = 64 << 20;
/// How often a list is asked for, and the first pause between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(250);

/// The hub, or a copy of it at the address of `HF_ENDPOINT`.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    address: String,
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// Nobody is there, or the answer broke off: another time it may be different.
    Unreachable(String),
    /// The hub says no: status, its own word for why, and its sentence.
    Refused { status: u16, code: String, message: String },
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(why) => f.write_str(why),
            Self::Refused { status, message, .. } if message.is_empty() => {
                write!(f, "the hub answers with status {status}")
            }
            Self::Refused { status, message, .. } => {
                write!(f, "the hub answers with status {status}: {message}")
            }
        }
    }
}

impl Failure {
    fn of(response: &Response<Body>) -> Self {
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let status = response.status().as_u16();
        let (code, message) = (header("x-error-code"), header("x-error-message"));
        match status {
            429 | 500.. => Self::Unreachable(Self::Refused { status, code, message }.to_string()),
            _ => Self::Refused { status, code, message },
        }
    }

    fn lost(error: impl Display) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// A file of a repository.
#[derive(Debug, Clone)]
pub struct Remote {
    /// In the repository, with `/` between its words.
    pub path: String,
    /// In bytes.
    pub size: Option<u64>,
    /// What its contents are called in the cache.
    pub blob: String,
    /// Of its contents, in hexadecimal digits, where the hub says it: of all large files.
    pub sha256: Option<String>,
}

/// What a repository has at a revision.
#[derive(Debug, Deserialize)]
pub struct Listing {
    #[serde(rename = "sha")]
    pub commit: String,
    #[serde(rename = "siblings", default)]
    pub files: Vec<Listed>,
}

/// A file as the hub lists it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    #[serde(rename = "rfilename")]
    pub path: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Large>,
}

#[derive(Debug, Deserialize)]
struct Large {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl Client {
    /// With the address and the token of the environment.
    ///
    /// # Errors
    /// `SSL_CERT_FILE` with no certificates.
    pub fn new() -> Result<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let address = set("HF_ENDPOINT").unwrap_or_else(|| ADDRESS.to_owned());
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("polydraft/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECTS))
            .timeout_per_read(Some(SILENCE))
            // Where files lie is another server, which must not see the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost);
        if let Some(file) = set("SSL_CERT_FILE") {
            let certificates = certificates(&file)?;
            config = config.tls_config(TlsConfig::builder().root_certs(certificates).build());
        }
        let address = address.trim().trim_end_matches('/').to_owned();
        Ok(Self { agent: config.build().into(), address, token: token() })
    }

    /// The hub's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The files of a model.
    ///
    /// # Errors
    /// A hub that is not reached or refuses; an answer that is none of the hub's.
    pub fn list(&self, of: &Reference) -> Result<Listing, Failure> {
        let revision = encoded(&of.revision, "");
        let url =
            format!("{}/api/models/{}/revision/{revision}?blobs=true", self.address, of.repository);
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.read_list(&url) {
                Err(Failure::Unreachable(_)) => {
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                done => return done,
            }
        }
        self.read_list(&url)
    }

    fn read_list(&self, url: &str) -> Result<Listing, Failure> {
        let mut response = self.call("GET", url, None)?;
        let body = response.body_mut().with_config().limit(LONGEST).read_to_vec();
        serde_json::from_slice(&body.map_err(Failure::lost)?).map_err(|error| {
            Failure::lost(format_args!("{} does not answer as the hub does: {error}", self.address))
        })
    }

    /// What is to be known of a listed file before it is downloaded.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub fn resolve(&self, of: &Reference, commit: &str, file: &Listed) -> Result<Remote, Failure> {
        let (path, sha256) = (file.path.clone(), file.lfs.as_ref().and_then(|f| f.sha256.clone()));
        let size = file.lfs.as_ref().and_then(|large| large.size).or(file.size);
        if let Some(blob) = sha256.clone().or_else(|| file.blob_id.clone()) {
            return Ok(Remote { path, size, blob, sha256 });
        }
        // Copies of the hub that list names alone say the rest here, as the hub does too.
        let response = self.call("HEAD", &self.url(of, commit, &path), None)?;
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let named = header("x-linked-etag").or_else(|| header("etag"));
        let blob = named.unwrap_or_default().trim_start_matches("W/").trim_matches('"').to_owned();
        if blob.is_empty() {
            return Err(Failure::lost(format_args!("it says no ETag of {path}")));
        }
        let size = header("x-linked-size").or_else(|| header("content-length"));
        Ok(Remote { path, size: size.and_then(|size| size.parse().ok()), blob, sha256 })
    }

    /// A file's contents from a byte on, or all of them, if the answer's status is 200.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub fn open(
        &self,
        of: &Reference,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Response<Body>, Failure> {
        self.call("GET", &self.url(of, commit, path), (from > 0).then_some(from))
    }

    fn url(&self, of: &Reference, commit: &str, path: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.address, of.repository, encoded(path, "/"))
    }

    fn call(&self, method: &str, url: &str, from: Option<u64>) -> Result<Response<Body>, Failure> {
        let is_head = method == "HEAD";
        let mut request = if is_head { self.agent.head(url) } else { self.agent.get(url) };
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header("Range", format!("bytes={from}-"));
        }
        // The headers that count come before one is sent to where the file lies.
        let request = request.config().max_redirects(if is_head { 0 } else { 10 });
        let answer = request.max_redirects_will_error(false).build().call();
        let response = answer.map_err(|e| Failure::lost(format_args!("{}: {e}", self.address)))?;
        match response.status().as_u16() {
            200..300 => Ok(response),
            300..400 if is_head => Ok(response),
            _ => Err(Failure::of(&response)),
        }
    }
}

/// The certificates of a file, for networks that have their own.
fn certificates(file: &str) -> Result<RootCerts> {
    let text = std::fs::read(file).with_context(|| format!("SSL_CERT_FILE={file}"))?;
    let items = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let all: Vec<_> = items.collect();
    anyhow::ensure!(!all.is_empty(), "SSL_CERT_FILE={file} has no certificates in PEM");
    Ok(RootCerts::Specific(std::sync::Arc::new(all)))
}

/// As an address has it, with the characters of `kept` as they are.
fn encoded(text: &str, kept: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if plain || kept.as_bytes().contains(&byte) {
            all.push(char::from(byte));
        } else {
            all.push_str(&format!("%{byte:02X}"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(encoded("refs/pr/3", ""), "refs%2Fpr%2F3");
        assert_eq!(encoded("a b/c#1+ü.gguf", "/"), "a%20b/c%231%2B%C3%BC.gguf");
    }
}
