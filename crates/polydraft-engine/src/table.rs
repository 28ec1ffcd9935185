//! A model of explicit probabilities, for exact tests and for teaching.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use polydraft::{Distribution, DraftTree, NodeId, Token};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::{Error, Model, ModelInfo, Result, Sequence, Sequences, Slots, Vocabulary};

/// Next-token distributions of a finite set of contexts.
///
/// JSON format: `{"vocabulary": 3, "next": {"": [0.2, 0.3, 0.5], "0": [..], "0 1": [..]}}`. A
/// context is looked up by its longest suffix of token ids that is listed, so that a Markov chain
/// of any order and a full tree can both be expressed; `""` is the fallback and is required.
///
/// ```
/// use polydraft_engine::TableModel;
///
/// let json = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5], "1": [0.25, 0.75]}}"#;
/// let model = TableModel::from_json("example", json)?;
/// assert_eq!(model.distribution(&[0, 1]).probability(0), 0.25);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TableModel {
    info: ModelInfo,
    next: BTreeMap<Vec<Token>, Entry>,
    /// Tokens of the longest listed context.
    order: usize,
    sequences: Slots<Context>,
}

/// State of one sequence.
#[derive(Debug, Clone, Default)]
struct Context {
    tokens: Vec<Token>,
    /// The listed context after each node, by node; empty if nothing is scored.
    scored: Vec<Vec<Token>>,
}

#[derive(Debug, Clone)]
struct Entry {
    probs: Distribution,
    logits: Vec<f32>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with \"vocabulary\" and \"next\"")]
struct File {
    vocabulary: usize,
    next: Listed,
}

/// Distributions by context in the order of the file: a map would silently drop duplicate keys.
#[derive(Default)]
struct Listed(Vec<(String, Vec<f64>)>);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Listed {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> std::result::Result<Self, A::Error> {
        while let Some(entry) = map.next_entry()? {
            self.0.push(entry);
        }
        Ok(self)
    }
}

impl TableModel {
    /// Creates a model from distributions by context, each of shape `[vocabulary]`. `name` appears
    /// in messages.
    ///
    /// # Errors
    /// No fallback; probabilities of the wrong number or that are not a distribution; a context
    /// with a token outside the vocabulary. The message names the context.
    pub fn new(
        name: &str,
        vocabulary: usize,
        next: BTreeMap<Vec<Token>, Vec<f64>>,
    ) -> Result<Self> {
        let invalid = |problem: String| Error::Table { name: name.to_owned(), problem };
        if vocabulary == 0 {
            return Err(invalid("expected a vocabulary of at least one token, got 0".to_owned()));
        }
        if !next.contains_key(&[][..]) {
            return Err(invalid("the context \"\", the fallback, is missing".to_owned()));
        }
        let mut entries = BTreeMap::new();
        for (context, probs) in next {
            let shown = show(&context);
            if let Some(token) = context.iter().find(|&&t| t as usize >= vocabulary) {
                return Err(invalid(format!(
                    "context {shown:?}: expected tokens below the vocabulary's {vocabulary}, got \
                     {token}"
                )));
            }
            if probs.len() != vocabulary {
                return Err(invalid(format!(
                    "context {shown:?}: expected {vocabulary} probabilities, got {}",
                    probs.len()
                )));
            }
            let logits = probs.iter().map(|p| p.ln() as f32).collect();
            let probs =
                Distribution::new(probs).map_err(|e| invalid(format!("context {shown:?}: {e}")))?;
            entries.insert(context, Entry { probs, logits });
        }
        let order = entries.keys().map(Vec::len).max().unwrap_or(0);
        let info = ModelInfo {
            name: name.to_owned(),
            vocabulary: Vocabulary::numbered(vocabulary),
            context: usize::MAX,
            hidden: None,
            accepts_empty_context: true,
            max_sequences: usize::MAX,
        };
        Ok(Self { info, next: entries, order, sequences: Slots::default() })
    }

    /// Parses a model from JSON.
    ///
    /// # Errors
    /// Invalid JSON (with line and column), and errors of [`TableModel::new`].
    pub fn from_json(name: &str, json: &str) -> Result<Self> {
        let invalid = |problem: String| Error::Table { name: name.to_owned(), problem };
        let file: File = serde_json::from_str(json).map_err(|e| invalid(e.to_string()))?;
        let mut next = BTreeMap::new();
        for (context, probs) in file.next.0 {
            let tokens: std::result::Result<Vec<Token>, _> =
                context.split_whitespace().map(str::parse).collect();
            let tokens = tokens.map_err(|_| {
                invalid(format!("context {context:?}: expected token ids separated by spaces"))
            })?;
            if next.insert(tokens, probs).is_some() {
                return Err(invalid(format!("context {context:?} is listed twice")));
            }
        }
        Self::new(name, file.vocabulary, next)
    }

    /// Reads a model from a JSON file.
    ///
    /// # Errors
    /// A file that cannot be read, and errors of [`TableModel::from_json`].
    pub fn read(path: &Path) -> Result<Self> {
        let json = polydraft_files::read_text(path, polydraft_files::FileKind::DISTRIBUTIONS)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_json(&path.display().to_string(), &json)
    }

    /// Limits the context length to this many tokens.
    pub fn with_context_length(mut self, tokens: usize) -> Self {
        self.info.context = tokens;
        self
    }

    /// Returns the exact distribution after a context.
    pub fn distribution(&self, context: &[Token]) -> &Distribution {
        &self.next[self.longest_suffix(context)].probs
    }

    /// Returns the longest listed suffix of a context.
    fn longest_suffix<'c>(&self, context: &'c [Token]) -> &'c [Token] {
        let first = context.len().saturating_sub(self.order);
        (first..context.len())
            .map(|i| &context[i..])
            .find(|s| self.next.contains_key(*s))
            .unwrap_or(&[])
    }

    fn check(&self, tokens: &[Token]) -> Result<()> {
        match tokens.iter().find(|&&t| t as usize >= self.info.vocabulary.size()) {
            None => Ok(()),
            Some(&got) => Err(Error::Core(polydraft::Error::Token {
                operation: "table model",
                vocabulary: self.info.vocabulary.size(),
                got,
            })),
        }
    }
}

fn show(context: &[Token]) -> String {
    context.iter().map(Token::to_string).collect::<Vec<_>>().join(" ")
}

impl Sequences for TableModel {
    fn open(&mut self) -> Result<Sequence> {
        Ok(self.sequences.open(Context::default()))
    }

    fn close(&mut self, sequence: Sequence) {
        self.sequences.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence].tokens.len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.check(tokens)?;
        let context = &mut self.sequences[sequence];
        context.tokens.extend(tokens);
        context.scored.clear();
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let context = &mut self.sequences[sequence];
        if length < context.tokens.len() {
            context.tokens.truncate(length);
            context.scored.clear();
        }
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for &(sequence, tree) in batch {
            for node in self.sequences[sequence].scored.len()..tree.len() {
                let path: Vec<Token> = tree.path(node).into_iter().map(|n| tree.token(n)).collect();
                self.check(&path)?;
                let context = [&self.sequences[sequence].tokens[..], &path].concat();
                let entry = self.longest_suffix(&context).to_vec();
                self.sequences[sequence].scored.push(entry);
            }
        }
        Ok(())
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let tokens: Vec<Token> = path.iter().map(|&n| tree.token(n)).collect();
        self.extend(sequence, &tokens)
    }
}

impl Model for TableModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        &self.next[&self.sequences[sequence].scored[node]].logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        TableModel::from_json("t.json", json).unwrap_err().to_string()
    }

    #[test]
    fn uses_the_longest_listed_suffix() {
        let json =
            r#"{"vocabulary": 2, "next": {"": [0.5, 0.5], "1": [0.25, 0.75], "0 1": [1, 0]}}"#;
        let model = TableModel::from_json("t.json", json).unwrap();
        let first = |context: &[Token]| model.distribution(context).probability(0);
        assert_eq!(
            [first(&[]), first(&[0]), first(&[1]), first(&[1, 1]), first(&[1, 0, 1])],
            [0.5, 0.5, 0.25, 0.25, 1.0]
        );
    }

    #[test]
    fn rejects_invalid_tables_with_their_context() {
        assert!(message("{").contains("line 1"));
        assert!(message(r#"{"vocabulary": 2, "next": {"0": [1, 0]}}"#).contains("fallback"));
        assert!(message(r#"{"vocabulary": 0, "next": {"": []}}"#).contains("at least one token"));
        assert!(
            message(r#"{"vocabulary": 2, "next": {"": [1]}}"#)
                .contains("expected 2 probabilities, got 1")
        );
        assert!(
            message(r#"{"vocabulary": 2, "next": {"": [1, 0], "2": [1, 0]}}"#).contains("got 2")
        );
        assert!(
            message(r#"{"vocabulary": 2, "next": {"": [1, 0], "x": [1, 0]}}"#).contains("\"x\"")
        );
        for twice in [" ", ""] {
            let json = format!(r#"{{"vocabulary": 2, "next": {{"": [1, 0], "{twice}": [0, 1]}}}}"#);
            assert!(message(&json).contains("is listed twice"));
        }
        assert!(message(r#"{"vocabulary": 2, "next": [[1, 0]]}"#).contains("expected an object"));
        let invalid = message(r#"{"vocabulary": 2, "next": {"": [1, 0], "0": [0.5, 0.4]}}"#);
        assert!(invalid.contains("context \"0\"") && invalid.contains("0.9"), "{invalid}");
        assert!(message(r#"{"vocabulary": 2, "next": {"": [1, -1]}}"#).contains("entry 1"));
    }
}
