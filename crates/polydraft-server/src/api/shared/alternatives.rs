//! How many alternatives' log-probabilities an answer lists with each token.

use super::error::Problem;
use super::params::within;
use crate::App;
use crate::worker::{MOST_OF_ALL, MOST_TOP, RequestParams};

/// How many a request asks for in this parameter; -1 are those of all tokens of the vocabulary.
///
/// # Errors
/// More than there may be.
pub fn alternatives(app: &App, param: &str, count: i64) -> Result<usize, Problem> {
    let most = app.options.max_logprobs;
    let wanted = match count {
        -1 => app.vocabulary,
        _ => usize::try_from(count).unwrap_or(usize::MAX),
    };
    if count >= -1 && wanted <= most {
        return Ok(wanted.min(app.vocabulary));
    }
    let problem = match (count, most >= app.vocabulary) {
        (-1, _) => format!(
            "{param}: expected from 0 to {most}, got -1, which is all {wanted} tokens; the server's \
             operator can allow as many (option max-logprobs)"
        ),
        (_, true) => format!("{param}: expected a number of tokens, or -1 for all, got {count}"),
        (_, false) => format!("{param}: expected from 0 to {most}, got {count}"),
    };
    Err(Problem::invalid(problem).of(param))
}

/// The same where there is no other number than [`MOST_TOP`].
///
/// # Errors
/// More than there may be.
pub fn few_alternatives(param: &str, count: usize) -> Result<usize, Problem> {
    within(param, count, 0, MOST_TOP)
}

/// Whether an answer to all of these would have more than it may; `param` asks for them.
///
/// # Errors
/// It would.
pub fn check(app: &App, requests: &[RequestParams], param: &str) -> Result<(), Problem> {
    let most = requests.iter().map(RequestParams::most_alternatives).max().unwrap_or(0);
    let of_all = requests.iter().map(|params| params.all_alternatives(app.context));
    let of_all = of_all.fold(0usize, usize::saturating_add);
    if most <= MOST_TOP || of_all <= MOST_OF_ALL {
        return Ok(());
    }
    let problem = format!(
        "{param}: with up to {most} for each token the answer may have {of_all} log-probabilities \
         of alternatives, and {MOST_OF_ALL} is the most: ask for fewer, or for fewer tokens \
         (max_tokens, n, a shorter prompt), or name tokens in logprob_token_ids"
    );
    Err(Problem::invalid(problem).of(param))
}
