//! Which of a repository's files are wanted.

use anyhow::{Result, bail};

/// The files to have, and what to open.
#[derive(Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Paths in the repository.
    pub files: Vec<&'a str>,
    /// The GGUF file, or the first of its parts; none to open the folder.
    pub gguf: Option<&'a str>,
}

/// The GGUF files that are taken where nothing was said, as llama.cpp does.
const USUAL: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// Where some draft heads have their weights; of models with both, it is the same once more.
const PICKLE: &str = "pytorch_model.bin";

/// The tokenizer of Mistral's own format, where there is no other.
const TEKKEN: &str = "tekken.json";

/// What stands beside the weights in a folder, and is read.
const BESIDE: [&str; 9] = [
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

/// Chooses a folder of safetensors where there is one and no GGUF file is asked for, and else the
/// GGUF file whose name ends with `tag`.
///
/// # Errors
/// No such file, or none that is read.
pub fn choose<'a>(paths: &[&'a str], tag: Option<&str>) -> Result<Choice<'a>> {
    let has = |name: &str| paths.contains(&name);
    let in_folder = paths.iter().any(|path| is_weights(path)) || has(PICKLE);
    if tag.is_none() && in_folder && has("config.json") {
        return Ok(folder(paths));
    }
    let mut models: Vec<&str> = paths.iter().copied().filter(|path| is_model(path)).collect();
    // The shortest first: where two names end alike, the plain one is meant.
    models.sort_by_key(|path| (path.len(), *path));
    if models.is_empty() {
        match tag {
            Some(_) => bail!("it has no GGUF files, from which one could be chosen after a colon"),
            None => {
                bail!("it has no weights that are read: safetensors with a config.json, or GGUF")
            }
        }
    }
    let of = |tag: &str| models.iter().copied().find(|path| is_named(path, tag));
    let found = match tag {
        Some(tag) => of(tag),
        None => USUAL.iter().find_map(|tag| of(tag)).or_else(|| models.iter().copied().min()),
    };
    let Some(first) = found else {
        let short = |path: &'a str| word(path).filter(|word| of(word) == Some(path));
        let labels = models.iter().map(|path| short(path).unwrap_or(name(path)));
        let mut all: Vec<_> = labels.collect();
        all.sort_unstable();
        bail!("it has no GGUF file {}; it has {}", tag.unwrap_or_default(), all.join(", "));
    };
    let files = match part(first) {
        Some((stem, _, count)) => {
            let together = |path: &&str| part(path).is_some_and(|p| (p.0, p.2) == (stem, count));
            paths.iter().copied().filter(together).collect()
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
        BESIDE.contains(path)
            || is_weights(path)
            || path.ends_with(".safetensors.index.json") && !is_copy(path)
            || template.is_some_and(|name| name.ends_with(".jinja"))
            || (*path == PICKLE && pickled)
            || (*path == TEKKEN && tekken)
    };
    Choice { files: paths.iter().copied().filter(wanted).collect(), gguf: None }
}

/// Weights in the folder itself. Those below are for other programs, and `consolidated` are all of
/// them once more, as Mistral's own programs read them.
fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") && !is_copy(path)
}

fn is_copy(path: &str) -> bool {
    path.contains('/') || path.starts_with("consolidated")
}

/// A whole model or the first part of one; no encoder of images, no statistics of a quantiser.
fn is_model(path: &str) -> bool {
    let name = name(path).to_ascii_lowercase();
    name.ends_with(".gguf")
        && !name.contains("mmproj")
        && !name.contains("imatrix")
        && part(path).is_none_or(|(_, number, _)| number == "00001")
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Stem, number and count of `STEM-00001-of-00003.gguf`.
fn part(path: &str) -> Option<(&str, &str, &str)> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(number) && is_number(count)).then_some((stem, number, count))
}

/// A file's name without the number of its part and its ending.
fn stem(path: &str) -> &str {
    match part(path) {
        Some((stem, ..)) => stem,
        None => path.get(..path.len() - ".gguf".len()).unwrap_or(path),
    }
}

/// Whether a file is meant by a tag: by its name, or by the name's last words.
fn is_named(path: &str, tag: &str) -> bool {
    if path == tag || name(path) == tag {
        return true;
    }
    let (stem, tag) = (stem(path).to_ascii_lowercase(), tag.to_ascii_lowercase());
    let before = stem.strip_suffix(&tag);
    let ends = |rest: &str| rest.is_empty() || rest.ends_with(['-', '.', '/']);
    before.is_some_and(|rest| ends(rest) || (rest.ends_with('_') && is_type(&tag)))
}

/// The last word of a name, if it says the type of the weights.
fn word(path: &str) -> Option<&str> {
    name(stem(path)).rsplit(['-', '.']).next().filter(|word| is_type(word))
}

/// `Q4_K_M`, `IQ3_XS`, `bf16`, `MXFP4` and the like.
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
    fn of_a_folder_what_is_read() {
        let choice = choose(&SHARED, None).unwrap();
        assert_eq!(choice.gguf, None);
        let unread = [0, 1, 4, 9, 10, 11, 12];
        let read = (0..SHARED.len()).filter(|i| !unread.contains(i)).map(|i| SHARED[i]);
        assert_eq!(choice.files, read.collect::<Vec<_>>());
        // A draft head, and Mistral's own tokenizer.
        let head = ["config.json", "pytorch_model.bin", "tekken.json"];
        assert_eq!(choose(&head, None).unwrap().files, head);
        assert!(choose(&SHARED, Some("Q4_0")).unwrap_err().to_string().contains("no GGUF"));
        let none = choose(&["README.md", "model.onnx"], None).unwrap_err().to_string();
        assert!(none.contains("no weights"), "{none}");
    }

    #[test]
    fn of_gguf_files_the_one_that_is_named() {
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
        ];
        let of = |tag| choose(&files, tag).map(|choice| choice.gguf.unwrap());
        for (tag, expected) in [
            (None, 3),
            (Some("Q4_K_M"), 3),
            (Some("q4_k_m"), 3),
            (Some("UD-Q4_K_M"), 5),
            (Some("Q8_0"), 4),
            (Some("X-7B-Q8_0.gguf"), 4),
            (Some("X-7B-Q8_0"), 4),
            (Some("BF16"), 0),
            (Some("BF16/X-7B-BF16-00001-of-00002.gguf"), 0),
        ] {
            assert_eq!(of(tag).unwrap(), files[expected], "{tag:?}");
        }
        assert_eq!(choose(&files, Some("bf16")).unwrap().files, files[..2]);
        // No part of a word, and neither encoders nor statistics.
        for tag in ["K_M", "8_0", "F16", "imatrix", "Q5_K_M"] {
            let error = of(Some(tag)).unwrap_err().to_string();
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
