//! Configuration of mixtures of experts.

/// Experts of a layer, and the routing of tokens to them.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that compute a token.
    pub used: usize,
    /// Inner width of an expert.
    pub intermediate: usize,
    /// Width of the experts' inputs and outputs, if it differs from the model's. Two projections,
    /// shared by all experts, lead to it and back.
    pub latent: Option<usize>,
    /// Function from router logits to scores.
    pub scores: RouterScores,
    /// Whether the scores of the selected experts are divided by their sum.
    pub normalised: bool,
    /// Factor of the scores after that.
    pub scale: f64,
    /// Whether a bias is added to scores for the selection of experts only.
    pub corrected: bool,
    /// Groups of experts, if only experts of the best groups are selected.
    pub groups: Option<ExpertGroups>,
    /// Expert that computes every token.
    pub shared: Option<SharedExpert>,
    /// Whether experts run in parallel with a layer's feed-forward block, instead of replacing it.
    /// They then have separate norms, also before the router.
    pub parallel: bool,
    /// Whether the output of each expert is multiplied by a learned scalar.
    pub scaled: bool,
    /// Whether the router and the experts have biases.
    pub biased: bool,
    /// For each layer, whether it has experts.
    pub layers: Vec<bool>,
}

/// Function from router logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScores {
    /// e^x / Σ e^x
    Softmax,
    /// 1 / (1 + e^−x)
    Sigmoid,
}

/// Groups of adjacent experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that experts are selected from.
    pub used: usize,
    /// Number of highest scores whose sum ranks a group.
    pub best_scores: usize,
}

/// Expert that computes every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width.
    pub intermediate: usize,
    /// Whether its output is multiplied by the sigmoid of a learned projection.
    pub gated: bool,
}

impl Experts {
    /// Checks that the numbers are consistent.
    pub(super) fn check(&self, layers: usize) -> Result<(), String> {
        if self.used > self.count {
            let (count, used) = (self.count, self.used);
            return Err(format!("num_experts_per_tok: expected at most {count}, got {used}"));
        }
        if self.layers.len() != layers {
            let got = self.layers.len();
            return Err(format!("layers with experts: expected {layers} entries, got {got}"));
        }
        let Some(ExpertGroups { count, used, best_scores }) = self.groups else { return Ok(()) };
        let within = self.count / count.max(1);
        if count == 0 || !self.count.is_multiple_of(count) || within < best_scores {
            let experts = self.count;
            return Err(format!(
                "n_group: expected a divisor of the {experts} experts, with {best_scores} or more \
                 in a group, got {count}"
            ));
        }
        if used > count || used * within < self.used {
            let chosen = self.used;
            return Err(format!(
                "topk_group: expected at most {count}, and {chosen} experts in them, got {used}"
            ));
        }
        Ok(())
    }
}
