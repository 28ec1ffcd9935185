//! A model's vocabulary, and the check that two models share it.

use std::sync::Arc;

use crate::{Error, Result, Token};

/// The strings of all tokens, by id. An id without a token (padding of an embedding) has no string.
/// Cheap to clone.
///
/// ```
/// use polydraft::Vocabulary;
///
/// let vocabulary = |tokens: &[&str]| {
///     Vocabulary::new(tokens.iter().map(|&token| Some(token.into())).collect())
/// };
/// let (target, draft) = (vocabulary(&["a", "b"]), vocabulary(&["a", "c"]));
/// let error = target.check_draft(&draft).unwrap_err().to_string();
/// assert!(error.contains(r#"is 1: "b" against "c""#), "{error}");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    tokens: Arc<[Option<Box<str>>]>,
}

impl Vocabulary {
    /// Creates a vocabulary from the string of each id.
    pub fn new(tokens: Vec<Option<Box<str>>>) -> Self {
        Self { tokens: tokens.into() }
    }

    /// Creates a vocabulary of `size` ids without strings, for models of bare numbers.
    pub fn numbered(size: usize) -> Self {
        Self { tokens: vec![None; size].into() }
    }

    /// Number of ids, equal to the length of the logits.
    pub fn size(&self) -> usize {
        self.tokens.len()
    }

    /// The string of a token, if it has one.
    pub fn token(&self, id: Token) -> Option<&str> {
        self.tokens.get(id as usize)?.as_deref()
    }

    /// Checks that a draft model with the vocabulary `draft` can draft for a target with this one.
    ///
    /// # Errors
    /// Different sizes or strings; the error names both sizes and the first token that differs.
    pub fn check_draft(&self, draft: &Self) -> Result<()> {
        let sizes = (self.size(), draft.size());
        let shorter = sizes.0.min(sizes.1);
        let differs = (0..shorter).find(|&id| self.tokens[id] != draft.tokens[id]);
        let Some(id) = differs.or((sizes.0 != sizes.1).then_some(shorter)) else {
            return Ok(());
        };
        let show = |vocabulary: &Self| match vocabulary.tokens.get(id) {
            None => "no such token".to_owned(),
            Some(None) => "a token without text".to_owned(),
            Some(Some(text)) => format!("{text:?}"),
        };
        let first =
            format!("the first that differs is {id}: {} against {}", show(self), show(draft));
        if sizes.0 == sizes.1 {
            return Err(Error::VocabularyToken { size: sizes.0, first });
        }
        Err(Error::VocabularySize { target: sizes.0, draft: sizes.1, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[&str]) -> Vocabulary {
        Vocabulary::new(tokens.iter().map(|t| Some(Box::from(*t))).collect())
    }

    #[test]
    fn mismatch_errors_name_sizes_and_the_first_difference() {
        let target = vocabulary(&["a", "b", "c"]);
        assert!(target.check_draft(&target).is_ok());
        assert!(Vocabulary::numbered(5).check_draft(&Vocabulary::numbered(5)).is_ok());
        let shorter = target.check_draft(&vocabulary(&["a", "b"])).unwrap_err().to_string();
        assert!(shorter.contains("the target has 3 tokens, the draft 2"), "{shorter}");
        assert!(shorter.contains("is 2: \"c\" against no such token"), "{shorter}");
        let other = target.check_draft(&vocabulary(&["a", "x", "c"])).unwrap_err().to_string();
        assert!(
            other.contains("both have 3 tokens") && other.contains("is 1: \"b\" against \"x\""),
            "{other}"
        );
        let both = target.check_draft(&vocabulary(&["a", "x"])).unwrap_err().to_string();
        assert!(
            both.contains("the draft 2") && both.contains("is 1: \"b\" against \"x\""),
            "{both}"
        );
    }
}
