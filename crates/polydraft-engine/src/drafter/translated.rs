//! A draft model with another vocabulary than the target's.
//!
//! Problem: most small models have another tokenizer than the target for which they could draft.
//! Source: token-level intersection (Timor et al. 2025, arXiv 2502.05202) drafts the tokens that
//! both vocabularies have; what goes beyond it is ours.
//! Method: both vocabularies are lists of byte strings. 1. The draft reads every token of the
//! target as the tokens of its own that spell it, the longest first. 2. A token of the draft stands
//! for the longest token of the target that it begins with: for itself where the target has it. 3.
//! The draft's distribution is summed over the tokens that stand for the same one. What the target
//! cannot spell has no such token, and the rest is normalised. The result is a distribution over
//! the target's vocabulary, exactly known, so every verifier is exact with it.
//! Complexity: that of the draft, and a pass over the draft's distribution at every node.
//! Deviations: the draft reads other tokens than its tokenizer would make of the text, which costs
//! acceptance only.

use std::collections::HashMap;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use super::Drafter;
use super::model::distribution_of;
use crate::{Model, Result, Sequence, Sequences, Slots};

/// Bytes of every token; `None` for tokens without text, such as marks.
pub type Pieces = Vec<Option<Vec<u8>>>;

/// A vocabulary as a translation needs it.
#[derive(Debug, Clone, Default)]
pub struct TranslatedVocabulary {
    /// Bytes of its tokens.
    pub pieces: Pieces,
    /// Tokens that end a sequence.
    pub ends: Vec<Token>,
    /// Token that begins a sequence, if there is one.
    pub begin: Option<Token>,
    /// Special tokens by their strings.
    pub special: HashMap<String, Token>,
}

/// Least mass that the target must be able to say for a draft to be used.
const MIN_SHARE: f64 = 1e-9;

/// How the tokens of a target and of a draft stand for each other.
#[derive(Debug, Clone)]
pub struct Translation {
    /// By token of the target, the tokens of the draft that spell it.
    to_draft: Vec<Box<[Token]>>,
    /// By token of the draft, the token of the target that it stands for.
    to_target: Vec<Option<Token>>,
    /// Token of the draft with which every context begins.
    begin: Option<Token>,
    /// Tokens that both have, as a share of the smaller vocabulary.
    shared: f64,
}

/// Tokens by their bytes.
struct Index<'a> {
    tokens: HashMap<&'a [u8], Token>,
    longest: usize,
}

impl<'a> Index<'a> {
    fn new(pieces: &'a Pieces) -> Self {
        let mut index = Self { tokens: HashMap::new(), longest: 0 };
        for (token, piece) in pieces.iter().enumerate() {
            let Some(piece) = piece.as_deref().filter(|piece| !piece.is_empty()) else { continue };
            index.tokens.entry(piece).or_insert(token as Token);
            index.longest = index.longest.max(piece.len());
        }
        index
    }

    /// The longest token with which the bytes begin, and its length.
    fn first(&self, bytes: &[u8]) -> Option<(Token, usize)> {
        let lengths = (1..=self.longest.min(bytes.len())).rev();
        lengths.into_iter().find_map(|length| Some((*self.tokens.get(&bytes[..length])?, length)))
    }

    /// The tokens that spell the bytes; bytes that none begins with are left out.
    fn spell(&self, mut bytes: &[u8]) -> Box<[Token]> {
        let mut spelled = Vec::new();
        while !bytes.is_empty() {
            let (token, length) = self.first(bytes).map_or((None, 1), |(t, n)| (Some(t), n));
            spelled.extend(token);
            bytes = &bytes[length..];
        }
        spelled.into()
    }
}

impl Translation {
    /// Creates the translation between two vocabularies.
    ///
    /// ```
    /// use polydraft_engine::{Translation, TranslatedVocabulary};
    ///
    /// let vocabulary = |tokens: &[&str]| TranslatedVocabulary {
    ///     pieces: tokens.iter().map(|token| Some(token.as_bytes().to_vec())).collect(),
    ///     ..TranslatedVocabulary::default()
    /// };
    /// let (target, draft) = (vocabulary(&["a", "b", "ab"]), vocabulary(&["a", "b", "abb"]));
    /// let translation = Translation::new(&target, &draft);
    /// assert_eq!(translation.spelled(2), [0, 1]);
    /// assert_eq!(translation.stands_for(2), Some(2));
    /// assert!((translation.shared() - 2.0 / 3.0).abs() < 1e-12);
    /// ```
    pub fn new(target: &TranslatedVocabulary, draft: &TranslatedVocabulary) -> Self {
        let (in_target, in_draft) = (Index::new(&target.pieces), Index::new(&draft.pieces));
        let mut to_draft: Vec<Box<[Token]>> = target
            .pieces
            .iter()
            .map(|piece| in_draft.spell(piece.as_deref().unwrap_or_default()))
            .collect();
        let mut shared = 0;
        let stands_for = |piece: &Option<Vec<u8>>| {
            let piece = piece.as_deref()?;
            let (token, length) = in_target.first(piece)?;
            shared += usize::from(length == piece.len());
            Some(token)
        };
        let mut to_target: Vec<Option<Token>> = draft.pieces.iter().map(stands_for).collect();
        // Marks that both have, and the ends of sequences.
        for (name, token) in &target.special {
            let same = draft.special.get(name).copied();
            let spelled =
                same.map(|same| [same].into()).unwrap_or_else(|| in_draft.spell(name.as_bytes()));
            to_draft[*token as usize] = spelled;
            if let Some(same) = same {
                to_target[same as usize] = Some(*token);
            }
        }
        if let (Some(end), Some(own)) = (draft.ends.first(), target.ends.first()) {
            let unknown = |token: &&Token| to_target[**token as usize].is_none();
            let ends: Vec<Token> = draft.ends.iter().filter(unknown).copied().collect();
            ends.into_iter().for_each(|token| to_target[token as usize] = Some(*own));
            for token in &target.ends {
                if to_draft[*token as usize].len() != 1 {
                    to_draft[*token as usize] = [*end].into();
                }
            }
        }
        if let Some(begin) = target.begin {
            to_draft[begin as usize] = [].into();
        }
        let begin = draft.begin.or(draft.ends.first().copied().filter(|_| target.begin.is_some()));
        let count = |pieces: &Pieces| pieces.iter().flatten().count();
        let smaller = count(&target.pieces).min(count(&draft.pieces)).max(1);
        let shared = (shared as f64 / smaller as f64).min(1.0);
        Self { to_draft, to_target, begin, shared }
    }

    /// The draft's tokens that spell a token of the target.
    pub fn spelled(&self, token: Token) -> &[Token] {
        self.to_draft.get(token as usize).map_or(&[], |tokens| tokens)
    }

    /// The target's token that a token of the draft stands for.
    pub fn stands_for(&self, token: Token) -> Option<Token> {
        self.to_target.get(token as usize).copied().flatten()
    }

    /// Number of tokens that both have, as a share of the smaller vocabulary.
    pub fn shared(&self) -> f64 {
        self.shared
    }

    /// A distribution over the draft's vocabulary as one over the target's.
    fn translate(&self, probs: &Distribution) -> Result<Distribution> {
        let mut sums = vec![0.0; self.to_draft.len()];
        for (token, p) in probs.support() {
            if let Some(target) = self.stands_for(token) {
                sums[target as usize] += p;
            }
        }
        let total: f64 = sums.iter().sum();
        if total < MIN_SHARE {
            // Nothing that the target could say: any distribution is exact.
            return Ok(Distribution::one_hot(sums.len(), 0)?.with_confidence(0.0));
        }
        sums.iter_mut().for_each(|sum| *sum /= total);
        // The draft's confidence is that of its own tokens.
        Ok(Distribution::new(sums)?.with_confidence(total * probs.confidence()))
    }
}

/// State of one sequence.
struct State {
    /// The draft's sequence.
    inner: Sequence,
    /// Number of the draft's tokens up to each of the target's.
    ends: Vec<usize>,
    /// The draft's tree, and its node for each node of the target's; `None` beyond its context.
    tree: DraftTree,
    nodes: Vec<Option<NodeId>>,
}

impl State {
    /// Adds the nodes of a tree that are new. Whether one is within the draft's context depends on
    /// the path to it only, as its distribution must.
    fn follow(&mut self, tree: &DraftTree, translation: &Translation, context: usize) {
        for node in self.nodes.len()..tree.len() {
            let (parent, spelled) = match node {
                DraftTree::ROOT => (Some(DraftTree::ROOT), &[][..]),
                _ => (self.nodes[tree.parent(node)], translation.spelled(tree.token(node))),
            };
            let fits =
                |parent: &NodeId| self.len() + self.tree.depth(*parent) + spelled.len() < context;
            let parent = parent.filter(fits);
            let add = |at, token: &Token| self.tree.add(at, *token);
            self.nodes.push(parent.map(|parent| spelled.iter().fold(parent, add)));
        }
    }

    fn forget_tree(&mut self) {
        self.tree.clear();
        self.nodes.clear();
    }

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// A draft model whose vocabulary is translated.
pub struct TranslatedDrafter {
    model: Box<dyn Model>,
    translation: Translation,
    sequences: Slots<State>,
}

impl TranslatedDrafter {
    /// Creates the drafter.
    pub fn new(model: Box<dyn Model>, translation: Translation) -> Self {
        Self { model, translation, sequences: Slots::default() }
    }
}

impl Sequences for TranslatedDrafter {
    fn open(&mut self) -> Result<Sequence> {
        let inner = self.model.open()?;
        let begin: Vec<Token> = self.translation.begin.into_iter().collect();
        self.model.extend(inner, &begin)?;
        let (tree, nodes) = (DraftTree::new(), Vec::new());
        Ok(self.sequences.open(State { inner, ends: vec![begin.len()], tree, nodes }))
    }

    fn close(&mut self, sequence: Sequence) {
        if let Some(state) = self.sequences.close(sequence) {
            self.model.close(state.inner);
        }
    }

    fn token_bytes(&self) -> u64 {
        self.model.token_bytes()
    }

    fn state_bytes(&self) -> u64 {
        self.model.state_bytes()
    }

    fn token_capacity(&self) -> Option<usize> {
        self.model.token_capacity()
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence].ends.len() - 1
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.translation.to_draft.len();
        if let Some(&got) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            let operation = "draft model with another vocabulary";
            return Err(polydraft::Error::Token { operation, vocabulary, got }.into());
        }
        let state = &mut self.sequences[sequence];
        let mut spelled = Vec::new();
        let before = state.len();
        for token in tokens {
            spelled.extend_from_slice(self.translation.spelled(*token));
            state.ends.push(before + spelled.len());
        }
        state.forget_tree();
        self.model.extend(state.inner, &spelled)
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let state = &mut self.sequences[sequence];
        if length + 1 < state.ends.len() {
            state.ends.truncate(length + 1);
            state.forget_tree();
            self.model.truncate(state.inner, state.len());
        }
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let state = &self.sequences[sequence];
        if state.len() == 0 || state.len() > self.model.info().context {
            return Ok(0);
        }
        self.model.prepare(state.inner, most)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let context = self.model.info().context;
        for (sequence, tree) in batch {
            self.sequences[*sequence].follow(tree, &self.translation, context);
        }
        let states = batch.iter().map(|(sequence, _)| &self.sequences[*sequence]);
        let computed: Vec<(Sequence, &DraftTree)> = states
            .filter(|state| state.nodes[DraftTree::ROOT].is_some())
            .map(|state| (state.inner, &state.tree))
            .collect();
        if computed.is_empty() { Ok(()) } else { self.model.score(&computed) }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let context = self.model.info().context;
        let state = &mut self.sequences[sequence];
        state.follow(tree, &self.translation, context);
        let within = path.iter().take_while(|node| state.nodes[**node].is_some()).count();
        let (within, beyond) = path.split_at(within);
        let last = within.last().and_then(|node| state.nodes[*node]).unwrap_or(DraftTree::ROOT);
        let spelled = |node: &NodeId| self.translation.spelled(tree.token(*node));
        for node in path {
            state.ends.push(state.len() + spelled(node).len());
        }
        let beyond: Vec<Token> = beyond.iter().flat_map(spelled).copied().collect();
        if last == DraftTree::ROOT {
            self.model.extend(state.inner, &beyond)?;
        } else {
            self.model.commit(state.inner, &state.tree, &state.tree.path(last))?;
            if !beyond.is_empty() {
                self.model.extend(state.inner, &beyond)?;
            }
        }
        state.forget_tree();
        Ok(())
    }
}

impl Drafter for TranslatedDrafter {
    fn name(&self) -> &str {
        &self.model.info().name
    }

    fn context(&self) -> usize {
        // What is beyond the draft's context is not computed.
        usize::MAX
    }

    fn max_sequences(&self) -> usize {
        self.model.info().max_sequences
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let state = &self.sequences[sequence];
        let Some(node) = state.nodes[node] else {
            let nothing = Distribution::one_hot(self.translation.to_draft.len(), 0)?;
            return Ok(nothing.with_confidence(0.0));
        };
        let probs = distribution_of(&*self.model, state.inner, node, sampling, spare)?;
        self.translation.translate(&probs)
    }
}
