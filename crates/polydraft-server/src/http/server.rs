//! Connections: accepted, limited in number and time, and ended in order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use super::routes;
use crate::app::{App, ServedModel, Settings};
use crate::telemetry::Telemetry;
use crate::worker;

/// How long a client may take to send the head of a request, and to take what it is sent. The first
/// is also how long a connection may lie idle between two requests: hyper has one timeout for both.
const HEAD: Duration = Duration::from_secs(10);
const WRITE: Duration = Duration::from_secs(60);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;
/// Connections at once.
const CONNECTIONS: usize = 1024;
/// How long measured times are stored one by one, whether or not `/metrics` is read.
const SUM_UP: Duration = Duration::from_secs(1);
/// What connections get after the engine is done, to send what there is.
const FLUSH: Duration = Duration::from_secs(5);

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
    engine: std::thread::JoinHandle<()>,
}

impl Server {
    /// Starts the engine's thread, and listens. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// An address that cannot be had; no thread left.
    pub async fn start(
        address: SocketAddr,
        served: ServedModel,
        settings: Settings,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let ServedModel { engine, language, name, draft, speculation, costs, completions, chat } =
            served;
        let (context, vocabulary) = (engine.info().context, engine.info().vocabulary.size());
        let begins = engine.info().begins;
        let mut limits = settings.capacity;
        limits.texts = limits.texts.min(engine.sequences()).max(1);
        let telemetry = Telemetry::new();
        let (desk, engine) = worker::start(engine, language.clone(), limits, telemetry.clone())?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let app = App {
            name,
            language,
            draft,
            speculation,
            costs,
            completions,
            chat,
            context,
            vocabulary,
            begins,
            limits,
            settings,
            grammars: Default::default(),
            forming: Arc::new(Semaphore::new(1)),
            desk,
            telemetry,
            started,
        };
        Ok(Self { listener, app: Arc::new(app), engine })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is there: then nothing new is taken, and running requests may end within
    /// the grace period; the others get an error. Returns whether all have ended.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let Self { listener, app, engine } = self;
        let (desk, grace, telemetry) =
            (app.desk.clone(), app.settings.grace, app.telemetry.clone());
        let service = TowerToHyperService::new(routes::router(app));
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
        let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS)));
        let mut sum_up = tokio::time::interval(SUM_UP);
        tokio::pin!(stop);
        loop {
            let accepted = async {
                // Closed never.
                let place = places.clone().acquire_owned().await;
                (listener.accept().await, place)
            };
            let (stream, place) = tokio::select! {
                () = &mut stop => break,
                _ = sum_up.tick() => {
                    telemetry.sum_up();
                    continue;
                }
                (accepted, place) = accepted => match accepted {
                    Ok((stream, _)) => (stream, place),
                    Err(error) => {
                        // As a rule too many open files: others must be closed first.
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
            };
            let connection =
                server.serve_connection(TokioIo::new(limited(stream)), service.clone());
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                // What goes wrong on a connection is its client's affair.
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection broke");
                }
                drop(place);
            });
        }
        drop(listener);
        tracing::info!(requests = desk.present(), "stopping");
        desk.stop(grace);
        let ended = tokio::task::spawn_blocking(move || engine.join().is_ok());
        let whole = ended.await.unwrap_or(false);
        whole && tokio::time::timeout(FLUSH, graceful.shutdown()).await.is_ok()
    }
}

/// A client that takes nothing for too long is not waited for.
fn limited(stream: TcpStream) -> std::pin::Pin<Box<TimeoutStream<TcpStream>>> {
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE));
    Box::pin(stream)
}
