//! The source of random decisions: drawn from a seed, or every one of them in turn.

use polydraft::RandomSource;
use polydraft::random::{Enumerator, Outcomes};
use pyo3::prelude::*;
use pyo3::types::PyInt;
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use crate::arguments::Seed;
use crate::errors::{Failure, Result, wrong_type};

/// Where decisions come from.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each caller, and it is used at every turn"
)]
pub enum Source {
    /// Drawn. The generator is that of the program: a seed gives there what it gives here.
    Random {
        /// Seed of the generator.
        seed: u64,
        /// Generator, at its current position.
        generator: ChaCha12Rng,
    },
    /// All of them, one series after the other.
    Every(Enumerator),
}

impl RandomSource for Source {
    fn coin(&mut self, probability: f64) -> bool {
        match self {
            Self::Random { generator, .. } => generator.coin(probability),
            Self::Every(every) => every.coin(probability),
        }
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        match self {
            Self::Random { generator, .. } => generator.choose(outcomes),
            Self::Every(every) => every.choose(outcomes),
        }
    }

    fn shared_key(&mut self) -> Option<[u64; 2]> {
        match self {
            Self::Random { generator, .. } => generator.shared_key(),
            Self::Every(every) => every.shared_key(),
        }
    }
}

/// The source of all random decisions.
///
/// `Rng(seed)` draws them; the same seed gives the same decisions as in the `polydraft` program.
/// `Rng.every()` goes through all of them, one series after the other, for those who want the
/// exact distribution of what they do; see `polydraft.enumerate_decisions`.
///
/// >>> one, other = Rng(7), Rng(7)
/// >>> [one.coin(0.5) for _ in range(8)] == [other.coin(0.5) for _ in range(8)]
/// True
#[pyclass(name = "Rng", module = "polydraft")]
pub struct PyRng {
    pub source: Source,
}

#[pymethods]
impl PyRng {
    #[new]
    fn new(seed: Seed) -> Self {
        let Seed(seed) = seed;
        Self { source: Source::Random { seed, generator: seeded(seed) } }
    }

    /// Goes through every series of decisions: run, `advance()`, run, ... until `advance()` says
    /// that none is left.
    #[staticmethod]
    fn every() -> Self {
        Self { source: Source::Every(Enumerator::new()) }
    }

    /// True with this probability.
    fn coin(&mut self, probability: f64) -> Result<bool> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(Failure::input(format!(
                "probability: expected one from 0 to 1, got {probability}"
            )));
        }
        Ok(self.source.coin(probability))
    }

    /// An index, in proportion to the weights, shape `[n]`, which are not all 0.
    fn pick(&mut self, weights: Vec<f64>) -> Result<usize> {
        let total: f64 = weights.iter().sum();
        // Of weights that are all 0 there is none to take.
        let fit = weights.iter().all(|weight| *weight >= 0.0) && total > 0.0 && total.is_finite();
        if !fit {
            return Err(Failure::input(
                "weights: expected at least one, none negative, whose sum is finite and not 0",
            ));
        }
        Ok(self.source.pick(&weights))
    }

    /// The probability of the decisions of this run, if they are gone through; else none.
    #[getter]
    fn probability(&self) -> Option<f64> {
        match &self.source {
            Source::Random { .. } => None,
            Source::Every(every) => Some(every.probability()),
        }
    }

    /// Returns the seed, and the number of 32-bit words drawn so far.
    fn __repr__(&self) -> String {
        match &self.source {
            Source::Every(_) => "Rng.every()".to_owned(),
            Source::Random { seed, generator } => match generator.get_word_pos() {
                0 => format!("Rng({seed})"),
                words => format!("<Rng({seed}) after {words} words>"),
            },
        }
    }

    /// Begins the next run; whether there is one.
    fn advance(&mut self) -> Result<bool> {
        match &mut self.source {
            Source::Random { .. } => Err(Failure::unsupported(
                "advance: expected an Rng that goes through every decision, got one that draws",
            )),
            Source::Every(every) => Ok(every.advance()),
        }
    }
}

/// The generator of a seed.
pub fn seeded(seed: u64) -> ChaCha12Rng {
    ChaCha12Rng::seed_from_u64(seed)
}

/// An `Rng`, or its seed, or nothing for one that nobody has seen before.
pub fn given<'py>(py: Python<'py>, value: Option<&Bound<'py, PyAny>>) -> Result<Bound<'py, PyRng>> {
    let seed: u64 = match value {
        None => py.import("secrets")?.call_method1("randbits", (64,))?.extract()?,
        Some(value) => match value.cast::<PyRng>() {
            Ok(rng) => return Ok(rng.clone()),
            Err(_) => {
                const EXPECTED: &str = "an Rng or a seed from 0 to 2^64 - 1";
                value.extract().map_err(|_| match value.is_instance_of::<PyInt>() {
                    true => Failure::input(format!("rng: expected {EXPECTED}, got {value}")),
                    false => wrong_type("rng", EXPECTED, value),
                })?
            }
        },
    };
    Ok(Bound::new(py, PyRng::new(Seed(seed)))?)
}
