//! Compares the order of values in a paper with the order of ours.
//!
//! Our differences are between values of the same sequences, so that variation which they share
//! does not contribute to the error.

use polydraft_reference::comparison::{self, Sample};

use super::order::{Compares, Order, Verdict};
use super::table::{Entry, Table};
use super::theirs::{Source, Value};

/// Returns the difference of two of our values; `None` if they are not of the same sequences.
fn difference(a: &Entry, b: &Entry) -> Option<Value> {
    if exact(a) && exact(b) {
        return Some(Value { value: a.ours.value - b.ours.value, error: Some(0.0) });
    }
    let (one, other) = (&a.series, &b.series);
    let alike = |(a, b): (&Sample, &Sample)| a.prompt == b.prompt;
    if one.len() != other.len() || one.is_empty() || !one.iter().zip(other).all(alike) {
        return None;
    }
    let value = a.ours.value - b.ours.value;
    let positions = |samples: &[Sample]| -> f64 {
        samples.iter().map(|sample| sample.positions as f64).sum::<f64>() / samples.len() as f64
    };
    let (all, all_other) = (positions(one), positions(other));
    let off = |sample: &Sample, mean: f64, all: f64| {
        sample.positions as f64 / all * (sample.tokens[0] - mean)
    };
    let off = |(a_sample, b_sample): (&Sample, &Sample)| {
        let off = off(a_sample, a.ours.value, all) - off(b_sample, b.ours.value, all_other);
        Sample { positions: 1, tokens: vec![off], ..a_sample.clone() }
    };
    let off: Vec<Sample> = one.iter().zip(other).map(off).collect();
    let (_, error) = comparison::mean(&off, |sample| sample.tokens[0]);
    Some(Value { value, error: Some(error).filter(|error| error.is_finite()) })
}

/// Whether a value has no error, because it was computed by a formula.
fn exact(entry: &Entry) -> bool {
    entry.series.is_empty() && entry.ours.error == Some(0.0)
}

/// Compares the table with the orders of its sources, and computes the difference of each value to
/// the first of its row.
pub fn compare(table: &mut Table) {
    table.orders = orders(table);
    if table.compares == Compares::Nothing {
        return;
    }
    for place in 0..table.entries.len() {
        let row = &table.entries[place].row;
        let first = table.entries.iter().position(|entry| entry.row == *row);
        let first = first.filter(|first| *first != place);
        table.entries[place].less_first =
            first.and_then(|first| difference(&table.entries[place], &table.entries[first]));
    }
}

fn orders(table: &Table) -> Vec<Order> {
    let mut orders = Vec::new();
    for (index, source) in table.theirs.iter().enumerate() {
        for (place, one) in table.entries.iter().enumerate() {
            let mut next = true;
            for other in &table.entries[place + 1..] {
                let compares = match table.compares {
                    Compares::Nothing => false,
                    _ if one.row == other.row => true,
                    Compares::Columns => false,
                    // Compare with the next row that has a value in this column.
                    Compares::Rows => {
                        one.column == other.column
                            && parts(&one.row, &other.row) == 1
                            && source.figure(&other.row, &other.column).is_some()
                            && std::mem::take(&mut next)
                    }
                };
                if compares {
                    orders.extend(order(source, index, one, other));
                }
            }
        }
        orders.extend(claims(table, source, index));
    }
    orders
}

/// Returns the orders stated in a source's text whose two values are in the table.
fn claims(table: &Table, source: &Source, index: usize) -> Vec<Order> {
    let claims = source.claims.iter().filter_map(|(row, column, other_row, other)| {
        let (more, less) = (table.entry(row, column)?, table.entry(other_row, other)?);
        Some(verdict(index, more, less, None, difference(more, less)?))
    });
    claims.collect()
}

/// Returns the number of components in which the names of two rows differ.
fn parts(one: &str, other: &str) -> usize {
    one.split(", ").zip(other.split(", ")).filter(|(a, b)| a != b).count()
}

fn order(source: &Source, index: usize, one: &Entry, other: &Entry) -> Option<Order> {
    let value_of = |entry: &Entry| source.figure(&entry.row, &entry.column);
    let (a, b) = (value_of(one)?, value_of(other)?);
    // Values within two of their standard errors have no order.
    let error = a.error.zip(b.error).map_or(0.0, |(a, b)| a.hypot(b));
    let theirs = a.value - b.value;
    if theirs == 0.0 || theirs.abs() <= 2.0 * error {
        return None;
    }
    let (more, less) = if theirs > 0.0 { (one, other) } else { (other, one) };
    Some(verdict(index, more, less, Some(theirs.abs()), difference(more, less)?))
}

fn verdict(source: usize, more: &Entry, less: &Entry, theirs: Option<f64>, ours: Value) -> Order {
    let at = |entry: &Entry| (entry.row.clone(), entry.column.clone());
    let too_few = (1..FEWEST).contains(&more.series.len());
    let verdict = if too_few { Verdict::Undecided } else { Verdict::from_difference(ours) };
    Order { source, more: at(more), less: at(less), theirs, ours, verdict }
}

/// Minimum number of sequences for which two standard errors are meaningful.
const FEWEST: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::theirs::sources;
    use super::*;

    fn samples(values: &[f64]) -> Vec<Sample> {
        let sample = |(index, value): (usize, &f64)| Sample {
            prompt: index / 2,
            positions: 1 + index % 3,
            drafts: 1,
            nodes: 1,
            tokens: vec![*value],
        };
        values.iter().enumerate().map(sample).collect()
    }

    /// Variation that sequences share cancels in differences, and sequences are weighted.
    #[test]
    fn differences_are_between_the_same_sequences() {
        let mut table = Table::new("efficiency", "", 2);
        table.compares = Compares::Columns;
        let base = [1.0, 5.0, 2.0, 7.0];
        let shifted = |by: f64| samples(&base.map(|value| value + by));
        table.add_series("K = 2, L = 5", "walk:importance", shifted(0.0));
        table.add_series("K = 2, L = 5", "specinfer", shifted(-0.25));
        let mut uneven = shifted(0.5);
        uneven[0].tokens[0] += 0.1;
        table.add_series("K = 2, L = 5", "spectr", uneven.clone());
        let value_of = |a: usize, b: usize| {
            difference(&table.entries[a], &table.entries[b]).expect("the same sequences")
        };
        let same = value_of(0, 1);
        assert!((same.value - 0.25).abs() < 1e-12 && same.error.expect("an error") < 1e-12);
        let other = value_of(2, 0);
        assert!((other.value - 0.5 - 0.1 / 7.0).abs() < 1e-12, "{other:?}");
        // Equal to the error of paired values.
        let (_, error) = comparison::mean(&uneven, |sample| {
            let place = uneven.iter().position(|other| other == sample).expect("itself");
            sample.tokens[0] - base[place]
        });
        assert!((other.error.expect("an error") - error).abs() < 1e-12);
        table.add_sources(sources("canonical", "efficiency"));
        compare(&mut table);
        let found: Vec<_> = table.orders.iter().map(|order| order.verdict).collect();
        // Theirs: importance above both; spectr within an error of specinfer.
        assert_eq!(found, [Verdict::Reproduced, Verdict::Contradicted], "{:?}", table.orders);
        let undecided = Value { value: 0.1, error: Some(0.06) };
        assert_eq!(Verdict::from_difference(undecided), Verdict::Undecided);
    }

    /// An order stated in words has no value, and values of formulas have no error.
    #[test]
    fn claims_are_orders() {
        let mut table = Table::new("bernoulli", "", 4);
        table.add("b = 0.1, K = 2", "OTM", 0.9, Some(0.0));
        table.add("b = 0.1, K = 2", "k-seq", 0.8, Some(0.0));
        let mut source = sources("spectr", "bernoulli").remove(0);
        assert!(source.claims.len() > 2);
        let at = |column: &str| ("b = 0.1, K = 2".to_owned(), column.to_owned());
        let claim = |more: &str, less: &str| {
            let (more, less) = (at(more), at(less));
            (more.0, more.1, less.0, less.1)
        };
        source.claims = vec![claim("OTM", "k-seq"), claim("k-seq", "OTM"), claim("OTM", "nobody")];
        table.add_sources(vec![source]);
        compare(&mut table);
        let found: Vec<_> = table.orders.iter().map(|order| order.verdict).collect();
        assert_eq!(found, [Verdict::Reproduced, Verdict::Contradicted]);
        assert!(table.orders.iter().all(|order| order.by() == "its text"));
        // Estimates of different sequences are not compared.
        table.entries[1].ours.error = Some(0.1);
        compare(&mut table);
        assert!(table.orders.is_empty());
    }

    #[test]
    fn too_few_sequences_decide_nothing() {
        for (count, verdict) in [(3, Verdict::Undecided), (4, Verdict::Reproduced)] {
            let mut table = Table::of_rows("paths", "", 2);
            for (row, by) in [("K = 1", 0.0), ("K = 2", 0.5)] {
                let values = [1.0, 5.0, 2.0, 7.0].map(|value| value + by);
                table.add_series(row, "greedy-block", samples(&values[..count]));
            }
            table.add_sources(sources("gbv", "paths"));
            compare(&mut table);
            assert_eq!(table.orders[0].verdict, verdict, "{count}");
        }
    }

    #[test]
    fn rows_are_compared_with_the_next() {
        let mut table = Table::new("paths", "", 2);
        table.compares = Compares::Rows;
        for (row, by) in [("K = 1", 0.0), ("K = 2", 0.1), ("K = 3", 0.3), ("K = 9", 1.0)] {
            let values = [1.0, 5.0, 2.0, 7.0].map(|value| value + by);
            table.add_series(row, "greedy-block", samples(&values));
            table.add_series(row, "nested-priority", samples(&values));
        }
        table.add_sources(sources("gbv", "paths"));
        compare(&mut table);
        let value_of = |source: usize| {
            let own = table.orders.iter().filter(|order| order.source == source);
            own.map(|order| (order.more.0.as_str(), order.verdict)).collect::<Vec<_>>()
        };
        let yes = Verdict::Reproduced;
        assert_eq!(value_of(0), [("K = 2", yes), ("K = 3", yes)]);
        // Qwen's fall.
        let no = Verdict::Contradicted;
        assert_eq!(value_of(6), [("K = 1", no), ("K = 2", no)]);
    }
}
