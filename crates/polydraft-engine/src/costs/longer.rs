//! What passes take more for every token that a text is longer.
//!
//! Problem: each row attends to all of the text. With a thousand tokens a copy in 4 bits takes half
//! as long again as with a hundred, and its target hardly longer: trees that were right at the
//! beginning of a text are too deep later.
//! Method: passes in a short text and in a long one in turn, the median of the differences, a line
//! between them.

use std::ops::RangeInclusive;
use std::time::Duration;

use polydraft::Token;
use polydraft::policy::Passes;

use super::timed::Timed;
use super::{LONG, in_turn, median, never_cheaper};
use crate::{Result, Sequence};

/// Rows of the passes: with one the memory is the limit, with several arithmetic, which grows with
/// them.
const ROWS: [usize; 3] = [1, 4, 8];
/// Tokens of the long text at most, and how many times as long it must be at least to tell
/// anything.
const MOST: usize = 1024;
const LEAST: usize = 2;
/// How long computing it may take.
const READING: Duration = Duration::from_secs(2);
/// Turns, and how long they may take together.
const TURNS: RangeInclusive<usize> = 3..=15;
const TIME: Duration = Duration::from_millis(1200);

/// Seconds a token by rows, beside a `short` text that holds `text`, which took so many seconds to
/// compute; nothing where a long one would take too long, or there is no room for it.
pub(super) fn longer(
    timed: &mut impl Timed,
    short: Sequence,
    text: &[Token],
    reading: f64,
) -> Result<Passes> {
    let [texts, room] = timed.room();
    if texts < 2 || text.is_empty() {
        return Ok(Passes::free());
    }
    let longest = (READING.as_secs_f64() / reading * text.len() as f64) as usize;
    let most = (room / 2).saturating_sub(text.len());
    let count = longest.min(MOST).min(most);
    if count < LEAST * text.len() || timed.pass(short, 1)? > LONG.as_secs_f64() {
        return Ok(Passes::free());
    }
    let rows: Vec<usize> =
        ROWS.into_iter().filter(|&rows| rows == 1 || rows < timed.vocabulary()).collect();
    let long: Vec<Token> = text.iter().copied().cycle().take(count).collect();
    let differences = timed.with_text(&long, |timed, long| {
        let mut difference = |rows| Ok(timed.pass(long, rows)? - timed.pass(short, rows)?);
        // The first of each kind pays for memory.
        rows.iter().try_for_each(|&rows| difference(rows).map(drop))?;
        in_turn(&rows, TURNS, TIME, difference)
    })?;
    let tokens = (count - text.len()) as f64;
    let usual =
        differences.into_iter().filter_map(median).map(|seconds| (seconds / tokens).max(0.0));
    let mut usual: Vec<f64> = usual.collect();
    never_cheaper(&mut usual);
    Passes::new(rows.into_iter().zip(usual).collect()).map_err(Into::into)
}
