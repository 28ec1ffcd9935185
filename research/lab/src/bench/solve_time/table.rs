//! The tables of a dataset.

use std::io::Write;

use anyhow::Result;

use super::dataset::{Dataset, LIMITS, Speedup};

/// Prints times, acceptances and the derived comparisons.
pub fn print(data: &Dataset, out: &mut impl Write) -> Result<()> {
    let names: Vec<String> = data
        .rows
        .first()
        .map_or(Vec::new(), |row| row.cells.iter().map(|cell| short(&cell.solver)).collect());
    let header = |out: &mut dyn Write, first: &str, second: &str| -> Result<()> {
        write!(out, "{first:<10} {second:>9}")?;
        names.iter().try_for_each(|name| write!(out, " {name:>15}"))?;
        Ok(writeln!(out)?)
    };
    writeln!(
        out,
        "\n{}: milliseconds per token (> lower bound; in brackets: attempts that succeed)",
        data.title()
    )?;
    header(out, "(k, n)", "")?;
    for row in &data.rows {
        write!(out, "{:<10} {:>9}", row.row, "")?;
        row.cells.iter().try_for_each(|cell| write!(out, " {:>15}", cell.time()))?;
        writeln!(out)?;
    }
    writeln!(
        out,
        "\nacceptance (* the mean over the positions that it reached and solved, where the optimum \
         is another)"
    )?;
    header(out, "(k, n)", "optimum")?;
    for row in &data.rows {
        write!(out, "{:<10} {:>9.6}", row.row, row.optimum)?;
        for cell in &row.cells {
            let elsewhere = cell.solved() < data.positions;
            let mark = if elsewhere { "*" } else { "" };
            let acceptance = cell
                .acceptance
                .map_or("-".to_owned(), |acceptance| format!("{acceptance:.6}{mark}"));
            write!(out, " {acceptance:>15}")?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "\nbest acceptance within a time per token (where Global Resolution gives up, the fastest \
         of the first three)"
    )?;
    header(out, "ms/token", "")?;
    for limit in LIMITS {
        write!(out, "{limit:<10} {:>9}", "")?;
        for best in data.within.iter().filter(|within| within.milliseconds == limit) {
            let text = match (best.acceptance, &best.row) {
                (Some(acceptance), Some(row)) => format!("{acceptance:.4} {row}"),
                _ => "-".to_owned(),
            };
            write!(out, " {text:>15}")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "\npriority, the faster of its forms, against")?;
    for speedup in &data.priority_faster_than {
        let Speedup { solver, least, most } = speedup;
        writeln!(out, "  {solver:<28} {least:>8.1} to {most:.1} times as fast")?;
    }
    Ok(())
}

/// Shortens a name to fit a column.
fn short(name: &str) -> String {
    name.replace("linear program (", "LP (")
        .replace("Global Resolution, τ =", "GR")
        .replace("near-linear", "pooled")
}
