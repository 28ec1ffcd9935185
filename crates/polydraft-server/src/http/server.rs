//! Connections: accepts them, limits their number and time, and closes them in order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::select_all;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use super::routes;
use crate::loaded_model::ServedModel;
use crate::models::Models;
use crate::options::ServerOptions;

/// Timeouts of a client for sending the head of a request and for receiving what is written. The
/// first also limits idle time between two requests: hyper has one timeout for both.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 1024;
/// Interval of checks for idle models.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for connections to flush after the engine has stopped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A server that listens.
pub struct Server {
    /// Listeners, at least one.
    listeners: Vec<TcpListener>,
    models: Arc<Models>,
}

impl Server {
    /// Binds an address to serve one loaded model under these names. Connections wait until
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// The address cannot be bound, or the engine thread cannot be started.
    pub async fn start(
        address: SocketAddr,
        served: ServedModel,
        names: Vec<String>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let listeners = vec![TcpListener::bind(address).await?];
        Ok(Self {
            listeners,
            models: Arc::new(Models::with_loaded(served, names, options.into())?),
        })
    }

    /// Binds the addresses to serve models that are still to be loaded.
    ///
    /// # Errors
    /// An address that cannot be bound.
    pub(crate) async fn listen(
        addresses: &[SocketAddr],
        models: Arc<Models>,
    ) -> anyhow::Result<Self> {
        let mut listeners: Vec<TcpListener> = Vec::new();
        for &(mut address) in addresses {
            if let (0, Some(first)) = (address.port(), listeners.first()) {
                address.set_port(first.local_addr()?.port());
            }
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.with_context(|| format!("cannot listen on {address}"))?);
        }
        Ok(Self { listeners, models })
    }

    /// First address that the server listens on.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let first = self.addresses()?.first().copied();
        first.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// All addresses that the server listens on.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves until `stop` resolves. Then new requests are rejected, and running ones may finish
    /// within the grace period; the others get an error. Returns whether all have ended.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let Self { listeners, models } = self;
        let (grace, unload_after) = (models.options().grace_period, models.options().unload_after);
        let service = TowerToHyperService::new(routes::router(models.clone()));
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES);
        let (graceful, permits) =
            (GracefulShutdown::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
        let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
        tokio::pin!(stop);
        loop {
            let accepted = async {
                // Never closed.
                let permit = permits.clone().acquire_owned().await;
                let all = listeners.iter().map(|listener| Box::pin(listener.accept()));
                (select_all(all).await.0, permit)
            };
            let (stream, permit) = tokio::select! {
                () = &mut stop => break,
                _ = idle_check.tick() => {
                    models.unload_idle(unload_after.unwrap_or(Duration::MAX));
                    continue;
                }
                (accepted, permit) = accepted => match accepted {
                    Ok((stream, _)) => (stream, permit),
                    Err(error) => {
                        // Usually too many open files: wait until others are closed.
                        log::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
            };
            let connection =
                server.serve_connection(TokioIo::new(with_timeouts(stream)), service.clone());
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                // Errors of a connection concern its client only.
                if let Err(error) = connection.await {
                    log::debug!("connection failed: {error}");
                }
                drop(permit);
            });
        }
        drop(listeners);
        let all_ended = models.stop(grace).await;
        all_ended && tokio::time::timeout(FLUSH_TIMEOUT, graceful.shutdown()).await.is_ok()
    }
}

/// Wraps a connection so that a client which stops receiving times out.
fn with_timeouts(stream: TcpStream) -> std::pin::Pin<Box<TimeoutStream<TcpStream>>> {
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    Box::pin(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listens_on_one_port_at_all_addresses() {
        if TcpListener::bind("[::1]:0").await.is_err() {
            return;
        }
        let addresses = ["127.0.0.1:0", "[::1]:0"].map(|address| address.parse().unwrap());
        let models = Arc::new(Models::new(Vec::new(), Arc::default()));
        let server = Server::listen(&addresses, models).await.unwrap();
        let (first, all) = (server.address().unwrap(), server.addresses().unwrap());
        assert_eq!(all.iter().map(SocketAddr::port).collect::<Vec<_>>(), [first.port(); 2]);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { stopped.await.unwrap_or_default() }));
        for address in all {
            let response = tokio::task::spawn_blocking(move || {
                use std::io::{Read, Write};
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                write!(stream, "GET /version HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).map(|_| answer).unwrap()
            });
            let answer = response.await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        }
        stop.send(()).unwrap();
        assert!(serving.await.unwrap());
    }
}
