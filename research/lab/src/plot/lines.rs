//! Line charts over rows of increasing difficulty, with a logarithmic axis and marks for lower
//! bounds.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use super::marks::{color, mark};
use super::{Area, Drawing, Drawn, GRID, INK, Point, line, text};

/// One value of a series.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub y: f64,
    /// Whether the value is a lower bound, drawn hollow with an arrow upwards.
    pub bound: bool,
}

/// A named series with one optional value per category.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    pub values: Vec<Option<Value>>,
}

/// A chart with a legend on its right.
#[derive(Debug, Clone)]
pub struct Chart {
    pub title: String,
    /// A line of explanation under the title; may be empty.
    pub subtitle: String,
    pub x_label: String,
    pub y_label: String,
    pub categories: Vec<String>,
    pub series: Vec<Series>,
}

const SIZE: (u32, u32) = (1280, 720);
/// Pixels around the plot: left, right (the legend), top, bottom.
const MARGINS: (i32, i32, i32, i32) = (105, 285, 90, 95);
impl Drawing for Chart {
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let values = self.series.iter().flat_map(|series| series.values.iter().flatten());
        let axis = Axis::new(Scale::Log, values.map(|value| value.y))
            .filter(|_| !self.categories.is_empty());
        let axis = axis.with_context(|| format!("a chart without values: {}", self.title))?;
        let frame = Frame::new(self.categories.len(), axis);
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
        area.fill(&WHITE).map_err(failed)?;
        self.draw_axes(area, &frame).map_err(failed)?;
        for (index, series) in self.series.iter().enumerate() {
            Pen { area, index, frame: &frame, value_of: self.series.len() }
                .series(series)
                .map_err(failed)?;
        }
        area.present().map_err(failed)
    }
}

impl Chart {
    fn draw_axes<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        let (x, y) = (&frame.x, &frame.y);
        text(area, &self.title, (x.start, 18), 26.0, &BLACK, HPos::Left)?;
        text(area, &self.subtitle, (x.start, 52), 16.0, &INK, HPos::Left)?;
        for (value, label) in frame.axis.ticks(10) {
            let at = frame.height(value);
            line(area, &[(x.start, at), (x.end, at)], GRID, 1)?;
            text(area, &label, (x.start - 10, at - 5), 16.0, &INK, HPos::Right)?;
        }
        line(area, &[(x.start, y.start), (x.start, y.end), (x.end, y.end)], INK, 1)?;
        let style = TextStyle::from(("sans-serif", 16.0).into_font());
        let mut widest = 0;
        for category in &self.categories {
            widest = widest.max(area.estimate_text_size(category, &style)?.0 as i32);
        }
        // If names are too wide for one line, they alternate between two.
        let lines = if widest + 10 > frame.slot() { 2 } else { 1 };
        for (index, category) in self.categories.iter().enumerate() {
            let (at, drop) = (frame.center(index), 22 * (index as i32 % lines));
            line(area, &[(at, y.end), (at, y.end + 5 + drop)], INK, 1)?;
            text(area, category, (at, y.end + 10 + drop), 16.0, &INK, HPos::Center)?;
        }
        text(area, &self.x_label, ((x.start + x.end) / 2, y.end + 60), 18.0, &BLACK, HPos::Center)?;
        let style =
            TextStyle::from(("sans-serif", 18.0).into_font().transform(FontTransform::Rotate270));
        let style = style.pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(&self.y_label, &style, (14, (y.start + y.end) / 2))
    }
}

/// Layout in pixels.
struct Frame {
    x: Range<i32>,
    y: Range<i32>,
    categories: i32,
    axis: Axis,
}

impl Frame {
    fn new(categories: usize, axis: Axis) -> Self {
        let (left, right, top, bottom) = MARGINS;
        let (width, height) = (SIZE.0 as i32, SIZE.1 as i32);
        Self {
            x: left..width - right,
            y: top..height - bottom,
            categories: categories as i32,
            axis,
        }
    }

    /// Returns the width of a category.
    fn slot(&self) -> i32 {
        (self.x.end - self.x.start) / self.categories
    }

    fn center(&self, category: usize) -> i32 {
        let (start, end) = (self.x.start, self.x.end);
        start + (end - start) * (2 * category as i32 + 1) / (2 * self.categories)
    }

    fn height(&self, value: f64) -> i32 {
        let at = self.axis.position(value).unwrap_or(0.0).clamp(0.0, 1.0);
        self.y.end - (at * f64::from(self.y.end - self.y.start)).round() as i32
    }
}

/// Draws series `index` of `count`.
struct Pen<'a, B: DrawingBackend> {
    area: &'a Area<'a, B>,
    frame: &'a Frame,
    index: usize,
    value_of: usize,
}

impl<B: DrawingBackend> Pen<'_, B> {
    fn color(&self) -> RGBColor {
        color(self.index)
    }

    fn series(&self, series: &Series) -> Drawn<B> {
        let points: Vec<_> =
            series.values.iter().take(self.frame.categories as usize).enumerate().collect();
        let placed = points.iter().filter_map(|(category, value)| {
            let value = (*value).filter(|value| self.frame.axis.position(value.y).is_some())?;
            Some((*category, (self.across(*category), self.frame.height(value.y)), value))
        });
        let placed: Vec<_> = placed.collect();
        for pair in placed.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 1) {
            let color = self.color().mix(0.45).stroke_width(2);
            self.area.draw(&PathElement::new(vec![pair[0].1, pair[1].1], color))?;
        }
        for (_, at, value) in &placed {
            self.mark(*at, value.bound)?;
        }
        let legend = (self.frame.x.end + 24, self.frame.y.start + 14 + 30 * self.index as i32);
        self.mark(legend, false)?;
        text(self.area, &series.name, (legend.0 + 18, legend.1 - 5), 16.0, &BLACK, HPos::Left)
    }

    /// Returns the x of a category for this series. Series are side by side, so that equal values
    /// do not hide each other.
    fn across(&self, category: usize) -> i32 {
        let width = (self.frame.slot() * 6 / 10).min(20 * self.value_of as i32);
        let shift =
            width * (2 * self.index as i32 + 1 - self.value_of as i32) / (2 * self.value_of as i32);
        self.frame.center(category) + shift
    }

    fn mark(&self, at: Point, bound: bool) -> Drawn<B> {
        mark(self.area, self.index, at, bound)?;
        if bound {
            line(self.area, &[(at.0, at.1 - 8), (at.0, at.1 - 26)], self.color(), 2)?;
            let tip = [(at.0 - 5, at.1 - 20), (at.0, at.1 - 27), (at.0 + 5, at.1 - 20)];
            line(self.area, &tip, self.color(), 2)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn chart() -> Chart {
        let value = |y: f64| Some(Value { y, bound: y > 100.0 });
        let series = |name: &str, factor: f64| Series {
            name: name.to_owned(),
            values: [0.01, 0.5, 3.0, 200.0]
                .map(|y| if y * factor > 1e3 { None } else { value(y * factor) })
                .to_vec(),
        };
        Chart {
            title: "Milliseconds per token".to_owned(),
            subtitle: "an example: τ = 1e-3, ≥ 2 drafts".to_owned(),
            x_label: "(k, n)".to_owned(),
            y_label: "ms per token".to_owned(),
            categories: ["(10, 2)", "(100, 3)", "(1000, 2)", "(V, 4)"].map(str::to_owned).to_vec(),
            series: (0..7).map(|i| series(&format!("series number {i}"), 3_f64.powi(i))).collect(),
        }
    }

    #[test]
    fn chart_has_points_labels_and_legend() {
        let folder = tempfile::tempdir().expect("a folder");
        let svg = folder.path().join("chart.svg");
        chart().write(&svg).expect("written");
        let text = std::fs::read_to_string(&svg).expect("a file");
        for expected in ["Milliseconds per token", "series number 6", "(1000, 2)", "ms per token"] {
            assert!(text.contains(expected), "{expected}");
        }
    }

    #[test]
    fn rejects_drafts_that_cannot_be_drawn() {
        let message = |chart: Chart, name: &str| {
            format!("{:#}", chart.write(Path::new(name)).expect_err("no"))
        };
        assert!(message(chart(), "/nowhere/chart.svg").contains("/nowhere/chart.svg"));
        let empty = Chart { series: Vec::new(), ..chart() };
        assert!(message(empty, "/tmp/chart.svg").contains("without values"));
    }
}
