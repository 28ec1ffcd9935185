//! Where a record comes from: what was built, how, and with how many threads it ran.

use serde::{Deserialize, Serialize};

use crate::output;

/// What every record begins with: where it was measured, and by which program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MadeBy {
    /// CPU and threads, in words.
    pub machine: String,
    /// The program's version.
    version: String,
    #[serde(flatten)]
    provenance: Provenance,
}

impl MadeBy {
    /// By this program, here; it has loaded its models.
    pub fn here() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { machine: polydraft_runtime::machine(), version, provenance: Provenance::here() }
    }
}

/// The fields of every record that say which program measured. Records from before they existed
/// read as "unknown".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// As `git describe` names it, with "-dirty" for a tree that differs from it; "unknown" outside
    /// a checkout.
    commit: String,
    /// The compiler's version.
    rustc: String,
    /// Cargo features of the laboratory, such as "cuda" and "highs".
    features: Vec<String>,
    /// Cargo's profile.
    profile: String,
    /// Threads that models compute with; none if that was not recorded.
    threads: Option<usize>,
    /// The command that measured, as one would type it; none if that was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl Default for Provenance {
    fn default() -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            commit: unknown(),
            rustc: unknown(),
            features: Vec::new(),
            profile: unknown(),
            threads: None,
            command: None,
        }
    }
}

impl Provenance {
    /// Of this program, which has loaded its models.
    pub fn here() -> Self {
        let features = env!("POLYDRAFT_FEATURES").split(',').filter(|feature| !feature.is_empty());
        Self {
            commit: env!("POLYDRAFT_COMMIT").to_owned(),
            rustc: env!("POLYDRAFT_RUSTC").to_owned(),
            features: features.map(str::to_owned).collect(),
            profile: env!("POLYDRAFT_PROFILE").to_owned(),
            threads: Some(polydraft_runtime::threads()),
            command: Some(output::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_is_known_and_old_records_are_not() {
        let here = Provenance::here();
        assert!(here.rustc.starts_with("rustc 1.") && here.profile != "unknown", "{here:?}");
        assert!(here.threads.is_some_and(|threads| threads > 0));
        let text = serde_json::to_string(&here).expect("JSON");
        assert_eq!(serde_json::from_str::<Provenance>(&text).expect("a record"), here);
        let old: Provenance = serde_json::from_str("{}").expect("an old record");
        assert_eq!((old.commit.as_str(), old.threads), ("unknown", None));
    }
}
