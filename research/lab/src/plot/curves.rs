//! Line and scatter charts with a legend below, for an HTML page or as a file of their own.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use super::marks::{color, mark};
use super::{Area, Drawing, Drawn, GRID, INK, line, text};

/// A measured point.
#[derive(Debug, Clone, PartialEq)]
pub struct Datum {
    pub x: f64,
    pub y: f64,
    /// Standard error of `y`, if known.
    pub error: Option<f64>,
    /// Expected value of `y`: drawn as a hollow mark, joined to the point by a line.
    pub expected: Option<f64>,
    /// Label next to the point; may be empty.
    pub label: String,
}

impl Datum {
    /// Creates a point without error, expected value and label.
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, error: None, expected: None, label: String::new() }
    }

    /// Sets the standard error of `y`, if known.
    pub fn within(self, error: Option<f64>) -> Self {
        Self { error, ..self }
    }
}

/// A series of points.
#[derive(Debug, Clone)]
pub struct Curve {
    pub name: String,
    pub points: Vec<Datum>,
    /// Whether a line connects the points in order.
    pub joined: bool,
    /// Whether the series is a reference line: thin, without marks.
    pub guide: bool,
}

/// A chart for an HTML page. With a heading, it is a larger chart in its own file.
#[derive(Debug, Clone)]
pub struct Curves {
    x_label: String,
    y_label: String,
    curves: Vec<Curve>,
    /// Additional values that the axis must include.
    x_at_least: Vec<f64>,
    y_at_least: Vec<f64>,
    /// Title and a line of explanation.
    heading: Option<[String; 2]>,
}

/// Size of the chart in pixels, in a page and in its own file.
const PAGE: (i32, i32) = (640, 330);
const ALONE: (i32, i32) = (1280, 540);
/// Margins of the plot in pixels.
const LEFT: i32 = 66;
const RIGHT: i32 = 20;
const TOP: i32 = 16;
const HEADING: i32 = 72;
const FOOT: i32 = 66;
/// Height of a legend line, and width of a legend entry.
const LEGEND: i32 = 24;
const ENTRY: i32 = 205;

impl Curve {
    /// Creates a series whose points are connected by a line.
    pub fn joined(name: impl Into<String>, points: Vec<Datum>) -> Self {
        Self { name: name.into(), points, joined: true, guide: false }
    }

    /// Creates a series of separate points.
    pub fn loose(name: impl Into<String>, points: Vec<Datum>) -> Self {
        Self { name: name.into(), points, joined: false, guide: false }
    }

    /// Creates a reference line.
    pub fn guide(name: impl Into<String>, ends: [(f64, f64); 2]) -> Self {
        let points = ends.map(|(x, y)| Datum::at(x, y)).to_vec();
        Self { name: name.into(), points, joined: true, guide: true }
    }
}

impl Curves {
    /// Creates a chart for a page, whose axes include all points.
    pub fn new(x_label: &str, y_label: &str, curves: Vec<Curve>) -> Self {
        let (x_label, y_label) = (x_label.to_owned(), y_label.to_owned());
        Self {
            x_label,
            y_label,
            curves,
            x_at_least: Vec::new(),
            y_at_least: Vec::new(),
            heading: None,
        }
    }

    /// Extends the x axis to include these values.
    pub fn with_x(self, values: &[f64]) -> Self {
        Self { x_at_least: values.to_vec(), ..self }
    }

    /// Extends the y axis to include these values.
    pub fn with_y(self, values: &[f64]) -> Self {
        Self { y_at_least: values.to_vec(), ..self }
    }

    /// Makes it a chart in its own file, with a title and a line of explanation.
    pub fn headed(self, title: String, note: String) -> Self {
        Self { heading: Some([title, note]), ..self }
    }

    fn measures(&self) -> (i32, i32) {
        if self.heading.is_some() { ALONE } else { PAGE }
    }

    fn top(&self) -> i32 {
        TOP + if self.heading.is_some() { HEADING } else { 0 }
    }

    /// Returns the number of legend entries per line.
    fn columns(&self) -> i32 {
        (self.measures().0 - LEFT) / ENTRY
    }

    fn legend_lines(&self) -> i32 {
        (self.curves.len() as i32 + self.columns() - 1) / self.columns()
    }
}

impl Drawing for Curves {
    fn size(&self) -> (u32, u32) {
        let (width, height) = self.measures();
        (width as u32, (self.top() + height + FOOT + LEGEND * self.legend_lines() + 6) as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let ends = |point: &Datum| {
            let error = point.error.unwrap_or(0.0);
            [point.y - error, point.y + error, point.expected.unwrap_or(point.y)]
        };
        let x = points().map(|point| point.x).chain(self.x_at_least.iter().copied());
        let y = points().flat_map(ends).chain(self.y_at_least.iter().copied());
        let (x, y) = (Axis::new(Scale::Linear, x), Axis::new(Scale::Linear, y));
        let (x_axis, y_axis) =
            x.zip(y).with_context(|| format!("a chart without values: {}", self.y_label))?;
        let ((width, height), top) = (self.measures(), self.top());
        let frame = Frame { x: LEFT..width - RIGHT, y: top..top + height, x_axis, y_axis };
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
        area.fill(&WHITE).map_err(failed)?;
        if let Some([title, note]) = &self.heading {
            text(area, title, (LEFT, 18), 26.0, &BLACK, HPos::Left).map_err(failed)?;
            text(area, note, (LEFT, 52), 16.0, &INK, HPos::Left).map_err(failed)?;
        }
        self.axes(area, &frame).map_err(failed)?;
        for (index, curve) in self.curves.iter().enumerate() {
            self.curve(area, &frame, index, curve).map_err(failed)?;
        }
        area.present().map_err(failed)
    }
}

/// Layout in pixels.
struct Frame {
    x: Range<i32>,
    y: Range<i32>,
    x_axis: Axis,
    y_axis: Axis,
}

impl Frame {
    fn at(&self, x: f64, y: f64) -> Option<(i32, i32)> {
        let (x, y) = (self.x_axis.position(x)?, self.y_axis.position(y)?);
        let across = (x * f64::from(self.x.end - self.x.start)).round() as i32;
        let up = (y * f64::from(self.y.end - self.y.start)).round() as i32;
        Some((self.x.start + across, self.y.end - up))
    }
}

impl Curves {
    fn axes<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        let Frame { x, y, x_axis, y_axis } = frame;
        for (value, label) in y_axis.ticks(7) {
            let up = y_axis.position(value).unwrap_or(0.0) * f64::from(y.end - y.start);
            let at = y.end - up.round() as i32;
            line(area, &[(x.start, at), (x.end, at)], GRID, 1)?;
            text(area, &label, (x.start - 8, at - 6), 15.0, &INK, HPos::Right)?;
        }
        for (value, label) in x_axis.ticks(8) {
            let across = x_axis.position(value).unwrap_or(0.0) * f64::from(x.end - x.start);
            let at = x.start + across.round() as i32;
            line(area, &[(at, y.start), (at, y.end)], GRID, 1)?;
            text(area, &label, (at, y.end + 8), 15.0, &INK, HPos::Center)?;
        }
        line(area, &[(x.start, y.start), (x.start, y.end), (x.end, y.end)], INK, 1)?;
        text(area, &self.x_label, ((x.start + x.end) / 2, y.end + 34), 16.0, &BLACK, HPos::Center)?;
        let style =
            TextStyle::from(("sans-serif", 16.0).into_font().transform(FontTransform::Rotate270));
        let style = style.pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(&self.y_label, &style, (6, (y.start + y.end) / 2))
    }

    fn curve<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        frame: &Frame,
        index: usize,
        curve: &Curve,
    ) -> Drawn<B> {
        let ink = if curve.guide { INK } else { color(index) };
        let place = (index as i32 % self.columns(), index as i32 / self.columns());
        let legend = (LEFT + 12 + ENTRY * place.0, frame.y.end + FOOT + LEGEND * place.1 + 4);
        let placed =
            curve.points.iter().filter_map(|point| Some((frame.at(point.x, point.y)?, point)));
        let placed: Vec<_> = placed.collect();
        if curve.joined {
            let path: Vec<_> = placed.iter().map(|(at, _)| *at).collect();
            let width = if curve.guide { 1 } else { 2 };
            area.draw(&PathElement::new(path, ink.mix(0.55).stroke_width(width)))?;
        }
        if curve.guide {
            line(area, &[(legend.0 - 8, legend.1), (legend.0 + 8, legend.1)], ink, 1)?;
        } else {
            for (at, point) in &placed {
                if let Some(error) = point.error.filter(|error| *error > 0.0) {
                    let ends = [point.y - error, point.y + error];
                    let ends: Vec<_> = ends.iter().filter_map(|y| frame.at(point.x, *y)).collect();
                    line(area, &ends, ink, 2)?;
                }
                if let Some(expected) = point.expected.and_then(|y| frame.at(point.x, y)) {
                    line(area, &[*at, expected], ink, 1)?;
                    mark(area, index, expected, true)?;
                }
                mark(area, index, *at, false)?;
                text(area, &point.label, (at.0 + 12, at.1 - 6), 13.0, &INK, HPos::Left)?;
            }
            mark(area, index, legend, false)?;
        }
        text(area, &curve.name, (legend.0 + 16, legend.1 - 6), 15.0, &BLACK, HPos::Left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_points_guides_and_names() {
        let point = |x: f64| Datum::at(x, 2.0 * x).within(Some(0.1));
        let curves = vec![
            Curve::joined("one", [1.0, 2.0, 3.0].map(point).to_vec()),
            Curve::loose("two", vec![point(2.5), Datum::at(f64::NAN, 1.0)]),
            Curve::guide("bound", [(1.0, 7.0), (3.0, 7.0)]),
        ];
        let chart = Curves::new("nodes", "tokens", curves).with_x(&[0.0]);
        let svg = chart.svg().expect("drawn");
        for expected in ["nodes", "tokens", "one", "two", "bound"] {
            assert!(svg.contains(&format!("\n{expected}\n")), "{expected}: {svg}");
        }
        // Four visible points, and two legend entries.
        assert_eq!(svg.matches("<polygon").count(), 6, "{svg}");
        let empty = Curves::new("nodes", "tokens", Vec::new());
        assert!(format!("{:#}", empty.svg().expect_err("nothing")).contains("without values"));
    }

    #[test]
    fn draws_expected_values_hollow_below_a_heading() {
        let point = Datum { expected: Some(9.0), label: "2,4".to_owned(), ..Datum::at(1.0, 5.0) };
        let page = Curves::new(
            "nodes",
            "tokens",
            vec![Curve::loose("one", vec![point, Datum::at(2.0, 6.0)])],
        );
        let svg = page.svg().expect("drawn");
        // Two points, one expected value, and the legend entry.
        assert_eq!(svg.matches("<polygon").count(), 4, "{svg}");
        assert!(svg.contains("\n2,4\n") && svg.contains("#FFFFFF"), "{svg}");
        let alone = page.clone().headed("Speeds".to_owned(), "an example".to_owned());
        assert!(alone.size() > page.size());
        let svg = alone.svg().expect("drawn");
        assert!(
            ["Speeds", "an example"].iter().all(|text| svg.contains(&format!("\n{text}\n"))),
            "{svg}"
        );
    }
}
