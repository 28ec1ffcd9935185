use super::*;
use crate::rows::Rows;

/// A recurrent rule, with a reference implementation in double precision.
trait Tested: std::fmt::Debug {
    fn width(&self) -> usize;
    fn state_size(&self) -> usize;
    fn out(&self) -> usize;
    fn forward(&self, walks: &mut [Walk]) -> Rows;
    /// Returns the state after a token, and its output, by the formula in double precision.
    fn reference(&self, state: &[f64], row: &[f32]) -> (Vec<f64>, Vec<f64>);
    /// Returns input rows for which states stay small, with decays between 0 and 1.
    fn rows(&self, count: usize, seed: f32) -> Vec<f32>;
}

/// Returns irregular numbers between −1 and 1.
fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + seed) * 1.618).sin()).collect()
}

impl Tested for DeltaRule {
    fn width(&self) -> usize {
        self.width()
    }

    fn state_size(&self) -> usize {
        self.state_size()
    }

    fn out(&self) -> usize {
        self.value_heads * self.value
    }

    fn forward(&self, walks: &mut [Walk]) -> Rows {
        self.forward(walks)
    }

    fn reference(&self, state: &[f64], row: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let DeltaRule { key_heads, value_heads, key, value, order } = *self;
        let (mut after, mut out) = (state.to_vec(), Vec::new());
        for head in 0..value_heads {
            let key_head = match order {
                KeyHeadOrder::Grouped => head * key_heads / value_heads,
                KeyHeadOrder::Interleaved => head % key_heads,
            };
            let at = |from: usize| f64::from(row[from]);
            let (keys, values) = (key_heads * key, 2 * key_heads * key + head * value);
            let (decay, strength) =
                (at(self.mixed_width() + head), at(self.mixed_width() + value_heads + head));
            for j in 0..value {
                let index = |i: usize| (head * key + i) * value + j;
                let predicted: f64 =
                    (0..key).map(|i| decay * state[index(i)] * at(keys + key_head * key + i)).sum();
                let change = strength * (at(values + j) - predicted);
                let mut sum = 0.0;
                for i in 0..key {
                    let x = decay * state[index(i)] + at(keys + key_head * key + i) * change;
                    after[index(i)] = x;
                    sum += x * at(key_head * key + i);
                }
                out.push(sum);
            }
        }
        (after, out)
    }

    fn rows(&self, count: usize, seed: f32) -> Vec<f32> {
        let mut rows = numbers(count * self.width(), seed);
        for row in rows.chunks_exact_mut(self.width()) {
            let (mixed, gates) = row.split_at_mut(self.mixed_width());
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

    fn state_size(&self) -> usize {
        self.state_size()
    }

    fn out(&self) -> usize {
        self.inner()
    }

    fn forward(&self, walks: &mut [Walk]) -> Rows {
        self.forward(walks)
    }

    fn reference(&self, before: &[f64], row: &[f32]) -> (Vec<f64>, Vec<f64>) {
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
                    let index = (head * state + i) * value + j;
                    after[index] = decay * before[index] + at(write + i) * at(head * value + j);
                    sum += after[index] * at(read + i);
                }
                out.push(sum);
            }
        }
        (after, out)
    }

    fn rows(&self, count: usize, seed: f32) -> Vec<f32> {
        let mut rows = numbers(count * self.width(), seed);
        for row in rows.chunks_exact_mut(self.width()) {
            let (mixed, decays) = row.split_at_mut(self.mixed_width());
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
        for order in [KeyHeadOrder::Grouped, KeyHeadOrder::Interleaved] {
            rules.push(Box::new(DeltaRule { key_heads: 2, value_heads: 6, key, value, order }));
        }
        for groups in [1, 2] {
            rules.push(Box::new(StateSpace { groups, heads: 6, state: key, value }));
        }
    }
    rules
}

#[test]
fn walks_match_reference_along_every_tree_path() {
    // Two committed tokens, the first without an output, then a tree of six tokens.
    const FIRST_OUTPUT: usize = 1;
    const PARENTS: [Option<usize>; 6] = [None, None, Some(2), Some(2), None, Some(6)];
    let tree = [(2, 0), (4, 1), (5, 1), (3, 0), (6, 0), (7, 1)];
    let tree = tree.map(|(row, depth)| TreeToken { row, depth });
    for rule in rules() {
        let start = numbers(rule.state_size(), 0.5);
        let rows = rule.rows(8, 0.25);
        let mut state = start.clone();
        let walk = Walk {
            state: RecurrentState::Updated(&mut state),
            rows: &rows,
            committed: 2,
            tree: &tree,
            first_output: FIRST_OUTPUT,
        };
        let found = rule.forward(&mut [walk]);

        let row = |at: usize| &rows[at * rule.width()..][..rule.width()];
        let begin: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
        let (first, _) = rule.reference(&begin, row(0));
        let (committed, out) = rule.reference(&first, row(1));
        let mut expected = vec![out];
        let mut states: Vec<Vec<f64>> = vec![first, committed.clone()];
        for (at, parent) in (2..).zip(PARENTS) {
            let before = parent.map_or(&committed, |parent| &states[parent]);
            let (after, out) = rule.reference(before, row(at));
            states.push(after);
            expected.push(out);
        }
        let close = |found: f32, exact: f64| (f64::from(found) - exact).abs() < 2e-5;
        assert!(state.iter().zip(&committed).all(|(x, exact)| close(*x, *exact)), "{rule:?}");
        let found = found.numbers().chunks_exact(rule.out());
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.zip(expected) {
            assert!(found.iter().zip(&expected).all(|(x, e)| close(*x, *e)), "{rule:?}");
        }
    }
}

#[test]
fn output_does_not_depend_on_chunking_or_other_sequences() {
    for rule in rules() {
        let start = numbers(rule.state_size(), 0.125);
        let rows = rule.rows(40, 3.0);
        let at_once = |state: &mut [f32]| {
            let walk = Walk {
                state: RecurrentState::Updated(state),
                rows: &rows,
                committed: 40,
                tree: &[],
                first_output: 0,
            };
            rule.forward(&mut [walk])
        };
        let mut state = start.clone();
        let expected = at_once(&mut state);
        // In chunks: each commits all but its last token, which the next chunk repeats.
        let (mut state, mut found) = (start.clone(), Vec::new());
        let mut from = 0;
        for end in [1, 2, 9, 30, 40] {
            let committed = end - 1 - from;
            let rows = &rows[from * rule.width()..end * rule.width()];
            let last = [TreeToken { row: committed, depth: 0 }];
            let first_output = usize::from(!found.is_empty());
            let state = RecurrentState::Updated(&mut state);
            let walk = Walk { state, rows, committed, tree: &last, first_output };
            found.extend_from_slice(rule.forward(&mut [walk]).numbers());
            from = end - 1;
        }
        assert_eq!(found, expected.numbers(), "{rule:?}");
        // Next to another sequence, and from a state that is only read.
        let chain: Vec<TreeToken> = (0..7).map(|row| TreeToken { row, depth: row }).collect();
        let mut other = start.clone();
        let part = &rows[..7 * rule.width()];
        let mut walks = [
            Walk {
                state: RecurrentState::Updated(&mut other),
                rows: part,
                committed: 3,
                tree: &[],
                first_output: 0,
            },
            Walk {
                state: RecurrentState::ReadOnly(&start),
                rows: part,
                committed: 0,
                tree: &chain,
                first_output: 0,
            },
        ];
        let found = rule.forward(&mut walks);
        let width = rule.out();
        assert_eq!(&found.numbers()[7 * width..], &expected.numbers()[..7 * width], "{rule:?}");
    }
}

#[test]
fn convolutions_match_their_formula() {
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
