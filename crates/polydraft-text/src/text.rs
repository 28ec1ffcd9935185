//! `tokenizer.json`: text to tokens, and tokens to text.

mod around;
mod bytes;
mod growth;
mod long;
mod tekken;
mod vocabulary_files;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polydraft::{Token, Vocabulary};
use polydraft_files::Kind;
use tokenizers::{Model, ModelWrapper, Tokenizer as HfTokenizer};

use crate::contained::contained;
use crate::files::read_optional;
use crate::{Error, Result, SpecialTokens};

/// A tokenizer as published with a model. A clone is the same one, for the price of a counter.
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
    /// Ids of its tokens are below this.
    rows: usize,
}

/// Where the expressions that split text give up, without a word of it: what follows would be
/// one piece.
const MOST_BLANK: usize = 1_000_000;

#[derive(Debug)]
struct Inner {
    tokenizer: HfTokenizer,
    path: PathBuf,
    /// Tokens without a text of their own.
    special: HashSet<Token>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model directory: `tokenizer.json`, or `tekken.json` as Mistral has
    /// it, or `vocab.json` with `merges.txt` as the OPT models have it.
    ///
    /// # Errors
    /// Files that are missing, cannot be read or are no tokenizer.
    pub fn read(directory: &Path) -> Result<Self> {
        Self::read_with(directory, &SpecialTokens::read(directory)?)
    }

    /// The same where the special tokens are read already.
    pub(crate) fn read_with(directory: &Path, special: &SpecialTokens) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        if let Some(bytes) = read_optional(&path, Kind::TOKENIZER)? {
            return Self::parse_with(&bytes, path, special);
        }
        let path = directory.join(tekken::FILE);
        if let Some(bytes) = read_optional(&path, Kind::TOKENIZER)? {
            return match contained(|| tekken::parse(&bytes, &path, special)) {
                Ok(read) => read.map(|tokenizer| Self::new(tokenizer, path)),
                Err(panic) => Err(mangled(path, &panic)),
            };
        }
        match contained(|| vocabulary_files::read(directory, special)) {
            Ok(read) => read.map(|(tokenizer, path)| Self::new(tokenizer, path)),
            Err(panic) => Err(mangled(directory.join("vocab.json"), &panic)),
        }
    }

    /// From the contents of a `tokenizer.json`; `path` is where they are from, for messages.
    ///
    /// # Errors
    /// Contents that are no tokenizer.
    pub fn parse(bytes: &[u8], path: impl Into<PathBuf>) -> Result<Self> {
        Self::parse_with(bytes, path.into(), &SpecialTokens::default())
    }

    /// The same with what the settings beside it say.
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
            Err(panic) => Err(mangled(path, &panic)),
        }
    }

    /// From a tokenizer made in another way, for example of a GGUF file's metadata; `path` is where
    /// it is from, for messages. It is not to cut or fill up what it encodes: settings that say so
    /// are dropped.
    pub fn from_parts(tokenizer: HfTokenizer, path: impl Into<PathBuf>) -> Self {
        Self::new(tokenizer, path.into())
    }

    fn new(mut tokenizer: HfTokenizer, path: PathBuf) -> Self {
        // They are left in the file by training. A prompt is what was given: the model's context
        // bounds it.
        tokenizer.with_padding(None);
        // Only parameters can be refused.
        let _ = tokenizer.with_truncation(None);
        let added = tokenizer.get_added_tokens_decoder();
        let special =
            added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Self { inner: Arc::new(Inner { tokenizer, path, special }), rows: usize::MAX }
    }

    /// The same tokenizer for a model whose embedding has `rows` rows: a text with tokens beyond is
    /// refused.
    pub fn with_rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// The file that it is from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How many tokens there are, added ones included.
    pub fn size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// The kind of algorithm, as `tokenizer.json` names it.
    pub fn kind(&self) -> &'static str {
        match self.inner.tokenizer.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        }
    }

    /// All of it as a `tokenizer.json`, for libraries that read such.
    ///
    /// # Errors
    /// A tokenizer that cannot be written down.
    pub fn to_json(&self) -> Result<String> {
        self.checked("writing", Ok(self.inner.tokenizer.to_string(false)))
    }

    /// The id of a token that the model has a row for, by its string.
    pub fn token(&self, string: &str) -> Option<Token> {
        self.inner.tokenizer.token_to_id(string).filter(|id| (*id as usize) < self.rows)
    }

    /// Whether a token has no text of its own.
    pub fn is_special(&self, token: Token) -> bool {
        self.inner.special.contains(&token)
    }

    /// The tokens of a model whose embedding has `rows` rows. Rows beyond the tokenizer's last
    /// token, which models have for the sake of round sizes, are no part of it: they have no text,
    /// and two models with one tokenizer may have different numbers of them. Nor are tokens that
    /// were added to the tokenizer and have no row: those of a model's images, or one to fill up
    /// batches that nobody trained.
    ///
    /// # Errors
    /// A token of the tokenizer's own that the model has no row for; two tokens with one id; so
    /// many rows without a token that tokenizer and model cannot belong together.
    pub fn vocabulary(&self, rows: usize) -> Result<Vocabulary> {
        let wrong = |problem: String| Error::Vocabulary { path: self.inner.path.clone(), problem };
        let mut all: BTreeMap<Token, String> = BTreeMap::new();
        for (token, id) in self.inner.tokenizer.get_vocab(true) {
            if let Some(other) = all.insert(id, token) {
                let mut both = [other, all.remove(&id).unwrap_or_default()];
                both.sort();
                // Which of them a tokenizer makes of the id would be arbitrary.
                let [a, b] = both;
                return Err(wrong(format!(
                    "expected one token for each id, got {a:?} and {b:?} for id {id}"
                )));
            }
        }
        let model = self.inner.tokenizer.get_model();
        all.retain(|id, token| (*id as usize) < rows || model.token_to_id(token).is_some());
        if let Some((id, token)) = all.iter().find(|(id, _)| **id as usize >= rows) {
            return Err(wrong(format!(
                "the tokenizer has {} tokens, the model only {rows} rows: token {id} ({token:?}) \
                 has none",
                all.len()
            )));
        }
        // Each id is counted once and below `rows`, so this is the number of rows without a token.
        if all.is_empty() || rows - all.len() > 1024.max(rows / 8) {
            return Err(wrong(format!(
                "the model has {rows} rows, the tokenizer tokens for only {} of them",
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

    /// The tokens of a prompt, with the special ones that the model expects around it.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>> {
        self.encode_with(text, true)
    }

    /// The tokens of a text that has its special tokens already, as a chat template writes them.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>> {
        self.encode_with(text, false)
    }

    fn encode_with(&self, text: &str, special: bool) -> Result<Vec<Token>> {
        let refused = |problem: String| self.checked("encoding", Ok(Err(problem.into())));
        let blank = longest_blank(text);
        if blank >= MOST_BLANK {
            return refused(format!(
                "expected less than {MOST_BLANK} white-space characters in a row, got {blank}"
            ));
        }
        let encoding = contained(|| self.inner.tokenizer.encode(text, special));
        let ids = self.checked("encoding", encoding)?.get_ids().to_vec();
        match ids.iter().find(|id| **id as usize >= self.rows) {
            None => Ok(ids),
            Some(id) => refused(format!(
                "expected tokens below {}, for so many rows has the model, got {id} ({:?})",
                self.rows,
                self.inner.tokenizer.id_to_token(*id).unwrap_or_default()
            )),
        }
    }

    /// The text of tokens, special ones left out.
    ///
    /// # Errors
    /// Ids that the tokenizer refuses.
    pub fn decode(&self, tokens: &[Token]) -> Result<String> {
        self.checked("decoding", contained(|| self.inner.tokenizer.decode(tokens, true)))
    }

    /// The same with special ones.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    pub fn decode_all(&self, tokens: &[Token]) -> Result<String> {
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
            Err(panic) => broke(&panic),
        };
        Err(Error::Tokenizing { path: self.inner.path.clone(), operation, problem })
    }
}

/// The most white-space characters that stand in a row in a text.
fn longest_blank(text: &str) -> usize {
    let blanks = text.split(|c: char| !c.is_whitespace());
    blanks.map(|blank| blank.chars().count()).max().unwrap_or(0)
}

/// The error of a file that made the library panic.
pub(crate) fn mangled(path: PathBuf, panic: &str) -> Error {
    Error::File { path, problem: broke(panic) }
}

fn broke(panic: &str) -> String {
    format!("expected a sound tokenizer, got one that the library broke down on: {panic}")
}
