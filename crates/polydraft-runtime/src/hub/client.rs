//! HTTP client of the hub.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::cache::token;
use super::reference::{DEFAULT_ADDRESS, Reference};

/// Timeouts of connecting and of reading. They are short because Python, when interrupted, waits
/// for them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a list of files, in bytes.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Attempts to get a list of files, and the backoff after the first.
const ATTEMPTS: u32 = 3;
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// The hub, or a mirror at the address in `HF_ENDPOINT`.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    address: String,
    token: Option<String>,
}

/// Reason why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// No connection, or an incomplete response: a retry may succeed.
    Unreachable(String),
    /// The hub refused the request, with a status, an error code and a message.
    Refused { status: u16, code: String, message: String },
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(why) => f.write_str(why),
            Self::Refused { status, message, .. } if message.is_empty() => {
                write!(f, "the hub responded with status {status}")
            }
            Self::Refused { status, message, .. } => {
                write!(f, "the hub responded with status {status}: {message}")
            }
        }
    }
}

impl Failure {
    fn from_response(response: &Response<Body>) -> Self {
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

    fn unreachable(error: impl Display) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// A file of a repository.
#[derive(Debug, Clone)]
pub struct RemoteFile {
    /// Path in the repository, with `/` as separator.
    pub path: String,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Name of the blob in the cache.
    pub blob: String,
    /// SHA-256 of the contents in hexadecimal digits, if the hub lists it, as it does for all large
    /// files.
    pub sha256: Option<String>,
}

/// Files of a repository at a revision.
#[derive(Debug, Deserialize)]
pub struct Listing {
    #[serde(rename = "sha")]
    pub commit: String,
    #[serde(rename = "siblings", default)]
    pub files: Vec<ListedFile>,
}

/// A file in the hub's listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedFile {
    #[serde(rename = "rfilename")]
    pub path: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LfsFile>,
}

#[derive(Debug, Deserialize)]
struct LfsFile {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl Client {
    /// Creates a client with the address and the token from the environment.
    ///
    /// # Errors
    /// `SSL_CERT_FILE` without certificates.
    pub fn new() -> Result<Self> {
        let variable =
            |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let address = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("polydraft/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            // Files are served by another host, which must not get the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost);
        if let Some(file) = variable("SSL_CERT_FILE") {
            let certificates = certificates(&file)?;
            config = config.tls_config(TlsConfig::builder().root_certs(certificates).build());
        }
        let address = address.trim().trim_end_matches('/').to_owned();
        Ok(Self { agent: config.build().into(), address, token: token() })
    }

    /// Returns the hub's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Lists the files of a model.
    ///
    /// # Errors
    /// A hub that is unreachable or refuses the request; an invalid response.
    pub fn list(&self, reference: &Reference) -> Result<Listing, Failure> {
        let revision = percent_encode(&reference.revision, "");
        let url = format!(
            "{}/api/models/{}/revision/{revision}?blobs=true",
            self.address, reference.repository
        );
        let mut backoff = FIRST_BACKOFF;
        for _ in 1..ATTEMPTS {
            match self.read_list(&url) {
                Err(Failure::Unreachable(_)) => {
                    std::thread::sleep(backoff);
                    backoff *= 2;
                }
                done => return done,
            }
        }
        self.read_list(&url)
    }

    fn read_list(&self, url: &str) -> Result<Listing, Failure> {
        let mut response = self.call("GET", url, None)?;
        let body = response.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
        serde_json::from_slice(&body.map_err(Failure::unreachable)?).map_err(|error| {
            Failure::unreachable(format_args!(
                "{} did not respond like the hub: {error}",
                self.address
            ))
        })
    }

    /// Returns the size and the blob name of a listed file, before its download.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub fn resolve(
        &self,
        reference: &Reference,
        commit: &str,
        file: &ListedFile,
    ) -> Result<RemoteFile, Failure> {
        let (path, sha256) = (file.path.clone(), file.lfs.as_ref().and_then(|f| f.sha256.clone()));
        let size = file.lfs.as_ref().and_then(|large| large.size).or(file.size);
        if let Some(blob) = sha256.clone().or_else(|| file.blob_id.clone()) {
            return Ok(RemoteFile { path, size, blob, sha256 });
        }
        // Some mirrors list names only; like the hub, they return the rest as headers here.
        let response = self.call("HEAD", &self.url(reference, commit, &path), None)?;
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let named = header("x-linked-etag").or_else(|| header("etag"));
        let blob = named.unwrap_or_default().trim_start_matches("W/").trim_matches('"').to_owned();
        if blob.is_empty() {
            return Err(Failure::unreachable(format_args!("no ETag for {path}")));
        }
        let size = header("x-linked-size").or_else(|| header("content-length"));
        Ok(RemoteFile { path, size: size.and_then(|size| size.parse().ok()), blob, sha256 })
    }

    /// Downloads a file's contents from byte `from` on, or all of them if the response's status is
    /// 200.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub fn open(
        &self,
        reference: &Reference,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Response<Body>, Failure> {
        self.call("GET", &self.url(reference, commit, path), (from > 0).then_some(from))
    }

    fn url(&self, reference: &Reference, commit: &str, path: &str) -> String {
        format!(
            "{}/{}/resolve/{commit}/{}",
            self.address,
            reference.repository,
            percent_encode(path, "/")
        )
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
        // The relevant headers come with the redirect, before the file's own host.
        let request = request.config().max_redirects(if is_head { 0 } else { 10 });
        let answer = request.max_redirects_will_error(false).build().call();
        let response =
            answer.map_err(|e| Failure::unreachable(format_args!("{}: {e}", self.address)))?;
        match response.status().as_u16() {
            200..300 => Ok(response),
            300..400 if is_head => Ok(response),
            _ => Err(Failure::from_response(&response)),
        }
    }
}

/// Reads the certificates of a file, for networks with their own certificate authority.
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

/// Percent-encodes a string for a URL, except the characters in `unescaped`.
fn percent_encode(text: &str, unescaped: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if plain || unescaped.as_bytes().contains(&byte) {
            all.push(char::from(byte));
        } else {
            all.push_str(&format!("%{byte:02X}"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::percent_encode;

    #[test]
    fn percent_encodes_paths() {
        assert_eq!(percent_encode("refs/pr/3", ""), "refs%2Fpr%2F3");
        assert_eq!(percent_encode("a b/c#1+ü.gguf", "/"), "a%20b/c%231%2B%C3%BC.gguf");
    }
}
