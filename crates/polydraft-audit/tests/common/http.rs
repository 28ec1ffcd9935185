//! Minimal HTTP server on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::Value;

type Handler = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// Serves requests until the process ends.
pub fn serve(
    listener: TcpListener,
    handler: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
) {
    let handler: Arc<Handler> = Arc::new(handler);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || handle_connection(&stream, &*handler));
        }
    });
}

fn handle_connection(stream: &TcpStream, handler: &Handler) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    stream.set_nodelay(true).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (status, answer) = handler(&path, &body);
        let text = match answer["events"].as_array() {
            Some(events) => {
                let line = |event: &Value| format!("data: {event}\n\n");
                events.iter().map(line).collect::<String>() + "data: [DONE]\n\n"
            }
            None => answer.to_string(),
        };
        // A client of a failed server need not wait long between retries.
        let again = if status >= 500 { "Retry-After: 0\r\n" } else { "" };
        let length = text.len();
        let head = format!("HTTP/1.1 {status} X\r\n{again}Content-Length: {length}\r\n\r\n");
        writer.write_all((head + &text).as_bytes()).ok()?;
    }
}
