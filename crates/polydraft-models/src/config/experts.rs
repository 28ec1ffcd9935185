//! Feed-forward blocks of which a token uses a few (mixture of experts).

/// The experts of a layer, and how a token's are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many of them compute a token.
    pub used: usize,
    /// Width inside of one.
    pub intermediate: usize,
    /// Width of what they read and give, where that is not the model's: products of all experts
    /// lead down to it and up again.
    pub latent: Option<usize>,
    /// What becomes of the router's logits.
    pub scores: Scores,
    /// Whether those of the chosen ones are divided by their sum.
    pub normalised: bool,
    /// What they are multiplied by then.
    pub scale: f64,
    /// Whether there are numbers that are added to scores to choose by, and only for that.
    pub corrected: bool,
    /// Groups of experts, of which some are chosen first.
    pub groups: Option<Groups>,
    /// An expert that computes every token.
    pub shared: Option<Shared>,
    /// Whether they are beside a layer's feed-forward block, with norms of their own, and not in
    /// its place. Their router has a norm too then.
    pub beside: bool,
    /// Whether what an expert gives is multiplied by a number of its own.
    pub scaled: bool,
    /// Whether router and experts have biases.
    pub biased: bool,
    /// Which layers have experts.
    pub layers: Vec<bool>,
}

/// What becomes of a router's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// e^x / Σ e^x
    Softmax,
    /// 1 / (1 + e^−x)
    Sigmoid,
}

/// Groups of neighbouring experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// From how many of them experts are chosen.
    pub used: usize,
    /// How many of its best scores say how good a group is.
    pub best: usize,
}

/// An expert that computes every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Width inside.
    pub intermediate: usize,
    /// Whether what it gives is multiplied by the sigmoid of a product of its own.
    pub gated: bool,
}

impl Experts {
    /// That the numbers fit together.
    pub(super) fn check(&self, layers: usize) -> Result<(), String> {
        if self.used > self.count {
            let (count, used) = (self.count, self.used);
            return Err(format!("num_experts_per_tok: expected at most {count}, got {used}"));
        }
        if self.layers.len() != layers {
            let got = self.layers.len();
            return Err(format!("layers with experts: expected {layers} entries, got {got}"));
        }
        let Some(Groups { count, used, best }) = self.groups else { return Ok(()) };
        let within = self.count / count.max(1);
        if count == 0 || !self.count.is_multiple_of(count) || within < best {
            let experts = self.count;
            return Err(format!(
                "n_group: expected a divisor of the {experts} experts, with {best} or more in a \
                 group, got {count}"
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
