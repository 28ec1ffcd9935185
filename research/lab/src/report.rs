//! `polydraft-lab report`: records as one page, with tables and charts.

mod certify;
mod counts;
mod decode;
mod efficiency;
mod model;
mod other;
mod page;
mod paper;
mod quality;
mod record;
mod solve_time;
mod speed;
mod table;
mod verifiers;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polydraft_cli::output::note;
use polydraft_cli::save::Save;

use page::Section;
use record::{Kind, Record};

/// Show records as one HTML page of tables and charts, a single file without external resources.
///
/// A record is the output of --save or --json of 'bench', 'certify', 'efficiency' and 'generate',
/// or of a script in bench/. A file may contain several records, one after the other. Each figure
/// shows the command that measured it, if the record contains it. The p-values of several runs of
/// 'certify' are shown together, as are all results of 'efficiency'.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab report {bench,research}/records/*.json -o report.html
  polydraft-lab bench verifiers --save verifiers.json && polydraft-lab report verifiers.json -o \
  report.html
  for s in 1 2 3 4 5; do polydraft certify --seed $s --json; done > certify.json; polydraft-lab \
  report certify.json -o report.html")]
pub struct Args {
    /// Files of records.
    #[arg(value_name = "RECORD", required = true)]
    records: Vec<PathBuf>,
    /// File of the page; '-' is standard output.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: PathBuf,
    /// Heading of the page.
    #[arg(long, value_name = "TEXT", default_value = "polydraft, measured")]
    title: String,
}

pub fn run(args: Args) -> Result<()> {
    let save = (args.output != Path::new("-")).then(|| Save::prepare(&args.output)).transpose()?;
    let mut records = Vec::new();
    for file in &args.records {
        records.extend(record::read(file)?);
    }
    for unknown in
        records.iter().filter(|record| record.kind == Kind::Other && !other::is_known(record))
    {
        note(format_args!(
            "note: {}: a record of a kind that this version does not know",
            unknown.file
        ));
    }
    let sections = sections(&records)?;
    let page = page::html(&args.title, &sections);
    let Some(save) = save else { return Ok(std::io::stdout().write_all(page.as_bytes())?) };
    save.finish(page.as_bytes())?;
    let count = sections.len();
    let plural = if count == 1 { "" } else { "s" };
    note(format_args!("{count} section{plural} in {}", args.output.display()));
    Ok(())
}

/// Returns a section per record, or one per kind for kinds that are combined.
fn sections(records: &[Record]) -> Result<Vec<Section>> {
    let value_of =
        |kind| -> Vec<&Record> { records.iter().filter(|record| record.kind == kind).collect() };
    let mut sections = Vec::new();
    let mut merged: Vec<Kind> = Vec::new();
    for record in records {
        let section = match record.kind {
            kind if merged.contains(&kind) => continue,
            Kind::Certify | Kind::Efficiency => {
                merged.push(record.kind);
                match record.kind {
                    Kind::Certify => certify::section(&value_of(Kind::Certify)),
                    _ => efficiency::section(&value_of(Kind::Efficiency)),
                }
            }
            Kind::Decode => decode::section(record),
            Kind::Verifiers => verifiers::section(record),
            Kind::Speed => speed::section(record),
            Kind::Model => model::section(record),
            Kind::SolveTime => solve_time::section(record),
            Kind::Acceptance | Kind::Generate => counts::section(record),
            Kind::Paper => paper::section(record),
            Kind::Quality => quality::section(record),
            Kind::Table => table::section(record),
            Kind::Other => other::section(record),
        };
        sections.push(section.with_context(|| {
            format!("{}: it looks like a record of {}, but", record.file, record.kind.name())
        })?);
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the repository's folders of records.
    fn folders() -> [PathBuf; 2] {
        ["../../bench/records", "../records"]
            .map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
    }

    fn page(files: &[&str]) -> String {
        let path = |file: &str| {
            let mut paths = folders().into_iter().map(|folder| folder.join(file));
            paths.find(|path| path.exists()).expect("a file of one of the folders")
        };
        let records = files.iter().flat_map(|file| record::read(&path(file)).expect("a record"));
        let sections = sections(&records.collect::<Vec<_>>()).expect("sections");
        page::html("Records", &sections)
    }

    /// Returns the page without its charts, which have tests of their own.
    fn words(page: &str) -> String {
        let mut parts = page.split("<svg");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text.push_str(part.split_once("</svg>").map_or("", |(_, rest)| rest));
        }
        let style = text
            .split_once("<style>")
            .and_then(|(head, rest)| Some(format!("{head}{}", rest.split_once("</style>")?.1)));
        style.unwrap_or(text)
    }

    /// Malformed records: an invalid commit hash, a modified working tree, rows without cells.
    #[test]
    fn shows_unknown_records() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("odd.json");
        let known = "../records/2026-11-20-amd-epyc-2-threads-solve-time.json";
        let known =
            std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(known)).expect("a record");
        let mut known: serde_json::Value = serde_json::from_slice(&known).expect("JSON");
        known["datasets"][0]["rows"][1]["cells"] = serde_json::json!([]);
        let commits =
            r#"{"commit": "aééééééééééééé", "x": 1}{"commit": "0123456789abcdef-dirty", "x": 1}"#;
        std::fs::write(&file, format!("{commits}{known}")).expect("written");
        let page =
            page::html("", &sections(&record::read(&file).expect("records")).expect("sections"));
        for expected in
            ["commit aééééééééééé<", "commit 0123456789ab-dirty<", "Milliseconds per token"]
        {
            assert!(page.contains(expected), "{expected}");
        }
    }

    /// Compares a page with a stored file. Set the environment variable `POLYDRAFT_BLESS=1` to
    /// update the file.
    #[test]
    fn the_page_of_records() {
        let page = page(&[
            "2026-11-20-amd-epyc-2-threads-decode.json",
            "2026-11-21-intel-xeon-2-threads-speed-demo-t1.json",
            "2026-11-22-intel-xeon-2-threads-load.json",
        ]);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/snapshot.html");
        if std::env::var_os("POLYDRAFT_BLESS").is_some() {
            std::fs::write(&file, words(&page)).expect("written");
        }
        let expected = std::fs::read_to_string(&file).expect("the snapshot");
        let got = words(&page);
        let differs = expected.lines().zip(got.lines()).find(|(a, b)| a != b);
        assert!(got == expected, "the page is another than {}: {differs:?}", file.display());
    }

    /// All records in the repository are of known kinds, and the page has no external resources.
    #[test]
    fn every_record_of_the_repository() {
        let mut files: Vec<String> = folders()
            .iter()
            .flat_map(|folder| std::fs::read_dir(folder).expect("records"))
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".json") || name.ends_with(".jsonl"))
            .collect();
        files.sort();
        let page = page(&files.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(page.matches("<section").count() >= 12 && page.matches("<svg").count() >= 20);
        for wrong in ["does not know", "polydraft polydraft"] {
            let there = page.find(wrong).map(|at| page[at..].chars().take(400).collect::<String>());
            assert_eq!(there, None);
        }
        // The main table of the README.
        for expected in ["<th scope=\"col\">T = 0.7: tokens/s</th>", "table-fast-memory"] {
            assert!(page.contains(expected), "{expected}");
        }
        for outside in ["src=", "href=\"http", "url(", "@import", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
