//! SpecHub (Sun et al. 2024), table 4: acceptance on random distributions over 50 tokens,
//! softmax(u/T) for the target and softmax((λu + (1 − λ)v)/T) for the draft.
//!
//! According to the paper's text u and v are uniform on [0, 1], but its values fit standard normal
//! numbers. Both are measured. All acceptances are exact, by formula or enumeration.

use anyhow::Result;
use polydraft::{Distribution, Drafting, Draws, Problem, Proposal, acceptance, couple};
use polydraft_reference::comparison::Sample;
use polydraft_runtime::{SeededRng, seeded};
use rand::Rng;

use super::lab::Lab;
use super::table::Table;

/// Number of tokens of a distribution, and number of pairs of distributions, as in the paper.
const TOKENS: usize = 50;
const PAIRS: usize = 100;

/// Columns: name, rule (`None` for the best rule), and drafting scheme of the two tokens.
const COLUMNS: [(&str, Option<&str>, Drafting); 5] = [
    ("RRS", Some("recursive"), Drafting::Iid),
    ("RRSw", Some("recursive"), Drafting::WithoutReplacement),
    ("OTM", None, Drafting::Iid),
    ("OTMw", None, Drafting::WithoutReplacement),
    ("SpecHub", Some("hub"), Drafting::Hub),
];

/// Distribution of the logits.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    Normal,
    Uniform,
}

pub fn measure(lab: &mut Lab) -> Result<()> {
    if lab.quick || lab.is_interrupted() {
        return Ok(());
    }
    lab.note("random distributions");
    for (name, numbers) in [("toy", Numbers::Normal), ("toy-uniform", Numbers::Uniform)] {
        let kind = if numbers == Numbers::Normal { "normal" } else { "uniform" };
        let title = format!("Acceptance of two drafts, {kind} logits over {TOKENS} tokens");
        let mut table = Table::of_columns(name, &title, 4);
        for temperature in [0.1, 0.25, 0.5] {
            for similar in [0.7, 0.5] {
                row(lab.seed, numbers, temperature, similar, &mut table)?;
            }
        }
        lab.keep(table);
    }
    Ok(())
}

fn row(seed: u64, how: Numbers, temperature: f64, similar: f64, table: &mut Table) -> Result<()> {
    let mut series: Vec<Vec<Sample>> = vec![Vec::new(); COLUMNS.len()];
    let mut random = seeded(seed);
    for pair in 0..PAIRS {
        let (u, v) = (numbers(how, &mut random), numbers(how, &mut random));
        let mixed = u.iter().zip(&v).map(|(u, v)| similar * u + (1.0 - similar) * v);
        let mixed: Vec<f64> = mixed.collect();
        let (target, draft) = (softmax(&u, temperature)?, softmax(&mixed, temperature)?);
        for ((_, rule, scheme), series) in COLUMNS.iter().zip(&mut series) {
            let draws = Draws { scheme: *scheme, count: 2 };
            let problem =
                Problem::new(&target, Proposal::new(draws, std::slice::from_ref(&draft))?)?;
            let value = match rule {
                None => acceptance::optimal(&problem)?,
                Some(rule) => {
                    let mut rule = polydraft_reference::rule(rule)?.build()?;
                    couple(rule.as_mut(), problem)?.acceptance(&mut random).probability
                }
            };
            let (positions, drafts, nodes) = (1, 1, 2);
            series.push(Sample { prompt: pair, positions, drafts, nodes, tokens: vec![value] });
        }
    }
    for ((column, ..), series) in COLUMNS.iter().zip(series) {
        table.add_series(format!("T = {temperature}, λ = {similar}"), *column, series);
    }
    Ok(())
}

/// Returns standard normal numbers (Box and Muller 1958), or uniform ones in [0, 1).
fn numbers(how: Numbers, random: &mut SeededRng) -> Vec<f64> {
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut one = || match how {
        Numbers::Uniform => uniform(),
        Numbers::Normal => {
            (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
        }
    };
    (0..TOKENS).map(|_| one()).collect()
}

fn softmax(logits: &[f64], temperature: f64) -> Result<Distribution> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|u| ((u - most) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    Ok(Distribution::new(weights.into_iter().map(|weight| weight / sum).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No rule exceeds the best one, and the paper's values are those of normal logits.
    #[test]
    fn the_best_of_all_bounds() {
        let mut table = Table::of_columns("toy", "", 4);
        row(1, Numbers::Normal, 0.1, 0.7, &mut table).expect("a row");
        let value_of = |column: &str| {
            let entry = table.entries.iter().find(|entry| entry.column == column);
            entry.expect("an entry").ours
        };
        assert!(
            value_of("OTM").value >= value_of("RRS").value
                && value_of("OTMw").value >= value_of("RRSw").value
        );
        // SpecHub's table 4, first row.
        for (column, theirs) in [("RRS", 0.6273), ("OTM", 0.6380), ("SpecHub", 0.7402)] {
            let ours = value_of(column);
            let error = ours.error.expect("an error");
            assert!((ours.value - theirs).abs() < 5.0 * error, "{column}: {ours:?} {theirs}");
        }
    }
}
