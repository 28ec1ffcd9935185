//! Probabilities as option values.

/// Parses a number between 0 and 1, exclusive.
///
/// Fails on anything else.
pub fn probability(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| *value > 0.0 && *value < 1.0);
    value.ok_or_else(|| "expected a number between 0 and 1".to_owned())
}
