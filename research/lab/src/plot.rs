//! Charts as SVG, with the fonts of the viewer.

mod axis;
mod curves;
mod dots;
mod lines;
mod marks;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use polydraft_cli::usage::UsageError;

pub use curves::{Curve, Curves, Datum};
pub use dots::{Best, DISTINGUISHABLE, Dot, Dots, Panel, WIDTH};
pub use lines::{Chart, Series, Value};

type Area<'a, B> = DrawingArea<B, Shift>;
type Point = (i32, i32);
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

const GRID: RGBColor = RGBColor(225, 225, 225);
const INK: RGBColor = RGBColor(60, 60, 60);

/// A chart that can be drawn to a file.
pub trait Drawing {
    /// Returns the width and height in pixels.
    fn size(&self) -> (u32, u32);

    /// Draws the chart on an area of this size.
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<()>;

    /// Returns the chart as an SVG element for an HTML page.
    fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&SVGBackend::with_string(&mut text, self.size()).into_drawing_area())?;
        Ok(text)
    }

    /// Writes the chart to an SVG file.
    fn write(&self, path: &Path) -> Result<()> {
        let drawn = self.draw(&SVGBackend::new(path, self.size()).into_drawing_area());
        drawn.with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Checks before measuring that the plots can be written.
pub fn check(files: &[PathBuf]) -> Result<()> {
    for file in files {
        if file.extension().is_none_or(|e| e != "svg") {
            return Err(UsageError::error(format_args!(
                "--plot {}: expected a name in .svg",
                file.display()
            )));
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(UsageError::error(format_args!(
                "--plot {}: there is no folder {}",
                file.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Writes a chart to each of the files.
pub fn write<D: Drawing>(files: &[PathBuf], drawing: impl Fn() -> D) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let drawing = drawing();
    let write = |file: &Path| {
        drawing.write(file).with_context(|| format!("writing the plot {}", file.display()))
    };
    files.iter().try_for_each(|file| write(file))
}

/// Draws a line of text with its top at `at`.
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

fn line<B: DrawingBackend>(
    area: &Area<B>,
    points: &[Point],
    color: RGBColor,
    width: u32,
) -> Drawn<B> {
    area.draw(&PathElement::new(points.to_vec(), color.stroke_width(width)))
}
