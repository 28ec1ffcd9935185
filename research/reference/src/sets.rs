//! Tuples of drafts, merged by their set of tokens.
//!
//! Problem: a rule may treat all tuples with the same set of tokens alike, so V^n tuples reduce to
//! their sets. If the presence of tokens in a set H does not matter, only the tokens outside of H
//! count.
//! Source: Hu et al. 2025 for sets instead of tuples; Thomas and Pal 2025 (Global Resolution),
//! appendix K, for the tokens outside of H.
//! Complexity: O(n²) per set for i.i.d. drafts; for other schemes one visit per tuple and a sort.
//! Deviations: (1) the probability of a set of i.i.d. drafts is n!·[x^n] e^{q(H)x} Π (e^{q_i x} −
//! 1), a sum of positive terms. The equal inclusion–exclusion formula of appendix K cancels for
//! small q.

use polydraft::{Drafting, Error, Proposal, Result, Token};

/// Maximum number of drafts: above it, binomial coefficients exceed an accuracy of 1e-12.
pub(crate) const MOST_DRAFTS: usize = 64;

/// Calls `visit(members, probability)` for every non-empty set of positive probability, in
/// lexicographic order. `members` are ascending indices into `masses`. The probability is that
/// `count` i.i.d. draws contain each member, no other token of `masses`, and otherwise only tokens
/// whose total mass is `free`.
pub(crate) fn for_each_iid_set(
    masses: &[f64],
    free: f64,
    count: usize,
    mut visit: impl FnMut(&[usize], f64),
) {
    let binomial = binomials(count);
    // ways[d][k]: the probability that k draws contain each of the first d members and otherwise
    // only free tokens.
    let mut ways = vec![vec![0.0; count + 1]; count + 1];
    (0..=count).for_each(|k| ways[0][k] = free.powi(k as i32));
    let mut members: Vec<usize> = Vec::with_capacity(count);
    let mut next = 0;
    loop {
        if members.len() < count && next < masses.len() {
            let depth = members.len();
            members.push(next);
            let (before, after) = ways.split_at_mut(depth + 1);
            for k in 0..=count {
                let mut power = 1.0;
                after[0][k] = 0.0;
                for j in 1..=k {
                    power *= masses[next];
                    after[0][k] += binomial[k][j] * before[depth][k - j] * power;
                }
            }
            let probability = after[0][count];
            if probability > 0.0 {
                visit(&members, probability);
            }
            next += 1;
        } else if let Some(last) = members.pop() {
            next = last + 1;
        } else {
            return;
        }
    }
}

fn binomials(count: usize) -> Vec<Vec<f64>> {
    let mut rows = vec![vec![1.0]];
    for k in 1..=count {
        let above: &Vec<f64> = &rows[k - 1];
        rows.push(
            (0..=k).map(|j| if j == 0 || j == k { 1.0 } else { above[j - 1] + above[j] }).collect(),
        );
    }
    rows
}

/// Returns the number of pairs (set, token in it) over the sets of 1 to `count` out of `tokens`
/// tokens.
pub(crate) fn pairs(tokens: usize, count: usize) -> f64 {
    let (mut binomial, mut sum) = (1.0, 0.0);
    for size in 1..=count.min(tokens) {
        binomial *= (tokens - size + 1) as f64 / size as f64;
        sum += size as f64 * binomial;
    }
    sum
}

/// Selection of tuples, and of the tokens in them that count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    /// All tuples, with all their tokens.
    All,
    /// The tuples inside of H, whose tokens are given in ascending order.
    Inside(&'a [Token]),
    /// The other tuples, with their tokens outside of H.
    Outside(&'a [Token]),
}

impl Part<'_> {
    /// Whether a token counts.
    fn counts(&self, token: Token) -> bool {
        match self {
            Self::All => true,
            Self::Inside(inside) => inside.binary_search(&token).is_ok(),
            Self::Outside(inside) => inside.binary_search(&token).is_err(),
        }
    }

    /// Returns the distinct tokens that count, ascending; `None` for a tuple that is not selected.
    pub fn key(&self, drafts: &[Token]) -> Option<Vec<Token>> {
        let mut tokens = drafts.to_vec();
        match self {
            Self::All => {}
            Self::Inside(_) if tokens.iter().all(|token| self.counts(*token)) => {}
            Self::Inside(_) => return None,
            Self::Outside(_) => tokens.retain(|token| self.counts(*token)),
        }
        tokens.sort_unstable();
        tokens.dedup();
        Some(tokens).filter(|tokens| !tokens.is_empty())
    }
}

/// Token sets with their probabilities, in lexicographic order.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenSets {
    tokens: Vec<Token>,
    ends: Vec<usize>,
    probabilities: Vec<f64>,
}

impl TokenSets {
    /// Checks that the sets have at most `limit` pairs (set, token).
    ///
    /// # Errors
    /// More pairs, or more than 64 drafts. The error reports the number of pairs and which size
    /// would fit.
    pub fn check(
        operation: &'static str,
        proposal: &Proposal,
        part: Part,
        limit: usize,
    ) -> Result<()> {
        let size = match proposal.scheme() {
            Drafting::Iid => {
                let counted = proposal
                    .distribution(0)
                    .support()
                    .filter(|(token, _)| part.counts(*token))
                    .count();
                pairs(counted, proposal.count())
            }
            _ => proposal.tuple_bound() * proposal.count() as f64,
        };
        check_size(operation, proposal, size, limit)
    }

    /// Enumerates the sets.
    ///
    /// # Errors
    /// The errors of [`TokenSets::check`].
    pub fn new(
        operation: &'static str,
        proposal: &Proposal,
        part: Part,
        limit: usize,
    ) -> Result<Self> {
        Self::check(operation, proposal, part, limit)?;
        let mut sets = Self::default();
        if proposal.scheme() == Drafting::Iid {
            let (counted, rest): (Vec<_>, Vec<_>) =
                proposal.distribution(0).support().partition(|(token, _)| part.counts(*token));
            let free = match part {
                Part::Outside(_) => rest.iter().map(|(_, q)| q).sum(),
                _ => 0.0,
            };
            let masses: Vec<f64> = counted.iter().map(|(_, q)| *q).collect();
            for_each_iid_set(&masses, free, proposal.count(), |members, probability| {
                sets.push(members.iter().map(|&member| counted[member].0), probability);
            });
            return Ok(sets);
        }
        let mut found = Vec::new();
        for_each_tuple(proposal, &mut |drafts, probability| {
            found.extend(part.key(drafts).map(|tokens| (tokens, probability)));
        });
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let mut found = found.into_iter().peekable();
        while let Some((tokens, mut probability)) = found.next() {
            while let Some((_, more)) = found.next_if(|next| next.0 == tokens) {
                probability += more;
            }
            if probability > 0.0 {
                sets.push(tokens, probability);
            }
        }
        Ok(sets)
    }

    fn push(&mut self, tokens: impl IntoIterator<Item = Token>, probability: f64) {
        self.tokens.extend(tokens);
        self.ends.push(self.tokens.len());
        self.probabilities.push(probability);
    }

    /// Returns the number of sets.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the tokens of all sets, one set after the other.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the distinct tokens of all sets, ascending, and for each of [`TokenSets::tokens`]
    /// its index in them.
    pub fn distinct(&self) -> (Vec<Token>, Vec<u32>) {
        let mut distinct = self.tokens.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let location = |token: &Token| distinct.partition_point(|other| other < token) as u32;
        let locations = self.tokens.iter().map(location).collect();
        (distinct, locations)
    }

    /// Returns the range of a set in [`TokenSets::tokens`].
    pub fn range(&self, set: usize) -> std::ops::Range<usize> {
        let start = if set == 0 { 0 } else { self.ends[set - 1] };
        start..self.ends[set]
    }

    /// Returns the probability of a set, above 0.
    pub fn probability(&self, set: usize) -> f64 {
        self.probabilities[set]
    }

    /// Returns the index of a set, given its tokens in ascending order, if its probability is above
    /// 0.
    pub fn find(&self, tokens: &[Token]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.tokens[self.range(middle)].cmp(tokens) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}

/// Rejects problems above the limit; the error reports which size would fit.
fn check_size(operation: &'static str, proposal: &Proposal, size: f64, limit: usize) -> Result<()> {
    let (count, scheme) = (proposal.count(), proposal.scheme());
    let support = (0..proposal_distributions(proposal))
        .map(|i| proposal.distribution(i).support_size())
        .max()
        .unwrap_or(0);
    let got =
        format!("{} variables for {count} drafts of {support} tokens ({scheme})", how_many(size));
    if count > MOST_DRAFTS && !matches!(scheme, Drafting::Greedy | Drafting::Hub | Drafting::TopK) {
        let expected = format!("at most {MOST_DRAFTS} drafts");
        return Err(Error::TooLarge { operation, expected, got: count.to_string() });
    }
    if size <= limit as f64 {
        return Ok(());
    }
    let fits = |tokens: usize| match scheme {
        Drafting::Iid => pairs(tokens, count),
        Drafting::Greedy => (tokens * count) as f64,
        Drafting::Hub => (tokens * count * count) as f64,
        _ => (tokens as f64).powi(count as i32) * count as f64,
    };
    let (mut low, mut high) = (0, support);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) <= limit as f64 { low = middle } else { high = middle }
    }
    let would = match low {
        0 => String::new(),
        1 => " (a draft of one token would fit)".to_owned(),
        _ => format!(" (a draft of {low} tokens would fit)"),
    };
    Err(Error::TooLarge { operation, expected: format!("at most {limit} variables{would}"), got })
}

/// Formats a count for messages; large ones in scientific notation.
pub(crate) fn how_many(number: f64) -> String {
    if number < 1e15 { format!("{number:.0}") } else { format!("{number:.1e}") }
}

fn proposal_distributions(proposal: &Proposal) -> usize {
    if proposal.scheme() == Drafting::Distinct { proposal.count() } else { 1 }
}

/// Calls `visit(drafts, probability)` for every tuple of positive probability. For hub and greedy
/// drafting, each set is visited once.
fn for_each_tuple(proposal: &Proposal, visit: &mut impl FnMut(&[Token], f64)) {
    let probs = proposal.distribution(0);
    match proposal.scheme() {
        Drafting::Greedy | Drafting::Hub => {
            let mut drafts = probs.most_likely(proposal.count() - 1);
            let outside: Vec<_> =
                probs.support().filter(|(token, _)| !drafts.contains(token)).collect();
            let rest: f64 = outside.iter().map(|(_, q)| q).sum();
            if outside.is_empty() {
                visit(&drafts, 1.0);
            }
            for (token, q) in outside {
                drafts.push(token);
                visit(&drafts, q / rest);
                drafts.pop();
            }
        }
        Drafting::TopK => visit(&probs.most_likely(proposal.count()), 1.0),
        Drafting::WithoutReplacement => {
            let tokens: Vec<_> = probs.support().collect();
            let count = proposal.count().min(tokens.len());
            sequences(count, &mut Vec::new(), 1.0, &|_| &tokens, true, visit);
        }
        Drafting::Iid | Drafting::Distinct => {
            let distributions: Vec<Vec<_>> = (0..proposal.count())
                .map(|index| proposal.distribution(index).support().collect())
                .collect();
            sequences(
                proposal.count(),
                &mut Vec::new(),
                1.0,
                &|index| &distributions[index],
                false,
                visit,
            );
        }
    }
}

/// Visits all continuations of `drafts` to `count` drafts. If `removing`, drawn tokens are removed
/// and the rest is renormalised.
fn sequences<'a>(
    count: usize,
    drafts: &mut Vec<Token>,
    probability: f64,
    probs: &impl Fn(usize) -> &'a [(Token, f64)],
    removing: bool,
    visit: &mut impl FnMut(&[Token], f64),
) {
    if drafts.len() == count {
        return visit(drafts, probability);
    }
    let open = |token: Token, drafts: &[Token]| !(removing && drafts.contains(&token));
    let tokens = probs(drafts.len());
    let rest: f64 = tokens.iter().filter(|(token, _)| open(*token, drafts)).map(|(_, q)| q).sum();
    for &(token, q) in tokens {
        if open(token, drafts) {
            drafts.push(token);
            sequences(count, drafts, probability * q / rest, probs, removing, visit);
            drafts.pop();
        }
    }
}
