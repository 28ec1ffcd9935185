//! Connections to servers that draft with a model of their own: polydraft's, by its route
//! `/v1/draft`, and llama.cpp's, by its route `/completion`.
//!
//! Their answers are untrusted. They have a maximum size and a deadline, redirects are not
//! followed, and the drafter checks ids and probabilities
//! ([`remote`](polydraft_engine::drafter::remote)). So a server can make drafts useless, and
//! nothing else. It reads the tokens of prompts and outputs.

mod http;
mod llama;
mod native;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail};
use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::remote::DraftSource;
use polydraft_text::Language;
use ring::digest::{Context, SHA256};

use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::usage::Advice;
use http::{Http, Reply};

/// Environment variable with the drafting server's API key.
const KEY_VARIABLE: &str = "POLYDRAFT_DRAFT_KEY";

/// Returns whether the name of a draft is the address of a server.
pub(crate) fn is_url(name: &str) -> bool {
    name.starts_with("http://") || name.starts_with("https://")
}

/// Returns the base address of a server, without a final `/v1`.
///
/// # Errors
/// An address without a host, or with a user name, a query or a fragment.
pub(crate) fn base_url(url: &str) -> Result<String> {
    let url = url.trim_end_matches('/');
    let base = url.strip_suffix("/v1").unwrap_or(url);
    let host = base.split_once("://").map_or("", |(_, rest)| rest);
    let is_valid = |c: char| c.is_ascii_graphic() && !"@?#\"<>\\".contains(c);
    if host.is_empty() || host.starts_with('/') || !host.chars().all(is_valid) {
        // Not repeated in the message: it may contain a password.
        bail!(Advice(message![
            OptionName::Draft.with("URL"),
            ": expected an address such as http://192.168.0.2:8000; an API key belongs into the \
             environment variable POLYDRAFT_DRAFT_KEY",
        ]));
    }
    Ok(base.to_owned())
}

/// Connects to a server and checks that its model has the target's tokens.
///
/// # Errors
/// A server that does not answer, has no route for drafts, or has a model with other tokens.
pub fn connect(
    url: &str,
    language: &Language,
    listener: &dyn Listener,
) -> Result<Box<dyn DraftSource>> {
    let http = Http::new(url, std::env::var(KEY_VARIABLE).ok());
    let (source, model): (Box<dyn DraftSource>, String) = match http.get("/v1/draft") {
        Ok(Reply { status: 200, body }) => native::open(http, &body, &language.vocabulary)?,
        Ok(Reply { status: 404 | 405 | 501, .. }) => llama::open(http, language)?,
        Ok(reply) => bail!("the draft at {url}: {}", reply.problem()),
        Err(problem) => bail!(Advice(message![
            OptionName::Draft.with(url),
            format!(": the server does not answer ({problem}): start it first, with "),
            "polydraft serve or llama-server",
        ])),
    };
    let context = source.context();
    listener.detail(&format!("draft: {model} at {url}, context of {context} tokens").into());
    Ok(source)
}

/// Returns a fingerprint of the strings of all tokens: two models with the same one have the same
/// tokens. Ids without a token at the end (padding of an embedding) do not change it.
pub fn fingerprint(vocabulary: &Vocabulary) -> String {
    let mut context = Context::new(&SHA256);
    let size = (0..vocabulary.size()).rev().find(|id| vocabulary.token(*id as u32).is_some());
    for id in 0..size.map_or(0, |last| last + 1) {
        match vocabulary.token(id as u32) {
            Some(text) => {
                context.update(&(text.len() as u64).to_le_bytes());
                context.update(text.as_bytes());
            }
            None => context.update(&u64::MAX.to_le_bytes()),
        }
    }
    let digest = context.finish();
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
