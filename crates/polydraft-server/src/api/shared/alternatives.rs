//! Number of alternatives whose log-probabilities an answer lists with each token.

use super::error::Problem;
use super::params::check_range;
use crate::LoadedModel;
use crate::worker::{MAX_ALTERNATIVES, MAX_TOTAL_ALTERNATIVES, RequestParams};

/// Converts the number that a parameter requests; -1 is the size of the vocabulary.
///
/// # Errors
/// A number above the server's limit.
pub fn alternatives(model: &LoadedModel, param: &str, count: i64) -> Result<usize, Problem> {
    let max = model.options.max_logprobs;
    let requested = match count {
        -1 => model.vocabulary,
        _ => usize::try_from(count).unwrap_or(usize::MAX),
    };
    if count >= -1 && requested <= max {
        return Ok(requested.min(model.vocabulary));
    }
    let problem = match (count, max >= model.vocabulary) {
        (-1, _) => format!(
            "{param}: expected from 0 to {max}, got -1, which is all {requested} tokens; the \
             server's operator can raise the limit (option max-logprobs)"
        ),
        (_, true) => format!("{param}: expected a number of tokens, or -1 for all, got {count}"),
        (_, false) => format!("{param}: expected from 0 to {max}, got {count}"),
    };
    Err(Problem::invalid(problem).with_param(param))
}

/// Checks a number against [`MAX_ALTERNATIVES`], on routes without a setting for it.
///
/// # Errors
/// A larger number.
pub fn check_top_logprobs(param: &str, count: usize) -> Result<usize, Problem> {
    check_range(param, count, 0, MAX_ALTERNATIVES)
}

/// Checks the total number of alternatives of an answer; `param` is the parameter to report.
///
/// # Errors
/// More than the limit.
pub fn check_total_alternatives(
    model: &LoadedModel,
    requests: &[RequestParams],
    param: &str,
) -> Result<(), Problem> {
    let max = requests.iter().map(RequestParams::max_alternatives).max().unwrap_or(0);
    let total = requests.iter().map(|params| params.total_alternatives(model.context));
    let total = total.fold(0usize, usize::saturating_add);
    if max <= MAX_ALTERNATIVES || total <= MAX_TOTAL_ALTERNATIVES {
        return Ok(());
    }
    let problem = format!(
        "{param}: with up to {max} for each token the answer may have {total} log-probabilities \
         of alternatives, above the limit of {MAX_TOTAL_ALTERNATIVES}: request fewer \
         alternatives or tokens (max_tokens, n, a shorter prompt), or list tokens in \
         logprob_token_ids"
    );
    Err(Problem::invalid(problem).with_param(param))
}
