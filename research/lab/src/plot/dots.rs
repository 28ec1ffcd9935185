//! Dot plots with error bars, in panels side by side that share their rows. They show which value
//! is best, and whether the difference is significant.
//!
//! The axis begins near the data and is the same in all panels, as is the order of rows. The best
//! value of a panel, and those that are not significantly different from it, are filled and
//! colored. The band in the background shows the best value with its error.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, Scale};
use super::{Area, Drawing, Drawn, GRID, INK, Point, line, text};

/// A value of a panel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dot {
    pub value: f64,
    /// Standard error of the value, if known.
    pub error: Option<f64>,
    /// Whether the value is a bound, which cannot be the best.
    pub limit: bool,
}

/// Criterion for the best value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Best {
    Highest,
    Lowest,
    /// No value is the best, because they measure different things.
    None,
}

/// A column of dots; a row may have none.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    pub dots: Vec<Option<Dot>>,
}

/// A chart of panels with the same rows.
#[derive(Debug, Clone)]
pub struct Dots {
    /// Width in pixels, normally [`WIDTH`].
    pub width: i32,
    /// Title; may be empty if the surrounding page has one.
    pub title: String,
    /// Lines of explanation under the title.
    pub notes: Vec<String>,
    pub x_label: String,
    /// Names of the rows, from top to bottom.
    pub rows: Vec<String>,
    pub panels: Vec<Panel>,
    pub best: Best,
    /// Number of panels side by side.
    pub columns: usize,
    /// Number of decimals of the values next to the dots.
    pub decimals: usize,
}

/// Minimum significant difference, in standard errors of the difference.
pub const DISTINGUISHABLE: f64 = 2.0;

impl Panel {
    /// Returns the best value, if there is one.
    pub fn best(&self, best: Best) -> Option<Dot> {
        let dots = self.dots.iter().flatten().copied().filter(|dot| !dot.limit);
        match best {
            Best::Highest => dots.max_by(|a, b| a.value.total_cmp(&b.value)),
            Best::Lowest => dots.min_by(|a, b| a.value.total_cmp(&b.value)),
            Best::None => None,
        }
    }

    /// Whether a dot is the best, or not significantly different from the best.
    fn leads(&self, dot: &Dot, best: Best) -> bool {
        let Some(best) = self.best(best).filter(|_| !dot.limit) else { return false };
        match (best.error, dot.error) {
            (Some(a), Some(b)) => (best.value - dot.value).abs() <= DISTINGUISHABLE * a.hypot(b),
            _ => dot.value == best.value,
        }
    }
}

/// Pixels: width of a chart in its own file, margins, and height of a row.
pub const WIDTH: i32 = 1280;
const LEFT: i32 = 175;
const RIGHT: i32 = 24;
const TOP: i32 = 58;
const NOTE: i32 = 22;
const ROW: i32 = 32;
/// Pixels above a panel for its title, below it for the axis, and between panels for the values.
const HEAD: i32 = 46;
const FOOT: i32 = 44;
const VALUES: i32 = 130;
/// Pixels below the last panels for the name of the axis.
const BOTTOM: i32 = 34;

const LEADS: RGBColor = RGBColor(0, 114, 178);
const REST: RGBColor = RGBColor(130, 130, 130);
const BAND: RGBColor = RGBColor(219, 234, 244);

impl Dots {
    fn columns(&self) -> i32 {
        self.columns.clamp(1, self.panels.len().max(1)) as i32
    }

    fn panel_height(&self) -> i32 {
        HEAD + ROW * self.rows.len() as i32 + FOOT
    }

    fn top(&self) -> i32 {
        let title = if self.title.is_empty() { 0 } else { TOP };
        title + NOTE * self.notes.len() as i32
    }

    /// Returns the x range of a panel's plot, and the y of the top of its first row.
    fn position(&self, index: usize) -> (Range<i32>, i32) {
        let (column, row) = (index as i32 % self.columns(), index as i32 / self.columns());
        let width = (self.width - LEFT - RIGHT) / self.columns();
        let start = LEFT + column * width;
        (start..start + width - VALUES, self.top() + row * self.panel_height() + HEAD)
    }
}

impl Drawing for Dots {
    fn size(&self) -> (u32, u32) {
        let lines = (self.panels.len() as i32 + self.columns() - 1) / self.columns();
        (self.width as u32, (self.top() + lines * self.panel_height() + BOTTOM) as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let dots = self.panels.iter().flat_map(|panel| panel.dots.iter().flatten());
        let ends = dots.flat_map(|dot| {
            let error = dot.error.unwrap_or(0.0);
            [dot.value - error, dot.value + error]
        });
        let axis = Axis::new(Scale::Linear, ends)
            .with_context(|| format!("a chart without values: {}", self.title))?;
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
        area.fill(&WHITE).map_err(failed)?;
        text(area, &self.title, (24, 16), 26.0, &BLACK, HPos::Left).map_err(failed)?;
        for (index, note) in self.notes.iter().enumerate() {
            let at = (24, TOP - 4 + NOTE * index as i32);
            text(area, note, at, 16.0, &INK, HPos::Left).map_err(failed)?;
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let (x, top) = self.position(index);
            let frame = Frame { x, top, rows: self.rows.len() as i32, axis: &axis };
            self.panel(area, panel, &frame, index as i32 % self.columns() == 0).map_err(failed)?;
        }
        let at = ((LEFT + self.width - RIGHT - VALUES) / 2, self.size().1 as i32 - BOTTOM - 2);
        text(area, &self.x_label, at, 18.0, &BLACK, HPos::Center).map_err(failed)?;
        area.present().map_err(failed)
    }
}

/// Layout of a panel in pixels.
struct Frame<'a> {
    x: Range<i32>,
    top: i32,
    rows: i32,
    axis: &'a Axis,
}

impl Frame<'_> {
    fn across(&self, value: f64) -> i32 {
        let at = self.axis.position(value).unwrap_or(0.0).clamp(0.0, 1.0);
        self.x.start + (at * f64::from(self.x.end - self.x.start)).round() as i32
    }

    fn bottom(&self) -> i32 {
        self.top + ROW * self.rows
    }
}

impl Dots {
    fn panel<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        panel: &Panel,
        frame: &Frame,
        named: bool,
    ) -> Drawn<B> {
        text(area, &panel.title, (frame.x.start, frame.top - 26), 18.0, &BLACK, HPos::Left)?;
        let best = panel.best(self.best);
        if let Some(best) = best {
            let ends =
                [-1.0, 1.0].map(|sign| frame.across(best.value + sign * best.error.unwrap_or(0.0)));
            let band = [(ends[0], frame.top), (ends[1], frame.bottom())];
            area.draw(&Rectangle::new(band, BAND.filled()))?;
        }
        for (value, label) in frame.axis.ticks(8) {
            let at = frame.across(value);
            line(area, &[(at, frame.top), (at, frame.bottom())], GRID, 1)?;
            text(area, &label, (at, frame.bottom() + 8), 15.0, &INK, HPos::Center)?;
        }
        let corners = [
            (frame.x.start, frame.top),
            (frame.x.start, frame.bottom()),
            (frame.x.end, frame.bottom()),
        ];
        line(area, &corners, INK, 1)?;
        for (index, (name, dot)) in self.rows.iter().zip(&panel.dots).enumerate() {
            let middle = frame.top + ROW * index as i32 + ROW / 2;
            if named {
                text(area, name, (frame.x.start - 12, middle - 6), 16.0, &BLACK, HPos::Right)?;
            }
            let Some(dot) = dot else { continue };
            let leads = panel.leads(dot, self.best);
            let color = if leads { LEADS } else { REST };
            draw_dot(area, frame, dot, middle, color, leads)?;
            let decimals = self.decimals;
            // The difference of the reference to itself has no error.
            let error = dot.error.filter(|error| *error > 0.0);
            let error = error.map_or(String::new(), |error| format!(" ± {error:.decimals$}"));
            let best = if leads && best.is_some_and(|best| best.value == dot.value) {
                ", best"
            } else {
                ""
            };
            let label = format!("{:.decimals$}{error}{best}", dot.value);
            text(area, &label, (frame.x.end + 8, middle - 6), 14.0, &color, HPos::Left)?;
        }
        Ok(())
    }
}

fn draw_dot<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    dot: &Dot,
    y: i32,
    color: RGBColor,
    filled: bool,
) -> Drawn<B> {
    if let Some(error) = dot.error {
        let ends = [dot.value - error, dot.value + error].map(|value| frame.across(value));
        line(area, &[(ends[0], y), (ends[1], y)], color, 2)?;
        ends.iter().try_for_each(|x| line(area, &[(*x, y - 5), (*x, y + 5)], color, 2))?;
    }
    let at: Point = (frame.across(dot.value), y);
    let fill = if filled { color } else { WHITE };
    area.draw(&Circle::new(at, 6, fill.filled()))?;
    area.draw(&Circle::new(at, 6, color.stroke_width(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(value: f64, error: f64) -> Option<Dot> {
        Some(Dot { value, error: Some(error), limit: false })
    }

    fn chart() -> Dots {
        let panel = |title: &str, dots: &[Option<Dot>]| Panel {
            title: title.to_owned(),
            dots: dots.to_vec(),
        };
        Dots {
            width: WIDTH,
            title: "Tokens per call".to_owned(),
            notes: vec!["24 prompts".to_owned()],
            x_label: "block efficiency".to_owned(),
            rows: ["one", "two", "three"].map(str::to_owned).to_vec(),
            panels: vec![
                panel("K = 2", &[dot(2.6, 0.05), dot(2.55, 0.04), dot(2.2, 0.03)]),
                panel("K = 4", &[dot(2.9, 0.03), dot(2.7, 0.02), None]),
            ],
            best: Best::Highest,
            columns: 2,
            decimals: 2,
        }
    }

    #[test]
    fn the_best_and_its_equals_lead() {
        let Dots { panels, .. } = chart();
        let leads = |panel: &Panel, best| {
            panel.dots.iter().flatten().map(|dot| panel.leads(dot, best)).collect::<Vec<_>>()
        };
        assert_eq!(leads(&panels[0], Best::Highest), [true, true, false]);
        assert_eq!(leads(&panels[0], Best::Lowest), [false, false, true]);
        assert_eq!(leads(&panels[1], Best::Highest), [true, false]);
        assert_eq!(leads(&panels[1], Best::None), [false, false]);
        // Without errors, only the maximum itself leads.
        let bare = |value| Some(Dot { value, error: None, limit: false });
        let panel = Panel { title: String::new(), dots: vec![bare(2.0), bare(2.001)] };
        assert_eq!(leads(&panel, Best::Highest), [false, true]);
        assert_eq!(leads(&panel, Best::Lowest), [true, false]);
        // A bound is never the best, even if the best may be as large.
        let limit = Some(Dot { value: 2.001, error: None, limit: true });
        let panel = Panel { dots: [panel.dots, vec![limit]].concat(), ..panel };
        assert_eq!(leads(&panel, Best::Highest), [false, true, false]);
    }

    #[test]
    fn both_formats_contain_the_same_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let svg = folder.path().join("chart.svg");
        chart().write(&svg).expect("written");
        let text = std::fs::read_to_string(&svg).expect("a file");
        for expected in [
            "Tokens per call",
            "24 prompts",
            "K = 4",
            "three",
            "2.90 ± 0.03, best",
            "block efficiency",
        ] {
            assert!(text.contains(expected), "{expected}");
        }
        // The axis begins near the data.
        assert!(
            text.contains("\n2.2\n") && !text.contains("\n0.0\n") && !text.contains("\n2.0\n"),
            "{text}"
        );
        let empty = Dots { panels: Vec::new(), ..chart() };
        assert!(
            format!("{:#}", empty.write(&svg).expect_err("nothing")).contains("without values")
        );
    }
}
