//! Costs learned from the times of steps that decoding makes anyway.
//!
//! Problem: the costs of passes on a machine should become known without a measurement that
//! somebody waits for, also where the machine is busy or its speed drifts.
//! Source: ours.
//! Method: the time of each step is divided by its estimate from the costs. At the end of a
//! sequence, the median of these ratios over the plain steps is the speed of the machine at that
//! time. The median for each number of tokens in a pass, relative to the plain one, corrects the
//! cost of that pass, weighted by the number of steps, now and in earlier sequences. Numbers of
//! tokens that did not occur follow the others with less weight. A disturbance of single steps
//! changes no median, and a slower machine changes no ratio. The acceptance of drafts and the gain
//! are averages in the same way.
//! Complexity: a sort of at most 1,024 numbers per sequence. Deviations: none.

use super::costs::MIN_TIMED_STEPS;
use super::{Choices, Costs, Learned, Passes, StepSample};

/// Weight of the initial costs, in steps or drafted tokens.
const PRIOR: u64 = 8;
/// Maximum weight of the past: what changes is learned again within about this many steps.
const MAX_WEIGHT: u64 = 400;
/// Weight of steps for passes over other numbers of tokens.
const OTHERS: f64 = 0.25;
/// Largest factor by which one sequence may correct a cost; its inverse is the smallest.
const MAX_FACTOR: f64 = 4.0;
/// Timed plain steps after which no further sequence starts with some.
const ENOUGH_PLAIN_STEPS: u64 = 24;

impl Learned {
    /// Returns whether so few plain steps were timed that a sequence should start with some.
    pub fn needs_plain_steps(&self) -> bool {
        self.plain_steps < ENOUGH_PLAIN_STEPS
    }
}

impl Costs {
    /// Corrects the costs, the acceptance and the gain by a finished sequence. Costs change only if
    /// enough of its steps were plain.
    pub fn learn(&mut self, choices: &Choices) {
        let Learned { nodes, gain_steps, gain, .. } = &mut self.learned;
        if choices.verified > 0 {
            let rejected = choices.rejected as f64 / choices.verified as f64;
            self.rejected += share(choices.verified, *nodes) * (rejected - self.rejected);
            add(nodes, choices.verified);
        }
        if choices.steps > 0 {
            let weight = choices.steps as f64 / (choices.steps + *gain_steps) as f64;
            *gain += weight * (choices.gain() - *gain);
            add(gain_steps, choices.steps);
        }
        self.learn_times(&choices.samples);
    }

    fn learn_times(&mut self, samples: &[StepSample]) {
        let target = |tokens: &dyn Fn(usize) -> bool| -> Vec<f64> {
            samples.iter().filter(|s| tokens(s.tokens)).map(|s| s.target).collect()
        };
        let plain = target(&|tokens| tokens <= 1);
        if (plain.len() as u64) < MIN_TIMED_STEPS {
            return;
        }
        add(&mut self.learned.plain_steps, plain.len() as u64);
        let Some(speed) = median(plain).filter(|speed| *speed > 0.0) else { return };
        let factor = |ratio: f64| (ratio / speed).clamp(1.0 / MAX_FACTOR, MAX_FACTOR);
        let drafts: Vec<f64> = samples.iter().filter_map(|sample| sample.draft).collect();
        let count = drafts.len() as u64;
        if let Some(ratio) = median(drafts) {
            let scale = 1.0 + share(count, self.learned.draft_steps) * (factor(ratio) - 1.0);
            self.draft.scale(0, scale);
            self.first *= scale;
            add(&mut self.learned.draft_steps, count);
        }
        let drafted = target(&|tokens| tokens > 1);
        let count = drafted.len() as f64;
        let Some(all) = median(drafted) else { return };
        let passes = self.target.0.len();
        self.learned.steps.resize(passes, 0);
        for pass in 1..passes {
            let near = target(&|tokens| tokens > 1 && self.target.nearest(tokens) == pass);
            let steps = near.len() as u64;
            let past = &mut self.learned.steps[pass];
            let (weight, ratio) = match median(near) {
                Some(ratio) => (share(steps, *past), ratio),
                None => (share((OTHERS * count) as u64, *past), all),
            };
            add(past, steps);
            let scale = 1.0 + weight * (factor(ratio) - 1.0);
            self.target.scale(pass, scale);
        }
        self.target.make_monotone();
    }
}

impl Passes {
    /// Index of the known pass, after the first, whose number of tokens is nearest.
    fn nearest(&self, tokens: usize) -> usize {
        let distance = |index: &usize| self.0[*index].tokens.abs_diff(tokens);
        (1..self.0.len()).min_by_key(distance).unwrap_or(0)
    }

    /// Scales a pass; index 0 scales all of a draft's passes.
    fn scale(&mut self, index: usize, factor: f64) {
        let passes = match index {
            0 => &mut self.0[..],
            index => &mut self.0[index..=index],
        };
        for pass in passes {
            (pass.seconds, pass.longer) = (factor * pass.seconds, factor * pass.longer);
        }
    }

    /// Raises passes so that none takes less than one over fewer tokens.
    fn make_monotone(&mut self) {
        for index in 1..self.0.len() {
            let before = self.0[index - 1];
            let pass = &mut self.0[index];
            pass.seconds = pass.seconds.max(before.seconds);
            pass.longer = pass.longer.max(before.longer);
        }
    }
}

/// Share of `new` observations among themselves, the past ones and the prior.
fn share(new: u64, past: u64) -> f64 {
    new as f64 / (new + past + PRIOR) as f64
}

fn add(past: &mut u64, new: u64) {
    *past = (*past + new).min(MAX_WEIGHT);
}

/// Median; `None` of nothing.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    let middle = numbers.len() / 2;
    (!numbers.is_empty()).then(|| *numbers.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::super::StepContext;
    use super::*;

    fn seconds(costs: &Costs, tokens: usize) -> f64 {
        costs.target.seconds(tokens, &StepContext { batch_size: 1, ..StepContext::default() })
    }

    /// Samples of steps over these numbers of tokens, on a machine with other costs whose speed is
    /// a factor of the true one. Every ninth step is disturbed.
    fn samples(costs: &Costs, real: &Costs, speed: f64, sizes: &[usize]) -> Vec<StepSample> {
        let draft = speed * real.draft.0[0].seconds / costs.draft.0[0].seconds;
        let step = |(number, &tokens): (usize, &usize)| {
            let disturbed = if number % 9 == 4 { 50.0 } else { 1.0 };
            StepSample {
                tokens,
                target: disturbed * speed * seconds(real, tokens) / seconds(costs, tokens),
                draft: (tokens > 1).then_some(draft * disturbed),
            }
        };
        sizes.iter().enumerate().map(step).collect()
    }

    fn machine(more: f64, draft: f64) -> Costs {
        let mut costs = Costs::default();
        costs.target.0.iter_mut().skip(1).for_each(|pass| pass.seconds *= more);
        costs.draft.scale(0, draft);
        costs
    }

    #[test]
    fn converges_to_the_costs_of_a_machine_at_any_speed() {
        for (more, draft) in [(0.9, 3.0), (1.0, 1.0), (1.6, 0.4), (3.0, 1.0)] {
            let (real, mut costs) = (machine(more, draft), Costs::default());
            for speed in [1.0, 3.0, 0.4].repeat(12) {
                let sizes = [1, 8, 1, 8, 1, 8, 1, 8, 1, 1, 1, 32, 32, 1, 32, 8];
                let samples = samples(&costs, &real, speed, &sizes);
                costs.learn(&Choices { samples, ..Choices::default() });
                assert!(costs.validate().is_ok(), "{costs:?}");
            }
            // The prior still has a small weight.
            for tokens in [1, 8, 32] {
                let error = seconds(&costs, tokens) / seconds(&real, tokens) - 1.0;
                assert!(error.abs() < 0.05, "{more}: {tokens} tokens, {error}");
            }
            let error = costs.draft.0[0].seconds / real.draft.0[0].seconds - 1.0;
            assert!(error.abs() < 0.05, "{draft}: {error}");
        }
    }

    /// Without plain steps the speed of the machine is unknown, and nothing is learned from times.
    #[test]
    fn learns_no_times_without_plain_steps() {
        let mut costs = Costs::default();
        let samples = samples(&costs, &machine(3.0, 3.0), 1.0, &[8, 8, 1, 1, 1, 8, 32]);
        costs.learn(&Choices { samples, ..Choices::default() });
        assert_eq!(costs, Costs::default());
        assert!(costs.learned.needs_plain_steps());
    }

    #[test]
    fn passes_that_did_not_occur_follow_the_others_slowly() {
        let mut costs = Costs::default();
        let samples = samples(&costs, &machine(2.0, 1.0), 1.0, &[1, 8].repeat(20));
        costs.learn(&Choices { samples, ..Choices::default() });
        let [near, far] = [8, 32].map(|n| seconds(&costs, n) / seconds(&Costs::default(), n));
        assert!(1.0 < far && far < near && near < 2.0, "{near} {far}");
    }

    #[test]
    fn acceptance_and_gain_are_averages_over_steps() {
        let mut costs = Costs::default();
        for (rejected, seconds) in [(0, 50.0), (100, 100.0)].repeat(40) {
            let choices =
                Choices { steps: 100, plain_seconds: 100.0, seconds, ..Choices::default() };
            costs.learn(&Choices { verified: 100, rejected, ..choices });
        }
        assert!((costs.rejected - 0.5).abs() < 0.2, "{}", costs.rejected);
        assert!((costs.learned.gain - 1.5).abs() < 0.2, "{}", costs.learned.gain);
    }
}
