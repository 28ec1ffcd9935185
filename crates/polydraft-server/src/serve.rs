//! A server from a run's start to its end: the models, the port, and the signals that stop it.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use axum::http::{HeaderValue, Uri};
use polydraft_runtime::costs::Found;
use polydraft_runtime::message::OptionName;
use polydraft_runtime::{Listener, Run, SamplingOptions, Speculation, Usage, published};

use crate::api::shared::speculation::fits;
use crate::app::{Defaults, ServedModel};
use crate::fleet::{Described, Fleet};
use crate::http::guard::LOCAL;
use crate::http::server::Server;
use crate::options::{Offered, ServerOptions};
use crate::worker::CostsToUse;

/// The default token limit of a completion.
const COMPLETION: usize = 128;

/// Serves until SIGINT or SIGTERM. The port opens at once; requests wait until their model is
/// loaded.
///
/// # Errors
/// An address that cannot be had; what the first model fails with while it is loaded, a tree that
/// is too large for all requests among it.
pub fn serve(options: ServerOptions, listener: &'static (dyn Listener + Sync)) -> Result<()> {
    let (addresses, interrupted) = (options.addresses.clone(), options.interrupted);
    // What is ours, and not what libraries say. Another logger in this process stays.
    let _ = env_logger::Builder::new().filter_module("polydraft", options.log).try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()?;
    let fleet = Arc::new(fleet(options, listener));
    let failure = Arc::new(Mutex::new(None));
    let failed = failure.clone();
    let whole = runtime.block_on(async {
        let server = Server::listen(&addresses, fleet.clone()).await?;
        let at: Vec<String> =
            server.addresses()?.iter().map(|address| format!("http://{address}/v1")).collect();
        let mut stops = Stops::new()?;
        let (asked, stop) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut asked = Some(asked);
            loop {
                stops.next().await;
                match asked.take() {
                    Some(asked) => drop(asked.send(())),
                    None => polydraft_runtime::leave(interrupted.into()),
                }
            }
        });
        let (broke, broken) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            match fleet.load_first().await {
                Ok(()) => {
                    let note = format!("serving at {}; Ctrl-C stops", at.join(" and "));
                    listener.note(&note.into());
                    // Kept until the end: dropped, it would stop the server.
                    std::future::pending::<()>().await;
                }
                Err(error) => {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            }
            drop(broke);
        });
        let stop = async {
            let broken: std::result::Result<(), _> = tokio::select! {
                _ = stop => return,
                broken = broken => broken,
            };
            drop(broken);
        };
        anyhow::Ok(server.run(stop).await)
    });
    // A thread may still be busy, with a grammar for example, but its result is not needed; all
    // answers are sent.
    runtime.shutdown_background();
    if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(Arc::try_unwrap(error).unwrap_or_else(|error| anyhow!("{error:#}")));
    }
    if !whole? {
        listener.note(&"stopped before every answer was sent".into());
    }
    Ok(())
}

/// The models, none of which is loaded yet.
fn fleet(options: ServerOptions, listener: &'static (dyn Listener + Sync)) -> Fleet {
    let options = Arc::new(options);
    let describe = |offered: &Offered| {
        let Offered { mut names, description } = offered.clone();
        if names.is_empty() {
            names.push(description.models.target_name());
        }
        let bytes = description.models.weight_bytes();
        let (options, of_model) = (options.clone(), description);
        let load = move || {
            let run = Run::open(of_model.clone(), listener)?;
            served(run, &options, listener)
        };
        Described { names, bytes, load: Box::new(load) }
    };
    Fleet::new(options.models.iter().map(describe).collect(), options.clone())
}

/// What asks the server to stop: Ctrl-C, and where there are signals SIGTERM too.
#[cfg(unix)]
struct Stops {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Stops {
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
struct Stops(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Stops {
    fn new() -> std::io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// A loaded model, and the defaults of its requests.
fn served(mut run: Run, options: &ServerOptions, listener: &dyn Listener) -> Result<ServedModel> {
    if let Some(Speculation { tree, .. }) = &run.settings.speculation {
        fits(tree, run.models.engine.info().vocabulary.size()).map_err(|problem| {
            let message = format!("the tree of all requests: {problem}").into();
            Usage::unknown(OptionName::Tree, message)
        })?;
    }
    // Where the tree is another one, a request may ask for the adaptive one all the same.
    let costs = match run.known_costs()? {
        // Measuring takes a sequence besides those of requests.
        Some(Found::Unknown(measuring)) if run.models.engine.sequences() > 1 => {
            CostsToUse::Measuring(measuring)
        }
        Some(found) => CostsToUse::Known(found.costs(&mut run.models.engine, listener)?),
        None => CostsToUse::default(),
    };
    let speculation = run.settings.speculation.clone();
    let acceptance = run.description.acceptance()?;
    let given = &run.description.sampling;
    let makers = match options.ignore_published || run.models.language.chat.is_none() {
        true => given.clone(),
        false => published(given.clone(), &run.models, listener),
    };
    let language = run.models.language;
    let defaults = |sampling: &SamplingOptions, most: usize, end: Vec<polydraft::Token>| Defaults {
        sampling: sampling.clone(),
        max_tokens: Some(options.max_tokens.unwrap_or(most)).filter(|most| *most > 0),
        stop: options.stop.clone(),
        end_tokens: if options.ignore_end { Vec::new() } else { end },
    };
    let completions = defaults(given, COMPLETION, language.end_tokens.clone());
    let chat = defaults(&makers, 0, language.answer_end_tokens());
    let engine = run.models.engine;
    let tokens = options
        .cache_memory
        // Half of what there is: sequences are not all that needs memory.
        .or_else(|| polydraft_runtime::available_memory().map(|memory| memory / 2))
        .map_or(usize::MAX, |memory| {
            let states = engine.state_bytes().saturating_mul(engine.sequences() as u64);
            // Seldom are as many sequences open as may be.
            let memory = memory.saturating_sub(states).max(memory / 2);
            usize::try_from(memory / engine.token_bytes().max(1)).unwrap_or(usize::MAX)
        });
    let tokens = engine.room().map_or(tokens, |room| room.min(tokens));
    // The demo pair's draft is not named, but has a name.
    let draft = run.models.draft.or_else(|| engine.drafter().map(str::to_owned));
    let learned = run.models.learned;
    Ok(ServedModel {
        engine,
        language,
        draft,
        learned,
        speculation,
        acceptance,
        costs,
        completions,
        chat,
        tokens,
    })
}

/// Where a page is from, as a browser says it, or `*`, or `localhost` for any port of it.
///
/// # Errors
/// What is neither.
pub fn origin(text: &str) -> Result<String, String> {
    let uri = text.parse::<Uri>().unwrap_or_default();
    let said =
        uri.scheme_str().zip(uri.authority()).map(|(scheme, host)| format!("{scheme}://{host}"));
    match ["*", LOCAL].contains(&text)
        || said.is_some_and(|said| said == text && said.to_lowercase() == said)
    {
        true => Ok(text.to_owned()),
        false => {
            Err("expected '*', 'localhost', or scheme and host as browsers say them, such as \
                      https://example.org or http://localhost:3000"
                .to_owned())
        }
    }
}

/// Whether a key can be sent in a header.
pub fn is_key(key: &str) -> bool {
    // A key that a header cannot carry could never be sent.
    key.trim() == key && HeaderValue::from_str(key).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_say_them() {
        for right in [
            "*",
            "localhost",
            "https://example.org",
            "http://localhost:3000",
            "http://[::1]:80",
            "app://here",
        ] {
            assert_eq!(origin(right), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "example.org",
            "https://example.org/",
            "https://Example.org",
            "http://a b",
            "https://a/b",
            "null",
        ] {
            assert!(origin(wrong).unwrap_err().contains("https://example.org"), "{wrong}");
        }
    }
}
