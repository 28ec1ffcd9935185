//! L-BFGS: minimises a smooth convex function.
//!
//! Problem: find a point whose gradient is small in the L1 norm, within a few iterations.
//! Source: Nocedal 1980 (two-loop recursion, 10 stored pairs); line search of Nocedal and Wright
//! 2006, algorithms 3.5 and 3.6 (bracket, then zoom by bisection) for the strong Wolfe conditions
//! with SciPy's constants 1e-3 and 0.9.
//! Complexity: O(variables) per iteration, plus one or two evaluations of the function.
//! Deviations: (1) own code, not a library's: the paper stops on the *L1* norm of the gradient,
//! which it gets from SciPy's L-BFGS-B; argmin's L-BFGS stops on the L2 norm only and reports that,
//! so it would either iterate longer than published or stop elsewhere, and the point of this file
//! is to be the published algorithm; (2) no stop on small progress, which SciPy has: this finds
//! more solutions, not fewer.

/// Number of stored pairs of steps and gradient changes.
const MEMORY: usize = 10;
const DECREASE: f64 = 1e-3;
const CURVATURE: f64 = 0.9;
/// Maximum number of function evaluations in one line search, as in SciPy.
const SEARCH: usize = 20;

/// Result of a minimisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct End {
    /// Number of iterations.
    pub iterations: usize,
    /// L1 norm of the gradient.
    pub gradient: f64,
}

struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    product: f64,
}

/// Minimises from `point`, which is updated. `goes_on` is called before every iteration and ends
/// the search by returning false. `function(point, gradient)` fills the gradient and returns the
/// value.
pub(super) fn minimise(
    point: &mut Vec<f64>,
    iterations: usize,
    threshold: f64,
    goes_on: impl Fn() -> bool,
    mut function: impl FnMut(&[f64], &mut [f64]) -> f64,
) -> End {
    let size = point.len();
    let mut gradient = vec![0.0; size];
    let mut value = function(point, &mut gradient);
    let mut pairs: Vec<Pair> = Vec::new();
    for iteration in 0..iterations {
        if norm1(&gradient) <= threshold || !goes_on() {
            return End { iterations: iteration, gradient: norm1(&gradient) };
        }
        let direction = direction(&pairs, &gradient);
        let slope = dot(&direction, &gradient);
        // The first step has length 1, as in SciPy; later ones are quasi-Newton steps.
        let first = if pairs.is_empty() {
            1.0_f64.min(1.0 / dot(&gradient, &gradient).sqrt())
        } else {
            1.0
        };
        let mut at = |length: f64| {
            let next: Vec<f64> =
                point.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
            let mut gradient = vec![0.0; size];
            let value = function(&next, &mut gradient);
            let slope = dot(&gradient, &direction);
            Trial { value, slope, point: next, gradient }
        };
        let Some(found) = search(value, slope, first, &mut at) else {
            return End { iterations: iteration, gradient: norm1(&gradient) };
        };
        let step: Vec<f64> = found.point.iter().zip(&*point).map(|(a, b)| a - b).collect();
        let change: Vec<f64> = found.gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let product = dot(&step, &change);
        if product > 0.0 {
            if pairs.len() == MEMORY {
                pairs.remove(0);
            }
            pairs.push(Pair { step, change, product });
        }
        (*point, gradient, value) = (found.point, found.gradient, found.value);
    }
    End { iterations, gradient: norm1(&gradient) }
}

/// Returns −(approximate inverse Hessian)·gradient.
fn direction(pairs: &[Pair], gradient: &[f64]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut weights = Vec::with_capacity(pairs.len());
    for pair in pairs.iter().rev() {
        let weight = dot(&pair.step, &direction) / pair.product;
        add(&mut direction, -weight, &pair.change);
        weights.push(weight);
    }
    if let Some(last) = pairs.last() {
        let scale = last.product / dot(&last.change, &last.change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (pair, weight) in pairs.iter().zip(weights.into_iter().rev()) {
        let other = dot(&pair.change, &direction) / pair.product;
        add(&mut direction, weight - other, &pair.step);
    }
    direction
}

/// A point on the line.
struct Trial {
    value: f64,
    slope: f64,
    point: Vec<f64>,
    gradient: Vec<f64>,
}

/// Returns a step length that meets the strong Wolfe conditions, or else the best one found that
/// decreases the function.
fn search(value: f64, slope: f64, first: f64, at: &mut impl FnMut(f64) -> Trial) -> Option<Trial> {
    let (mut low, mut low_value, mut high) = (0.0, value, f64::INFINITY);
    let mut length = first;
    let mut best: Option<Trial> = None;
    for _ in 0..SEARCH {
        let trial = at(length);
        let enough = trial.value.is_finite() && trial.value <= value + DECREASE * length * slope;
        // Too long if the value is not finite, too high, or higher than at a shorter step.
        if !enough || trial.value > low_value {
            high = length;
        } else if trial.slope.abs() <= -CURVATURE * slope {
            return Some(trial);
        } else if trial.slope > 0.0 {
            high = length;
            best = Some(trial);
        } else {
            (low, low_value) = (length, trial.value);
            best = Some(trial);
        }
        length = if high.is_finite() { 0.5 * (low + high) } else { 4.0 * length };
    }
    best
}

fn norm1(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).sum()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, what: &[f64]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += factor * what);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quadratic_and_a_curved_valley() {
        let scales = [1.0, 30.0, 0.2, 7.0];
        let quadratic = |x: &[f64], g: &mut [f64]| {
            (0..4).for_each(|i| g[i] = scales[i] * (x[i] - i as f64));
            (0..4).map(|i| 0.5 * scales[i] * (x[i] - i as f64).powi(2)).sum()
        };
        let mut x = vec![5.0; 4];
        let end = minimise(&mut x, 30, 1e-9, || true, quadratic);
        assert!(end.gradient <= 1e-9 && end.iterations < 30, "{end:?}");
        (0..4).for_each(|i| assert!((x[i] - i as f64).abs() < 1e-8));

        let rosenbrock = |x: &[f64], g: &mut [f64]| {
            let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
            g[0] = -2.0 * a - 400.0 * x[0] * b;
            g[1] = 200.0 * b;
            a * a + 100.0 * b * b
        };
        let mut x = vec![-1.2, 1.0];
        let end = minimise(&mut x, 100, 1e-6, || true, rosenbrock);
        assert!(end.gradient <= 1e-6 && (x[0] - 1.0).abs() < 1e-5, "{end:?} {x:?}");
    }

    #[test]
    fn ends_at_the_stop_strings() {
        // Unbounded below, so it runs until the maximum number of iterations.
        let mut x = vec![0.0];
        let end = minimise(
            &mut x,
            7,
            1e-3,
            || true,
            |x, g| {
                g[0] = -1.0;
                -x[0]
            },
        );
        assert!(end.gradient == 1.0 && end.iterations <= 7);
        // Nothing to minimise.
        assert_eq!(
            minimise(&mut Vec::new(), 25, 1e-3, || true, |_, _| 0.0),
            End { iterations: 0, gradient: 0.0 }
        );
    }
}
