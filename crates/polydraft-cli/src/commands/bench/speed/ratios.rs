//! Ratios of speeds, and their intervals.

use polydraft_engine::Statistics;

/// Gain and time of a generation; their ratio is compared.
pub type Measure = fn(&Statistics) -> (f64, f64);

/// Returns tokens, and seconds.
pub fn by_time(generation: &Statistics) -> (f64, f64) {
    (generation.tokens as f64, generation.total_time.as_secs_f64())
}

/// Returns the seconds of plain decoding and the actual seconds, both estimated from the costs of
/// passes.
pub fn by_costs(generation: &Statistics) -> (f64, f64) {
    generation
        .choices
        .as_ref()
        .map_or((0.0, 0.0), |choices| (choices.plain_seconds, choices.seconds))
}

/// Returns the ratio of total gain to total time. Interleaving exposes all methods to the same
/// disturbances, so no median is needed; lucky and unlucky generations count alike.
pub fn rate<'s>(generations: impl IntoIterator<Item = &'s Statistics>, measure: Measure) -> f64 {
    let add = |(amount, seconds): (f64, f64), generation: (f64, f64)| {
        (amount + generation.0, seconds + generation.1)
    };
    let (amount, seconds) = generations.into_iter().map(measure).fold((0.0, 0.0), add);
    amount / seconds
}

/// Half the width of the 95 % interval of a ratio of rates, from the same texts by both methods.
/// `None` with fewer than three.
///
/// Source: Tukey's jackknife: the spread of the ratios that leave out one text each.
pub fn interval(generations: &[Statistics], plain: &[Statistics]) -> Option<f64> {
    /// Quantiles of Student's distribution for 2 to 10 degrees of freedom.
    const STUDENT: [f64; 9] = [4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    let count = generations.len();
    if count < 3 {
        return None;
    }
    let without = |all: &[Statistics], left_out: usize| {
        let kept = all.iter().enumerate().filter(|(number, _)| *number != left_out);
        rate(kept.map(|(_, statistics)| statistics), by_time)
    };
    let ratios: Vec<f64> =
        (0..count).map(|one| without(generations, one) / without(plain, one)).collect();
    let mean = ratios.iter().sum::<f64>() / count as f64;
    let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
    let deviation = (squares * (count - 1) as f64 / count as f64).sqrt();
    // 1.96 for many, and within 0.01 of the quantile above ten.
    let quantile = STUDENT.get(count - 3).copied().unwrap_or(1.96 + 2.6 / (count - 1) as f64);
    Some(quantile * deviation)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Creates generations with these tokens per second.
    fn generations(speeds: &[usize]) -> Vec<Statistics> {
        let generation = |&tokens: &usize| Statistics {
            tokens,
            total_time: Duration::from_secs(1),
            ..Statistics::default()
        };
        speeds.iter().map(generation).collect()
    }

    #[test]
    fn intervals_cover_the_spread_between_texts() {
        let plain = generations(&[10, 10, 10, 10]);
        let even = interval(&generations(&[12, 12, 12, 12]), &plain).unwrap();
        assert!(even < 1e-9);
        // For equal times the jackknife is the standard error of the mean.
        let uneven = interval(&generations(&[10, 14, 10, 14]), &plain).unwrap();
        let expected = 3.18 * (0.04 * 4.0 / 3.0 / 4.0_f64).sqrt();
        assert!((uneven - expected).abs() < 1e-9, "{uneven} {expected}");
        assert_eq!(interval(&plain[..2], &plain[..2]), None);
    }
}
