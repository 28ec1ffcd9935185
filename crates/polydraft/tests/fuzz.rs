//! The fuzz targets on random bytes for a short fixed time: a smoke test without cargo-fuzz.

mod fuzz_bodies;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::{Duration, Instant};

/// Bytes in which special floats are as common as random ones.
fn bytes(rng: &mut ChaCha8Rng, length: usize, single: bool) -> Vec<u8> {
    const SPECIAL: [f64; 20] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        0.25,
        1e-300,
        1e300,
        5e-324,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e-17,
        1e-9,
        0.999_999_999,
        3.4e38,
        1e-310,
        f64::MIN_POSITIVE,
        1.0 - f64::EPSILON,
        f64::EPSILON,
    ];
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let random = rng.next_u64();
        let value = match random % 4 {
            0 | 1 => SPECIAL[(random >> 8) as usize % SPECIAL.len()],
            2 => (random >> 11) as f64 / (1_u64 << 53) as f64,
            _ => f64::from_bits(rng.next_u64()),
        };
        if single {
            bytes.extend((value as f32).to_le_bytes());
        } else {
            bytes.extend(value.to_le_bytes());
        }
    }
    bytes
}

fn drive(body: impl Fn(&[u8]), seed: u64, single: bool) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let start = Instant::now();
    let mut runs = 0;
    while start.elapsed() < Duration::from_secs(3) {
        let mut input: Vec<u8> =
            (0..if single { 4 } else { 2 }).map(|_| rng.next_u32() as u8).collect();
        let length = [0, 8, 16, 32, 48, 64, 200, 1_000, 30_000][rng.next_u32() as usize % 9];
        input.extend(bytes(&mut rng, length, single));
        body(&input);
        runs += 1;
    }
    assert!(runs > 100, "{runs}");
}

#[test]
fn fuzz_distribution_smoke_test() {
    drive(fuzz_bodies::distribution, 1, true);
    drive(fuzz_bodies::distribution, 2, false);
}

#[test]
fn fuzz_priority_smoke_test() {
    drive(fuzz_bodies::priority, 3, false);
}

#[test]
fn fuzz_rules_smoke_test() {
    drive(fuzz_bodies::rules, 4, false);
}

#[test]
fn fuzz_verifiers_smoke_test() {
    drive(fuzz_bodies::verifiers, 5, false);
}

/// Inputs on which solvers once did not terminate, or the distribution was wrong: probabilities
/// whose reciprocals overflow count as 0.
#[test]
fn subnormal_probabilities_count_as_zero() {
    use polydraft::{Distribution, Drafting, Draws, Problem, Proposal, acceptance};
    for (target, draft, expected) in [
        ([0.2, 0.3, 0.5], [1e-310, 1.0, 0.0], 0.3),
        ([0.2, 0.3, 0.5], [5e-324, 1.0, 0.0], 0.3),
        ([5e-324, 0.5, 0.5], [0.25, 0.25, 0.5], 1.0),
        ([0.5, 0.25, 0.25], [1e-310, 1.0, 3e-310], 0.25),
        ([0.5, 0.25, 0.25], [1e-300, 1.0, 3e-300], 0.75),
    ] {
        let [target, draft] =
            [target, draft].map(|probs| Distribution::new(probs.to_vec()).unwrap());
        let draws = Draws { scheme: Drafting::WithoutReplacement, count: 2 };
        let proposal = Proposal::new(draws, std::slice::from_ref(&draft)).unwrap();
        let got = acceptance::optimal(&Problem::new(&target, proposal).unwrap()).unwrap();
        assert!((got - expected).abs() < 1e-12, "{draft:?}: {got}, not {expected}");
    }
}
