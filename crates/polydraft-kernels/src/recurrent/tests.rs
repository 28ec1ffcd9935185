use super::*;
use crate::rows::Rows;

/// A rule with what its test needs of it.
trait Tested: std::fmt::Debug {
    fn width(&self) -> usize;
    fn state(&self) -> usize;
    fn out(&self) -> usize;
    fn forward(&self, walks: &mut [Walk]) -> Rows;
    /// By the formula, in double precision: the state after a token and what it reads.
    fn taken_in(&self, state: &[f64], row: &[f32]) -> (Vec<f64>, Vec<f64>);
    /// Rows of tokens by which states stay small, decays between 0 and 1.
    fn rows(&self, count: usize, seed: f32) -> Vec<f32>;
}

/// Numbers between −1 and 1 without a pattern.
fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + seed) * 1.618).sin()).collect()
}

impl Tested for DeltaRule {
    fn width(&self) -> usize {
        self.width()
    }

    fn state(&self) -> usize {
        self.state()
    }

    fn out(&self) -> usize {
        self.value_heads * self.value
    }

    fn forward(&self, walks: &mut [Walk]) -> Rows {
        self.forward(walks)
    }

    fn taken_in(&self, state: &[f64], row: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let DeltaRule { key_heads, value_heads, key, value, order } = *self;
        let (mut after, mut out) = (state.to_vec(), Vec::new());
        for head in 0..value_heads {
            let of = match order {
                HeadsOfKeys::Neighbours => head * key_heads / value_heads,
                HeadsOfKeys::InTurn => head % key_heads,
            };
            let at = |from: usize| f64::from(row[from]);
            let (keys, values) = (key_heads * key, 2 * key_heads * key + head * value);
            let (decay, strength) =
                (at(self.mixed() + head), at(self.mixed() + value_heads + head));
            for j in 0..value {
                let place = |i: usize| (head * key + i) * value + j;
                let known: f64 =
                    (0..key).map(|i| decay * state[place(i)] * at(keys + of * key + i)).sum();
                let change = strength * (at(values + j) - known);
                let mut sum = 0.0;
                for i in 0..key {
                    let x = decay * state[place(i)] + at(keys + of * key + i) * change;
                    after[place(i)] = x;
                    sum += x * at(of * key + i);
                }
                out.push(sum);
            }
        }
        (after, out)
    }

    fn rows(&self, count: usize, seed: f32) -> Vec<f32> {
        let mut rows = numbers(count * self.width(), seed);
        for row in rows.chunks_exact_mut(self.width()) {
            let (mixed, gates) = row.split_at_mut(self.mixed());
            let shorter = (self.key as f32).powf(-0.5);
            mixed.iter_mut().for_each(|x| *x *= shorter);
            gates.iter_mut().for_each(|x| *x = 0.5 + 0.5 * *x);
        }
        rows
    }
}

impl Tested for StateSpace {
    fn width(&self) -> usize {
        self.width()
    }

    fn state(&self) -> usize {
        self.memory()
    }

    fn out(&self) -> usize {
        self.inner()
    }

    fn forward(&self, walks: &mut [Walk]) -> Rows {
        self.forward(walks)
    }

    fn taken_in(&self, before: &[f64], row: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let StateSpace { groups, heads, state, value } = *self;
        let (mut after, mut out) = (before.to_vec(), Vec::new());
        let at = |from: usize| f64::from(row[from]);
        for head in 0..heads {
            let write = heads * value + head * groups / heads * state;
            let read = write + groups * state;
            let decay = at(heads * value + 2 * groups * state + head);
            for j in 0..value {
                let mut sum = 0.0;
                for i in 0..state {
                    let place = (head * state + i) * value + j;
                    after[place] = decay * before[place] + at(write + i) * at(head * value + j);
                    sum += after[place] * at(read + i);
                }
                out.push(sum);
            }
        }
        (after, out)
    }

    fn rows(&self, count: usize, seed: f32) -> Vec<f32> {
        let mut rows = numbers(count * self.width(), seed);
        for row in rows.chunks_exact_mut(self.width()) {
            let (mixed, decays) = row.split_at_mut(self.mixed());
            let shorter = (self.state as f32).powf(-0.5);
            mixed[self.inner()..].iter_mut().for_each(|x| *x *= shorter);
            decays.iter_mut().for_each(|x| *x = 0.5 + 0.4 * *x);
        }
        rows
    }
}

fn rules() -> Vec<Box<dyn Tested>> {
    let mut rules: Vec<Box<dyn Tested>> = Vec::new();
    for (key, value) in [(1, 1), (8, 5), (16, 16), (20, 37), (128, 128)] {
        for order in [HeadsOfKeys::Neighbours, HeadsOfKeys::InTurn] {
            rules.push(Box::new(DeltaRule { key_heads: 2, value_heads: 6, key, value, order }));
        }
        for groups in [1, 2] {
            rules.push(Box::new(StateSpace { groups, heads: 6, state: key, value }));
        }
    }
    rules
}

#[test]
fn a_walk_is_the_formula_along_every_path() {
    // Two decided tokens of which the first was there before, then a tree, of which node 3 too.
    const NEW: usize = 1;
    const PARENTS: [Option<usize>; 6] = [None, None, Some(2), Some(2), None, Some(6)];
    let steps = [(2, 0), (4, 1), (5, 1), (3, 0), (6, 0), (7, 1)];
    let steps = steps.map(|(row, depth)| Step { row, depth });
    for rule in rules() {
        let start = numbers(rule.state(), 0.5);
        let rows = rule.rows(8, 0.25);
        let mut state = start.clone();
        let walk = Walk {
            memory: Memory::Moving(&mut state),
            rows: &rows,
            settled: 2,
            steps: &steps,
            new: NEW,
        };
        let found = rule.forward(&mut [walk]);

        let row = |at: usize| &rows[at * rule.width()..][..rule.width()];
        let begin: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
        let (first, _) = rule.taken_in(&begin, row(0));
        let (settled, out) = rule.taken_in(&first, row(1));
        let mut expected = vec![out];
        let mut states: Vec<Vec<f64>> = vec![first, settled.clone()];
        for (at, parent) in (2..).zip(PARENTS) {
            let before = parent.map_or(&settled, |parent| &states[parent]);
            let (after, out) = rule.taken_in(before, row(at));
            states.push(after);
            expected.push(out);
        }
        let close = |found: f32, exact: f64| (f64::from(found) - exact).abs() < 2e-5;
        assert!(state.iter().zip(&settled).all(|(x, exact)| close(*x, *exact)), "{rule:?}");
        let found = found.numbers().chunks_exact(rule.out());
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.zip(expected) {
            assert!(found.iter().zip(&expected).all(|(x, e)| close(*x, *e)), "{rule:?}");
        }
    }
}

#[test]
fn cuts_and_company_change_no_bit() {
    for rule in rules() {
        let start = numbers(rule.state(), 0.125);
        let rows = rule.rows(40, 3.0);
        let whole = |state: &mut [f32]| {
            let walk = Walk {
                memory: Memory::Moving(state),
                rows: &rows,
                settled: 40,
                steps: &[],
                new: 0,
            };
            rule.forward(&mut [walk])
        };
        let mut at_once = start.clone();
        let expected = whole(&mut at_once);
        // In pieces, of which each begins with what the one before left undecided.
        let (mut state, mut found) = (start.clone(), Vec::new());
        let mut from = 0;
        for end in [1, 2, 9, 30, 40] {
            let settled = end - 1 - from;
            let rows = &rows[from * rule.width()..end * rule.width()];
            let last = [Step { row: settled, depth: 0 }];
            let new = usize::from(!found.is_empty());
            let memory = Memory::Moving(&mut state);
            let walk = Walk { memory, rows, settled, steps: &last, new };
            found.extend_from_slice(rule.forward(&mut [walk]).numbers());
            from = end - 1;
        }
        assert_eq!(found, expected.numbers(), "{rule:?}");
        // Beside others, and with a state that stays.
        let chain: Vec<Step> = (0..7).map(|row| Step { row, depth: row }).collect();
        let mut other = start.clone();
        let part = &rows[..7 * rule.width()];
        let mut walks = [
            Walk { memory: Memory::Moving(&mut other), rows: part, settled: 3, steps: &[], new: 0 },
            Walk { memory: Memory::Fixed(&start), rows: part, settled: 0, steps: &chain, new: 0 },
        ];
        let found = rule.forward(&mut walks);
        let width = rule.out();
        assert_eq!(&found.numbers()[7 * width..], &expected.numbers()[..7 * width], "{rule:?}");
    }
}

#[test]
fn convolutions_are_their_formula() {
    for channels in [1, 7, 64, 1003] {
        let rows = numbers(5 * channels, 0.5);
        let weights = numbers(3 * channels, 0.75);
        let bias = numbers(channels, 2.0);
        let row = |at: usize| &rows[at * channels..][..channels];
        let windows = [vec![row(0), row(1), row(2)], vec![row(4), row(0), row(4)]];
        for bias in [None, Some(&bias[..])] {
            let found = convolve(&windows, &weights, bias, channels);
            for (window, found) in windows.iter().zip(found.numbers().chunks_exact(channels)) {
                for (c, found) in found.iter().enumerate() {
                    let products = window.iter().enumerate();
                    let exact: f64 = products
                        .map(|(j, x)| f64::from(x[c]) * f64::from(weights[j * channels + c]))
                        .sum();
                    let exact = exact + bias.map_or(0.0, |bias| f64::from(bias[c]));
                    assert!((f64::from(*found) - exact).abs() < 1e-6);
                }
            }
        }
    }
}
