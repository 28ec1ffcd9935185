//! Connections: accepted, limited in number and time, and ended in order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use super::routes;
use crate::app::{ServedModel, Settings};
use crate::fleet::Fleet;

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
    fleet: Arc<Fleet>,
}

impl Server {
    /// Listens, with one loaded model of this name. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// An address that cannot be had; no thread left.
    pub async fn start(
        address: SocketAddr,
        served: ServedModel,
        names: Vec<String>,
        settings: Settings,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { listener, fleet: Arc::new(Fleet::of_loaded(served, names, settings.into())?) })
    }

    /// Listens, with models that are still to be loaded.
    ///
    /// # Errors
    /// An address that cannot be had.
    pub(crate) async fn listen(address: SocketAddr, fleet: Arc<Fleet>) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await?, fleet })
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
        let Self { listener, fleet } = self;
        let (grace, unload_after) = (fleet.settings().grace, fleet.settings().unload_after);
        let service = TowerToHyperService::new(routes::router(fleet.clone()));
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
                    fleet.metrics().sum_up();
                    unload_after.into_iter().for_each(|after| fleet.unload_idle(after));
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
        let whole = fleet.stop(grace).await;
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
