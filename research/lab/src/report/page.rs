//! The report page: sections of figures and tables in one HTML file without external resources.

use std::fmt::{Display, Write};

use anyhow::Result;

use super::record::{Origin, Record};
use crate::plot::Drawing;

const STYLE: &str = include_str!("style.css");

/// Maximum number of characters of a command to show. Commands are shown under every figure.
const COMMAND: usize = 4096;

/// Contents of one record, or of several of the same kind.
pub struct Section {
    title: String,
    /// Machine and software of the measurement.
    info: Vec<String>,
    command: Option<String>,
    /// Headline values, each as a number and its description.
    tiles: Vec<(String, String)>,
    parts: Vec<String>,
}

impl Section {
    /// Creates an empty section with the origin of a record.
    pub fn new(record: &Record) -> Self {
        let origin = record.origin();
        let (interrupted, command) = (origin.interrupted, origin.command.clone());
        let mut section = Self {
            title: record.kind.name().to_owned(),
            info: vec![record.file.clone()],
            command: command.map(|command| command.chars().take(COMMAND).collect()),
            tiles: Vec::new(),
            parts: Vec::new(),
        };
        section.made(origin);
        if interrupted {
            section.fact("interrupted before all was measured");
        }
        if section.command.is_none() {
            section.fact("the record does not contain its command");
        }
        section
    }

    /// Adds the machine and software of a measurement, unless already listed.
    pub fn made(&mut self, origin: Origin) {
        let Origin { machine, version, commit, rustc, profile, threads, .. } = origin;
        let known = |fact: &String| fact != "unknown";
        let info = [
            machine,
            // Scripts get the version from the program's output, which includes its name.
            version
                .map(|version| format!("polydraft {}", version.trim_start_matches("polydraft "))),
            commit.filter(known).map(|commit| format!("commit {}", abbreviated(&commit))),
            rustc
                .filter(known)
                .map(|rustc| rustc.split(" (").next().unwrap_or_default().to_owned()),
            profile.filter(known).map(|profile| format!("{profile} build")),
            threads.map(|threads| format!("{threads} threads")),
        ];
        for fact in info.into_iter().flatten() {
            if !self.info.contains(&fact) {
                self.info.push(fact);
            }
        }
    }

    /// Removes the command of a section that merges several records.
    pub fn merged(mut self) -> Self {
        self.command = None;
        self
    }

    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    pub fn fact(&mut self, fact: impl Into<String>) {
        self.info.push(fact.into());
    }

    pub fn tile(&mut self, value: impl Into<String>, meaning: impl Into<String>) {
        self.tiles.push((value.into(), meaning.into()));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        self.parts.push(format!("<p class=\"note\">{}</p>", escaped(text)));
    }

    /// Adds a chart, with the command that measured it.
    pub fn figure(&mut self, caption: &str, note: &str, chart: &impl Drawing) -> Result<()> {
        let svg = scaled(&chart.svg()?, chart.size(), caption);
        let wide = if chart.size().0 > 700 { " wide" } else { "" };
        self.parts.push(format!(
            "<figure class=\"chart{wide}\"><figcaption>{}{}</figcaption><div \
             class=\"draw\">{svg}</div>{}</figure>",
            escaped(caption),
            under(note),
            command(self.command.as_deref())
        ));
        Ok(())
    }

    /// Adds a table, with the command that measured it.
    pub fn table(&mut self, caption: &str, note: &str, head: &[&str], rows: &[Vec<Cell>]) {
        let mut text = format!(
            "<figure class=\"table\"><figcaption>{}{}</figcaption><div \
             class=\"scroll\"><table><thead><tr>",
            escaped(caption),
            under(note)
        );
        for name in head {
            let _ = write!(text, "<th scope=\"col\">{}</th>", escaped(name));
        }
        text.push_str("</tr></thead><tbody>\n");
        for row in rows {
            let cells: String = row.iter().map(Cell::html).collect();
            let _ = writeln!(text, "<tr>{cells}</tr>");
        }
        let _ = write!(text, "</tbody></table></div>{}</figure>", command(self.command.as_deref()));
        self.parts.push(text);
    }
}

/// A cell of a table.
pub enum Cell {
    /// Text, left-aligned.
    Words(String),
    /// Number, right-aligned.
    Figure(String),
    /// Number, highlighted as the best.
    Best(String),
    /// Fractions of a total, drawn as a stacked bar.
    Shares(Vec<f64>),
}

impl Cell {
    pub fn words(text: impl Display) -> Self {
        Self::Words(text.to_string())
    }

    /// Creates a cell with a number, and its error if known.
    pub fn number(value: f64, decimals: usize, error: Option<f64>) -> Self {
        Self::Figure(number(value, decimals, error))
    }

    /// Creates a cell with a number, or an empty cell for `None`.
    pub fn maybe(value: Option<f64>, decimals: usize) -> Self {
        Self::Figure(value.map_or("–".to_owned(), |value| number(value, decimals, None)))
    }

    pub fn best(self, best: bool) -> Self {
        match self {
            Self::Figure(text) if best => Self::Best(text),
            other => other,
        }
    }

    fn html(&self) -> String {
        match self {
            Self::Words(text) => format!("<td>{}</td>", escaped(text)),
            Self::Figure(text) => format!("<td class=\"n\">{}</td>", escaped(text)),
            Self::Best(text) => format!("<td class=\"n best\">{}</td>", escaped(text)),
            Self::Shares(shares) => {
                let mut at = 0.0;
                let mut bars = String::new();
                for (index, share) in shares.iter().enumerate() {
                    let width = 100.0 * share.clamp(0.0, 1.0 - at);
                    let _ = write!(
                        bars,
                        "<i class=\"s{index}\" style=\"left:{:.2}%;width:{width:.2}%\"></i>",
                        100.0 * at
                    );
                    at += width / 100.0;
                }
                let words: Vec<String> =
                    shares.iter().map(|share| format!("{:.0} %", 100.0 * share)).collect();
                format!(
                    "<td class=\"shares\" title=\"{0}\"><b>{bars}</b><span>{0}</span></td>",
                    words.join(" · ")
                )
            }
        }
    }
}

/// Formats a number with a number of decimals, and its error if known.
pub fn number(value: f64, decimals: usize, error: Option<f64>) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let error =
        error.filter(|error| *error > 0.0).map_or(String::new(), |e| format!(" ± {e:.decimals$}"));
    format!("{value:.decimals$}{error}")
}

/// Shortens a commit hash, but keeps its suffix, which marks an uncommitted change.
fn abbreviated(commit: &str) -> String {
    let (digits, changed) = commit.split_at(commit.find('-').unwrap_or(commit.len()));
    digits.chars().take(12).chain(changed.chars()).collect()
}

fn under(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!("<small>{}</small>", escaped(note)) }
}

fn command(command: Option<&str>) -> String {
    match command {
        Some(command) => format!("<p class=\"command\"><code>{}</code></p>", escaped(command)),
        // Shown once, above.
        None => String::new(),
    }
}

/// Makes an SVG scale to the width of its container.
fn scaled(svg: &str, (width, height): (u32, u32), name: &str) -> String {
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">{}",
        escaped(name),
        body.trim_start()
    )
}

/// Escapes text for HTML.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Returns the complete page.
pub fn html(title: &str, sections: &[Section]) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light \
         dark\">\n<title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n\
         <header><h1>{title}</h1>\n<nav id=\"contents\">"
    );
    // Groups by kind, in order of first appearance. A group of one section needs no entries of its
    // own.
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, Section { title, .. }) in sections.iter().enumerate() {
        match groups.iter_mut().find(|(known, _)| known == title) {
            Some((_, group)) => group.push(index),
            None => groups.push((title, vec![index])),
        }
    }
    for (title, group) in &groups {
        let (name, link) = (escaped(title), |index: &usize, name: &str| {
            format!("<a href=\"#s{index}\">{name}</a>")
        });
        if let [index] = &group[..] {
            page.push_str(&link(index, &name));
            continue;
        }
        let _ = write!(page, "<details><summary>{name} ({})</summary>", group.len());
        for index in group {
            let file = sections[*index].info.first().map_or("", String::as_str);
            page.push_str(&link(index, &escaped(file.trim_end_matches(".json"))));
        }
        page.push_str("</details>\n");
    }
    page.push_str("</nav></header>\n<main>\n");
    for index in groups.iter().flat_map(|(_, group)| group) {
        let Section { title, info, tiles, parts, .. } = &sections[*index];
        let _ = write!(
            page,
            "<section id=\"s{index}\"><h2>{} <a class=\"back\" \
             href=\"#contents\">contents</a></h2>\n<ul class=\"facts\">",
            escaped(title)
        );
        info.iter().for_each(|fact| page.push_str(&format!("<li>{}</li>", escaped(fact))));
        page.push_str("</ul>\n");
        if !tiles.is_empty() {
            page.push_str("<div class=\"tiles\">");
            for (value, meaning) in tiles {
                let (value, meaning) = (escaped(value), escaped(meaning));
                let _ = writeln!(page, "<div><b>{value}</b><span>{meaning}</span></div>");
            }
            page.push_str("</div>\n");
        }
        let _ = write!(page, "<div class=\"parts\">\n{}\n</div></section>\n", parts.join("\n"));
    }
    page.push_str("</main>\n</body></html>\n");
    page
}
