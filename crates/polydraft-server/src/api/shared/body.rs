//! Bodies of requests, with limits of size and time.

use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;

use super::error::Problem;

/// How long a body may take to arrive.
const BODY: Duration = Duration::from_secs(30);
/// Bytes beyond the limit that are thrown away, as long as they come without such a pause.
const LINGER: usize = 16 << 20;
const SILENCE: Duration = Duration::from_millis(500);

/// The body, if it has at most so many bytes and is not too slow.
///
/// # Errors
/// It is; or it breaks off.
pub async fn read_body(most: usize, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Problem> {
    let too_large = || {
        let problem = Problem::invalid(format_args!("the body has more than {most} bytes"));
        problem.code("body_too_large").status(StatusCode::PAYLOAD_TOO_LARGE)
    };
    let stated = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut parts = body.into_data_stream();
    if stated.is_some_and(|length| length > most) {
        // A client that waits for 100-continue has sent nothing yet.
        if !headers.contains_key(header::EXPECT) {
            linger(&mut parts).await;
        }
        return Err(too_large());
    }
    let read = async {
        let mut bytes = Vec::new();
        while let Some(part) = parts.next().await {
            let broken =
                |_| Problem::invalid("the body breaks off, or is not framed as HTTP has it");
            bytes.extend_from_slice(&part.map_err(broken)?);
            if bytes.len() > most {
                linger(&mut parts).await;
                return Err(too_large());
            }
        }
        Ok(bytes)
    };
    tokio::time::timeout(BODY, read).await.unwrap_or_else(|_| {
        let problem = Problem::invalid("the body took too long to arrive");
        Err(problem.status(StatusCode::REQUEST_TIMEOUT))
    })
}

/// Takes and throws away what is under way: a client that is still sending would see a broken
/// connection instead of the answer.
async fn linger(parts: &mut BodyDataStream) {
    let (mut left, until) = (LINGER, Instant::now() + BODY);
    while left > 0
        && Instant::now() < until
        && let Ok(Some(Ok(part))) = tokio::time::timeout(SILENCE, parts.next()).await
    {
        left = left.saturating_sub(part.len());
    }
}
