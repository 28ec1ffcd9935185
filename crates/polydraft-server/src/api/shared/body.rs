//! Bodies of requests, limited in size and time.

use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;

use super::error::Problem;

/// Maximum time of a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes beyond the limit to discard, and the maximum pause between them.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_millis(500);

/// Reads a body of at most `max_bytes`.
///
/// # Errors
/// A body that is too large, takes too long, or breaks off.
pub async fn read_body(
    max_bytes: usize,
    headers: &HeaderMap,
    body: Body,
) -> Result<Vec<u8>, Problem> {
    let too_large = || {
        let problem = Problem::invalid(format_args!("the body has more than {max_bytes} bytes"));
        problem.with_code("body_too_large").with_status(StatusCode::PAYLOAD_TOO_LARGE)
    };
    let content_length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut chunks = body.into_data_stream();
    if content_length.is_some_and(|length| length > max_bytes) {
        // A client that waits for 100-continue has sent nothing yet.
        if !headers.contains_key(header::EXPECT) {
            discard(&mut chunks).await;
        }
        return Err(too_large());
    }
    let read = async {
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let broken = |_| Problem::invalid("the body is incomplete or has invalid HTTP framing");
            bytes.extend_from_slice(&chunk.map_err(broken)?);
            if bytes.len() > max_bytes {
                discard(&mut chunks).await;
                return Err(too_large());
            }
        }
        Ok(bytes)
    };
    tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or_else(|_| {
        let problem = Problem::invalid("the body took too long to arrive");
        Err(problem.with_status(StatusCode::REQUEST_TIMEOUT))
    })
}

/// Discards incoming data: a client that is still sending would see a broken connection instead of
/// the answer.
async fn discard(chunks: &mut BodyDataStream) {
    let (mut remaining, deadline) = (MAX_DISCARDED_BYTES, Instant::now() + BODY_TIMEOUT);
    while remaining > 0
        && Instant::now() < deadline
        && let Ok(Some(Ok(chunk))) = tokio::time::timeout(DISCARD_TIMEOUT, chunks.next()).await
    {
        remaining = remaining.saturating_sub(chunk.len());
    }
}
