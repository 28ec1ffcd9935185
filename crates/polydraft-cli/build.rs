//! Build facts for records: the commit, the compiler, the profile, the features.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let unknown = || "unknown".to_owned();
    let commit = output("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    let rustc = output(&env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()), &["--version"]);
    // target/PROFILE/build/CRATE/out
    let out = env::var("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3).and_then(|folder| folder.file_name());
    let profile = profile.map_or_else(unknown, |name| name.to_string_lossy().into_owned());
    let features = env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase()));
    let mut features: Vec<String> = features.collect();
    features.sort();
    println!("cargo:rustc-env=POLYDRAFT_COMMIT={}", commit.unwrap_or_else(unknown));
    println!("cargo:rustc-env=POLYDRAFT_RUSTC={}", rustc.unwrap_or_else(unknown));
    println!("cargo:rustc-env=POLYDRAFT_PROFILE={profile}");
    println!("cargo:rustc-env=POLYDRAFT_FEATURES={}", features.join(","));

    // Rerun after a new commit, and after any change of the working tree's sources.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", name]) {
            watch(Path::new(&path));
        }
    }
    watch(Path::new("../../Cargo.lock"));
    for entry in std::fs::read_dir("..").into_iter().flatten().flatten() {
        watch(&entry.path().join("src"));
    }
}

/// Cargo would rebuild every time for a missing path.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

/// Returns the first line of a program's output; `None` if the program fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned).filter(|line| !line.is_empty())
}
