//! Local server without speculation, as the reference of an audit.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Server process, killed on drop.
pub struct ReferenceServer {
    child: Child,
    port: u16,
}

impl ReferenceServer {
    /// Starts the server on a free port, and waits until it listens.
    pub fn start(target: &str) -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        // In the Python wheel the program is the interpreter.
        if program.file_stem().is_some_and(|name| name.to_string_lossy().contains("python")) {
            command.args(["-m", "polydraft"]);
        }
        command.args(["serve", "--target", target, "--verifier", "none", "--quiet"]);
        command.args(["--no-config", "--host", "127.0.0.1", "--port", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().context("cannot start the reference server")?;
        let mut server = Self { child, port };
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("the model of --target cannot be served ({status})");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for ReferenceServer {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
