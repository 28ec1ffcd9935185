//! Estimated costs of passes, by the number, type and size of the weights.
//!
//! They depend on nothing that is measured: an output with a seed is the same in the first run, in
//! later ones, and beside other work. Outputs without a seed start from them.
//! Source: `bench/records`, two threads of an Intel Xeon with AVX-512 and of two AMD EPYCs,
//! November
//! 2026: costs of SmolLM2-135M, Gemma 3 270M and the demo pair (`polydraft bench speed`) and of
//! random models of 484 million parameters (`polydraft bench model`), in round averages.

use super::{Costs, Pass, Passes};

/// Weights that a pass reads, and the KV cache that it reads per token of context.
#[derive(Debug, Clone, PartialEq)]
pub struct PassShape {
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes per weight; `None` if unknown.
    pub bytes_per_weight: Option<f64>,
    /// Bytes of the KV cache per token of context.
    pub cache_bytes: u64,
    /// Costs of passes relative to one over one token, by number of tokens, if `polydraft bench
    /// model` has measured and stored them.
    pub measured: Option<Vec<(usize, f64)>>,
}

/// What determines the cost and the acceptance of a draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DraftShape {
    /// N-grams: no pass.
    Ngrams,
    /// A layer that reads the target's hidden states: a head, an assistant or an MTP layer.
    Head,
    /// A model of another machine: a round trip per step, and next to nothing per token.
    Remote,
    /// Another model, with the ratio of its weights to the target's in bytes.
    Model(f64),
    /// The target's own weights in fewer bits, with the same ratio.
    SelfDraft(f64),
}

/// Tokens of a pass, after one.
const TOKENS: [usize; 5] = [2, 4, 8, 12, 16];
/// Seconds of passes over [`TOKENS`] relative to a pass over one token, for weights of more than
/// this number of bytes.
const RELATIVE: [(f64, [f64; 5]); 4] = [
    (3.0, [1.03, 1.12, 1.65, 2.1, 2.6]),
    (1.5, [1.05, 1.2, 1.75, 2.5, 3.4]),
    (0.9, [1.08, 1.3, 1.75, 2.4, 3.2]),
    (0.0, [1.1, 1.4, 2.3, 3.2, 4.3]),
];
/// The same of models whose weights fit the CPU caches, and which are computed on one thread.
const SMALL: [f64; 5] = [1.06, 1.3, 1.95, 3.2, 4.2];
const SMALL_BYTES: u64 = 64 << 20;
/// Cost of a pass of a draft with weights, beside its share of the bytes: small weights reach less
/// of the memory's speed.
const DRAFT_OVERHEAD: f64 = 1.2;
/// Additional cost of a draft's first pass in a step, in passes of the target.
const FIRST: f64 = 0.04;
/// Additional share of the KV cache's cost for each further token of a pass.
const CACHE_PER_TOKEN: f64 = 0.28;

impl PassShape {
    /// Costs of passes relative to one over one token, by number of tokens.
    fn relative(&self) -> Vec<(usize, f64)> {
        if let Some(measured) = &self.measured {
            return measured.clone();
        }
        let bytes = self.bytes_per_weight.unwrap_or(0.0);
        let row = RELATIVE.iter().find(|(least, _)| bytes >= *least).map_or(&SMALL, |(_, row)| row);
        let row = if self.weight_bytes < SMALL_BYTES { &SMALL } else { row };
        std::iter::once((1, 1.0)).chain(TOKENS.into_iter().zip(row.iter().copied())).collect()
    }
}

impl DraftShape {
    /// Cost of a pass relative to the target's, and of the first one in addition.
    fn cost(self) -> (f64, f64) {
        match self {
            Self::Ngrams => (0.001, 0.003),
            Self::Head => (0.06, FIRST),
            Self::Remote => (0.01, 0.3),
            Self::Model(bytes) | Self::SelfDraft(bytes) => (DRAFT_OVERHEAD * bytes, FIRST),
        }
    }

    /// Expected rejection rate.
    fn rejected(self) -> f64 {
        match self {
            Self::Ngrams => 0.5,
            Self::Head => 0.45,
            Self::Model(_) | Self::Remote => 0.35,
            Self::SelfDraft(_) => 0.15,
        }
    }
}

impl Costs {
    /// Estimates the costs of steps, in passes of the target over one token.
    ///
    /// ```
    /// use polydraft::policy::{Costs, DraftShape, PassShape};
    ///
    /// let weights = 8_000_000_000;
    /// let shape = PassShape {
    ///     weight_bytes: 2 * weights,
    ///     bytes_per_weight: Some(2.0),
    ///     cache_bytes: 131_072,
    ///     measured: None,
    /// };
    /// let costs = Costs::estimated(&shape, DraftShape::SelfDraft(0.375));
    /// assert!(costs.target.0[1].seconds < 1.1);
    /// ```
    pub fn estimated(target: &PassShape, draft: DraftShape) -> Self {
        let cache = target.cache_bytes as f64 / target.weight_bytes.max(1) as f64;
        let pass = |tokens: usize, seconds| Pass {
            tokens,
            seconds,
            longer: cache * (1.0 + CACHE_PER_TOKEN * (tokens - 1) as f64),
        };
        let mut passes: Vec<Pass> = Vec::new();
        for (tokens, seconds) in target.relative() {
            // More tokens never take less time.
            let least = passes.last().map_or(seconds, |last| last.seconds);
            passes.push(pass(tokens, least.max(seconds)));
        }
        let (cost, first) = draft.cost();
        let follows = matches!(draft, DraftShape::SelfDraft(_));
        // A self-draft reads the target's KV cache.
        let longer = if follows { 1.0 } else { cost };
        let draft_passes = passes.iter().map(|pass| Pass {
            tokens: pass.tokens,
            seconds: cost * pass.seconds,
            longer: longer * pass.longer,
        });
        Self {
            draft: Passes(draft_passes.collect()),
            target: Passes(passes),
            first,
            follows,
            rejected: draft.rejected(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Auto, StepContext};
    use super::*;
    use crate::PolicyKind;

    #[test]
    fn costs_rise_with_tokens_context_and_draft_and_are_valid() {
        for bytes_per_weight in [None, Some(0.56), Some(1.06), Some(2.0), Some(4.0)] {
            for weight_bytes in [0, 1 << 20, 1 << 30] {
                let shape = PassShape {
                    weight_bytes,
                    bytes_per_weight,
                    cache_bytes: 40_000,
                    measured: None,
                };
                for draft in [
                    DraftShape::Ngrams,
                    DraftShape::Head,
                    DraftShape::Remote,
                    DraftShape::Model(0.1),
                    DraftShape::SelfDraft(0.2),
                ] {
                    let costs = Costs::estimated(&shape, draft);
                    assert!(costs.target.0.is_sorted_by(|a, b| a.seconds < b.seconds));
                    assert!(costs.target.0.is_sorted_by(|a, b| a.longer < b.longer));
                    let auto = Auto { costs, ..Auto::default() };
                    assert!(PolicyKind::Auto(auto).build().is_ok());
                }
            }
        }
    }

    /// The cost of a pass over eight tokens, and of the draft's, where they were measured.
    #[test]
    fn agrees_with_records() {
        let context = StepContext { batch_size: 1, ..StepContext::default() };
        for (weight_bytes, parameters, draft, eight, drafting) in [
            (96_600_000, 134_500_000, DraftShape::Ngrams, 1.76..2.94, 0.0..0.006),
            (96_600_000, 134_500_000, DraftShape::Head, 2.1..2.8, 0.03..0.08),
            (143_000_000, 134_500_000, DraftShape::Ngrams, 1.3..2.5, 0.0..0.006),
            (269_100_000, 134_500_000, DraftShape::SelfDraft(0.375), 1.6..1.9, 0.28..0.55),
        ] {
            let bytes_per_weight = Some(weight_bytes as f64 / parameters as f64);
            let shape =
                PassShape { weight_bytes, bytes_per_weight, cache_bytes: 46_000, measured: None };
            let costs = Costs::estimated(&shape, draft);
            let found = costs.target.seconds(8, &context);
            assert!(eight.contains(&found), "{weight_bytes}: {found}");
            let found = costs.draft.seconds(1, &context);
            assert!(drafting.contains(&found), "{weight_bytes}: {found}");
        }
    }
}
