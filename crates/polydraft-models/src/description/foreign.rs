//! Recognizes directories and files that are not supported models, to report a more useful error
//! than reading them would.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::quantisation;

/// First bytes of a Git LFS pointer, a file that was not fetched.
pub(crate) const POINTER: &[u8] = b"version https://git-lfs";

/// Checks that a directory has the files of a model whose weights have a supported format.
///
/// # Errors
/// An adapter; an unsupported weight format; Git LFS pointers; no `config.json`.
pub(super) fn check(directory: &Path) -> Result<()> {
    let config = directory.join("config.json");
    let fail = |path: &Path, problem: String| Err(Error::File { path: path.to_owned(), problem });
    if !config.exists() {
        let adapter = directory.join("adapter_config.json");
        if adapter.exists() {
            let problem = "this is an adapter (LoRA), not a model: merge it into its base model \
                           (peft's merge_and_unload), and give the merged model's directory";
            return fail(&adapter, problem.to_owned());
        }
        if let Some(file) = first_gguf(directory) {
            let problem = format!("expected config.json here; pass the path of {file} instead");
            return fail(directory, problem);
        }
        return match other_kind(directory) {
            Some(kind) => fail(directory, format!("expected a model with config.json, got {kind}")),
            None => {
                Err(Error::Missing { directory: directory.to_owned(), expected: "config.json" })
            }
        };
    }
    if let Some(file) = pointer(directory) {
        let problem = "this is a pointer of Git LFS, not the file itself: run 'git lfs pull' in \
                       this directory";
        return fail(&directory.join(file), problem.to_owned());
    }
    let text = polydraft_files::read(&config, polydraft_files::FileKind::CONFIG).ok();
    let json = text.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    match json.and_then(|config| quantisation::unsupported_method(&config)) {
        Some(method) => fail(
            &config,
            format!(
                "weights quantised with {method} are not supported: use the original model (the \
                 weight type q4_k quantises on loading), or a GGUF file of it"
            ),
        ),
        None => Ok(()),
    }
}

/// Description of a directory that is no language model, by its files.
fn other_kind(directory: &Path) -> Option<&'static str> {
    let has = |name: &str| directory.join(name).exists();
    let weights = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
    let is_empty = std::fs::read_dir(directory).is_ok_and(|mut files| files.next().is_none());
    Some(match () {
        () if is_empty => "an empty directory",
        () if has("model_index.json") => "a pipeline of diffusers, which makes images",
        () if has("modules.json") => "an embedding model of sentence-transformers",
        () if has("params.json") => {
            "a model in its maker's own layout (params.json): get its version for transformers"
        }
        () if weights.into_iter().any(has) => {
            "weights alone: fetch config.json and tokenizer.json of the same model too"
        }
        () if has("tokenizer.json") || has("tokenizer.model") => {
            "a tokenizer alone: fetch the rest of the model too"
        }
        () if has("refs") && has("snapshots") => {
            "a model in the cache of huggingface_hub: give the folder inside snapshots"
        }
        () => return None,
    })
}

/// Name of the first GGUF file in a directory, in alphabetical order.
fn first_gguf(directory: &Path) -> Option<String> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let mut names: Vec<String> = files
        .filter(|file| super::is_gguf(&file.path()))
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    // Drafts and encoders of images lie beside a model.
    let others = ["mtp", "eagle", "dflash", "dspark", "draft", "assistant", "mmproj"];
    let is_other = |name: &str| others.iter().any(|word| name.to_lowercase().contains(word));
    names.sort_by_key(|name| (is_other(name), name.clone()));
    names.into_iter().next()
}

/// Name of a file of weights or of a tokenizer that is a Git LFS pointer.
fn pointer(directory: &Path) -> Option<String> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let is_large = |name: &str| {
        name.ends_with(".safetensors") || name.ends_with(".bin") || name == "tokenizer.json"
    };
    files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .find(|name| is_large(name) && is_pointer(&directory.join(name)))
}

/// Whether a file is a Git LFS pointer.
pub(crate) fn is_pointer(path: &Path) -> bool {
    let mut begin = [0; POINTER.len()];
    let read = polydraft_files::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == POINTER
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn problem(files: &[(&str, &str)]) -> String {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        check(directory.path()).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn rejects_directories_without_a_model() {
        assert_eq!(problem(&[("config.json", "{}")]), "");
        assert!(problem(&[("adapter_config.json", "{}")]).contains("LoRA"));
        assert!(problem(&[("b.gguf", ""), ("a.gguf", "")]).contains("a.gguf"));
        assert!(problem(&[]).contains("an empty directory"));
        assert!(problem(&[("a.txt", "")]).contains("config.json"));
        for (file, kind) in [
            ("model_index.json", "diffusers"),
            ("model.safetensors", "weights alone"),
            ("tokenizer.json", "a tokenizer alone"),
            ("params.json", "own layout"),
        ] {
            assert!(problem(&[(file, "{}")]).contains(kind), "{file}");
        }
    }

    #[test]
    fn rejects_git_lfs_pointers() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n";
        let files = [("config.json", "{}"), ("model.safetensors", pointer)];
        assert!(problem(&files).contains("git lfs pull"));
    }

    #[test]
    fn rejects_unsupported_quantisation() {
        for (config, method) in [
            (r#"{"quantization_config": {"quant_method": "aqlm"}}"#, "aqlm"),
            (r#"{"quantization_config": {"quant_method": "gptq", "bits": 3}}"#, "gptq (3 bits)"),
        ] {
            assert!(problem(&[("config.json", config)]).contains(method), "{config}");
        }
        for read in [
            r#"{"quantization_config": null}"#,
            r#"{"quantization_config": {"quant_method": "fp8"}}"#,
        ] {
            assert_eq!(problem(&[("config.json", read)]), "");
        }
    }
}
