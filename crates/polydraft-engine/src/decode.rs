//! The decode loop: draft, score, verify, commit, emit.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use polydraft::{Chance, Distribution, DraftTree, NodeId, Sampling, Shape, Token, Verifier, VerifierKind};

use crate::laws::{Pool, StepLaws};
use crate::{Error, Model, Result};

/// How to decode.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// How the target's logits become the law of the text.
    pub sampling: Sampling,
    /// How to speculate; `None` is plain decoding, one token per pass.
    pub speculation: Option<Speculation>,
}

/// How drafts are made and verified.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    /// What decides.
    pub verifier: VerifierKind,
    /// The tree that is drafted in every step. It is cut off near the end of the context and of the token limit.
    pub shape: Shape,
    /// How the draft's logits become the law that drafts are drawn from. It changes the speed, never the text's law.
    pub sampling: Sampling,
}

impl Settings {
    /// # Errors
    /// A setting outside its range; it is named.
    pub fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        if let Some(speculation) = &self.speculation {
            speculation.sampling.validate()?;
            speculation.shape.validate()?;
        }
        Ok(())
    }
}

/// Where an emitted token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted, and accepted by the verifier.
    Accepted,
    /// Emitted in place of drafts that were rejected.
    Correction,
    /// Emitted behind the last draft, all of which were accepted; also where nothing was drafted.
    Bonus,
}

/// A decided token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitted {
    /// Its id.
    pub token: Token,
    /// Where it came from.
    pub origin: Origin,
}

/// What one step did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The tokens decided, at least one: those accepted, in order, and one more.
    pub emitted: Vec<Emitted>,
    /// Tokens that were drafted along the longest path.
    pub drafted: usize,
    /// Distinct tokens that were drafted: the nodes of the tree, its root not among them.
    pub nodes: usize,
    /// For each accepted token, how many distinct tokens were drafted before it at its node.
    pub ranks: Vec<usize>,
    /// Where the time went.
    pub time: StepTime,
}

/// Where the time of a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTime {
    /// In the draft model, its laws and draws included.
    pub draft: Duration,
    /// In the target model.
    pub target: Duration,
    /// In the verifier, the target's laws included.
    pub verify: Duration,
}

/// Decodes from a target, with a draft if there is one. One value serves any number of prompts in turn.
pub struct Decoder<'m> {
    target: &'m mut dyn Model,
    draft: Option<&'m mut dyn Model>,
    settings: Settings,
    verifier: Box<dyn Verifier>,
    tree: DraftTree,
    /// What was drawn from at each node, by node; none where nothing was drawn.
    drafts: Vec<Option<Distribution>>,
    drawn: Vec<Token>,
    pool: Pool,
}

impl<'m> Decoder<'m> {
    /// Checks that everything fits together.
    ///
    /// # Errors
    /// Settings out of range; a tree that the verifier does not support; speculation without a draft; vocabularies
    /// that differ.
    pub fn new(
        target: &'m mut dyn Model,
        draft: Option<&'m mut dyn Model>,
        settings: Settings,
    ) -> Result<Self> {
        let verifier = match &settings.speculation {
            Some(speculation) => speculation.verifier.build(&speculation.shape)?,
            // Plain decoding is verification of an empty tree.
            None => VerifierKind::Token.build(&Shape::chain(1))?,
        };
        Self::with_verifier(target, draft, settings, verifier)
    }

    /// [`Decoder::new`] with a verifier of the caller's own in place of the one that the settings name.
    ///
    /// # Errors
    /// As for [`Decoder::new`].
    pub fn with_verifier(
        target: &'m mut dyn Model,
        draft: Option<&'m mut dyn Model>,
        settings: Settings,
        verifier: Box<dyn Verifier>,
    ) -> Result<Self> {
        settings.validate()?;
        match (&settings.speculation, &draft) {
            (Some(_), Some(draft)) => target.vocabulary().check_draft(draft.vocabulary())?,
            (Some(speculation), None) => {
                return Err(Error::Setting {
                    setting: "draft",
                    expected: "a draft model, which speculation needs",
                    got: format!("none, with verifier {}", speculation.verifier),
                });
            }
            (None, _) => {}
        }
        let draft = draft.filter(|_| settings.speculation.is_some());
        let (tree, pool) = (DraftTree::new(), Pool::default());
        Ok(Self { target, draft, settings, verifier, tree, drafts: Vec::new(), drawn: Vec::new(), pool })
    }

    /// Forgets the last text and begins a new one. All of the prompt but its last token is computed here.
    ///
    /// # Errors
    /// A prompt that fills the context, or that is empty where the model needs a token; a token outside the
    /// vocabulary; failures of a model.
    pub fn start(&mut self, prompt: &[Token]) -> Result<()> {
        let context = self.target.context_length();
        if prompt.len() >= context {
            return Err(Error::PromptTooLong { prompt: prompt.len(), context });
        }
        self.tree.clear();
        let (last, before) = match prompt.split_last() {
            Some((last, before)) => (std::slice::from_ref(last), before),
            None => (prompt, prompt),
        };
        let draft: Option<&mut dyn Model> = match &mut self.draft {
            Some(draft) => Some(&mut **draft),
            None => None,
        };
        for model in [Some(&mut *self.target), draft].into_iter().flatten() {
            model.reset();
            model.extend(before)?;
            if !before.is_empty() && before.len() <= model.context_length() {
                model.score(&self.tree)?;
            }
            model.extend(last)?;
        }
        Ok(())
    }

    /// How many more tokens the context has room for.
    pub fn room(&self) -> usize {
        self.target.context_length().saturating_sub(self.target.len())
    }

    /// Decides at least one token and at most `limit`, which must be from 1 to [`room`](Self::room).
    ///
    /// # Errors
    /// Failures of a model; logits that make no distribution.
    pub fn step(&mut self, limit: usize, chance: &mut dyn Chance) -> Result<Step> {
        let mut time = StepTime::default();
        let clock = Instant::now();
        self.draft_tree(self.depth(limit), chance)?;
        time.draft = clock.elapsed();

        let clock = Instant::now();
        self.target.score(&self.tree)?;
        time.target = clock.elapsed();

        let clock = Instant::now();
        let laws = StepLaws {
            logits: (0..self.tree.len()).map(|node| self.target.logits(node)).collect(),
            sampling: &self.settings.sampling,
            pool: &self.pool,
            drafts: &self.drafts,
            made: vec![OnceLock::new(); self.tree.len()],
        };
        let outcome = self.verifier.verify(&self.tree, &laws, chance)?;
        self.pool.take_back(laws.made.into_iter().filter_map(OnceLock::into_inner));
        time.verify = clock.elapsed();

        let clock = Instant::now();
        self.target.commit(&self.tree, &outcome.accepted)?;
        self.target.extend(&[outcome.token])?;
        time.target += clock.elapsed();
        let clock = Instant::now();
        if let Some(draft) = &mut self.draft {
            draft.commit(&self.tree, &outcome.accepted)?;
            draft.extend(&[outcome.token])?;
        }
        time.draft += clock.elapsed();

        let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
        let rejected = self.tree.children(end).next().is_some();
        let emit = |token, origin| Emitted { token, origin };
        let mut emitted: Vec<Emitted> =
            outcome.accepted.iter().map(|&node| emit(self.tree.token(node), Origin::Accepted)).collect();
        emitted.push(emit(outcome.token, if rejected { Origin::Correction } else { Origin::Bonus }));
        let drafted = (1..self.tree.len()).map(|node| self.tree.depth(node)).max().unwrap_or(0);
        let rank = |&node: &NodeId| {
            self.tree.children(self.tree.parent(node)).take_while(|sibling| *sibling != node).count()
        };
        let ranks = outcome.accepted.iter().map(rank).collect();
        Ok(Step { emitted, drafted, nodes: self.tree.len() - 1, ranks, time })
    }

    /// How deep to draft when `limit` tokens may still be emitted. It depends on lengths alone, never on tokens, so
    /// the law of the text does not notice.
    fn depth(&self, limit: usize) -> usize {
        let (Some(draft), Some(speculation)) = (&self.draft, &self.settings.speculation) else {
            return 0;
        };
        // The draft reads all but the last of the tokens it drafts.
        let draft_room = draft.context_length().saturating_add(1).saturating_sub(draft.len());
        speculation.shape.depth().min(limit.min(self.room()).saturating_sub(1)).min(draft_room)
    }

    /// Draws a tree of at most `depth` levels, each level from one pass of the draft.
    fn draft_tree(&mut self, depth: usize, chance: &mut dyn Chance) -> Result<()> {
        self.tree.clear();
        self.pool.take_back(self.drafts.drain(..).flatten());
        let (Some(draft), Some(speculation)) = (&mut self.draft, &self.settings.speculation) else {
            return Ok(());
        };
        let shape = &speculation.shape;
        for _ in 0..depth {
            let level = self.drafts.len()..self.tree.len();
            if level.is_empty() {
                break;
            }
            draft.score(&self.tree)?;
            for node in level {
                let law = if shape.branches_at(&self.tree, node) {
                    let law = self.pool.law(draft.logits(node), &speculation.sampling)?;
                    shape.grow(&mut self.tree, node, &law, chance, &mut self.drawn)?;
                    Some(law)
                } else {
                    None
                };
                self.drafts.push(law);
            }
        }
        Ok(())
    }
}
