//! References to models of the hub.

/// A model of the hub: `org/name` with optional `@revision` and `:tag`, in any order, or the URL of
/// its page or of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// `org/name`.
    pub repository: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// GGUF file: its type, such as `Q4_K_M`, or its name.
    pub file: Option<String>,
}

/// Default address of the hub.
pub const DEFAULT_ADDRESS: &str = "https://huggingface.co";

/// Default branch.
const DEFAULT_BRANCH: &str = "main";

/// Prefixes that are removed from an id.
const PREFIXES: [&str; 4] =
    ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];

impl Reference {
    /// Parses a reference; `None` if the name cannot be one, as most paths.
    pub fn parse(name: &str) -> Option<Self> {
        match PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) {
            Some(rest) => Self::page(rest).or_else(|| Self::id(rest)),
            None => Self::id(name),
        }
    }

    /// Returns the model's name without its revision.
    pub fn display_name(&self) -> String {
        Self { revision: DEFAULT_BRANCH.to_owned(), ..self.clone() }.to_string()
    }

    /// Parses `org/name` with optional revision and tag.
    fn id(text: &str) -> Option<Self> {
        let end = text.find(['@', ':']).unwrap_or(text.len());
        let (repository, mut rest) = text.split_at(end);
        let (mut revision, mut file) = (None, None);
        while let Some(kind) = rest.chars().next() {
            let end = rest[1..].find(['@', ':']).map_or(rest.len(), |end| end + 1);
            let field = if kind == '@' { &mut revision } else { &mut file };
            if end == 1 || field.replace(rest[1..end].to_owned()).is_some() {
                return None;
            }
            rest = &rest[end..];
        }
        is_repository(repository).then(|| Self {
            repository: repository.to_owned(),
            revision: revision.unwrap_or_else(|| DEFAULT_BRANCH.to_owned()),
            file,
        })
    }

    /// Parses `org/name/blob/main/file.gguf`: a URL without the hub's address.
    fn page(rest: &str) -> Option<Self> {
        let rest = rest.split(['?', '#']).next()?.trim_end_matches('/');
        let mut words = rest.splitn(5, '/');
        let repository = format!("{}/{}", words.next()?, words.next()?);
        if !is_repository(&repository) {
            return None;
        }
        let file = match words.next() {
            None => {
                return Some(Self { repository, revision: DEFAULT_BRANCH.to_owned(), file: None });
            }
            Some("blob" | "resolve") => true,
            Some("tree") => false,
            Some(_) => return None,
        };
        let (revision, path) = (words.next()?.to_owned(), words.next());
        // A file that is not GGUF refers to its folder.
        let path = path.filter(|path| file && path.ends_with(".gguf"));
        Some(Self { repository, revision, file: path.map(str::to_owned) })
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(file) = &self.file {
            write!(f, ":{file}")?;
        }
        if self.revision != DEFAULT_BRANCH { write!(f, "@{}", self.revision) } else { Ok(()) }
    }
}

/// Returns whether a name has the form `org/name`.
fn is_repository(name: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    name.split_once('/').is_some_and(|(owner, model)| is_word(owner) && is_word(model))
}

#[cfg(test)]
mod tests {
    use super::Reference;

    #[test]
    fn distinguishes_ids_and_addresses_from_paths() {
        let known = [
            ("org/name", "org/name"),
            ("org/name@main", "org/name"),
            ("Qwen/Qwen3-0.6B@v1.0", "Qwen/Qwen3-0.6B@v1.0"),
            ("a/b@refs/pr/3", "a/b@refs/pr/3"),
            ("a/b:Q4_K_M", "a/b:Q4_K_M"),
            ("a/b:Q4_K_M@v1", "a/b:Q4_K_M@v1"),
            ("a/b@v1:q8_0", "a/b:q8_0@v1"),
            ("hf.co/a/b:Q8_0", "a/b:Q8_0"),
            ("https://huggingface.co/a/b", "a/b"),
            ("https://huggingface.co/a/b/", "a/b"),
            ("https://huggingface.co/a/b/tree/main", "a/b"),
            ("https://huggingface.co/a/b/tree/v2/sub", "a/b@v2"),
            ("https://huggingface.co/a/b/blob/main/x.gguf", "a/b:x.gguf"),
            ("https://huggingface.co/a/b/resolve/v1/s/x.gguf?download=true", "a/b:s/x.gguf@v1"),
            ("https://huggingface.co/a/b/blob/main/model.safetensors", "a/b"),
        ];
        for (name, expected) in known {
            let parsed = Reference::parse(name).map(|reference| reference.to_string());
            assert_eq!(parsed.as_deref(), Some(expected), "{name}");
        }
        let paths = ["", "name", "/org/name", "./name", "../name", "a/b/c", "org/", "org/na me"];
        let more = ["a/.b", "~/x", "a/b:", "a/b@", "a/b:x:y", "a/b@x@y", "C:/models/x", "a:b/c"];
        let pages = ["https://huggingface.co/a", "https://huggingface.co/a/b/discussions/1"];
        for path in paths.iter().chain(&more).chain(&pages) {
            assert_eq!(Reference::parse(path), None, "{path}");
        }
    }
}
