//! Axes: range, position of values, and tick labels.

use std::ops::Range;

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from slightly below the minimum to slightly above the maximum.
    Linear,
    /// Logarithmic, in powers of ten; values of 0 and below are omitted.
    Log,
}

/// An axis whose range covers given values.
pub struct Axis {
    scale: Scale,
    range: Range<f64>,
}

impl Axis {
    /// Creates an axis; `None` if none of the values can be shown.
    pub fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Option<Self> {
        let shown = values.filter(|y| y.is_finite() && (scale == Scale::Linear || *y > 0.0));
        let (low, high) = shown
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
        if low > high {
            return None;
        }
        let range = match scale {
            Scale::Linear => {
                let margin = (0.04 * (high - low)).max(1e-9 + 1e-3 * high.abs());
                low - margin..high + margin
            }
            // Full powers of ten, with space for the arrows of lower bounds.
            Scale::Log => {
                let (low, high) = (low.log10().floor(), (high.log10() + 0.1).ceil());
                low..high.max(low + 1.0)
            }
        };
        Some(Self { scale, range })
    }

    /// Returns the position of a value, from 0 at the start to 1 at the end; `None` if it cannot be
    /// shown.
    pub fn position(&self, value: f64) -> Option<f64> {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => return None,
        };
        Some((value - self.range.start) / (self.range.end - self.range.start))
            .filter(|at| at.is_finite())
    }

    /// Returns about `count` values for grid lines, with their labels.
    pub fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let rough = (self.range.end - self.range.start) / count.max(1) as f64;
        if self.scale == Scale::Log {
            let every = rough.ceil().max(1.0) as usize;
            let powers = (self.range.start as i32..=self.range.end as i32).step_by(every);
            return powers.map(|power| (10_f64.powi(power), power_label(power))).collect();
        }
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let digits = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.range.start / step).ceil() as i64;
        let last = (self.range.end / step).floor() as i64;
        (first..=last)
            .map(|i| i as f64 * step)
            .map(|value| (value, format!("{value:.digits$}")))
            .collect()
    }
}

fn power_label(power: i32) -> String {
    match power {
        0..=5 => 10_i64.pow(power as u32).to_string(),
        -4..0 => format!("{:.*}", power.unsigned_abs() as usize, 10_f64.powi(power)),
        _ => format!("1e{power}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_cover_the_values() {
        let axis = Axis::new(Scale::Linear, [2.2, 3.3, f64::NAN].into_iter()).expect("an axis");
        let labels: Vec<String> = axis.ticks(6).into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["2.2", "2.4", "2.6", "2.8", "3.0", "3.2"]);
        let ends = [2.2, 3.3].map(|value| axis.position(value).expect("shown"));
        assert!(0.0 < ends[0] && ends[0] < 0.1 && 0.9 < ends[1] && ends[1] < 1.0, "{ends:?}");
        let axis = Axis::new(Scale::Log, [0.0, 0.002, 730.0].into_iter()).expect("an axis");
        let labels: Vec<String> = axis.ticks(10).into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]);
        assert_eq!(axis.position(0.0), None);
        assert!(Axis::new(Scale::Log, [0.0].into_iter()).is_none());
    }

    #[test]
    fn one_value_has_an_axis() {
        for value in [0.0, 2.5, -1e6] {
            let axis = Axis::new(Scale::Linear, [value].into_iter()).expect("an axis");
            let at = axis.position(value).expect("shown");
            assert!((at - 0.5).abs() < 1e-6, "{value}: {at}");
        }
    }
}
