//! Points over a number, joined or not, with a legend below: for the width of a page.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use super::marks::{color, mark};
use super::{Area, Drawing, Drawn, GRID, INK, line, text};

/// A measured point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Datum {
    pub x: f64,
    pub y: f64,
    /// The standard error of `y`, if that is known.
    pub error: Option<f64>,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Curve {
    pub name: String,
    pub points: Vec<Datum>,
    /// Whether a line goes through them, in their order.
    pub joined: bool,
    /// Drawn as a thin line without marks: something to compare the others with.
    pub guide: bool,
}

/// A chart for the width of a page.
#[derive(Debug, Clone)]
pub struct Curves {
    pub x_label: String,
    pub y_label: String,
    pub curves: Vec<Curve>,
    /// Values that the axes show besides those of the points.
    pub x_at_least: Vec<f64>,
    pub y_at_least: Vec<f64>,
}

const WIDTH: i32 = 640;
/// Pixels of the plot itself, and around it.
const HEIGHT: i32 = 330;
const LEFT: i32 = 66;
const RIGHT: i32 = 20;
const TOP: i32 = 16;
const FOOT: i32 = 66;
/// A line of the legend, and the width of one of its entries.
const LEGEND: i32 = 24;
const ENTRY: i32 = 205;

impl Curve {
    /// Points that are joined in their order.
    pub fn joined(name: impl Into<String>, points: Vec<Datum>) -> Self {
        Self { name: name.into(), points, joined: true, guide: false }
    }

    /// Points by themselves.
    pub fn loose(name: impl Into<String>, points: Vec<Datum>) -> Self {
        Self { name: name.into(), points, joined: false, guide: false }
    }

    /// A line to compare with.
    pub fn guide(name: impl Into<String>, ends: [(f64, f64); 2]) -> Self {
        let points = ends.map(|(x, y)| Datum { x, y, error: None }).to_vec();
        Self { name: name.into(), points, joined: true, guide: true }
    }
}

impl Curves {
    fn legend_lines(&self) -> i32 {
        let columns = (WIDTH - LEFT) / ENTRY;
        (self.curves.len() as i32 + columns - 1) / columns
    }
}

impl Drawing for Curves {
    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, (TOP + HEIGHT + FOOT + LEGEND * self.legend_lines() + 6) as u32)
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let ends = |point: &Datum| {
            let error = point.error.unwrap_or(0.0);
            [point.y - error, point.y + error]
        };
        let x = points().map(|point| point.x).chain(self.x_at_least.iter().copied());
        let y = points().flat_map(ends).chain(self.y_at_least.iter().copied());
        let (x, y) = (Axis::new(Scale::Linear, x), Axis::new(Scale::Linear, y));
        let (x_axis, y_axis) =
            x.zip(y).with_context(|| format!("a chart without values: {}", self.y_label))?;
        let frame = Frame { x: LEFT..WIDTH - RIGHT, y: TOP..TOP + HEIGHT, x_axis, y_axis };
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
        area.fill(&WHITE).map_err(failed)?;
        self.axes(area, &frame).map_err(failed)?;
        for (index, curve) in self.curves.iter().enumerate() {
            self.curve(area, &frame, index, curve).map_err(failed)?;
        }
        area.present().map_err(failed)
    }
}

/// Where things are, in pixels.
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
        let style = TextStyle::from(("sans-serif", 16.0).into_font().transform(FontTransform::Rotate270));
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
        let columns = (WIDTH - LEFT) / ENTRY;
        let place = (index as i32 % columns, index as i32 / columns);
        let legend = (LEFT + 12 + ENTRY * place.0, TOP + HEIGHT + FOOT + LEGEND * place.1 + 4);
        let placed = curve.points.iter().filter_map(|point| Some((frame.at(point.x, point.y)?, point)));
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
                mark(area, index, *at, false)?;
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
    fn points_guides_and_names_are_there() {
        let point = |x: f64| Datum { x, y: 2.0 * x, error: Some(0.1) };
        let chart = Curves {
            x_label: "nodes".to_owned(),
            y_label: "tokens".to_owned(),
            curves: vec![
                Curve::joined("one", [1.0, 2.0, 3.0].map(point).to_vec()),
                Curve::loose("two", vec![point(2.5), Datum { x: f64::NAN, y: 1.0, error: None }]),
                Curve::guide("bound", [(1.0, 7.0), (3.0, 7.0)]),
            ],
            x_at_least: vec![0.0],
            y_at_least: vec![],
        };
        let svg = chart.svg().expect("drawn");
        for expected in ["nodes", "tokens", "one", "two", "bound"] {
            assert!(svg.contains(&format!("\n{expected}\n")), "{expected}: {svg}");
        }
        // Four points that can be drawn, and two in the legend.
        assert_eq!(svg.matches("<polygon").count(), 6, "{svg}");
        let empty = Curves { curves: Vec::new(), x_at_least: Vec::new(), ..chart };
        assert!(format!("{:#}", empty.svg().expect_err("nothing")).contains("without values"));
    }
}
