//! Layouts of repositories, as they are published, made of tiny models and heads.

use std::fs;

use super::*;
use crate::listen::Silent;

/// Models and heads with their places, of which the first is the target, and the draft to be found.
type Layout<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);

/// Folder with the tests' models and heads.
fn made() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests")
}

/// Copies a head or model, or writes what is given after `=`.
fn place(from: &str, to: &Path) {
    let files = ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"];
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    if let Some(text) = from.strip_prefix('=') {
        fs::write(to, text).unwrap();
    } else if from.ends_with(".gguf") {
        fs::copy(made().join(from), to).unwrap();
    } else {
        fs::create_dir_all(to).unwrap();
        for file in files.map(|file| made().join(from).join(file)).iter().filter(|f| f.exists()) {
            fs::copy(file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// The draft that is found for the first of these files or folders.
fn found(layout: &[(&str, &str)], gain: impl Fn(&Draft, f64) -> f64) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in layout {
        place(from, &folder.path().join(to));
    }
    let target = folder.path().join(layout[0].1);
    let described = Description::read(&target).unwrap();
    let sidecar = find(&target, &described, gain, &Silent)?;
    let path = &sidecar.draft.files()?.path;
    Some(path.strip_prefix(folder.path()).unwrap().display().to_string())
}

#[test]
fn finds_what_fits_in_published_layouts() {
    const X: (&str, &str) = ("heads/target", "x-4b");
    const Q: (&str, &str) = ("heads/mtp-qwen/model.gguf", "q/Q-4B-Q8_0.gguf");
    const G: (&str, &str) = ("fixtures/gemma4", "gemma-4");
    const HUB: (&str, &str) = ("heads/target", "hub/models--a--X-4B/snapshots/1");
    let layouts: [Layout; 27] = [
        (&[X], None),
        (&[X, ("heads/original", "x-4b/eagle3")], Some("x-4b/eagle3")),
        (&[X, ("heads/specforge", "X-4B-EAGLE3")], Some("X-4B-EAGLE3")),
        (&[X, ("heads/speculators", "x-4b-speculator.eagle3")], Some("x-4b-speculator.eagle3")),
        (&[X, ("heads/eagle1", "x-4b_eagle")], Some("x-4b_eagle")),
        (&[X, ("heads/dflash", "x-4b-DFlash")], Some("x-4b-DFlash")),
        (&[X, ("heads/dflash/model.gguf", "x-4b/dflash-x.gguf")], Some("x-4b/dflash-x.gguf")),
        (&[X, ("heads/dspark/model.gguf", "x-4b/dspark-x.gguf")], Some("x-4b/dspark-x.gguf")),
        // Several tokens in a pass are expected to gain more.
        (
            &[X, ("heads/original", "x-4b/eagle3"), ("heads/dflash", "x-4b/dflash")],
            Some("x-4b/dflash"),
        ),
        // Of the same kind, the smaller.
        (&[X, ("heads/original", "x-4b/a"), ("heads/eagle1", "x-4b/b")], Some("x-4b/b")),
        // Names tell nothing: this one is a head.
        (&[X, ("heads/original", "x-4b-gguf")], Some("x-4b-gguf")),
        (
            &[HUB, ("heads/specforge", "hub/models--b--x-4b-eagle3/snapshots/2")],
            Some("hub/models--b--x-4b-eagle3/snapshots/2"),
        ),
        (&[HUB, ("heads/specforge", "hub/models--b--y-4b-eagle3/snapshots/2")], None),
        // Other models, and heads of other models.
        (&[X, ("heads/target", "x-4b-instruct")], None),
        (&[X, ("heads/original", "x-40b-eagle3")], None),
        (&[X, ("heads/assistant", "x-4b-assistant")], None),
        (&[X, ("heads/mtp-qwen/mtp.gguf", "x-4b/mtp-x.gguf")], None),
        (&[X, ("=", "x-4b/eagle3/config.json")], None),
        (&[X, ("={", "x-4b/eagle3/config.json"), ("={", "x-4b/eagle3/model.safetensors")], None),
        (&[X, ("=GGUF", "x-4b/dflash-x.gguf")], None),
        (&[G, ("heads/assistant", "gemma-4-assistant")], Some("gemma-4-assistant")),
        (
            &[G, ("heads/assistant/model.gguf", "gemma-4/assistant.gguf")],
            Some("gemma-4/assistant.gguf"),
        ),
        (&[Q, ("heads/mtp-qwen/mtp.gguf", "q/mtp-Q-4B-Q8_0.gguf")], Some("q/mtp-Q-4B-Q8_0.gguf")),
        (&[Q, ("heads/mtp-qwen/mtp.gguf", "q/MTP/Q-4B.gguf")], Some("q/MTP/Q-4B.gguf")),
        (
            &[
                ("heads/mtp-qwen/model.gguf", "q-GGUF/q.gguf"),
                ("heads/mtp-qwen/mtp.gguf", "q-MTP/m.gguf"),
            ],
            Some("q-MTP/m.gguf"),
        ),
        (&[Q, ("heads/mtp-glm/mtp.gguf", "q/mtp-Q-4B-Q8_0.gguf")], None),
        (
            &[Q, ("heads/dflash/model.gguf", "q/dflash-Q-4B.gguf"), ("=", "q/mmproj-Q-4B.gguf")],
            None,
        ),
    ];
    for (layout, expected) in layouts {
        let found = found(layout, |_, expected| expected);
        assert_eq!(found.as_deref(), expected, "{layout:?}");
    }
}

/// Gains of earlier outputs decide before expected ones.
#[test]
fn chooses_by_gains_of_earlier_outputs() {
    let layout = [
        ("heads/target", "x-4b"),
        ("heads/original", "x-4b/eagle3"),
        ("heads/dflash", "x-4b/dflash"),
    ];
    let gain = |draft: &Draft, expected: f64| match draft {
        Draft::Head(_) => 1.9,
        _ => expected,
    };
    assert_eq!(found(&layout, gain).as_deref(), Some("x-4b/eagle3"));
}
