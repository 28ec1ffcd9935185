//! Rotary embedding: the angles of the tokens of a pass.

use crate::config::Frequencies;

/// Cosines and sines `[tokens, head / 2]`.
type Angles = [Vec<f32>; 2];

/// Those of all tokens of a pass, made once for all layers. Angles are computed anew for the few
/// positions of a pass, so that a long context costs no table.
pub(crate) struct Rotations {
    all: Option<Angles>,
    /// Those of layers with a window, if others.
    windowed: Option<Angles>,
}

impl Rotations {
    /// Of learned positions there are none.
    pub const NONE: Self = Self { all: None, windowed: None };

    /// `windowed` are the frequencies in layers with a window, if others.
    pub fn new(positions: &[usize], all: &Frequencies, windowed: Option<&Frequencies>) -> Self {
        let turned = |Frequencies { values, amplitude }: &Frequencies| {
            let angles =
                || positions.iter().flat_map(|&p| values.iter().map(move |f| p as f64 * f));
            let cos: Vec<f32> = angles().map(|a| (amplitude * a.cos()) as f32).collect();
            [cos, angles().map(|a| (amplitude * a.sin()) as f32).collect()]
        };
        Self { all: Some(turned(all)), windowed: windowed.map(turned) }
    }

    pub fn of(&self, windowed: bool) -> Option<&Angles> {
        self.windowed.as_ref().filter(|_| windowed).or(self.all.as_ref())
    }
}
