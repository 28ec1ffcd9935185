//! Requests to an engine: a prompt, and the parameters of decoding.

use std::hash::{BuildHasher, RandomState};

use polydraft::{DraftTree, NodeId, Policy, RandomSource, Sampling, Token, Verifier};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::{Detokenizer, NoDetokenizer, Result};

/// Conditions that end a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Maximum number of tokens to emit; `None` is up to the end of the context.
    pub max_tokens: Option<usize>,
    /// End tokens; they have no text.
    pub end_tokens: Vec<Token>,
    /// Stop strings: they end the sequence and are not part of its text.
    pub stop: Vec<String>,
    /// Part of the text in which stop strings do not count, such as a model's reasoning.
    pub stop_outside: Option<Span>,
}

/// Part of a text between two marks, at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Mark at its start, which the text may begin with.
    pub opening: String,
    /// Mark at its end.
    pub closing: String,
    /// Whether the text begins inside.
    pub is_open: bool,
}

impl Limits {
    /// Limits the number of tokens, without end tokens and stop strings.
    pub fn tokens(max_tokens: usize) -> Self {
        Self { max_tokens: Some(max_tokens), ..Self::default() }
    }

    /// Returns whether a node of a draft ends the sequence.
    pub(crate) fn ends_at(&self, tree: &DraftTree, node: NodeId) -> bool {
        node != DraftTree::ROOT && self.end_tokens.contains(&tree.token(node))
    }
}

/// How drafts are made and verified. The constructor checks that the verifier is exact for the
/// policy's trees.
///
/// ```
/// use polydraft::{PolicyKind, Sampling, VerifierKind};
/// use polydraft_engine::Speculation;
///
/// let token: VerifierKind = "token".parse()?;
/// let with = |policy: PolicyKind| Speculation::new(token.build()?, policy.build()?);
/// let cooler = Sampling { temperature: 0.7, ..Sampling::default() };
/// let speculation = with(PolicyKind::chain(4))?.with_sampling(cooler);
/// // The token verifier only supports chains.
/// assert!(with(PolicyKind::paths(2, 4)).is_err());
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub struct Speculation {
    pub(crate) verifier: Box<dyn Verifier>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) sampling: Sampling,
    /// Sampling of each draft, for a policy with paths of several drafts.
    pub(crate) draft_samplings: Vec<Sampling>,
}

impl Speculation {
    /// Combines a verifier and the policy of the tree, which is cut off near the end of the context
    /// and of the token limit. Drafts are drawn at temperature 1 unless
    /// [`with_sampling`](Self::with_sampling) changes it.
    ///
    /// # Errors
    /// A verifier that is not exact for the policy's trees.
    pub fn new(verifier: Box<dyn Verifier>, policy: Box<dyn Policy>) -> Result<Self> {
        verifier.supports(&policy.form())?;
        Ok(Self { verifier, policy, sampling: Sampling::default(), draft_samplings: Vec::new() })
    }

    /// Sets how the drafter's logits become the distribution that drafts are drawn from. It changes
    /// the speed, never the output's distribution.
    pub fn with_sampling(self, sampling: Sampling) -> Self {
        Self { sampling, ..self }
    }

    /// Sets how the drafter's logits become the distribution of each draft, for a policy with paths
    /// of several drafts (`distinct`): one setting per draft.
    ///
    /// # Errors
    /// A different number of settings than the policy has drafts.
    pub fn with_draft_samplings(self, draft_samplings: Vec<Sampling>) -> Result<Self> {
        let changed = Self { draft_samplings, ..self };
        changed.validate(1).map(|()| changed)
    }

    /// Checks the settings for an engine with this many drafters.
    ///
    /// # Errors
    /// Settings out of range; a different number of settings than the policy has drafts, or, with
    /// several drafters, than there are drafters.
    pub(crate) fn validate(&self, drafters: usize) -> Result<()> {
        self.sampling.validate()?;
        self.draft_samplings.iter().try_for_each(Sampling::validate)?;
        let drafts = self.policy.form().distinct();
        if drafts == self.draft_samplings.len() && (drafters == 1 || drafters == drafts) {
            return Ok(());
        }
        let (expected, got) = match (drafts, drafters) {
            (_, 2..) => {
                (format!("a tree of {drafters} drafts"), format!("one of {}", drafts.max(1)))
            }
            (0, _) => {
                ("a tree of several drafts".to_owned(), count_settings(&self.draft_samplings))
            }
            _ => (
                format!("sampling settings of {drafts} drafts"),
                count_settings(&self.draft_samplings),
            ),
        };
        let operation = "speculation";
        Err(polydraft::Error::Unsupported { operation, expected, got }.into())
    }

    /// Replaces the verifier with one made from it.
    ///
    /// # Errors
    /// A verifier that is not exact for the policy's trees.
    pub fn map_verifier(
        self,
        change: impl FnOnce(Box<dyn Verifier>) -> Box<dyn Verifier>,
    ) -> Result<Self> {
        let changed = Self::new(change(self.verifier), self.policy)?;
        Ok(Self { draft_samplings: self.draft_samplings, ..changed.with_sampling(self.sampling) })
    }

    /// Replaces the policy with one made from it.
    ///
    /// # Errors
    /// A policy with trees for which the verifier is not exact.
    pub fn map_policy(
        self,
        change: impl FnOnce(Box<dyn Policy>) -> Box<dyn Policy>,
    ) -> Result<Self> {
        let changed = Self::new(self.verifier, change(self.policy))?;
        Ok(Self { draft_samplings: self.draft_samplings, ..changed.with_sampling(self.sampling) })
    }
}

fn count_settings(draft_samplings: &[Sampling]) -> String {
    format!("settings of {}", draft_samplings.len())
}

/// A request. Defaults: sampling at temperature 1, plain decoding up to the end of the context,
/// tokens without text, and an rng seeded by the operating system.
///
/// ```
/// use polydraft::Sampling;
/// use polydraft_engine::{Limits, Request};
/// use rand::SeedableRng;
///
/// let greedy = Request::new([1, 2, 3])
///     .sampling(Sampling { temperature: 0.0, ..Sampling::default() })
///     .limits(Limits::tokens(100));
/// let reproducible = Request::new([1, 2, 3]).rng(rand_chacha::ChaCha8Rng::seed_from_u64(1));
/// ```
#[must_use]
pub struct Request<'c> {
    pub(crate) prompt: Vec<Token>,
    pub(crate) sampling: Sampling,
    pub(crate) speculation: Option<Speculation>,
    pub(crate) limits: Limits,
    pub(crate) detokenizer: Box<dyn Detokenizer + 'c>,
    pub(crate) is_reproducible: bool,
    rng: Option<Box<dyn RandomSource + Send + 'c>>,
}

impl<'c> Request<'c> {
    /// Creates a request with this prompt.
    pub fn new(prompt: impl Into<Vec<Token>>) -> Self {
        Self {
            prompt: prompt.into(),
            sampling: Sampling::default(),
            speculation: None,
            limits: Limits::default(),
            detokenizer: Box::new(NoDetokenizer),
            is_reproducible: false,
            rng: None,
        }
    }

    /// Sets how the target's logits become the output's distribution.
    pub fn sampling(self, sampling: Sampling) -> Self {
        Self { sampling, ..self }
    }

    /// Sets the speculation; `None` is plain decoding, one token per pass.
    pub fn speculation(self, speculation: impl Into<Option<Speculation>>) -> Self {
        Self { speculation: speculation.into(), ..self }
    }

    /// Replaces the speculation, if there is one, with one made from it.
    ///
    /// # Errors
    /// Errors of `change`.
    pub fn map_speculation(
        self,
        change: impl FnOnce(Speculation) -> Result<Speculation>,
    ) -> Result<Self> {
        Ok(Self { speculation: self.speculation.map(change).transpose()?, ..self })
    }

    /// Sets the conditions that end the sequence.
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the detokenizer of the output.
    pub fn detokenizer(self, detokenizer: impl Detokenizer + 'c) -> Self {
        Self { detokenizer: Box::new(detokenizer), ..self }
    }

    /// Sets the rng of all random decisions; a seeded one makes the output reproducible.
    pub fn rng(self, rng: impl RandomSource + Send + 'c) -> Self {
        Self { rng: Some(Box::new(rng)), ..self }
    }

    /// Sets whether the rng alone must decide the output: then nothing depends on how long a remote
    /// draft takes to answer, on the batch or on the output's limit
    /// ([`make_independent`](crate::Session::make_independent)). Without it such a draft may be
    /// left out of a step.
    pub fn reproducible(self, is_reproducible: bool) -> Self {
        Self { is_reproducible, ..self }
    }

    /// Takes the given rng, or creates one seeded by the operating system.
    pub(crate) fn take_rng(&mut self) -> Box<dyn RandomSource + Send + 'c> {
        let unpredictable = || ChaCha12Rng::seed_from_u64(RandomState::new().hash_one(0));
        self.rng.take().unwrap_or_else(|| Box::new(unpredictable()))
    }
}
