//! SpecTr (Sun et al. 2023), figures 4 to 6: acceptances of the best rule, of K-SEQ and of
//! recursive rejection (called "multi-round" there), on distributions with closed formulas.
//!
//! No values can be read off the figures, so the statements in the paper's text are checked. The
//! numbers of drafts and of the uniform targets' tokens are our choice.

use anyhow::Result;
use polydraft::{Distribution, Problem, Proposal, acceptance, couple};
use polydraft_runtime::seeded;

use super::lab::Lab;
use super::table::Table;

/// Probability of heads, for the draft and for the targets.
const DRAFT: f64 = 0.25;
const TARGETS: [f64; 4] = [0.1, 0.25, 0.75, 1.0];
/// Number of tokens of the uniform draft, and its ratios to those of the targets.
const TOKENS: usize = 120;
const FEWER: [usize; 4] = [2, 4, 8, 24];
const COUNTS: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// Columns with their rules; `None` for the best rule.
const COLUMNS: [(&str, Option<&str>); 3] =
    [("OTM", None), ("k-seq", Some("k-seq")), ("multi-round", Some("recursive"))];

pub fn measure(lab: &mut Lab) -> Result<()> {
    if lab.is_interrupted() {
        return Ok(());
    }
    for table in [bernoulli()?, uniform()?] {
        lab.keep(table);
    }
    Ok(())
}

fn bernoulli() -> Result<Table> {
    let title = format!("Acceptance of K drafts of Ber({DRAFT}), target Ber(b), exact");
    let mut table = Table::new("bernoulli", &title, 4);
    let coin = |heads: f64| Distribution::new(vec![1.0 - heads, heads]);
    for heads in TARGETS {
        for count in COUNTS {
            let row = format!("b = {heads}, K = {count}");
            add(&mut table, &row, &coin(heads)?, (&coin(DRAFT)?, count))?;
        }
    }
    Ok(table)
}

fn uniform() -> Result<Table> {
    let title = format!("Acceptance of K drafts uniform on {TOKENS} tokens, target on d, exact");
    let mut table = Table::new("uniform", &title, 4);
    table.remark = Some("k-seq is the optimum here, as in theirs".to_owned());
    let on = |tokens: usize| {
        let probability = 1.0 / tokens as f64;
        let value_of = |token| if token < tokens { probability } else { 0.0 };
        Distribution::new((0..TOKENS).map(value_of).collect())
    };
    for fewer in FEWER {
        for count in COUNTS {
            let row = format!("d = {}, K = {count}", TOKENS / fewer);
            add(&mut table, &row, &on(TOKENS / fewer)?, (&on(TOKENS)?, count))?;
        }
    }
    Ok(table)
}

/// Adds the acceptances for a number of drafts.
fn add(
    table: &mut Table,
    row: &str,
    target: &Distribution,
    (draft, count): (&Distribution, usize),
) -> Result<()> {
    let problem = Problem::new(target, Proposal::iid(draft, count)?)?;
    for (column, rule) in COLUMNS {
        let value = match rule {
            None => acceptance::optimal(&problem)?,
            Some(rule) => {
                let mut rule = polydraft_reference::rule(rule)?.build()?;
                // The acceptance has a formula, so the seed has no effect.
                couple(rule.as_mut(), problem)?.acceptance(&mut seeded(0)).probability
            }
        };
        table.add(row, column, value, Some(0.0));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::order::Verdict;
    use super::super::orders::compare;
    use super::super::theirs::sources;
    use super::*;

    fn value(table: &Table, row: &str, column: &str) -> f64 {
        table.entry(row, column).expect("an entry").ours.value
    }

    /// The paper's formulas (its sections B.1 and B.2).
    #[test]
    fn acceptances_equal_the_formulas() {
        let table = bernoulli().expect("a table");
        for b in TARGETS {
            for count in COUNTS {
                let k = count as i32;
                let (p, q) = (DRAFT, b);
                let best = q.min(1.0 - (1.0 - p).powi(k)) + (1.0 - q).min(1.0 - p.powi(k));
                let got = value(&table, &format!("b = {b}, K = {count}"), "OTM");
                assert!((got - best).abs() < 1e-12, "{b} {count}: {got} {best}");
            }
        }
        let table = uniform().expect("a table");
        for fewer in FEWER {
            for count in COUNTS {
                let best = 1.0 - (1.0 - 1.0 / fewer as f64).powi(count as i32);
                let row = format!("d = {}, K = {count}", TOKENS / fewer);
                for column in ["OTM", "k-seq"] {
                    let got = value(&table, &row, column);
                    assert!((got - best).abs() < 1e-9, "{row} {column}: {got} {best}");
                }
            }
        }
    }

    /// The orders that the paper's text states hold, and refer to existing rows.
    #[test]
    fn stated_orders_hold() {
        for mut table in [bernoulli().expect("a table"), uniform().expect("a table")] {
            let sources = sources("spectr", &table.name);
            let claims: usize = sources.iter().map(|source| source.claims.len()).sum();
            table.add_sources(sources);
            compare(&mut table);
            assert_eq!(table.orders.len(), claims, "{}", table.name);
            for order in &table.orders {
                assert_eq!(order.verdict, Verdict::Reproduced, "{order:?}");
            }
        }
    }
}
