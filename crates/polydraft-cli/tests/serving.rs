//! End-to-end tests of `serve`: its messages, its log, and its key.
#![cfg(all(feature = "server", unix))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;

use serde_json::Value;

use crate::common;

/// A running server, and all that it prints after its address.
struct Serving {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    /// Message with the addresses.
    message: String,
    address: String,
}

/// Starts a server with these options, with an empty API key in its environment.
fn serve(options: &[&str]) -> Serving {
    let args = [&["serve", "--port", "0"], options].concat();
    let mut child = common::program(&args).env("POLYDRAFT_API_KEY", "").spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let message =
        lines.by_ref().map_while(Result::ok).find(|line| line.contains("serving at")).unwrap();
    let address = message.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    Serving { child, lines, message, address }
}

impl Serving {
    /// Sends a request and returns the answer, or leaves after its first bytes.
    fn request(&self, id: &str, head: &str, body: &str, leaves: bool) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: {id}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        match leaves {
            true => _ = stream.read(&mut [0; 20]).unwrap(),
            false => _ = stream.read_to_string(&mut answer).unwrap(),
        }
        answer
    }

    /// Stops the server and returns the lines of its log.
    fn stop(mut self) -> Vec<String> {
        common::interrupt(&self.child, "-TERM");
        let lines = self.lines.map_while(Result::ok).collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

#[test]
fn logs_one_json_line_for_each_request() {
    let server = serve(&["--log-format", "json"]);
    let post = "POST /v1/completions";
    let whole = r#"{"prompt": "pub fn ", "max_tokens": 20, "seed": 1, "ignore_eos": true}"#;
    let answer = server.request("whole", post, whole, false);
    assert!(answer.contains("x-request-id: whole\r\n"), "{answer}");
    let stream = r#"{"prompt": "pub fn ", "max_tokens": 9, "ignore_eos": true, "stream": true}"#;
    server.request("stream", post, stream, false);
    server.request("refused", post, r#"{"max_tokens": -1}"#, false);
    server.request("unknown", "GET /v1/nothing", "", false);
    let long = r#"{"prompt": "a", "max_tokens": 500, "ignore_eos": true, "stream": true}"#;
    server.request("cancelled", post, long, true);
    server.request("health", "GET /health", "", false);
    let is_counted = |metrics: &str| metrics.contains("finished_reason=\"abort\"} 1\n");
    while !is_counted(&server.request("metrics", "GET /metrics", "", false)) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let lines = server.stop();
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request").collect();
    assert_eq!(requests.len(), 5, "{requests:#?}");
    let [whole_line, stream_line, refused, unknown, cancelled] =
        ["whole", "stream", "refused", "unknown", "cancelled"].map(|id| {
            let line = requests.iter().find(|line| line["id"] == id);
            line.unwrap_or_else(|| panic!("{requests:#?}"))
        });
    for (line, tokens) in [(whole_line, 20), (stream_line, 9)] {
        assert_eq!(line["route"], "/v1/completions");
        assert_eq!(line["status"], 200);
        assert_eq!(line["model"], "target");
        assert!(line["prompt_tokens"].as_u64() > Some(0), "{line}");
        assert_eq!(line["output_tokens"], tokens);
        let count = |name: &str| line[name].as_f64().unwrap();
        let acceptance = count("accepted_tokens") / count("drafted_tokens");
        assert!((count("acceptance") - acceptance).abs() < 1e-3, "{line}");
        assert!(count("seconds") >= count("first_token_seconds"), "{line}");
        assert!(line.get("reason").is_none(), "{line}");
    }
    assert_eq!((&refused["status"], &refused["level"]), (&400.into(), &"warn".into()));
    assert!(refused["reason"].as_str().unwrap().contains("prompt"), "{refused}");
    assert_eq!((&unknown["status"], &unknown["method"]), (&404.into(), &"GET".into()));
    assert_eq!(cancelled["reason"], "cancelled by the client");
    assert!(cancelled["output_tokens"].as_u64() < Some(500), "{cancelled}");
}

/// Errors that requests would run into later.
#[test]
fn rejects_missing_models_and_invalid_defaults_at_the_start() {
    let demo = format!("a={}/../../demo/target", env!("CARGO_MANIFEST_DIR"));
    for second in ["b=/nowhere.gguf", "b=/nowhere", "b=/nowhere.gguf,draft=ngram"] {
        common::fails(
            &["serve", "--port", "0", "--model", &demo, "--model", second],
            1,
            &["model b: ", "/nowhere"],
        );
    }
    for (defaults, problem) in [
        (r#"{"sede": 1}"#, "unknown parameter \"sede\""),
        (r#"{"seed": 1, "top_p": 2}"#, "top_p"),
        (r#"{"seed": "x", "max_tokens": 3}"#, "seed: "),
        (r#"{"cache_prompt": true}"#, "unknown parameter \"cache_prompt\""),
    ] {
        common::fails(&["serve", "--port", "0", "--request-defaults", defaults], 1, &[problem]);
    }
    // Each is read by one route only.
    serve(&["--request-defaults", r#"{"echo": true, "n_predict": 3, "max_completion_tokens": 3}"#])
        .stop();
}

/// With an empty variable, as container files set it, no key is required.
#[test]
fn prints_addresses_and_takes_empty_key_as_none() {
    let server = serve(&[]);
    let base = format!("http://{}/", server.address);
    assert_eq!(server.message, format!("serving at {base} (API: {base}v1); Ctrl-C stops"));
    let answer = server.request("models", "GET /v1/models", "", false);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.request("r-1", "POST /v1/completions", r#"{"prompt": "a", "max_tokens": 2}"#, false);
    let log = server.stop();
    let line = log.iter().find(|line| line.contains(" request id=r-")).unwrap();
    for part in [" INFO ", " route=/v1/completions ", " status=200 ", " output_tokens="] {
        assert!(line.contains(part), "{line}");
    }
    common::fails(&["serve", "--api-key", ""], 2, &["the API key is empty"]);
}
