//! Chart of decoding speeds: which trees are faster than plain decoding, and whether the cost model
//! predicts it.

use super::report::{Report, Row};
use crate::plot::{Curve, Curves, Datum};

/// Returns a chart with a point per speculative method, by number of nodes. Each verifier and
/// temperature has a color. A horizontal line shows plain decoding at the first temperature.
pub fn chart(report: &Report) -> Curves {
    let plain = report.results.iter().find(|row| row.verifier == "none");
    let rows: Vec<&Row> = report.results.iter().filter(|row| row.verifier != "none").collect();
    let warm = rows.iter().any(|row| row.temperature != rows[0].temperature);
    let mut curves: Vec<Curve> = Vec::new();
    for row in &rows {
        let name = match warm {
            true => format!("{}, T = {}", row.verifier, row.temperature),
            false => row.verifier.clone(),
        };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point(row)),
            None => curves.push(Curve::loose(name, vec![point(row)])),
        }
    }
    let expected = rows.iter().any(|row| row.expected_tokens_per_second.is_some());
    let hollow = if expected { "; hollow: predicted by the measured costs of passes" } else { "" };
    let temperature = rows
        .first()
        .filter(|_| !warm)
        .map_or(String::new(), |row| format!(", temperature {}", row.temperature));
    if let Some(plain) = plain {
        let most = rows.iter().map(|row| row.nodes_per_call).fold(1.0, f64::max);
        let speed = plain.tokens_per_second;
        curves.push(Curve::guide("plain decoding", [(0.0, speed), (most, speed)]));
    }
    let note = format!(
        "K,L or the tree; {} prompts, {} tokens each{temperature}{hollow}",
        report.prompts, report.max_tokens
    );
    // The axis begins at 0, so that heights are proportional.
    Curves::new("distinct tokens drafted per call of the target", "tokens per second", curves)
        .with_y(&[0.0])
        .headed("Tokens per second, by the nodes of a tree".to_owned(), note)
}

fn point(row: &Row) -> Datum {
    let label = match (row.paths, row.depth, &row.tree) {
        (Some(paths), Some(depth), _) => format!("{paths},{depth}"),
        (_, _, tree) => tree.clone().unwrap_or_default(),
    };
    let expected = row.expected_tokens_per_second;
    Datum { expected, label, ..Datum::at(row.nodes_per_call, row.tokens_per_second) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Drawing;

    const RECORD: &str =
        include_str!("../../../../records/2026-11-20-amd-epyc-2-threads-decode.json");

    #[test]
    fn every_method_is_a_point() {
        let mut report: Report = serde_json::from_str(RECORD).expect("a record");
        let before = chart(&report).svg().expect("drawn");
        // Eight colours in the legend; plain decoding is a line.
        assert_eq!(before.matches("<polygon").count(), report.results.len() - 1 + 8);
        assert!(before.contains("plain decoding") && !before.contains("hollow"));
        report.results.last_mut().expect("a row").expected_tokens_per_second = Some(7.0);
        let after = chart(&report).svg().expect("drawn");
        assert_eq!(after.matches("<polygon").count(), before.matches("<polygon").count() + 1);
        assert!(after.contains("hollow"));
    }
}
