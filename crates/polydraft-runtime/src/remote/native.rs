//! Drafts of another polydraft server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::remote::{
    DraftAnswer, DraftInfo, DraftQuery, DraftRequest, DraftSource, DraftedTree,
};

use super::fingerprint;
use super::http::{Http, printable};

/// Route of drafts.
const PATH: &str = "/v1/draft";
/// Maximum time of a prefill for which nobody waits.
const PREFILL_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum bytes of an answer without nodes.
const MAX_EMPTY_BYTES: usize = 64 << 10;

/// A polydraft server.
struct Native {
    http: Http,
    info: DraftInfo,
}

/// Checks the description of a server's model, and returns its drafts and its name.
///
/// # Errors
/// A description in another form; a model with other tokens.
pub fn open(
    http: Http,
    description: &[u8],
    target: &Vocabulary,
) -> Result<(Box<dyn DraftSource>, String)> {
    let base = http.base().to_owned();
    let info: DraftInfo = serde_json::from_slice(description).map_err(|error| {
        let problem = printable(&error.to_string());
        anyhow!("the draft at {base}: not the expected description of its model: {problem}")
    })?;
    if info.fingerprint != fingerprint(target) {
        bail!(
            "the draft at {base} has other tokens than the target ({} and {}): it must serve a \
             model with the target's tokenizer",
            info.vocabulary,
            target.size()
        );
    }
    let name = printable(&info.model);
    Ok((Box::new(Native { http, info }), name))
}

fn request(sequences: Vec<DraftQuery>) -> DraftRequest {
    DraftRequest { model: None, sequences }
}

impl DraftSource for Native {
    fn name(&self) -> &str {
        self.http.base()
    }

    fn context(&self) -> usize {
        self.info.context
    }

    fn max_queries(&self) -> usize {
        self.info.sequences
    }

    fn draft(
        &mut self,
        queries: &[DraftQuery],
        within: Duration,
    ) -> Result<Vec<DraftedTree>, String> {
        let max_bytes = queries.iter().map(DraftQuery::max_answer_bytes).sum::<usize>();
        let max_bytes = max_bytes.max(MAX_EMPTY_BYTES);
        let reply = self.http.post(PATH, &request(queries.to_vec()), within, max_bytes)?;
        reply.parse::<DraftAnswer>().map(|answer| answer.drafts)
    }

    fn prefill(&mut self, query: DraftQuery) -> Option<Arc<AtomicBool>> {
        let http = self.http.clone();
        start(move || {
            http.post(PATH, &request(vec![query]), PREFILL_TIMEOUT, MAX_EMPTY_BYTES).map(drop)
        })
    }
}

/// Runs a request on a thread of its own, and returns a flag that is set at its end. A failure is
/// reported by the next request.
pub fn start(
    work: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Option<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = ended.clone();
    let run = move || {
        let _ = work();
        flag.store(true, Ordering::Release);
    };
    std::thread::Builder::new().name("prefill".to_owned()).spawn(run).ok().map(|_| ended)
}
