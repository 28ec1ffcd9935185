//! `/v1/draft`: drafts for other servers, which draw from them and verify them with their own
//! model.
//!
//! The types of request and answer are those of the client
//! ([`remote`](polydraft_engine::drafter::remote)).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use polydraft_engine::drafter::remote::{DraftAnswer, DraftInfo, DraftRequest, MAX_QUERIES};
use polydraft_runtime::remote::fingerprint;

use super::shared::answering::{read_request, run_blocking};
use super::shared::error::{Dialect, Problem};
use super::shared::json::Json;
use super::shared::read::read;
use crate::LoadedModel;
use crate::models::Models;

/// The routes, below `/v1`.
pub fn routes() -> Router<Arc<Models>> {
    Router::new().route("/draft", get(describe).post(draft))
}

/// Describes the first model, by which a client checks that it has the same tokens.
async fn describe(State(models): State<Arc<Models>>) -> Result<Json<DraftInfo>, Problem> {
    let model = models.get_or_load(None).await?;
    let vocabulary = model.language.vocabulary.clone();
    let fingerprint = run_blocking(move || Ok(fingerprint(&vocabulary))).await?;
    Ok(Json(DraftInfo {
        model: model.name().to_owned(),
        vocabulary: model.vocabulary,
        fingerprint,
        context: model.context,
        sequences: max_queries(&model),
    }))
}

/// Returns distributions along the probable continuations of sequences.
async fn draft(State(models): State<Arc<Models>>, request: Request) -> Response {
    let result = async {
        let (model, body) = read_request(&models, request).await?;
        let request: DraftRequest = run_blocking(move || read(body)).await?;
        check(&model, &request)?;
        let answer = model.engine.draft(request.sequences)?;
        // The engine thread is gone.
        let drafts = answer.await.map_err(|_| Problem::internal())??;
        run_blocking(move || Ok(Json(DraftAnswer { drafts }).into_response())).await
    };
    result.await.unwrap_or_else(|problem: Problem| problem.response(Dialect::OpenAi))
}

/// Maximum number of sequences in a request.
fn max_queries(model: &LoadedModel) -> usize {
    MAX_QUERIES.min(model.limits.sequences)
}

/// Rejects what can never be computed.
fn check(model: &LoadedModel, request: &DraftRequest) -> Result<(), Problem> {
    let invalid = |problem: String| Err(Problem::invalid(problem).with_param("sequences"));
    let count = request.sequences.len();
    let most = max_queries(model);
    if !(1..=most).contains(&count) {
        return invalid(format!("sequences: expected 1 to {most}, got {count}"));
    }
    for (number, query) in request.sequences.iter().enumerate() {
        if let Err(problem) = query.check(model.vocabulary) {
            return invalid(format!("sequences[{number}].{problem}"));
        }
        let (tokens, context) = (query.tokens.len(), model.context);
        if tokens > context {
            return invalid(format!(
                "sequences[{number}].tokens: expected at most {context} tokens, got {tokens}"
            ));
        }
    }
    let tokens: usize = request.sequences.iter().map(|query| query.tokens.len()).sum();
    match model.limits.tokens {
        most if tokens > most => invalid(format!(
            "sequences: expected at most {most} tokens, the server's memory, got {tokens}"
        )),
        _ => Ok(()),
    }
}
