//! The chart of speeds: which trees are faster than plain decoding, and does the model of costs know it?

use super::report::{Report, Row};
use crate::plot::{Cloud, Scatter, Spot};

/// A point for each way that speculates, over the nodes of its trees; a colour for each verifier and temperature. Plain
/// decoding is a level, of the first temperature.
pub fn chart(report: &Report) -> Scatter {
    let plain = report.results.iter().find(|row| row.verifier == "none");
    let rows: Vec<&Row> = report.results.iter().filter(|row| row.verifier != "none").collect();
    let warm = rows.iter().any(|row| row.temperature != rows[0].temperature);
    let mut clouds: Vec<Cloud> = Vec::new();
    for row in &rows {
        let name = match warm {
            true => format!("{}, T = {}", row.verifier, row.temperature),
            false => row.verifier.clone(),
        };
        let spot = spot(row);
        match clouds.iter_mut().find(|cloud| cloud.name == name) {
            Some(cloud) => cloud.spots.push(spot),
            None => clouds.push(Cloud { name, spots: vec![spot] }),
        }
    }
    let expected = rows.iter().any(|row| row.expected_tokens_per_second.is_some());
    let hollow = if expected { "; hollow: what the measured costs of passes say" } else { "" };
    let temperature = rows
        .first()
        .filter(|_| !warm)
        .map_or(String::new(), |row| format!(", temperature {}", row.temperature));
    Scatter {
        title: "Tokens per second, by the nodes of a tree".to_owned(),
        subtitle: format!(
            "K,L or the tree; {} prompts, {} tokens each{temperature}{hollow}",
            report.prompts, report.max_tokens
        ),
        x_label: "distinct tokens drafted per call of the target".to_owned(),
        y_label: "tokens per second".to_owned(),
        clouds,
        level: plain.map(|row| (row.tokens_per_second, "plain decoding".to_owned())),
    }
}

fn spot(row: &Row) -> Spot {
    let label = match (row.paths, row.depth, &row.tree) {
        (Some(paths), Some(depth), _) => format!("{paths},{depth}"),
        (_, _, tree) => tree.clone().unwrap_or_default(),
    };
    Spot { x: row.nodes_per_call, y: row.tokens_per_second, expected: row.expected_tokens_per_second, label }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str =
        include_str!("../../../../../bench/records/2026-11-20-amd-epyc-2-threads-decode.json");

    #[test]
    fn every_way_is_a_point() {
        let mut report: Report = serde_json::from_str(RECORD).expect("a record");
        let before = chart(&report);
        let points: usize = before.clouds.iter().map(|cloud| cloud.spots.len()).sum();
        assert_eq!(points + 1, report.results.len());
        assert_eq!(before.clouds.len(), 8);
        assert!(before.level.is_some() && !before.subtitle.contains("hollow"));
        report.results.last_mut().expect("a row").expected_tokens_per_second = Some(7.0);
        let after = chart(&report);
        assert!(after.subtitle.contains("hollow"));
        let last = after.clouds.iter().flat_map(|cloud| &cloud.spots).find(|spot| spot.expected.is_some());
        assert_eq!(last.and_then(|spot| spot.expected), Some(7.0));
    }
}
