//! Global Resolution (Thomas and Pal 2025), figure 5: solve times and failures of its solver by the
//! target's temperature, τ = 1e-4.
//!
//! Drafts are i.i.d. from the draft's k likeliest tokens at temperature 1, at the same positions
//! for all rows. No values can be read off the figure.

use std::time::Instant;

use anyhow::Result;
use polydraft::{Problem, Proposal};
use polydraft_reference::comparison::Sample;
use polydraft_reference::global_resolution::Settings;

use super::lab::Lab;
use super::table::Table;
use crate::cut::CutArgs;

const TEMPERATURES: [f64; 5] = [0.2, 0.4, 0.6, 0.8, 1.0];
const TAU: f64 = 1e-4;

/// Measures for a share of the time. `as_published` contains the settings of the paper's walk.
pub fn measure(lab: &mut Lab, share: f64, as_published: &Settings) -> Result<()> {
    if lab.is_interrupted() || lab.quick {
        return Ok(());
    }
    let settings = Settings { tau: TAU, ..as_published.clone() };
    let at_one = lab.at(1.0, CutArgs::default());
    let mut rows = Vec::new();
    for top_k in [10, 100, 1000] {
        let draft = lab.at(1.0, CutArgs { top_k: Some(top_k), top_p: None });
        for drafts in 2..=5 {
            for temperature in TEMPERATURES {
                let target = lab.at(temperature, CutArgs::default());
                rows.push((row(temperature, top_k, drafts), target, draft, drafts));
            }
        }
    }
    let pairs = lab.pairs(at_one, 96)?.to_vec();
    lab.note("failures by temperature");
    let end = lab.end(share);
    let (mut times, mut failures) = (vec![Vec::new(); rows.len()], vec![Vec::new(); rows.len()]);
    // By sequence, because positions of one sequence are correlated.
    for text in pairs.chunk_by(|a, b| a.text == b.text) {
        for (position, (_, target, draft, drafts)) in rows.iter().enumerate() {
            let (mut milliseconds, mut failed) = (0.0, 0.0);
            for pair in text {
                let (target, draft) = (pair.target(target)?, pair.draft(draft)?);
                let problem = Problem::new(&target, Proposal::iid(&draft, *drafts)?)?;
                let mut resolver = settings.resolver()?;
                let begin = Instant::now();
                resolver.prepare(&problem)?;
                failed += resolver.unsolved();
                milliseconds += 1e3 * begin.elapsed().as_secs_f64();
            }
            let sample = |sum: f64| Sample {
                prompt: text[0].prompt,
                positions: text.len(),
                drafts: text.len(),
                nodes: 0,
                tokens: vec![sum / text.len() as f64],
            };
            times[position].push(sample(milliseconds));
            failures[position].push(sample(failed));
        }
        if !lab.tick() || Instant::now() >= end {
            break;
        }
    }
    for (name, title, decimals, all) in [
        ("failures", "Part of positions without a solution, τ = 1e-4", 3, failures),
        ("solve-times", "Milliseconds of Global Resolution, τ = 1e-4", 2, times),
    ] {
        let mut table = Table::new(name, title, decimals);
        for ((row, ..), series) in rows.iter().zip(all) {
            table.add_series(row, "Global Resolution", series);
        }
        lab.keep(table);
    }
    Ok(())
}

fn row(temperature: f64, top_k: usize, drafts: usize) -> String {
    format!("T = {temperature}, ({top_k}, {drafts})")
}
