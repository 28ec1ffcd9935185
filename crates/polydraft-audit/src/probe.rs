//! Detection of a server's capabilities with a few requests.

use serde_json::{Value, json};

use crate::Listener;
use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::journal::Reply;
use crate::server::{
    Capabilities, Detail, Dialect, Grammar, Prompt, Request, Server, error_message, is_end,
};
use crate::setting::{Setting, is_prefix_of_words};

/// Numbers of most probable tokens to try, largest first.
const TOPS: [usize; 4] = [20, 10, 5, 1];
/// Prompt of the probing requests.
const PROMPT: &str = "The";

/// Connects to a server and detects its capabilities.
pub fn probe(client: Client, model: Option<String>, listener: &dyn Listener) -> Result<Server> {
    let model = match model {
        Some(model) => model,
        None => first_model(&client)?,
    };
    let mut server = Server::new(client, model, UNKNOWN);
    probe_capabilities(&mut server, listener)?;
    Ok(server)
}

/// Initial capabilities.
const UNKNOWN: Capabilities = Capabilities {
    dialect: Dialect::Completions,
    top_k_off: None,
    top: 0,
    ids: false,
    ids_alone: false,
    echo: false,
    processed: false,
};

/// Probes a server again with tokens identified by their texts, for comparison with a server that
/// returns no ids.
pub fn use_token_text(server: &mut Server, listener: &dyn Listener) -> Result<()> {
    server.use_token_text = true;
    server.capabilities = UNKNOWN;
    probe_capabilities(server, listener)
}

fn probe_capabilities(server: &mut Server, listener: &dyn Listener) -> Result<()> {
    if !completions(server, listener)? {
        server.capabilities.dialect = Dialect::Chat;
        let request = Request::new(Prompt::Text(PROMPT.to_owned()), 2, Setting::default());
        if let Some(refusal) = refused(server, &request, listener)? {
            return Err(Error::Untestable(format!(
                "neither /v1/completions nor /v1/chat/completions accepts a plain request: \
                 {refusal}"
            )));
        }
        return Ok(());
    }
    if !server.use_token_text && (!server.capabilities.ids || !server.capabilities.ids_alone) {
        llama(server, listener)?;
    }
    if server.capabilities.top > 0
        && !server.capabilities.ids
        && !token_strings_join(server, listener)?
    {
        listener.note(
            "the strings of tokens do not add up to the answer: log-probabilities are not used",
        );
        server.capabilities.top = 0;
    }
    if server.capabilities.top > 0 {
        server.capabilities.processed = processed(server, listener)?;
        server.capabilities.echo = echo(server, listener)?;
    }
    Ok(())
}

fn first_model(client: &Client) -> Result<String> {
    let url = client.url("/v1/models");
    let text = client
        .get("/v1/models")
        .map_err(|reason| Error::Unreachable { url: url.clone(), reason })?;
    let models: Value = serde_json::from_str(&text)
        .map_err(|error| Error::Unreadable { url, reason: error.to_string() })?;
    let models: Vec<&str> =
        models["data"].as_array().into_iter().flatten().filter_map(|m| m["id"].as_str()).collect();
    match models.as_slice() {
        [] => Err(Error::Untestable("the server lists no models".to_owned())),
        [only] => Ok((*only).to_owned()),
        several => Err(Error::Untestable(format!(
            "the server has several models; choose one (model): {}",
            several.join(", ")
        ))),
    }
}

/// Returns the reason why the server rejects a request, or `None` if it accepts it.
fn refused(server: &Server, request: &Request, listener: &dyn Listener) -> Result<Option<String>> {
    let reply = server.client.send(&server.call(request), listener)?;
    Ok(match reply {
        Reply::Body(_) => None,
        Reply::Status(status, body) => Some(format!("status {status}: {}", error_message(&body))),
    })
}

/// Returns whether the server has completions, and detects their parameters.
fn completions(server: &mut Server, listener: &dyn Listener) -> Result<bool> {
    let plain = Request::new(Prompt::Text(PROMPT.to_owned()), 2, Setting::default());
    // All parameters first, then fewer and fewer.
    for (ids, top_k_off) in
        [(true, Some(0)), (true, Some(-1)), (false, Some(0)), (false, Some(-1)), (false, None)]
    {
        if ids && server.use_token_text {
            continue;
        }
        server.capabilities.ids = ids;
        server.capabilities.top_k_off = top_k_off;
        match refused(server, &plain, listener)? {
            None => {
                tokens(server, listener)?;
                return Ok(true);
            }
            Some(reason) if reason.starts_with("status 404") => return Ok(false),
            Some(_) => {}
        }
    }
    Ok(false)
}

/// Detects how tokens and log-probabilities are returned.
fn tokens(server: &mut Server, listener: &dyn Listener) -> Result<()> {
    let mut request = Request::new(Prompt::Text(PROMPT.to_owned()), 2, Setting::default());
    server.capabilities.ids_alone = true;
    let answer = server.request(&request, listener)?;
    server.capabilities.ids_alone = answer.first().tokens.len() == 2;
    request.detail = Detail::Logprobs;
    for top in TOPS {
        server.capabilities.top = top;
        let call = server.call(&request);
        let reply = server.client.send(&call, listener)?;
        if let Ok(answer) = server.read(&call, &reply)
            && let Some(token) = answer.first().tokens.first()
        {
            let ids = matches!(token.key, crate::answer::Key::Id(_));
            server.capabilities.ids = ids;
            server.capabilities.ids_alone &= ids;
            // Some servers return fewer than requested without an error.
            server.capabilities.top = token.top.len().min(top);
            if !token.top.is_empty() {
                return Ok(());
            }
        }
    }
    server.capabilities.top = 0;
    server.capabilities.ids = server.capabilities.ids_alone;
    Ok(())
}

/// Detects llama.cpp's server, whose own interface returns ids.
fn llama(server: &mut Server, listener: &dyn Listener) -> Result<()> {
    let body = json!({ "prompt": PROMPT, "n_predict": 1, "n_probs": TOPS[0],
        "return_tokens": true });
    let call = Call { path: "/completion", body };
    let reply = server.client.send(&call, listener)?;
    let Ok(answer) = server.read(&call, &reply) else { return Ok(()) };
    let first = answer.first();
    let Some(token) = first.tokens.first() else { return Ok(()) };
    if matches!(token.key, crate::answer::Key::Id(_)) && !token.top.is_empty() {
        let top = token.top.len();
        server.capabilities = Capabilities {
            dialect: Dialect::Llama,
            top_k_off: Some(0),
            top,
            ids: true,
            ids_alone: true,
            echo: false,
            processed: false,
        };
    }
    Ok(())
}

/// Returns whether the strings of tokens add up to their answer: some tokenizers drop the leading
/// space of a token that is decoded alone, so its prefix cannot be requested as text.
fn token_strings_join(server: &Server, listener: &dyn Listener) -> Result<bool> {
    let greedy = Setting { temperature: 0.0, ..Setting::default() };
    let answer =
        server.request(&Request::new(Prompt::Text(PROMPT.to_owned()), 16, greedy), listener)?;
    let choice = answer.first();
    let strings = choice.tokens.iter().map(|token| token.text.as_str());
    let joined: String = strings.filter(|text| !is_end(text)).collect();
    // A token that is part of a character has no text by itself.
    let is_complete = |text: &str| !text.contains(char::REPLACEMENT_CHARACTER);
    Ok(joined.trim() == choice.text.trim() || !is_complete(&joined) || !is_complete(&choice.text))
}

/// Returns whether log-probabilities change with the temperature.
fn processed(server: &Server, listener: &dyn Listener) -> Result<bool> {
    let at = |temperature: f64| {
        let setting = Setting { temperature, ..Setting::default() };
        let request = Request::new(Prompt::Text(PROMPT.to_owned()), 1, setting);
        Request { detail: Detail::Logprobs, ..request }
    };
    let answers = server.send_all(&[at(1.0), at(0.4)], 1, listener)?;
    let top = |at: usize| {
        let token = answers[at].first().tokens.first().cloned();
        token.and_then(|token| token.top.first().map(|top| top.logprob))
    };
    Ok(top(0).zip(top(1)).is_some_and(|(one, other)| (one - other).abs() > 0.05))
}

/// Tokenizes a text, if the server can.
pub fn tokenize(server: &Server, text: &str, listener: &dyn Listener) -> Result<Option<Vec<u32>>> {
    // vLLM and polydraft return a prompt's tokens with the answer.
    if server.capabilities.dialect == Dialect::Completions {
        let request = Request::new(Prompt::Text(text.to_owned()), 1, Setting::default());
        let answer = server.request(&request, listener)?;
        if !answer.prompt.is_empty() {
            return Ok(Some(answer.prompt));
        }
    }
    let body = json!({ "model": server.model, "prompt": text, "content": text,
        "add_special": true, "add_special_tokens": true });
    let reply = server.client.send(&Call { path: "/tokenize", body }, listener)?;
    let Reply::Body(body) = reply else { return Ok(None) };
    let ids = body["tokens"].as_array().into_iter().flatten();
    let ids: Vec<u32> = ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect();
    Ok((!ids.is_empty()).then_some(ids))
}

/// Returns whether prompts come back with log-probabilities.
fn echo(server: &Server, listener: &dyn Listener) -> Result<bool> {
    if server.capabilities.dialect != Dialect::Completions {
        return Ok(false);
    }
    let request = Request::new(Prompt::Text(format!("{PROMPT} {PROMPT}")), 1, Setting::default());
    let call = server.call(&Request { detail: Detail::Logprobs, echo: true, ..request });
    let reply = server.client.send(&call, listener)?;
    let Ok(answer) = server.read(&call, &reply) else { return Ok(false) };
    let tokens = answer.first().tokens;
    let prompt = answer.usage.map_or(usize::MAX, |(prompt, _)| prompt);
    // The first token has no prefix.
    Ok(tokens.len() == prompt.saturating_add(1)
        && tokens.iter().skip(1).all(|token| !token.top.is_empty()))
}

/// Result of the search for the form in which a server accepts a regular expression.
pub enum GrammarForm {
    /// The server applies this form.
    Applied(Grammar),
    /// The server accepts this form, and ignores it.
    Ignored(Grammar),
    /// The server rejects all forms.
    Rejected,
}

/// Requests of one token that all obey a grammar if it is applied. A server that ignores it gives
/// an improbable word so often only by a rare chance.
const OBEYING: usize = 8;

/// Finds the form in which the server accepts a regular expression. `request` has words that the
/// model rarely begins with, and asks for one token, which involves no draft.
pub fn grammar(server: &Server, request: &Request, listener: &dyn Listener) -> Result<GrammarForm> {
    let tried: &[Grammar] = match server.capabilities.dialect {
        Dialect::Completions => &[Grammar::Structured, Grammar::Guided, Grammar::Regex],
        Dialect::Llama => &[Grammar::Gbnf],
        Dialect::Chat => &[],
    };
    let words = &request.setting.words;
    let obeys = |text: &str| !text.is_empty() && is_prefix_of_words(words, text);
    let mut found = GrammarForm::Rejected;
    for grammar in tried {
        let call = server.grammar_call(request, *grammar);
        let replies = server.client.send_all(&vec![call.clone(); OBEYING], usize::MAX, listener)?;
        let answers: Vec<_> =
            replies.iter().filter_map(|reply| server.read(&call, reply).ok()).collect();
        match answers.iter().all(|answer| obeys(&answer.first().text)) {
            _ if answers.len() < OBEYING => {}
            true => return Ok(GrammarForm::Applied(*grammar)),
            false => found = GrammarForm::Ignored(*grammar),
        }
    }
    Ok(found)
}
