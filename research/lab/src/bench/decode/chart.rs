//! Chart of tokens per call by verifier, with the significance of differences.

use super::report::{Report, Row};
use crate::plot::{Best, DISTINGUISHABLE, Dot, Dots, Panel, WIDTH};

/// Temperature, paths and depth of a panel.
type Setting = (f64, usize, usize);

/// Returns a chart with a panel per temperature, depth and number of paths, and a row per verifier.
/// Single-path verifiers are shown in the panels of every number of paths.
pub fn chart(report: &Report) -> Dots {
    let rows: Vec<&Row> = report.results.iter().filter(|row| row.paths.is_some()).collect();
    // Maximum number of paths, if any verifier uses several.
    let most = rows.iter().filter_map(|row| row.paths).max();
    let mut settings: Vec<Setting> = Vec::new();
    for row in &rows {
        let setting = (row.temperature, row.paths.unwrap_or(1), row.depth.unwrap_or(0));
        if !settings.contains(&setting) && (setting.1 > 1 || most == Some(1)) {
            settings.push(setting);
        }
    }
    settings.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)).then(a.1.cmp(&b.1)));
    let names = sorted(&rows);
    let warm = settings.iter().any(|setting| setting.0 != settings[0].0);
    let panels = settings.iter().map(|&(temperature, paths, depth)| {
        let title = format!("K = {paths}, L = {depth}");
        Panel {
            title: if warm { format!("T = {temperature}, {title}") } else { title },
            dots: names.iter().map(|name| dot(&rows, name, (temperature, paths, depth))).collect(),
        }
    });
    let alone = most > Some(1);
    let label = |name: &String| {
        let one = alone
            && rows.iter().filter(|row| row.verifier == *name).all(|row| row.paths == Some(1));
        if one { format!("{name}, one path") } else { name.clone() }
    };
    Dots {
        width: WIDTH,
        title: "Tokens per call of the target, by verifier".to_owned(),
        notes: notes(report, &settings, warm),
        x_label: "tokens per call of the target (block efficiency)".to_owned(),
        rows: names.iter().map(label).collect(),
        columns: columns(&settings),
        panels: panels.collect(),
        best: Best::Highest,
        decimals: 2,
    }
}

/// Returns the verifiers' names, best average first.
fn sorted(rows: &[&Row]) -> Vec<String> {
    let mut names: Vec<(String, f64)> = Vec::new();
    for row in rows {
        if !names.iter().any(|(name, _)| *name == row.verifier) {
            let own = || rows.iter().filter(|other| other.verifier == row.verifier);
            let mean = own().map(|row| row.block_efficiency).sum::<f64>() / own().count() as f64;
            names.push((row.verifier.clone(), mean));
        }
    }
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    names.into_iter().map(|(name, _)| name).collect()
}

fn dot(rows: &[&Row], name: &str, (temperature, paths, depth): Setting) -> Option<Dot> {
    let matching = || {
        rows.iter().filter(|r| {
            r.verifier == name && r.temperature == temperature && r.depth == Some(depth)
        })
    };
    let row = matching()
        .find(|r| r.paths == Some(paths))
        .or_else(|| matching().find(|r| r.paths == Some(1)))?;
    Some(Dot { value: row.block_efficiency, error: row.block_efficiency_error, limit: false })
}

/// Returns the number of panels side by side: one per number of paths, so that depths are below
/// each other, but at most three, which still leaves enough width.
fn columns(settings: &[Setting]) -> usize {
    let mut paths: Vec<usize> = settings.iter().map(|setting| setting.1).collect();
    paths.sort_unstable();
    paths.dedup();
    match paths.len() {
        1 => settings.len().min(2),
        several => several.min(3),
    }
}

fn notes(report: &Report, settings: &[Setting], warm: bool) -> Vec<String> {
    let temperature = settings
        .first()
        .filter(|_| !warm)
        .map_or(String::new(), |s| format!(", temperature {}", s.0));
    let measured = format!(
        "K paths of L tokens; {} prompts, {} tokens each{temperature}; {}",
        report.prompts,
        report.max_tokens,
        match report.rounds {
            1 => "one round, so no errors".to_owned(),
            rounds => format!("means and standard errors of {rounds} rounds"),
        }
    );
    let estimated = match report.rounds {
        1 => "Filled: the highest; one round gives no significance".to_owned(),
        _ => format!(
            "Filled: the highest, and values not significantly lower (less than {DISTINGUISHABLE} \
             standard errors of \
             the difference); band: the highest with its error"
        ),
    };
    vec![measured, estimated]
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str =
        include_str!("../../../../records/2026-11-20-amd-epyc-2-threads-decode.json");

    #[test]
    fn draws_record_sorted_and_in_panels() {
        let report: Report = serde_json::from_str(RECORD).expect("a record");
        let chart = chart(&report);
        let titles: Vec<&str> = chart.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["K = 2, L = 4", "K = 4, L = 4", "K = 2, L = 8", "K = 4, L = 8"]);
        assert_eq!((chart.columns, chart.rows.len()), (2, 8));
        assert_eq!(chart.rows[0], "nested-priority");
        assert_eq!(chart.rows[7], "token, one path");
        assert!(chart.panels.iter().all(|panel| panel.dots.iter().all(Option::is_some)));
        // The same single-path result is shown next to both numbers of paths.
        assert_eq!(chart.panels[0].dots[7], chart.panels[1].dots[7]);
        let best = chart.panels[3].best(chart.best).expect("dots");
        assert!((best.value - 3.286).abs() < 1e-3, "{best:?}");
    }
}
