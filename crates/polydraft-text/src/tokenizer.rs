//! Tokenizers: text to tokens, and tokens to text.

mod around;
mod bytes;
mod growth;
mod long;
mod pieces;
mod tekken;
mod vocabulary_files;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polydraft::{Token, Vocabulary};
use polydraft_files::FileKind;
use tokenizers::{Model, ModelWrapper, Tokenizer as HfTokenizer};

use crate::contained::contained;
use crate::files::read_optional;
use crate::{Error, Result, SpecialTokens};

/// Tokenizer of a model. Clones share it through a reference counter.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use polydraft::Detokenizer;
/// use polydraft_text::Tokenizer;
///
/// let file = br#"{"model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1},
///                           "unk_token": "one"},
///                 "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}"#;
/// let tokenizer = Tokenizer::parse(file, "tokenizer.json")?;
/// assert_eq!(tokenizer.encode("two one")?, [1, 0]);
/// let mut stream = tokenizer.stream(&[1]);
/// assert_eq!(stream.push(0)?, " one");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    /// Upper bound of token ids, exclusive.
    rows: usize,
}

/// Number of white-space characters in a row at which the regular expressions that split text
/// silently give up: the rest would be one piece.
const MAX_WHITESPACE_RUN: usize = 1_000_000;

#[derive(Debug)]
struct Inner {
    tokenizer: HfTokenizer,
    path: PathBuf,
    /// Tokens without a text of their own.
    special: HashSet<Token>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model directory: `tokenizer.json`, or `tekken.json` of Mistral, or
    /// `vocab.json` with `merges.txt` of the OPT models.
    ///
    /// # Errors
    /// Fails if a file is missing, cannot be read or is not a valid tokenizer.
    pub fn read(directory: &Path) -> Result<Self> {
        Self::read_with(directory, &SpecialTokens::read(directory)?)
    }

    /// Reads a tokenizer as [`read`](Self::read), with special tokens that are already read.
    pub(crate) fn read_with(directory: &Path, special: &SpecialTokens) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        if let Some(bytes) = read_optional(&path, FileKind::TOKENIZER)? {
            return Self::parse_with(&bytes, path, special);
        }
        let path = directory.join(tekken::FILE);
        if let Some(bytes) = read_optional(&path, FileKind::TOKENIZER)? {
            return match contained(|| tekken::parse(&bytes, &path, special)) {
                Ok(read) => read.map(|tokenizer| Self::new(tokenizer, path)),
                Err(panic) => Err(library_panic(path, &panic)),
            };
        }
        match contained(|| vocabulary_files::read(directory, special)) {
            Ok(read) => read.map(|(tokenizer, path)| Self::new(tokenizer, path)),
            Err(panic) => Err(library_panic(directory.join("vocab.json"), &panic)),
        }
    }

    /// Parses the contents of a `tokenizer.json`; error messages name `path`.
    ///
    /// # Errors
    /// Fails if the contents are not a valid tokenizer.
    pub fn parse(bytes: &[u8], path: impl Into<PathBuf>) -> Result<Self> {
        Self::parse_with(bytes, path.into(), &SpecialTokens::default())
    }

    /// Parses a `tokenizer.json` with the settings of its directory.
    fn parse_with(bytes: &[u8], path: PathBuf, special: &SpecialTokens) -> Result<Self> {
        let read = || {
            let mut tokenizer = HfTokenizer::from_bytes(bytes)
                .map_err(|e| format!("expected a tokenizer in Hugging Face's format: {}", e))?;
            growth::check(&tokenizer)?;
            around::apply(&mut tokenizer, special).map_err(|e| e.to_string())?;
            Ok(Self::new(tokenizer, path.clone()))
        };
        match contained(read) {
            Ok(read) => read.map_err(|problem| Error::File { path, problem }),
            Err(panic) => Err(library_panic(path, &panic)),
        }
    }

    /// Wraps a tokenizer built in another way, for example from a GGUF file's metadata; error
    /// messages name `path`. Truncation and padding are turned off.
    pub fn from_parts(tokenizer: HfTokenizer, path: impl Into<PathBuf>) -> Self {
        Self::new(tokenizer, path.into())
    }

    fn new(mut tokenizer: HfTokenizer, path: PathBuf) -> Self {
        // Training leaves these settings in the file. A prompt is encoded as given: the model's
        // context limits it.
        tokenizer.with_padding(None);
        // Only invalid parameters fail.
        let _ = tokenizer.with_truncation(None);
        let added = tokenizer.get_added_tokens_decoder();
        let special =
            added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Self { inner: Arc::new(Inner { tokenizer, path, special }), rows: usize::MAX }
    }

    /// Restricts the tokenizer to the `rows` rows of a model's embedding: encoding a text with
    /// tokens beyond fails.
    pub fn with_rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Returns the file of the tokenizer.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the number of tokens, including added ones.
    pub fn size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// Returns the algorithm, under its name in `tokenizer.json`.
    pub fn kind(&self) -> &'static str {
        match self.inner.tokenizer.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        }
    }

    /// Serializes the tokenizer as a `tokenizer.json`, for other libraries.
    ///
    /// # Errors
    /// Fails if the tokenizer cannot be serialized.
    pub fn to_json(&self) -> Result<String> {
        self.checked("writing", Ok(self.inner.tokenizer.to_string(false)))
    }

    /// Returns the id of a token by its string, if the model has a row for it.
    pub fn token(&self, string: &str) -> Option<Token> {
        self.inner.tokenizer.token_to_id(string).filter(|id| (*id as usize) < self.rows)
    }

    /// Returns whether a token has no text of its own.
    pub fn is_special(&self, token: Token) -> bool {
        self.inner.special.contains(&token)
    }

    /// Returns the special tokens that occur in a text as strings, each with its bytes there.
    pub fn special_in(&self, text: &str) -> Vec<(std::ops::Range<usize>, Token)> {
        let strings = self.inner.special.iter().filter_map(|token| {
            let string = self.inner.tokenizer.id_to_token(*token)?;
            (!string.is_empty() && text.contains(&string)).then_some((string, *token))
        });
        let mut found: Vec<_> = strings
            .flat_map(|(string, token)| {
                let starts: Vec<usize> = text.match_indices(&string).map(|(at, _)| at).collect();
                starts.into_iter().map(move |at| (at..at + string.len(), token))
            })
            .collect();
        // Of tokens that overlap, the one that begins first, and the longest of these.
        found.sort_by_key(|(range, _)| (range.start, usize::MAX - range.end));
        let mut end = 0;
        found.retain(|(range, _)| {
            let is_free = range.start >= end;
            if is_free {
                end = range.end;
            }
            is_free
        });
        found
    }

    /// Returns the special tokens with their strings.
    pub fn special_tokens(&self) -> impl Iterator<Item = (String, Token)> + '_ {
        let tokenizer = &self.inner.tokenizer;
        self.inner.special.iter().filter_map(|token| Some((tokenizer.id_to_token(*token)?, *token)))
    }

    /// Returns the vocabulary of a model whose embedding has `rows` rows. Rows after the
    /// tokenizer's last token, which round the embedding's size, are not part of it: they have no
    /// text, and two models with one tokenizer may have different numbers of them. Nor are added
    /// tokens without a row, such as those of a model's images, or an untrained padding token.
    ///
    /// # Errors
    /// Fails if a token of the tokenizer itself has no row, if two tokens have the same id, or if
    /// too many rows are without a token for tokenizer and model to match.
    pub fn vocabulary(&self, rows: usize) -> Result<Vocabulary> {
        let vocabulary_error =
            |problem: String| Error::Vocabulary { path: self.inner.path.clone(), problem };
        let mut all: BTreeMap<Token, String> = BTreeMap::new();
        for (token, id) in self.inner.tokenizer.get_vocab(true) {
            if let Some(other) = all.insert(id, token) {
                let mut both = [other, all.remove(&id).unwrap_or_default()];
                both.sort();
                // The tokenizer's choice between them would be arbitrary.
                let [a, b] = both;
                return Err(vocabulary_error(format!(
                    "expected one token for each id, got {a:?} and {b:?} for id {id}"
                )));
            }
        }
        let model = self.inner.tokenizer.get_model();
        all.retain(|id, token| (*id as usize) < rows || model.token_to_id(token).is_some());
        if let Some((id, token)) = all.iter().find(|(id, _)| **id as usize >= rows) {
            return Err(vocabulary_error(format!(
                "the tokenizer has {} tokens, the model only {rows} rows: token {id} ({token:?}) \
                 has none",
                all.len()
            )));
        }
        // Ids are unique and below `rows`, so the difference is the number of rows without a token.
        if all.is_empty() || rows - all.len() > 1024.max(rows / 8) {
            return Err(vocabulary_error(format!(
                "the model has {rows} rows, but the tokenizer has tokens for only {} of them",
                all.len()
            )));
        }
        let used = all.last_key_value().map_or(0, |(id, _)| *id as usize + 1);
        let mut tokens: Vec<Option<Box<str>>> = vec![None; used];
        for (id, token) in all {
            tokens[id as usize] = Some(token.into());
        }
        Ok(Vocabulary::new(tokens))
    }

    /// Encodes a prompt, with the special tokens that the model expects around it.
    ///
    /// # Errors
    /// Fails if the tokenizer rejects the text.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>> {
        self.encode_with(text, true)
    }

    /// Encodes a text that already contains its special tokens, as the output of a chat template
    /// does.
    ///
    /// # Errors
    /// Fails if the tokenizer rejects the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>> {
        self.encode_with(text, false)
    }

    /// Encodes a text in which special tokens are ordinary text, too.
    ///
    /// # Errors
    /// Fails if the tokenizer rejects the text.
    pub fn encode_as_text(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokenizer = self.inner.tokenizer.clone();
        tokenizer.set_encode_special_tokens(true);
        let inner =
            Inner { tokenizer, path: self.inner.path.clone(), special: self.inner.special.clone() };
        Self { inner: Arc::new(inner), rows: self.rows }.encode_plain(text)
    }

    fn encode_with(&self, text: &str, special: bool) -> Result<Vec<Token>> {
        let refused = |problem: String| self.checked("encoding", Ok(Err(problem.into())));
        let blank = longest_whitespace_run(text);
        if blank >= MAX_WHITESPACE_RUN {
            return refused(format!(
                "expected less than {MAX_WHITESPACE_RUN} white-space characters in a row, got \
                 {blank}"
            ));
        }
        let encoding = contained(|| self.inner.tokenizer.encode(text, special));
        let ids = self.checked("encoding", encoding)?.get_ids().to_vec();
        match ids.iter().find(|id| **id as usize >= self.rows) {
            None => Ok(ids),
            Some(id) => refused(format!(
                "expected tokens below {}, the number of rows of the model, got {id} ({:?})",
                self.rows,
                self.inner.tokenizer.id_to_token(*id).unwrap_or_default()
            )),
        }
    }

    /// Decodes tokens without special ones.
    ///
    /// # Errors
    /// Fails if the tokenizer rejects an id.
    pub fn decode(&self, tokens: &[Token]) -> Result<String> {
        self.checked("decoding", contained(|| self.inner.tokenizer.decode(tokens, true)))
    }

    /// Decodes tokens, including special ones.
    ///
    /// # Errors
    /// Fails as [`decode`](Self::decode).
    pub fn decode_with_special(&self, tokens: &[Token]) -> Result<String> {
        self.checked("decoding", contained(|| self.inner.tokenizer.decode(tokens, false)))
    }

    fn checked<T>(
        &self,
        operation: &'static str,
        result: std::result::Result<tokenizers::Result<T>, String>,
    ) -> Result<T> {
        let problem = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(e)) => e.to_string(),
            Err(panic) => describe_panic(&panic),
        };
        Err(Error::Tokenizing { path: self.inner.path.clone(), operation, problem })
    }
}

/// Returns the length of the longest run of white space, in characters.
fn longest_whitespace_run(text: &str) -> usize {
    let blanks = text.split(|c: char| !c.is_whitespace());
    blanks.map(|blank| blank.chars().count()).max().unwrap_or(0)
}

/// Creates the error of a file that made the library panic.
pub(crate) fn library_panic(path: PathBuf, panic: &str) -> Error {
    Error::File { path, problem: describe_panic(panic) }
}

fn describe_panic(panic: &str) -> String {
    format!("expected a valid tokenizer, got one that made the library panic: {panic}")
}
