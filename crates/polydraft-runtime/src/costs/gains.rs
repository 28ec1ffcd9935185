//! Gains of a target's drafts in earlier outputs without a seed, by which a default is chosen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polydraft::policy::Learned;
use polydraft_models::Precision;
use serde::{Deserialize, Serialize};

use crate::machine::machine;

/// The gains of a target's drafts on this machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gains {
    path: Option<PathBuf>,
    /// Name of the draft that is in use.
    draft: String,
}

/// The average speed-up over plain decoding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Gain {
    steps: u64,
    gain: f64,
}

/// Weight of the expected gain, in steps.
const PRIOR_STEPS: f64 = 100.0;

impl Gains {
    /// Finds the gains of a target with this weight type.
    pub fn new(target: &Path, dtype: Option<Precision>, draft: String) -> Self {
        let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
        let size = crate::model_files::weight_bytes(&target);
        let path =
            super::cache_file("gains", &(machine(), target, size, dtype.map(Precision::name)));
        Self { path, draft }
    }

    /// Returns the expected gain of a draft, corrected by earlier outputs.
    pub fn of(&self, draft: &str, expected: f64) -> f64 {
        let stored = self.read().get(draft).copied().filter(|gain| gain.gain.is_finite());
        stored.map_or(expected, |Gain { steps, gain }| {
            let steps = steps as f64;
            (PRIOR_STEPS * expected + steps * gain) / (PRIOR_STEPS + steps)
        })
    }

    /// Stores the gain of the draft that is in use.
    pub fn store(&self, learned: &Learned) {
        let Some(path) = &self.path else { return };
        let mut all = self.read();
        let gain = Gain { steps: learned.gain_steps, gain: learned.gain };
        all.insert(self.draft.clone(), gain);
        // Gains that cannot be stored are learned again.
        let _ = super::write(path, &all);
    }

    fn read(&self) -> BTreeMap<String, Gain> {
        let text = self.path.as_deref().and_then(|path| std::fs::read_to_string(path).ok());
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_steps_change_an_expected_gain_little() {
        let folder = tempfile::tempdir().unwrap();
        let gains =
            Gains { path: Some(folder.path().join("gains.json")), draft: "self:q5_1".into() };
        assert_eq!(gains.of("self:q5_1", 1.4), 1.4);
        for (steps, gain, least, most) in [(5, 0.5, 1.3, 1.4), (400, 0.9, 0.95, 1.05)] {
            gains.store(&Learned { gain_steps: steps, gain, ..Learned::default() });
            let found = gains.of("self:q5_1", 1.4);
            assert!((least..most).contains(&found), "{found}");
            assert_eq!(gains.of("ngram", 1.15), 1.15);
        }
    }
}
