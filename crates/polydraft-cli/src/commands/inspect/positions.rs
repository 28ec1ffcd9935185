//! Description of positional encodings.

use polydraft_models::{Positions, Scaling};

/// Describes the positional encoding; `unrotated` marks the layers without one.
pub fn positions(positions: &Positions, unrotated: &[bool]) -> String {
    match positions {
        Positions::Rotary(_) if !unrotated.is_empty() && unrotated.iter().all(|none| *none) => {
            "none".to_owned()
        }
        Positions::Learned { .. } => "learned".to_owned(),
        Positions::Rotary(rope) => {
            let scaling = match &rope.scaling {
                Scaling::None => String::new(),
                Scaling::Linear { factor } => format!(", linear scaling by {factor}"),
                Scaling::Llama3 { factor, .. } => format!(", llama3 scaling by {factor}"),
                Scaling::Yarn { factor, .. } => format!(", yarn scaling by {factor}"),
                Scaling::Long { original, .. } => {
                    format!(", longrope's short factors, for up to {original} tokens")
                }
            };
            format!("rotary, base {}{scaling}", rope.theta)
        }
    }
}
