//! How large an error a test would have found, by simulating it on the very contexts that came.
//!
//! Problem: a test that finds nothing says little unless one knows what it could have found.
//! Source: simulation; the bettor is the one that tested, but that he counts sizes of cells alone,
//! so that the test itself finds no less. Errors move a total variation of τ at
//! every token, where there is room for it, to the likeliest token or away from it: what a wrong
//! acceptance or a wrong residual does. Complexity: simulations × tokens × cells. Deviations: none.

use std::rc::Rc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Bettor, Context, Odds};

/// What a test looked at, in order.
pub type Trail = Vec<Rc<Odds>>;

/// Total variations that are tried.
const LEVELS: [f64; 12] = [0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3];
const RUNS: usize = 40;
/// An error is called found that so many of 20 tests find.
const FOUND: usize = 19;

/// The smallest of the errors that is found in 19 of 20 tests; none if even the largest is not.
/// `bar` is the logarithm of what must be owned.
pub fn smallest_found(trail: &Trail, tolerance: f64, bar: f64) -> Option<f64> {
    let found = |level: &f64| finds(trail, tolerance, bar, *level);
    // What finds an error finds larger ones.
    let first = LEVELS.partition_point(|level| !found(level));
    LEVELS.get(first).copied()
}

fn finds(trail: &Trail, tolerance: f64, bar: f64, level: f64) -> bool {
    let nowhere = Context { place: 0, position: 0, before: [0; 2], tokens: Vec::new() };
    let allowed = RUNS * (20 - FOUND) / 20;
    [1.0, -1.0].into_iter().all(|direction| {
        let missed = (0..RUNS).filter(|run| {
            let mut rng = ChaCha8Rng::seed_from_u64(*run as u64);
            let mut bettor = Bettor::simple(tolerance);
            !trail.iter().any(|odds| {
                let came = draw(odds, direction * level, &mut rng);
                bettor.see(&nowhere, odds, came);
                bettor.wealth().most() >= bar
            })
        });
        missed.take(allowed + 1).count() <= allowed
    })
}

/// Draws from odds of which `moved` goes to the likeliest.
fn draw(odds: &Odds, moved: f64, rng: &mut ChaCha8Rng) -> usize {
    let top = odds.cells[0];
    let moved_top = (top + moved).clamp(0.0, 1.0);
    let u: f64 = rng.random();
    if u < moved_top || odds.cells.len() == 1 {
        return 0;
    }
    // The others in proportion.
    let mut left = (u - moved_top) / (1.0 - moved_top) * (1.0 - top);
    for (cell, p) in odds.cells.iter().enumerate().skip(1) {
        left -= p;
        if left < 0.0 {
            return cell;
        }
    }
    odds.rest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tokens_find_smaller_errors() {
        let odds = Rc::new(Odds::new([0.5, 0.3, 0.15], 0.0));
        let trail = |tokens: u64| (0..tokens).map(|_| Rc::clone(&odds)).collect();
        let of = |tokens| smallest_found(&trail(tokens), 0.002, 1e4f64.ln());
        let (few, some, many) = (of(20), of(1000), of(6000));
        assert_eq!(few, None);
        assert!(some.is_some_and(|some| some <= 0.15), "{some:?}");
        assert!(many.is_some_and(|many| many <= 0.05), "{many:?}");
    }
}
