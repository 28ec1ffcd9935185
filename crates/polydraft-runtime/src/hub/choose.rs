//! Chooses which of a repository's files to download.

use anyhow::{Result, bail};

/// Files to download, and the file to open.
#[derive(Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Paths in the repository.
    pub files: Vec<&'a str>,
    /// The GGUF file, or the first of its parts; `None` to open the folder.
    pub gguf: Option<&'a str>,
}

/// Preferred types of GGUF files without a tag, as in llama.cpp.
const PREFERRED_TYPES: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// Weights of some draft heads; a copy of the weights if there are safetensors too.
const PICKLE: &str = "pytorch_model.bin";

/// Mistral's tokenizer format, used if there is no other tokenizer.
const TEKKEN: &str = "tekken.json";

/// Files that are read in addition to the weights.
const CONFIG_FILES: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// Chooses the folder of safetensors if there is one and no tag is given, otherwise the GGUF file
/// whose name ends with `tag`.
///
/// # Errors
/// No such file, or no supported weights.
pub fn choose<'a>(paths: &[&'a str], tag: Option<&str>) -> Result<Choice<'a>> {
    let has = |name: &str| paths.contains(&name);
    let in_folder = paths.iter().any(|path| is_weights(path)) || has(PICKLE);
    if tag.is_none() && in_folder && has("config.json") {
        return Ok(folder(paths));
    }
    // A draft's file is chosen by its whole name only.
    let is_named = |path: &str| {
        path.ends_with(".gguf") && tag.is_some_and(|tag| path == tag || name(path) == tag)
    };
    let mut models: Vec<&str> =
        paths.iter().copied().filter(|path| is_model(path) || is_named(path)).collect();
    // The shortest first: if two names have the same suffix, the plain one is meant.
    models.sort_by_key(|path| (path.len(), *path));
    if models.is_empty() {
        match tag {
            Some(_) => bail!("it has no GGUF files to choose from after the colon"),
            None => {
                bail!(
                    "it has no weights in a supported format: safetensors and config.json, or GGUF"
                )
            }
        }
    }
    let find = |tag: &str| models.iter().copied().find(|path| matches_tag(path, tag));
    let found = match tag {
        Some(tag) => find(tag),
        None => PREFERRED_TYPES
            .iter()
            .find_map(|tag| find(tag))
            .or_else(|| models.iter().copied().min()),
    };
    let Some(first) = found else {
        let short = |path: &'a str| type_suffix(path).filter(|word| find(word) == Some(path));
        let labels = models.iter().map(|path| short(path).unwrap_or(name(path)));
        let mut all: Vec<_> = labels.collect();
        all.sort_unstable();
        bail!("it has no GGUF file {}; it has {}", tag.unwrap_or_default(), all.join(", "));
    };
    let files = match split_part(first) {
        Some((stem, _, count)) => {
            let is_same_model =
                |path: &&str| split_part(path).is_some_and(|p| (p.0, p.2) == (stem, count));
            paths.iter().copied().filter(is_same_model).collect()
        }
        None => vec![first],
    };
    Ok(Choice { files, gguf: Some(first) })
}

fn folder<'a>(paths: &[&'a str]) -> Choice<'a> {
    let has = |name: &str| paths.contains(&name);
    let pickled = !paths.iter().any(|path| is_weights(path));
    let tekken = !has("tokenizer.json") && !has("vocab.json");
    let wanted = |path: &&str| {
        let template = path.strip_prefix("additional_chat_templates/");
        CONFIG_FILES.contains(path)
            || is_weights(path)
            || path.ends_with(".safetensors.index.json") && !is_copy(path)
            || template.is_some_and(|name| name.ends_with(".jinja"))
            || (*path == PICKLE && pickled)
            || (*path == TEKKEN && tekken)
    };
    Choice { files: paths.iter().copied().filter(wanted).collect(), gguf: None }
}

/// Returns whether a file is weights of the folder itself. Subfolders are for other programs, and
/// `consolidated` files are copies for Mistral's own programs.
fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") && !is_copy(path)
}

fn is_copy(path: &str) -> bool {
    path.contains('/') || path.starts_with("consolidated")
}

/// Returns whether a file is a model or the first part of one, not an image encoder, an importance
/// matrix, or a draft that lies beside its target.
fn is_model(path: &str) -> bool {
    const DRAFTS: [&str; 5] = ["mtp-", "dflash-", "dspark-", "eagle3-", "draft-"];
    const KINDS: [&str; 4] = ["-assistant", "-eagle3", "-dflash", "-dspark"];
    let name = name(path).to_ascii_lowercase();
    name.ends_with(".gguf")
        && !name.contains("mmproj")
        && !name.contains("imatrix")
        && !DRAFTS.iter().any(|start| name.starts_with(start))
        && !KINDS.iter().any(|kind| name.contains(kind))
        && split_part(path).is_none_or(|(_, number, _)| number == "00001")
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Splits `STEM-00001-of-00003.gguf` into stem, number and count.
fn split_part(path: &str) -> Option<(&str, &str, &str)> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(number) && is_number(count)).then_some((stem, number, count))
}

/// Returns a file's name without part number and extension.
fn stem(path: &str) -> &str {
    match split_part(path) {
        Some((stem, ..)) => stem,
        None => path.get(..path.len() - ".gguf".len()).unwrap_or(path),
    }
}

/// Returns whether a tag is a file's name or the last words of it.
fn matches_tag(path: &str, tag: &str) -> bool {
    if path == tag || name(path) == tag {
        return true;
    }
    let (stem, tag) = (stem(path).to_ascii_lowercase(), tag.to_ascii_lowercase());
    let before = stem.strip_suffix(&tag);
    let ends = |rest: &str| rest.is_empty() || rest.ends_with(['-', '.', '/']);
    before.is_some_and(|rest| ends(rest) || (rest.ends_with('_') && is_type(&tag)))
}

/// Returns the last word of a name, if it is a weight type.
fn type_suffix(path: &str) -> Option<&str> {
    name(stem(path)).rsplit(['-', '.']).next().filter(|word| is_type(word))
}

/// Returns whether a word looks like `Q4_K_M`, `IQ3_XS`, `bf16` or `MXFP4`.
fn is_type(word: &str) -> bool {
    let bits = word.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    bits.len() < word.len() && bits.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::choose;

    const SHARED: [&str; 14] = [
        ".gitattributes",
        "README.md",
        "additional_chat_templates/tool.jinja",
        "config.json",
        "consolidated.safetensors",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "onnx/config.json",
        "onnx/model.safetensors",
        "pytorch_model.bin",
        "tekken.json",
        "tokenizer.json",
    ];

    #[test]
    fn chooses_the_files_of_a_folder_that_are_read() {
        let choice = choose(&SHARED, None).unwrap();
        assert_eq!(choice.gguf, None);
        let unread = [0, 1, 4, 9, 10, 11, 12];
        let read = (0..SHARED.len()).filter(|i| !unread.contains(i)).map(|i| SHARED[i]);
        assert_eq!(choice.files, read.collect::<Vec<_>>());
        // A draft head with Mistral's own tokenizer.
        let head = ["config.json", "pytorch_model.bin", "tekken.json"];
        assert_eq!(choose(&head, None).unwrap().files, head);
        assert!(choose(&SHARED, Some("Q4_0")).unwrap_err().to_string().contains("no GGUF"));
        let none = choose(&["README.md", "model.onnx"], None).unwrap_err().to_string();
        assert!(none.contains("no weights"), "{none}");
    }

    #[test]
    fn chooses_the_gguf_file_of_a_tag() {
        let files = [
            "BF16/X-7B-BF16-00001-of-00002.gguf",
            "BF16/X-7B-BF16-00002-of-00002.gguf",
            "X-7B-Q4_0.gguf",
            "X-7B-Q4_K_M.gguf",
            "X-7B-Q8_0.gguf",
            "X-7B-UD-Q4_K_M.gguf",
            "X-7B.imatrix.gguf",
            "config.json",
            "mmproj-X-7B-F16.gguf",
            "mtp-X-7B-Q8_0.gguf",
            "dflash-X-7B-F16.gguf",
            "X-7B-assistant-Q4_K_M.gguf",
        ];
        let find = |tag| choose(&files, tag).map(|choice| choice.gguf.unwrap());
        for (tag, expected) in [
            (None, 3),
            (Some("Q4_K_M"), 3),
            (Some("q4_k_m"), 3),
            (Some("UD-Q4_K_M"), 5),
            (Some("Q8_0"), 4),
            (Some("X-7B-Q8_0.gguf"), 4),
            (Some("X-7B-Q8_0"), 4),
            (Some("mtp-X-7B-Q8_0.gguf"), 9),
            (Some("BF16"), 0),
            (Some("BF16/X-7B-BF16-00001-of-00002.gguf"), 0),
        ] {
            assert_eq!(find(tag).unwrap(), files[expected], "{tag:?}");
        }
        assert_eq!(choose(&files, Some("bf16")).unwrap().files, files[..2]);
        // Parts of words, encoders and importance matrices do not match.
        for tag in ["K_M", "8_0", "F16", "imatrix", "Q5_K_M"] {
            let error = find(Some(tag)).unwrap_err().to_string();
            assert!(
                error.contains("BF16, Q4_0, Q4_K_M, Q8_0, X-7B-UD-Q4_K_M.gguf"),
                "{tag}: {error}"
            );
        }
        assert_eq!(choose(&files[2..3], None).unwrap().gguf, Some(files[2]));
        assert_eq!(choose(&files[4..5], None).unwrap().gguf, Some(files[4]));
        assert_eq!(choose(&["a/b.gguf"], None).unwrap().gguf, Some("a/b.gguf"));
    }
}
