//! Charts as SVG or PNG: categories along x, several series of values with error bars, y linear or logarithmic.

use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The y axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// Powers of ten; values of 0 and below are left out.
    Log,
}

/// One value of a series.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub y: f64,
    /// Half the length of its error bar.
    pub error: Option<f64>,
    /// It is a lower bound only: drawn hollow, with an arrow upwards.
    pub bound: bool,
}

impl From<f64> for Value {
    fn from(y: f64) -> Self {
        Self { y, error: None, bound: false }
    }
}

/// A named row of values, one for each category, if there is one.
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
    pub scale: Scale,
    pub categories: Vec<String>,
    pub series: Vec<Series>,
}

type Area<'a, B> = DrawingArea<B, Shift>;
type Point = (i32, i32);

const FONT: &[u8] = include_bytes!("../assets/DejaVuSans-subset.ttf");
const SIZE: (u32, u32) = (1280, 720);
/// Pixels around the plot: left, right (the legend), top, bottom.
const MARGINS: (i32, i32, i32, i32) = (105, 285, 90, 95);
/// Okabe and Ito's colours, told apart by colour-blind people too, and two more that their marks tell apart.
const COLORS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(86, 180, 233),
    RGBColor(150, 30, 60),
    RGBColor(120, 120, 120),
];
/// Marks as polygons around a point, so that series differ without colour too.
const MARKS: [&[Point]; 9] = [
    &[(-6, -2), (-2, -6), (2, -6), (6, -2), (6, 2), (2, 6), (-2, 6), (-6, 2)],
    &[(-6, -6), (6, -6), (6, 6), (-6, 6)],
    &[(0, -8), (8, 6), (-8, 6)],
    &[(0, -8), (8, 0), (0, 8), (-8, 0)],
    &[(0, 8), (8, -6), (-8, -6)],
    &[
        (-2, -7),
        (2, -7),
        (2, -2),
        (7, -2),
        (7, 2),
        (2, 2),
        (2, 7),
        (-2, 7),
        (-2, 2),
        (-7, 2),
        (-7, -2),
        (-2, -2),
    ],
    &[(-8, -3), (8, -3), (8, 3), (-8, 3)],
    &[(0, -9), (2, -3), (9, -3), (4, 1), (6, 8), (0, 4), (-6, 8), (-4, 1), (-9, -3), (-2, -3)],
    &[(-7, -7), (7, -7), (-7, 7), (7, 7)],
];

impl Chart {
    /// Writes the chart as SVG or PNG, by the file's extension.
    pub fn write(&self, path: &Path) -> Result<()> {
        static FONTS: Once = Once::new();
        FONTS.call_once(|| {
            // It can only fail for a file that is no font.
            let _ = plotters::style::register_font("sans-serif", FontStyle::Normal, FONT);
        });
        let drawn = match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => self.draw(&SVGBackend::new(path, SIZE).into_drawing_area()),
            Some("png") => self.draw(&BitMapBackend::new(path, SIZE).into_drawing_area()),
            _ => bail!("{}: expected a file name that ends in .svg or .png", path.display()),
        };
        drawn.with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()> {
        let axis = Axis::new(self)?;
        let frame = Frame::new(self.categories.len(), axis);
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| anyhow!("{error}");
        area.fill(&WHITE).map_err(failed)?;
        self.draw_axes(area, &frame).map_err(failed)?;
        for (index, series) in self.series.iter().enumerate() {
            Pen { area, index, frame: &frame, of: self.series.len() }.series(series).map_err(failed)?;
        }
        area.present().map_err(failed)
    }

    fn draw_axes<B: DrawingBackend>(&self, area: &Area<B>, frame: &Frame) -> Drawn<B> {
        let grid = RGBColor(225, 225, 225);
        let ink = RGBColor(60, 60, 60);
        let (x, y) = (&frame.x, &frame.y);
        text(area, &self.title, (x.start, 18), 26.0, &BLACK, HPos::Left)?;
        text(area, &self.subtitle, (x.start, 52), 16.0, &ink, HPos::Left)?;
        for (value, label) in frame.axis.ticks() {
            let at = frame.height(value);
            line(area, &[(x.start, at), (x.end, at)], grid, 1)?;
            text(area, &label, (x.start - 10, at - 5), 16.0, &ink, HPos::Right)?;
        }
        line(area, &[(x.start, y.start), (x.start, y.end), (x.end, y.end)], ink, 1)?;
        let style = TextStyle::from(("sans-serif", 16.0).into_font());
        let mut widest = 0;
        for category in &self.categories {
            widest = widest.max(area.estimate_text_size(category, &style)?.0 as i32);
        }
        // Names too wide for one line take two, in turn.
        let lines = if widest + 10 > frame.slot() { 2 } else { 1 };
        for (index, category) in self.categories.iter().enumerate() {
            let (at, drop) = (frame.center(index), 22 * (index as i32 % lines));
            line(area, &[(at, y.end), (at, y.end + 5 + drop)], ink, 1)?;
            text(area, category, (at, y.end + 10 + drop), 16.0, &ink, HPos::Center)?;
        }
        text(area, &self.x_label, ((x.start + x.end) / 2, y.end + 60), 18.0, &BLACK, HPos::Center)?;
        let style = TextStyle::from(("sans-serif", 18.0).into_font().transform(FontTransform::Rotate270));
        let style = style.pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(&self.y_label, &style, (14, (y.start + y.end) / 2))
    }
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn text<B: DrawingBackend>(
    area: &Area<B>,
    text: &str,
    at: Point,
    size: f64,
    color: &RGBColor,
    align: HPos,
) -> Drawn<B> {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(color);
    area.draw_text(text, &style.pos(Pos::new(align, VPos::Top)), at)
}

fn line<B: DrawingBackend>(area: &Area<B>, points: &[Point], color: RGBColor, width: u32) -> Drawn<B> {
    area.draw(&PathElement::new(points.to_vec(), color.stroke_width(width)))
}

/// The values of the y axis.
struct Axis {
    scale: Scale,
    range: Range<f64>,
}

impl Axis {
    fn new(chart: &Chart) -> Result<Self> {
        let shown = |y: &f64| y.is_finite() && (chart.scale == Scale::Linear || *y > 0.0);
        let values = chart.series.iter().flat_map(|series| series.values.iter().flatten());
        let ends: Vec<f64> = values
            .flat_map(|v| [v.y, v.y - v.error.unwrap_or(0.0), v.y + v.error.unwrap_or(0.0)])
            .filter(shown)
            .collect();
        let (low, high) = ends
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(*y), high.max(*y)));
        if ends.is_empty() || chart.categories.is_empty() {
            bail!("a chart without values: {}", chart.title);
        }
        let range = match chart.scale {
            Scale::Linear => low.min(0.0)..(1.05 * high).max(low.min(0.0) + 1e-9),
            // Whole powers, with room for the arrows of bounds.
            Scale::Log => {
                let (low, high) = (low.log10().floor(), (high.log10() + 0.1).ceil());
                low..high.max(low + 1.0)
            }
        };
        Ok(Self { scale: chart.scale, range })
    }

    /// Where a value is, from 0 at the bottom to 1 at the top; `None` if it cannot be shown.
    fn position(&self, value: f64) -> Option<f64> {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => return None,
        };
        Some((value - self.range.start) / (self.range.end - self.range.start)).filter(|at| at.is_finite())
    }

    /// Values that get a line and a label.
    fn ticks(&self) -> Vec<(f64, String)> {
        if self.scale == Scale::Log {
            let every = ((self.range.end - self.range.start) / 10.0).ceil().max(1.0) as usize;
            let powers = (self.range.start as i32..=self.range.end as i32).step_by(every);
            return powers.map(|power| (10_f64.powi(power), power_label(power))).collect();
        }
        let rough = (self.range.end - self.range.start) / 9.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let digits = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.range.start / step).ceil() as i64;
        let last = (self.range.end / step).floor() as i64;
        (first..=last).map(|i| i as f64 * step).map(|value| (value, format!("{value:.digits$}"))).collect()
    }
}

fn power_label(power: i32) -> String {
    match power {
        0..=5 => 10_i64.pow(power as u32).to_string(),
        -4..0 => format!("{:.*}", power.unsigned_abs() as usize, 10_f64.powi(power)),
        _ => format!("1e{power}"),
    }
}

/// Where things are, in pixels.
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
        Self { x: left..width - right, y: top..height - bottom, categories: categories as i32, axis }
    }

    /// The width of a category.
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

/// Draws series number `index` of so many.
struct Pen<'a, B: DrawingBackend> {
    area: &'a Area<'a, B>,
    frame: &'a Frame,
    index: usize,
    of: usize,
}

impl<B: DrawingBackend> Pen<'_, B> {
    fn color(&self) -> RGBColor {
        COLORS[self.index % COLORS.len()]
    }

    fn series(&self, series: &Series) -> Drawn<B> {
        let points: Vec<_> = series.values.iter().take(self.frame.categories as usize).enumerate().collect();
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
            if let Some(error) = value.error {
                let ends = [value.y - error, value.y + error].map(|y| self.frame.height(y));
                line(self.area, &[(at.0, ends[0]), (at.0, ends[1])], self.color(), 2)?;
                for end in ends {
                    line(self.area, &[(at.0 - 5, end), (at.0 + 5, end)], self.color(), 2)?;
                }
            }
            self.mark(*at, value.bound)?;
        }
        let legend = (self.frame.x.end + 24, self.frame.y.start + 14 + 30 * self.index as i32);
        self.mark(legend, false)?;
        text(self.area, &series.name, (legend.0 + 18, legend.1 - 5), 16.0, &BLACK, HPos::Left)
    }

    /// Series stand side by side within a category, so that equal values do not hide each other.
    fn across(&self, category: usize) -> i32 {
        let width = (self.frame.slot() * 6 / 10).min(20 * self.of as i32);
        let shift = width * (2 * self.index as i32 + 1 - self.of as i32) / (2 * self.of as i32);
        self.frame.center(category) + shift
    }

    fn mark(&self, at: Point, bound: bool) -> Drawn<B> {
        let mark = MARKS[self.index % MARKS.len()].iter().map(|(dx, dy)| (at.0 + dx, at.1 + dy));
        let mut outline: Vec<Point> = mark.collect();
        let fill = if bound { WHITE } else { self.color() };
        self.area.draw(&Polygon::new(outline.clone(), fill.filled()))?;
        outline.push(outline[0]);
        line(self.area, &outline, self.color(), 2)?;
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
    use super::*;

    fn chart(scale: Scale) -> Chart {
        let value = |y: f64| Some(Value { y, error: (y < 1.0).then_some(0.2 * y), bound: y > 100.0 });
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
            scale,
            categories: ["(10, 2)", "(100, 3)", "(1000, 2)", "(V, 4)"].map(str::to_owned).to_vec(),
            series: (0..7).map(|i| series(&format!("series number {i}"), 3_f64.powi(i))).collect(),
        }
    }

    #[test]
    fn both_formats_hold_what_they_should() {
        let folder = tempfile::tempdir().expect("a folder");
        for scale in [Scale::Linear, Scale::Log] {
            let svg = folder.path().join("chart.svg");
            chart(scale).write(&svg).expect("written");
            let text = std::fs::read_to_string(&svg).expect("a file");
            for expected in ["Milliseconds per token", "series number 6", "(1000, 2)", "ms per token"] {
                assert!(text.contains(expected), "{expected}");
            }
            let png = folder.path().join("chart.png");
            chart(scale).write(&png).expect("written");
            let bytes = std::fs::read(&png).expect("a file");
            assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{}", bytes.len());
        }
    }

    #[test]
    fn ticks_cover_the_values() {
        let axis = Axis::new(&chart(Scale::Linear)).expect("an axis");
        let ticks = axis.ticks();
        assert!((4..=12).contains(&ticks.len()) && ticks[0].0 == 0.0, "{ticks:?}");
        let axis = Axis::new(&chart(Scale::Log)).expect("an axis");
        let labels: Vec<String> = axis.ticks().into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]);
        assert_eq!(axis.position(0.0), None);
    }

    #[test]
    fn what_cannot_be_drawn() {
        let message =
            |chart: Chart, name: &str| format!("{:#}", chart.write(Path::new(name)).expect_err("no"));
        assert!(message(chart(Scale::Log), "/nowhere/chart.svg").contains("/nowhere/chart.svg"));
        assert!(message(chart(Scale::Log), "chart.gif").contains(".svg or .png"));
        let empty = Chart { series: Vec::new(), ..chart(Scale::Log) };
        assert!(message(empty, "/tmp/chart.svg").contains("without values"));
    }
}
