//! Values over a number, some of them with what was expected of them, and a level that they are held against.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use super::marks::{color, mark};
use super::{Area, Drawing, Drawn, GRID, INK, Point, line, text};

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub struct Spot {
    pub x: f64,
    pub y: f64,
    /// What was expected: drawn hollow, with a line to the value.
    pub expected: Option<f64>,
    /// Written beside it; may be empty.
    pub label: String,
}

/// A named set of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    pub name: String,
    pub spots: Vec<Spot>,
}

/// A chart with a legend on its right.
#[derive(Debug, Clone, PartialEq)]
pub struct Scatter {
    pub title: String,
    /// A line of explanation under the title; may be empty.
    pub subtitle: String,
    pub x_label: String,
    pub y_label: String,
    pub clouds: Vec<Cloud>,
    /// A level across the chart, and its name.
    pub level: Option<(f64, String)>,
}

const SIZE: (u32, u32) = (1280, 720);
/// Pixels around the plot: left, right (the legend), top, bottom.
const MARGINS: (i32, i32, i32, i32) = (105, 285, 90, 95);

impl Drawing for Scatter {
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let frame = self.frame().with_context(|| format!("a chart without values: {}", self.title))?;
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
        area.fill(&WHITE).map_err(failed)?;
        self.draw_axes(area, &frame).map_err(failed)?;
        for (index, cloud) in self.clouds.iter().enumerate() {
            cloud.draw(area, &frame, index).map_err(failed)?;
        }
        area.present().map_err(failed)
    }
}

impl Scatter {
    fn spots(&self) -> impl Iterator<Item = &Spot> {
        self.clouds.iter().flat_map(|cloud| &cloud.spots)
    }

    fn frame(&self) -> Option<Frame> {
        let (left, right, top, bottom) = MARGINS;
        let level = self.level.iter().map(|(y, _)| *y);
        let heights = self.spots().flat_map(|spot| [Some(spot.y), spot.expected]).flatten();
        // From nothing on, so that a height is a share of another.
        Some(Frame {
            columns: Axis::new(Scale::Linear, self.spots().map(|spot| spot.x))?,
            heights: Axis::new(Scale::Linear, heights.chain(level).chain([0.0]))?,
            x: left..SIZE.0 as i32 - right,
            y: top..SIZE.1 as i32 - bottom,
        })
    }

    fn draw_axes<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        let (x, y) = (&frame.x, &frame.y);
        text(area, &self.title, (x.start, 18), 26.0, &BLACK, HPos::Left)?;
        text(area, &self.subtitle, (x.start, 52), 16.0, &INK, HPos::Left)?;
        for (value, label) in frame.heights.ticks(8) {
            let at = frame.height(value);
            line(area, &[(x.start, at), (x.end, at)], GRID, 1)?;
            text(area, &label, (x.start - 10, at - 5), 16.0, &INK, HPos::Right)?;
        }
        for (value, label) in frame.columns.ticks(10) {
            let at = frame.column(value);
            line(area, &[(at, y.end), (at, y.end + 5)], INK, 1)?;
            text(area, &label, (at, y.end + 10), 16.0, &INK, HPos::Center)?;
        }
        line(area, &[(x.start, y.start), (x.start, y.end), (x.end, y.end)], INK, 1)?;
        if let Some((level, name)) = &self.level {
            let at = frame.height(*level);
            line(area, &[(x.start, at), (x.end, at)], INK, 2)?;
            text(area, name, (x.end + 10, at - 6), 16.0, &INK, HPos::Left)?;
        }
        text(area, &self.x_label, ((x.start + x.end) / 2, y.end + 60), 18.0, &BLACK, HPos::Center)?;
        let style = TextStyle::from(("sans-serif", 18.0).into_font().transform(FontTransform::Rotate270));
        let style = style.pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(&self.y_label, &style, (14, (y.start + y.end) / 2))
    }
}

/// Where things are, in pixels.
struct Frame {
    columns: Axis,
    heights: Axis,
    x: Range<i32>,
    y: Range<i32>,
}

fn within(axis: &Axis, value: f64, length: i32) -> i32 {
    (axis.position(value).unwrap_or(0.0).clamp(0.0, 1.0) * f64::from(length)).round() as i32
}

impl Frame {
    fn column(&self, value: f64) -> i32 {
        self.x.start + within(&self.columns, value, self.x.end - self.x.start)
    }

    fn height(&self, value: f64) -> i32 {
        self.y.end - within(&self.heights, value, self.y.end - self.y.start)
    }
}

impl Cloud {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame, index: usize) -> Drawn<B> {
        for spot in &self.spots {
            let at: Point = (frame.column(spot.x), frame.height(spot.y));
            if let Some(expected) = spot.expected {
                let expected = (at.0, frame.height(expected));
                line(area, &[at, expected], color(index), 1)?;
                mark(area, index, expected, true)?;
            }
            mark(area, index, at, false)?;
            text(area, &spot.label, (at.0 + 12, at.1 - 6), 13.0, &INK, HPos::Left)?;
        }
        let legend = (frame.x.end + 24, frame.y.start + 14 + 30 * index as i32);
        mark(area, index, legend, false)?;
        text(area, &self.name, (legend.0 + 18, legend.1 - 5), 16.0, &BLACK, HPos::Left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Scatter {
        let spot = |x: f64, y: f64| Spot { x, y, expected: Some(y * 1.1), label: format!("2,{x}") };
        Scatter {
            title: "Tokens per second".to_owned(),
            subtitle: "an example".to_owned(),
            x_label: "nodes".to_owned(),
            y_label: "tokens/s".to_owned(),
            clouds: vec![Cloud { name: "block".to_owned(), spots: vec![spot(1.0, 90.0), spot(4.0, 120.0)] }],
            level: Some((100.0, "plain".to_owned())),
        }
    }

    #[test]
    fn heights_begin_at_nothing() {
        let frame = chart().frame().expect("values");
        assert!(frame.height(0.0) > frame.height(90.0) && frame.height(90.0) > frame.height(132.0));
        let share = |y: f64| f64::from(frame.height(0.0) - frame.height(y));
        assert!((share(60.0) / share(120.0) - 0.5).abs() < 0.01);
        assert!(frame.column(1.0) < frame.column(4.0));
    }

    #[test]
    fn it_holds_what_it_should() {
        let folder = tempfile::tempdir().expect("a folder");
        let svg = folder.path().join("chart.svg");
        chart().write(&svg).expect("written");
        let text = std::fs::read_to_string(&svg).expect("a file");
        for expected in ["Tokens per second", "block", "plain", "2,4", "nodes"] {
            assert!(text.contains(expected), "{expected}");
        }
        let empty = Scatter { clouds: Vec::new(), ..chart() };
        assert!(format!("{:#}", empty.write(&svg).expect_err("no")).contains("without values"));
    }
}
