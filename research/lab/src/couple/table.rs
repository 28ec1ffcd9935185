//! Results of rules as text.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use polydraft::Token;

use super::report::{Fallback, OffBy, Report};

/// Prints one rule per row.
pub fn table(reports: &[Report]) -> Result<()> {
    let mut text = String::new();
    let bold = Style::new().bold();
    writeln!(
        text,
        "{bold}{:<17} {:<20} {:>6} {:>12} {:>12} {:>9} {:>10}{bold:#}",
        "rule", "drafting", "drafts", "acceptance", "optimum", "share", "time"
    )?;
    for report in reports {
        let optimal = report.optimal.map_or("-".to_owned(), |optimal| format!("{optimal:.6}"));
        writeln!(
            text,
            "{:<17} {:<20} {:>6} {:>12} {optimal:>12} {:>9} {:>10}{}{}",
            report.rule,
            report.drafting,
            report.drafts,
            format!("{:.6}", report.acceptance),
            share(report),
            microseconds(report.time_us),
            report.standard_error.map_or(String::new(), |error| format!("  (± {error:.6})")),
            report
                .fallback
                .as_ref()
                .map_or(String::new(), |fallback| format!("  (by {})", fallback.rule))
        )?;
    }
    print(&text)
}

fn share(report: &Report) -> String {
    let optimal = report.optimal.filter(|optimal| *optimal > 0.0);
    optimal
        .map_or("-".to_owned(), |optimal| format!("{:.2} %", 100.0 * report.acceptance / optimal))
}

fn microseconds(time: f64) -> String {
    if time < 1e3 { format!("{time:.2} µs") } else { format!("{:.2} ms", time / 1e3) }
}

/// Formats tokens, separated by commas.
pub fn list(tokens: &[Token]) -> String {
    tokens.iter().map(Token::to_string).collect::<Vec<_>>().join(", ")
}

/// Maximum number of tokens of a distribution to print; --json prints all.
const SHOWN: usize = 20;
/// Probabilities below this are treated as rounding errors.
const ROUNDING: f64 = 1e-15;

/// Prints the results of one rule, and its emitted distribution for given drafts.
pub fn describe(report: &Report, given: Option<&[Token]>) -> Result<()> {
    let mut text = String::new();
    writeln!(text, "rule        {}, {} drafts, {}", report.rule, report.drafts, report.drafting)?;
    let error = report.standard_error.map_or(String::new(), |error| format!(" ± {error:.6}"));
    writeln!(text, "acceptance  {:.6}{error}", report.acceptance)?;
    match report.optimal {
        Some(optimal) => writeln!(text, "optimum     {optimal:.6}, share {}", share(report))?,
        None => writeln!(text, "optimum     too expensive to compute for these drafts")?,
    }
    if let Some(suffice) = report.two_drafts_suffice {
        let words = if suffice { "always accepts one" } else { "can not always accept one" };
        writeln!(text, "two drafts  the best rule {words} (Khisti et al. 2025, theorem 2)")?;
    }
    writeln!(text, "time        {}", microseconds(report.time_us))?;
    if let Some(OffBy { distribution, acceptance }) = &report.off_by_at_most {
        writeln!(
            text,
            "not exact   published bounds: distribution off by {distribution:.1e} in L1, \
             acceptance by \
             {acceptance:.1e}"
        )?;
    }
    if let Some(Fallback { rule, reason }) = &report.fallback {
        writeln!(text, "fallback    {rule}, since {reason}")?;
    }
    if let (Some(probs), Some(given)) = (&report.distribution, given) {
        writeln!(text, "\nthe emitted token, given {}:", list(given))?;
        let mut tokens: Vec<_> =
            probs.iter().copied().enumerate().filter(|(_, p)| *p > ROUNDING).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        let green = Style::new().fg_color(Some(AnsiColor::Green.into()));
        for (token, probability) in tokens.iter().take(SHOWN) {
            let drafted = given.contains(&(*token as Token));
            let (style, mark) =
                if drafted { (green, "drafted") } else { (Style::new(), "not drafted") };
            writeln!(text, "{style}{token:>8}  {probability:.6}  {mark}{style:#}")?;
        }
        let rest: f64 = tokens.iter().skip(SHOWN).map(|(_, p)| p).sum();
        if tokens.len() > SHOWN {
            writeln!(text, "  others  {rest:.6}  {} tokens", tokens.len() - SHOWN)?;
        }
    }
    print(&text)
}

fn print(text: &str) -> Result<()> {
    let mut out = anstream::AutoStream::auto(io::stdout().lock());
    out.write_all(text.as_bytes())?;
    Ok(())
}
