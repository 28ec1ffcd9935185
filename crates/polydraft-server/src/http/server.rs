//! Connections: accepted, limited in number and time, and ended in order.

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
use crate::app::ServedModel;
use crate::fleet::Fleet;
use crate::options::ServerOptions;

/// How long a client may take to send the head of a request, and to take what it is sent. The first
/// is also how long a connection may lie idle between two requests: hyper has one timeout for both.
const HEAD: Duration = Duration::from_secs(10);
const WRITE: Duration = Duration::from_secs(60);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;
/// Connections at once.
const CONNECTIONS: usize = 1024;
/// How often idle models are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// What connections get after the engine is done, to send what there is.
const FLUSH: Duration = Duration::from_secs(5);

/// A server that listens.
pub struct Server {
    /// At least one.
    listeners: Vec<TcpListener>,
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
        options: ServerOptions,
    ) -> io::Result<Self> {
        let listeners = vec![TcpListener::bind(address).await?];
        Ok(Self { listeners, fleet: Arc::new(Fleet::of_loaded(served, names, options.into())?) })
    }

    /// Listens, with models that are still to be loaded.
    ///
    /// # Errors
    /// An address that cannot be had.
    pub(crate) async fn listen(
        addresses: &[SocketAddr],
        fleet: Arc<Fleet>,
    ) -> anyhow::Result<Self> {
        let mut listeners: Vec<TcpListener> = Vec::new();
        for &(mut address) in addresses {
            if let (0, Some(first)) = (address.port(), listeners.first()) {
                address.set_port(first.local_addr()?.port());
            }
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.with_context(|| format!("cannot listen on {address}"))?);
        }
        Ok(Self { listeners, fleet })
    }

    /// Where it listens; the first of its addresses.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let first = self.addresses()?.first().copied();
        first.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// All of them.
    ///
    /// # Errors
    /// Those of the system.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves until `stop` is there: then nothing new is taken, and running requests may end within
    /// the grace period; the others get an error. Returns whether all have ended.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let Self { listeners, fleet } = self;
        let (grace, unload_after) = (fleet.options().grace, fleet.options().unload_after);
        let service = TowerToHyperService::new(routes::router(fleet.clone()));
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
        let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS)));
        let mut look = tokio::time::interval(LOOK);
        tokio::pin!(stop);
        loop {
            let accepted = async {
                // Closed never.
                let place = places.clone().acquire_owned().await;
                let all = listeners.iter().map(|listener| Box::pin(listener.accept()));
                (select_all(all).await.0, place)
            };
            let (stream, place) = tokio::select! {
                () = &mut stop => break,
                _ = look.tick() => {
                    unload_after.into_iter().for_each(|after| fleet.unload_idle(after));
                    continue;
                }
                (accepted, place) = accepted => match accepted {
                    Ok((stream, _)) => (stream, place),
                    Err(error) => {
                        // As a rule too many open files: others must be closed first.
                        log::warn!("a connection was not accepted: {error}");
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
                    log::debug!("a connection broke: {error}");
                }
                drop(place);
            });
        }
        drop(listeners);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_addresses_have_one_port() {
        if TcpListener::bind("[::1]:0").await.is_err() {
            return;
        }
        let addresses = ["127.0.0.1:0", "[::1]:0"].map(|address| address.parse().unwrap());
        let fleet = Arc::new(Fleet::new(Vec::new(), Arc::default()));
        let server = Server::listen(&addresses, fleet).await.unwrap();
        let (first, all) = (server.address().unwrap(), server.addresses().unwrap());
        assert_eq!(all.iter().map(SocketAddr::port).collect::<Vec<_>>(), [first.port(); 2]);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { stopped.await.unwrap_or_default() }));
        for address in all {
            let asked = tokio::task::spawn_blocking(move || {
                use std::io::{Read, Write};
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                write!(stream, "GET /version HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).map(|_| answer).unwrap()
            });
            let answer = asked.await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        }
        stop.send(()).unwrap();
        assert!(serving.await.unwrap());
    }
}
