//! `polydraft serve`: the command.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::http::{HeaderValue, Uri};
use clap::builder::NonEmptyStringValueParser;
use polydraft_options::ends::EndArgs;
use polydraft_options::models::ModelArgs;
use polydraft_options::output::{Usage, Verbosity, note, says};
use polydraft_options::sampling::SamplingArgs;
use polydraft_options::speculation::{Speculation, SpeculationArgs};
use polydraft_options::{conversation, costs};
use tokio::signal::unix::{SignalKind, signal};

use crate::api::speculation::fits;
use crate::app::{Defaults, Served, Settings};
use crate::http::server::Server;
use crate::worker::Capacity;

/// Serve models over HTTP, with OpenAI's interface.
///
/// Requests are decoded together, one pass of the target for all of them, and each has exactly the
/// law, and with a seed exactly the text, that it has alone. What a request does not say is as the
/// options here say. Ctrl-C or SIGTERM let what is at work end; a second one ends it at once.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft serve                                       # the demo pair, on http://127.0.0.1:8000/v1
  polydraft serve --target models/qwen3-8b --draft models/qwen3-0.6b --parallel 8
  polydraft serve --host 0.0.0.0 --api-key-file key.txt
  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"fn main() {\", \"max_tokens\": 32}'")]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    texts: TextArgs,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// The address to listen on; 0.0.0.0 is all of this machine's, which others may reach.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port to listen on; 0 takes any that is free, and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// The model's name for clients [default: that of its directory or file].
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// What clients must send as 'Authorization: Bearer KEY' [default: POLYDRAFT_API_KEY in the
    /// environment, if it is there, which other users of the machine cannot see].
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// A file whose first line is the key.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Pages from here may ask, such as https://example.org; '*' is from anywhere. May be repeated.
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors: Vec<String>,
    /// Texts that are decoded together at most.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    parallel: u32,
    /// Requests that may wait besides; more are sent away with status 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// Memory for keys and values of the texts that are at work, in MiB: a request waits until what
    /// it may need is free. What is kept of texts that have ended comes on top, up to 1 GiB each
    /// for target and draft [default: half of what is free at the start].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    cache_memory: Option<u64>,
    /// Bytes of a request's body at most.
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    max_body: u32,
    /// Seconds that a stop gives requests to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
struct TextArgs {
    /// Tokens of a text at most, where the request does not say; 0 is up to the context's end
    /// [default: 128 for completions, 0 for conversations].
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    #[command(flatten)]
    ends: EndArgs,
    /// Leave the sampling settings of generation_config.json alone, which are else the defaults of
    /// conversations.
    #[arg(long)]
    ignore_published: bool,
}

/// Tokens of a completion where nobody says.
const COMPLETION: usize = 128;

/// Serves until it is told to stop.
///
/// # Errors
/// Options that contradict each other; models that cannot be loaded; an address that cannot be had.
pub fn run(args: Args) -> Result<()> {
    let key = args.server.key()?;
    let (served, settings) = args.serve(key)?;
    let level = match (says(Verbosity::Verbose), says(Verbosity::Normal)) {
        (true, _) => tracing::Level::DEBUG,
        (false, true) => tracing::Level::INFO,
        (false, false) => tracing::Level::ERROR,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // Whoever else logs in this process goes on doing so.
    let _ = log.try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()?;
    let address = SocketAddr::new(args.server.host, args.server.port);
    let whole = runtime.block_on(async {
        let server = Server::start(address, served, settings).await;
        let server = server.with_context(|| format!("cannot listen on {address}"))?;
        note(format_args!("serving at http://{}/v1; Ctrl-C stops", server.address()?));
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (asked, stop) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut asked = Some(asked);
            loop {
                tokio::select! {
                    _ = interrupt.recv() => (),
                    _ = terminate.recv() => (),
                }
                match asked.take() {
                    Some(asked) => drop(asked.send(())),
                    None => polydraft_llama::leave(polydraft_options::interrupts::EXIT_CODE.into()),
                }
            }
        });
        anyhow::Ok(server.run(async { stop.await.unwrap_or_default() }).await)
    });
    // Nobody waits any more for what a thread may still be busy with, such as a grammar; what was
    // to be sent is sent.
    runtime.shutdown_background();
    if !whole? {
        note("stopped before every answer was sent");
    }
    Ok(())
}

/// Where a page is from, as a browser says it.
fn origin(text: &str) -> Result<String, String> {
    let uri = text.parse::<Uri>().unwrap_or_default();
    let said =
        uri.scheme_str().zip(uri.authority()).map(|(scheme, host)| format!("{scheme}://{host}"));
    match text == "*" || said.is_some_and(|said| said == text && said.to_lowercase() == said) {
        true => Ok(text.to_owned()),
        false => {
            Err("expected '*', or scheme and host as browsers say them, such as https://example.org or \
                      http://localhost:3000"
                .to_owned())
        }
    }
}

impl ServerArgs {
    fn key(&self) -> Result<Option<String>> {
        let from_file = |file: &PathBuf| {
            let text = polydraft_files::read_text(file, polydraft_files::Kind::SETTINGS)
                .with_context(|| format!("cannot read the API key {}", file.display()))?;
            anyhow::Ok(text.lines().next().unwrap_or_default().trim().to_owned())
        };
        let key = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Some(key.clone()),
            (None, Some(file)) => Some(from_file(file)?),
            (None, None) => std::env::var("POLYDRAFT_API_KEY").ok(),
        };
        if key.as_ref().is_some_and(String::is_empty) {
            return Err(Usage::error("the API key is empty"));
        }
        // What a header cannot carry nobody could show.
        if key.as_ref().is_some_and(|key| key.trim() != key || HeaderValue::from_str(key).is_err())
        {
            return Err(Usage::error(
                "the API key has blanks around it, or line ends or the like in it",
            ));
        }
        if key.is_none() && !self.host.is_loopback() {
            note(format_args!(
                "note: anybody who reaches {} may use this server: there is no --api-key",
                self.host
            ));
        }
        Ok(key)
    }
}

impl Args {
    /// Loads what is to be served.
    fn serve(&self, key: Option<String>) -> Result<(Served, Settings)> {
        let acceptance = self.models.demo_acceptance();
        let mut speculation =
            self.speculation.speculation(&self.sampling, acceptance.as_deref())?;
        let mut models = self.models.load(speculation.is_some())?;
        let target = self.sampling.target();
        let costs = match &mut speculation {
            Some(Speculation { verifier, tree, sampling }) => {
                fits(tree, models.engine.facts().vocabulary.size()).map_err(|problem| {
                    Usage::error(format!("the tree of all requests: {problem}"))
                })?;
                // Where the tree is another one, a request may ask for one that chooses itself all
                // the same.
                let file = self.speculation.costs();
                let costs =
                    costs::find(file, &self.models, &mut models, [&target, sampling], verifier)?;
                if let Some(auto) = tree.auto_mut() {
                    auto.costs = costs.clone();
                }
                costs
            }
            None => Default::default(),
        };
        let language = models.language;
        let bytes = models.engine.token_bytes();
        let tokens = self
            .server
            .cache_memory
            .map(|mib| mib << 20)
            // Half of what there is: texts are not all that needs memory.
            .or_else(|| self.models.available_memory().map(|memory| memory / 2))
            .map_or(usize::MAX, |memory| {
                usize::try_from(memory / bytes.max(1)).unwrap_or(usize::MAX)
            });
        let capacity = Capacity {
            texts: self.server.parallel as usize,
            tokens: models.engine.room().map_or(tokens, |room| room.min(tokens)),
            queue: self.server.queue,
        };
        let defaults = |sampling, most: usize, end: Vec<polydraft::Token>| Defaults {
            sampling,
            max_tokens: Some(self.texts.max_tokens.unwrap_or(most)).filter(|most| *most > 0),
            stop: self.texts.ends.stop(),
            end_tokens: self.texts.ends.tokens(end),
        };
        let published = match self.texts.ignore_published || language.chat.is_none() {
            true => self.sampling.clone(),
            false => conversation::published(self.sampling.clone(), &language.sampling),
        };
        let completions = defaults(self.sampling.clone(), COMPLETION, language.end_tokens.clone());
        let chat = defaults(published, 0, language.answer_end_tokens());
        let settings = Settings {
            capacity,
            key,
            origins: self.server.cors.clone(),
            body: self.server.max_body as usize,
            grace: Duration::from_secs(self.server.grace),
        };
        let name = self.server.name.clone().unwrap_or_else(|| language.name.clone());
        let engine = models.engine;
        // The demo pair's draft is not named, but has a name.
        let draft = models.draft.or_else(|| engine.drafter().map(str::to_owned));
        Ok((
            Served { engine, language, name, draft, speculation, costs, completions, chat },
            settings,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_say_them() {
        for right in
            ["*", "https://example.org", "http://localhost:3000", "http://[::1]:80", "app://here"]
        {
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
