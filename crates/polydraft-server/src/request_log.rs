//! Log of requests: one line for each, written when both its answer and its work have ended.
//!
//! The web side and the engine thread share a request's [`RequestLog`]. The line is written when
//! the last of them drops it, so that requests whose clients leave early are logged with their
//! counts as well.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use log::kv::{Key, Value, VisitSource};
use log::{Level, LevelFilter, Record};
use polydraft_engine::Statistics;
use polydraft_runtime::Listener;
use polydraft_runtime::message::{Message, command_line};

/// Header with a request's id, given by the client or by this server.
pub const ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum bytes of an id and of a reason.
const MAX_ID_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 300;
/// Status of requests whose clients left before the answer, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;
/// Reason of requests whose clients left before the end of the answer.
const CANCELLED: &str = "cancelled by the client";

/// Form of the lines of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, message, and fields as `name=value`.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Log entry of a request, filled while it runs.
#[derive(Debug)]
pub struct RequestLog {
    id: String,
    method: String,
    route: String,
    /// Level of the line if the request succeeds.
    level: Level,
    arrived: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    model: Option<String>,
    status: Option<u16>,
    reason: Option<String>,
    prompt_tokens: usize,
    output_tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    /// Time from the arrival to the first token, and to the end of the answer.
    first_token: Option<Duration>,
    answered: Option<Duration>,
}

impl RequestLog {
    /// Creates the entry of a request. It is logged at `level`, or as a warning if it is refused.
    pub fn new(id: String, method: &str, uri: &Uri, level: Level) -> Arc<Self> {
        let (method, route) = (method.to_owned(), uri.path().to_owned());
        let counts = Mutex::default();
        Arc::new(Self { id, method, route, level, arrived: Instant::now(), counts })
    }

    /// Id of the request.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the model that answers.
    pub fn set_model(&self, name: &str) {
        self.counts().model = Some(name.to_owned());
    }

    /// Sets the status of the answer.
    pub fn set_status(&self, status: StatusCode) {
        self.counts().status = Some(status.as_u16());
    }

    /// Sets the reason of a refusal or failure.
    pub fn set_reason(&self, reason: &str) {
        let end = reason.floor_char_boundary(MAX_REASON_BYTES);
        self.counts().reason = Some(reason[..end].to_owned());
    }

    /// Records that the answer was sent to its end.
    pub fn set_answered(&self) {
        self.counts().answered = Some(self.arrived.elapsed());
    }

    /// Adds a prompt.
    pub fn add_prompt(&self, tokens: usize) {
        self.counts().prompt_tokens += tokens;
    }

    /// Adds tokens of an output.
    pub fn add_output(&self, tokens: usize) {
        let mut counts = self.counts();
        counts.output_tokens += tokens;
        counts.first_token.get_or_insert_with(|| self.arrived.elapsed());
    }

    /// Adds the speculation of a sequence.
    pub fn add_speculation(&self, statistics: &Statistics) {
        let mut counts = self.counts();
        counts.drafted_tokens += statistics.nodes;
        counts.accepted_tokens += statistics.accepted.iter().sum::<usize>();
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let total = self.arrived.elapsed();
        let counts = self.counts.get_mut().unwrap_or_else(PoisonError::into_inner);
        let level = match (&counts.reason, counts.answered) {
            (Some(_), _) => Level::Warn,
            (None, Some(_)) => self.level,
            (None, None) => {
                counts.reason = Some(CANCELLED.to_owned());
                Level::Info
            }
        };
        let status = counts.status.unwrap_or(CLIENT_CLOSED_REQUEST);
        if level > log::max_level() {
            return;
        }
        let round = |time: Duration| (time.as_secs_f64() * 1e4).round() / 1e4;
        let mut fields: Vec<(&str, Value<'_>)> = vec![
            ("id", self.id.as_str().into()),
            ("method", self.method.as_str().into()),
            ("route", self.route.as_str().into()),
            ("status", status.into()),
        ];
        if let Some(model) = &counts.model {
            fields.push(("model", model.as_str().into()));
        }
        if counts.prompt_tokens > 0 {
            fields.push(("prompt_tokens", counts.prompt_tokens.into()));
            fields.push(("output_tokens", counts.output_tokens.into()));
        }
        if counts.drafted_tokens > 0 {
            let acceptance = counts.accepted_tokens as f64 / counts.drafted_tokens as f64;
            fields.push(("drafted_tokens", counts.drafted_tokens.into()));
            fields.push(("accepted_tokens", counts.accepted_tokens.into()));
            fields.push(("acceptance", ((acceptance * 1e3).round() / 1e3).into()));
        }
        if let Some(first_token) = counts.first_token {
            fields.push(("first_token_seconds", round(first_token).into()));
        }
        fields.push(("seconds", round(counts.answered.unwrap_or(total)).into()));
        if let Some(reason) = &counts.reason {
            fields.push(("reason", reason.as_str().into()));
        }
        log::logger().log(
            &Record::builder()
                .level(level)
                .target(module_path!())
                .module_path_static(Some(module_path!()))
                .key_values(&fields)
                .args(format_args!("request"))
                .build(),
        );
    }
}

/// Returns the id that a client gave, if it is short and printable.
pub fn client_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(ID_HEADER)?.to_str().ok()?;
    let is_valid = (1..=MAX_ID_BYTES).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte));
    is_valid.then_some(id)
}

/// Starts the log on standard error. A logger that the process already has stays.
pub fn start(level: LevelFilter, format: LogFormat) {
    let mut builder = env_logger::Builder::new();
    builder.filter_module("polydraft", level);
    builder.format(move |out, record| {
        let time = out.timestamp_millis();
        match format {
            LogFormat::Text => writeln!(out, "{time} {}", text_line(record)),
            LogFormat::Json => writeln!(out, "{}", json_line(&time.to_string(), record)),
        }
    });
    let _ = builder.try_init();
}

/// Listener that writes messages to the log.
#[derive(Debug)]
pub struct LogListener;

impl Listener for LogListener {
    fn note(&self, message: &Message) {
        log::info!("{}", without_level(&message.render(command_line)));
    }

    fn detail(&self, message: &Message) {
        log::debug!("{}", without_level(&message.render(command_line)));
    }
}

/// Removes the prefix that marks messages on a terminal: lines of the log have a level.
fn without_level(message: &str) -> &str {
    message.strip_prefix("note: ").unwrap_or(message)
}

/// Collects the fields of a log message.
struct Fields(Vec<(String, serde_json::Value)>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        let value = match (value.to_u64(), value.to_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(number)) => number.into(),
            (None, None) => value.to_string().into(),
        };
        self.0.push((key.to_string(), value));
        Ok(())
    }
}

fn fields(record: &Record<'_>) -> Vec<(String, serde_json::Value)> {
    let mut fields = Fields(Vec::new());
    // Collecting never fails.
    let _ = record.key_values().visit(&mut fields);
    fields.0
}

/// Level, message and fields; text with spaces or control characters is quoted.
fn text_line(record: &Record<'_>) -> String {
    let mut line = format!("{:<5} {}", record.level(), record.args());
    for (name, value) in fields(record) {
        let is_word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        let value = match value.as_str().filter(|text| is_word(text)) {
            Some(word) => word.to_owned(),
            None => value.to_string(),
        };
        line.push_str(&format!(" {name}={value}"));
    }
    line
}

/// One JSON object. Requests have their fields, other messages only the text.
fn json_line(time: &str, record: &Record<'_>) -> String {
    let mut line = serde_json::Map::new();
    line.insert("time".into(), time.into());
    line.insert("level".into(), record.level().as_str().to_lowercase().into());
    line.insert("message".into(), record.args().to_string().into());
    line.extend(fields(record));
    serde_json::Value::Object(line).to_string()
}

#[cfg(test)]
mod tests {
    use log::kv::Source;

    use super::*;

    fn with_record<T>(fields: &dyn Source, read: impl FnOnce(&Record<'_>) -> T) -> T {
        let args = format_args!("request");
        read(&Record::builder().level(Level::Warn).key_values(fields).args(args).build())
    }

    #[test]
    fn writes_numbers_as_numbers_and_quotes_text_of_clients() {
        let reason = "unknown \"x\"\nGET /faked";
        let fields: Vec<(&str, Value<'_>)> = vec![
            ("id", "r1".into()),
            ("seconds", 0.25.into()),
            ("status", 400.into()),
            ("reason", reason.into()),
        ];
        let text = with_record(&fields, text_line);
        let quoted = r#""unknown \"x\"\nGET /faked""#;
        assert_eq!(text, format!("WARN  request id=r1 seconds=0.25 status=400 reason={quoted}"));
        let line = with_record(&fields, |record| json_line("2026-01-01T00:00:00.000Z", record));
        let expected = serde_json::json!({ "time": "2026-01-01T00:00:00.000Z", "level": "warn",
            "message": "request", "id": "r1", "seconds": 0.25, "status": 400, "reason": reason });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), expected);
    }

    #[test]
    fn omits_the_prefix_of_notes() {
        assert_eq!(without_level("note: no draft was given"), "no draft was given");
        assert_eq!(without_level("a note: stays"), "a note: stays");
    }

    #[test]
    fn takes_only_short_printable_ids_of_clients() {
        let id = |text: &str| {
            let headers = HeaderMap::from_iter([(ID_HEADER, text.parse().unwrap())]);
            client_id(&headers).map(str::to_owned)
        };
        assert_eq!(id("abc-1"), Some("abc-1".to_owned()));
        for rejected in ["", "a b", "a\"b", &"a".repeat(MAX_ID_BYTES + 1)] {
            assert_eq!(id(rejected), None, "{rejected}");
        }
    }
}
