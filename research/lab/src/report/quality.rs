//! Records of `bench quality`.

use anyhow::Result;

use super::page::{Cell, Section};
use super::record::Record;
use crate::bench::quality::{KindScore, Report, Score};
use crate::plot::{Curve, Curves, Datum};

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let mut section = Section::new(record);
    section.fact(format!(
        "{} with {}, {}, {}",
        report.target, report.draft, report.verifier, report.tree
    ));
    section.fact(format!("{} prompts with answers", report.checked));
    for score in &report.scores {
        if let Some(outputs) = &score.outputs {
            section.tile(
                format!(
                    "{} of {}",
                    outputs.equal,
                    outputs.equal + outputs.ties + outputs.different
                ),
                format!(
                    "outputs at temperature 0 equal plain decoding's, {} differ at ties",
                    outputs.ties
                ),
            );
        } else {
            section.tile(
                format!("{:+.2}", 100.0 * score.difference),
                format!(
                    "points between the scores at temperature {}, speculative less plain; 95 % \
                     interval {:+.2} to {:+.2}",
                    score.temperature,
                    100.0 * score.interval.0,
                    100.0 * score.interval.1
                ),
            );
        }
    }
    let value_of = |score: &Score| {
        let own = report.kinds.iter().filter(|row| row.temperature == score.temperature);
        let point = |row: &KindScore| Datum::at(100.0 * row.plain, 100.0 * row.speculative);
        Curve::loose(format!("T = {}", score.temperature), own.map(point).collect())
    };
    let mut curves: Vec<Curve> = report.scores.iter().map(value_of).collect();
    curves.push(Curve::guide("the same", [(0.0, 0.0), (100.0, 100.0)]));
    section.figure(
        "Correct outputs, by kind of prompt",
        "Below the line plain decoding is ahead, above it speculative decoding; few prompts of a \
         kind scatter",
        &Curves::new("plain decoding, %", "speculative decoding, %", curves)
            .with_x(&[0.0, 100.0])
            .with_y(&[0.0, 100.0]),
    )?;
    let percent = |value: f64| Cell::Figure(format!("{:.1} %", 100.0 * value));
    let line = |score: &Score| {
        vec![
            Cell::words(score.temperature),
            Cell::words(score.samples),
            percent(score.plain),
            percent(score.speculative),
            Cell::Figure(format!("{:+.2}", 100.0 * score.difference)),
            Cell::Figure(format!(
                "{:+.2} to {:+.2}",
                100.0 * score.interval.0,
                100.0 * score.interval.1
            )),
        ]
    };
    section.table(
        "Scores",
        "Share of correct outputs",
        &["T", "outputs a prompt", "plain", "speculative", "difference, points", "95 %"],
        &report.scores.iter().map(line).collect::<Vec<_>>(),
    );
    let kind = |row: &KindScore| {
        vec![
            Cell::words(&row.kind),
            Cell::words(row.temperature),
            Cell::words(row.prompts),
            percent(row.plain),
            percent(row.speculative),
        ]
    };
    section.table(
        "By kind of prompt",
        "",
        &["kind", "T", "prompts", "plain", "speculative"],
        &report.kinds.iter().map(kind).collect::<Vec<_>>(),
    );
    Ok(section)
}
