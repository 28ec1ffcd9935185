//! Origin of a record: the build, the machine, and the number of threads.

use serde::{Deserialize, Serialize};

use crate::output;

/// Header of every record: machine and program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MadeBy {
    /// CPU and threads, as text.
    pub machine: String,
    /// Version of the program.
    version: String,
    #[serde(flatten)]
    provenance: Provenance,
}

impl MadeBy {
    /// Describes this program after loading its models.
    pub fn current() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { machine: polydraft_runtime::machine(), version, provenance: Provenance::current() }
    }
}

/// Fields of a record about the program. Missing fields of older records become "unknown".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Output of `git describe`, with "-dirty" for a modified tree; "unknown" outside a checkout.
    commit: String,
    /// Version of the compiler.
    rustc: String,
    /// Cargo features of the laboratory, such as "cuda" and "highs".
    features: Vec<String>,
    /// Cargo profile.
    profile: String,
    /// Number of threads; `None` if not recorded.
    threads: Option<usize>,
    /// Command line of the measurement; `None` if not recorded.
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
    /// Describes this program after loading its models.
    pub fn current() -> Self {
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
    fn current_build_is_known_and_old_records_default_to_unknown() {
        let current = Provenance::current();
        assert!(
            current.rustc.starts_with("rustc 1.") && current.profile != "unknown",
            "{current:?}"
        );
        assert!(current.threads.is_some_and(|threads| threads > 0));
        let text = serde_json::to_string(&current).expect("JSON");
        assert_eq!(serde_json::from_str::<Provenance>(&text).expect("a record"), current);
        let old: Provenance = serde_json::from_str("{}").expect("an old record");
        assert_eq!((old.commit.as_str(), old.threads), ("unknown", None));
    }
}
