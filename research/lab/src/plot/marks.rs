//! Colours and marks that distinguish series.

use plotters::prelude::*;

use super::{Area, Drawn, Point, line};

/// Okabe and Ito's palette, distinguishable with color blindness, and two further colors that are
/// distinguished by their marks.
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
/// Marks as polygons around a point, so that series can be distinguished without color.
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

/// Returns the color of series `index`.
pub fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// Draws the mark of series `index`; a hollow mark is only an outline.
pub fn mark<B: DrawingBackend>(area: &Area<B>, index: usize, at: Point, hollow: bool) -> Drawn<B> {
    let mark = MARKS[index % MARKS.len()].iter().map(|(dx, dy)| (at.0 + dx, at.1 + dy));
    let mut outline: Vec<Point> = mark.collect();
    let fill = if hollow { WHITE } else { color(index) };
    area.draw(&Polygon::new(outline.clone(), fill.filled()))?;
    outline.push(outline[0]);
    line(area, &outline, color(index), 2)
}
