//! Runs a server: loads the models, opens the port, and stops on signals.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use axum::http::{HeaderValue, Uri};
use polydraft_runtime::message::OptionName;
use polydraft_runtime::{
    Listener, Run, SamplingOptions, Speculation, Usage, with_published_sampling,
};

use crate::api::check_defaults;
use crate::api::shared::speculation::check_tree_size;
use crate::http::guard::LOCALHOST;
use crate::http::server::Server;
use crate::loaded_model::{Defaults, ServedModel};
use crate::models::{ModelEntry, Models};
use crate::options::{OfferedModel, ServerOptions};
use crate::request_log::{self, LogFormat, LogListener};

/// Default token limit of a completion.
const DEFAULT_COMPLETION_TOKENS: usize = 128;

/// Serves until SIGINT or SIGTERM. The port opens at once; requests wait until their model is
/// loaded.
///
/// # Errors
/// An address that cannot be bound; missing files of any model; errors of loading the first model,
/// including a tree that is too large for all requests, and default parameters that no request can
/// have.
pub fn serve(options: ServerOptions, listener: &'static (dyn Listener + Sync)) -> Result<()> {
    for offered in options.models.iter().skip(1) {
        let context = || format!("model {}", offered.names.join(", "));
        offered.description.check().with_context(context)?;
    }
    let (addresses, interrupted) = (options.addresses.clone(), options.interrupted_exit_code);
    request_log::start(options.log_level, options.log_format);
    let listener = match options.log_format {
        LogFormat::Text => listener,
        LogFormat::Json => &LogListener,
    };
    let is_open = |address: &&SocketAddr| !address.ip().is_loopback();
    if let (None, Some(open)) = (&options.api_key, addresses.iter().find(is_open)) {
        let note = format!(
            "every client that reaches {} can use this server, because it requires no API key",
            open.ip()
        );
        listener.note(&note.into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()?;
    let models = Arc::new(models(options, listener));
    let failure = Arc::new(Mutex::new(None));
    let failed = failure.clone();
    let all_sent = runtime.block_on(async {
        let server = Server::listen(&addresses, models.clone()).await?;
        let addresses_text: Vec<String> =
            server.addresses()?.iter().map(|address| format!("http://{address}/")).collect();
        let mut signals = StopSignals::new()?;
        let (stop_sender, stop) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut stop_sender = Some(stop_sender);
            loop {
                signals.next().await;
                match stop_sender.take() {
                    Some(stop_sender) => drop(stop_sender.send(())),
                    None => polydraft_runtime::leave(interrupted.into()),
                }
            }
        });
        let (failure_sender, failure) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            match load_first(&models).await {
                Ok(()) => {
                    let pages = addresses_text.join(" and ");
                    let apis: Vec<_> =
                        addresses_text.iter().map(|page| page.clone() + "v1").collect();
                    let note =
                        format!("serving at {pages} (API: {}); Ctrl-C stops", apis.join(" and "));
                    listener.note(&note.into());
                    // Keep `failure_sender`: dropping it would stop the server.
                    std::future::pending::<()>().await;
                }
                Err(error) => {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            }
            drop(failure_sender);
        });
        let stop = async {
            let failure: std::result::Result<(), _> = tokio::select! {
                _ = stop => return,
                failure = failure => failure,
            };
            drop(failure);
        };
        anyhow::Ok(server.run(stop).await)
    });
    // A thread may still be busy, for example with a grammar, but all answers are sent and its
    // result is not needed.
    runtime.shutdown_background();
    if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(Arc::try_unwrap(error).unwrap_or_else(|error| anyhow!("{error:#}")));
    }
    if !all_sent? {
        listener.note(&"stopped before all answers were sent".into());
    }
    Ok(())
}

/// Loads the first model, and checks the default parameters of requests with it.
async fn load_first(models: &Models) -> Result<(), Arc<anyhow::Error>> {
    let Some(model) = models.load_first().await? else { return Ok(()) };
    let checked = tokio::task::spawn_blocking(move || check_defaults(&model)).await;
    let checked = checked.unwrap_or_else(|error| Err(anyhow!("{error}")));
    checked.map_err(Arc::new)
}

/// Describes the models; none is loaded yet.
fn models(options: ServerOptions, listener: &'static (dyn Listener + Sync)) -> Models {
    let options = Arc::new(options);
    let entry = |offered: &OfferedModel| {
        let OfferedModel { mut names, description } = offered.clone();
        if names.is_empty() {
            names.push(description.models.target_name());
        }
        let bytes = description.models.weight_bytes();
        let (options, description) = (options.clone(), description);
        let load = move || {
            let run = Run::open(description.clone(), listener)?;
            into_served_model(run, &options, listener)
        };
        ModelEntry { names, bytes, load: Box::new(load) }
    };
    Models::new(options.models.iter().map(entry).collect(), options.clone())
}

/// Signals that stop the server: Ctrl-C, and SIGTERM on Unix.
#[cfg(unix)]
struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl StopSignals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }
}

#[cfg(windows)]
struct StopSignals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl StopSignals {
    fn new() -> std::io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Returns a loaded model and the defaults of its requests.
fn into_served_model(
    mut run: Run,
    options: &ServerOptions,
    listener: &dyn Listener,
) -> Result<ServedModel> {
    if let Some(Speculation { tree, .. }) = &run.settings.speculation {
        check_tree_size(tree, run.models.engine.info().vocabulary.size()).map_err(|problem| {
            let message = format!("the tree of all requests: {problem}").into();
            Usage::unknown(OptionName::Tree, message)
        })?;
    }
    // Requests may ask for an adaptive tree even if the default tree is another one.
    let costs = run.costs(listener)?;
    let speculation = run.settings.speculation.clone();
    let acceptance = run.description.acceptance()?;
    let configured = &run.description.sampling;
    let usual = !options.ignore_published_sampling && run.models.language.chat.is_some();
    let published_sampling = match usual {
        true => with_published_sampling(configured.clone(), &run.models, listener),
        false => configured.clone(),
    };
    let language = run.models.language;
    let defaults = |sampling: &SamplingOptions,
                    max_tokens: usize,
                    end_tokens: Vec<polydraft::Token>| Defaults {
        sampling: sampling.clone(),
        usual_sampling: false,
        max_tokens: Some(options.max_tokens.unwrap_or(max_tokens))
            .filter(|max_tokens| *max_tokens > 0),
        stop: options.stop.clone(),
        end_tokens: if options.ignore_end_tokens { Vec::new() } else { end_tokens },
    };
    let completions = defaults(configured, DEFAULT_COMPLETION_TOKENS, language.end_tokens.clone());
    let chat = defaults(&published_sampling, 0, language.answer_end_tokens());
    let chat = Defaults { usual_sampling: usual, ..chat };
    let engine = run.models.engine;
    let tokens = options
        .cache_memory
        // Half of the free memory: sequences are not all that needs memory.
        .or_else(|| polydraft_runtime::available_memory().map(|memory| memory / 2))
        .map_or(usize::MAX, |memory| {
            let states = engine.state_bytes().saturating_mul(engine.max_sequences() as u64);
            // Rarely are all sequences open at once.
            let memory = memory.saturating_sub(states).max(memory / 2);
            usize::try_from(memory / engine.token_bytes().max(1)).unwrap_or(usize::MAX)
        });
    let tokens = engine.token_capacity().map_or(tokens, |room| room.min(tokens));
    // The demo pair's draft was not given by name, but has one.
    let draft = run.models.draft.or_else(|| engine.drafter_name().map(str::to_owned));
    let table_saver = run.models.table_saver;
    Ok(ServedModel {
        engine,
        language,
        draft,
        table_saver,
        speculation,
        acceptance,
        costs,
        completions,
        chat,
        tokens,
    })
}

/// Parses an origin as browsers send it, or `*`, or `localhost` for any of its ports.
///
/// # Errors
/// Any other string.
pub fn parse_origin(text: &str) -> Result<String, String> {
    let uri = text.parse::<Uri>().unwrap_or_default();
    let normalized =
        uri.scheme_str().zip(uri.authority()).map(|(scheme, host)| format!("{scheme}://{host}"));
    match ["*", LOCALHOST].contains(&text)
        || normalized
            .is_some_and(|normalized| normalized == text && normalized.to_lowercase() == normalized)
    {
        true => Ok(text.to_owned()),
        false => {
            Err("expected '*', 'localhost', or scheme and host as browsers send them, such as \
                      https://example.org or http://localhost:3000"
                .to_owned())
        }
    }
}

/// Returns whether a key can be sent in a header.
pub fn is_valid_key(key: &str) -> bool {
    key.trim() == key && HeaderValue::from_str(key).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_origins_as_browsers_send_them() {
        for valid in [
            "*",
            "localhost",
            "https://example.org",
            "http://localhost:3000",
            "http://[::1]:80",
            "app://here",
        ] {
            assert_eq!(parse_origin(valid), Ok(valid.to_owned()));
        }
        for invalid in [
            "",
            "example.org",
            "https://example.org/",
            "https://Example.org",
            "http://a b",
            "https://a/b",
            "null",
        ] {
            assert!(
                parse_origin(invalid).unwrap_err().contains("https://example.org"),
                "{invalid}"
            );
        }
    }
}
