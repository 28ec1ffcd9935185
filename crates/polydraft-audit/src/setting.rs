//! Sampling settings of a request, and the model's distribution under them.
//!
//! Problem: a server returns the model's distribution p at temperature 1, its most probable tokens
//! one by one and the rest as the difference to 1. The output under a temperature, a truncation, a
//! penalty, a bias or a grammar has another distribution, which must be known as far as possible,
//! with a bound on the remaining error.
//! Source: the definitions of these settings in OpenAI's interface and in vLLM's; deviations: none.
//! Complexity: linear in the returned tokens.

use serde::{Deserialize, Serialize};

use crate::answer::Key;

/// Sampling settings of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    pub temperature: f64,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    /// Subtracted from the logit of every token that occurred.
    pub presence_penalty: f64,
    /// Subtracted from the logit once per occurrence.
    pub frequency_penalty: f64,
    /// Added to logits, by token.
    pub bias: Vec<(u32, f64)>,
    /// If not empty, the output is a sequence of these words.
    pub words: Vec<String>,
    /// Additional end tokens.
    pub ends: Vec<u32>,
    /// Minimum number of tokens before an end token.
    pub min_tokens: usize,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            min_p: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            words: Vec::new(),
            ends: Vec::new(),
            min_tokens: 0,
        }
    }
}

/// Tokens that a penalty counts: servers differ, and the audit accepts both choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counting {
    /// Tokens of the answer.
    Answer,
    /// Tokens of prompt and answer.
    Everything,
}

/// A token and its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub key: Key,
    pub text: String,
    pub probability: f64,
}

/// Partly known distribution: its most probable tokens, and the total probability of the others.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PartialDistribution {
    /// Tokens in descending order of probability.
    pub cells: Vec<Cell>,
    pub rest: f64,
    /// Upper bound of the probability of each other token.
    pub most_of_rest: f64,
    /// Maximum total variation between this and the true distribution.
    pub slack: f64,
}

/// Tokens before a position.
#[derive(Debug, Clone, Copy)]
pub struct History<'p> {
    pub prompt: &'p [Key],
    pub answer: &'p [Key],
    /// The answer as text.
    pub text: &'p str,
}

/// Relative distance to a boundary of truncation below which rounding errors may decide.
const NEAR: f64 = 0.02;
/// Maximum slack of a distribution; contexts with more are not tested.
const MOST_SLACK: f64 = 0.02;

impl PartialDistribution {
    /// Creates a distribution from tokens and probabilities.
    pub fn new(cells: Vec<Cell>) -> Self {
        let mut cells = cells;
        cells.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        let sum: f64 = cells.iter().map(|cell| cell.probability).sum();
        let least = cells.last().map_or(1.0, |cell| cell.probability);
        let rest = (1.0 - sum).max(0.0);
        Self { cells, rest, most_of_rest: least.min(rest), slack: 0.0 }
    }

    /// Returns the distribution under a setting; `None` where it depends on unknown values.
    pub fn apply(
        &self,
        setting: &Setting,
        counting: Counting,
        history: History<'_>,
    ) -> Option<Self> {
        let mut next = self.clone();
        next.apply_penalties(setting, counting, history);
        next.apply_words(&setting.words, history.text);
        if history.answer.len() < setting.min_tokens {
            next.cells.retain(|cell| !setting.ends.iter().any(|end| cell.key == Key::Id(*end)));
        }
        next.apply_temperature(setting.temperature)?;
        next.normalise();
        next.truncate(setting)?;
        next.normalise();
        (next.slack <= MOST_SLACK).then_some(next)
    }

    /// Applies penalties and biases, which act on the logits of single tokens.
    fn apply_penalties(&mut self, setting: &Setting, counting: Counting, history: History<'_>) {
        let counted: Vec<&Key> = match counting {
            Counting::Answer => history.answer.iter().collect(),
            Counting::Everything => history.prompt.iter().chain(history.answer).collect(),
        };
        let mut unseen: Vec<&Key> = Vec::new();
        for &key in &counted {
            if !unseen.contains(&key) && !self.cells.iter().any(|cell| cell.key == *key) {
                unseen.push(key);
            }
        }
        for cell in &mut self.cells {
            let times = counted.iter().filter(|key| ***key == cell.key).count();
            let mut logit = -setting.frequency_penalty * times as f64;
            if times > 0 {
                logit -= setting.presence_penalty;
            }
            let bias = setting.bias.iter().find(|(id, _)| cell.key == Key::Id(*id));
            logit += bias.map_or(0.0, |(_, bias)| *bias);
            cell.probability *= logit.exp();
        }
        // A penalised token of the rest loses an unknown part of its probability.
        if setting.presence_penalty != 0.0 || setting.frequency_penalty != 0.0 {
            self.slack += self.rest.min(self.most_of_rest * unseen.len() as f64);
        }
        self.cells.retain(|cell| cell.probability > 1e-12);
    }

    /// Keeps only tokens after which the text can still become a sequence of words.
    fn apply_words(&mut self, words: &[String], text: &str) {
        if words.is_empty() {
            return;
        }
        self.cells.retain(|cell| {
            !cell.text.is_empty() && is_prefix_of_words(words, &format!("{text}{}", cell.text))
        });
        let known: f64 = self.cells.iter().map(|cell| cell.probability).sum();
        // The rest may be allowed or forbidden as a whole.
        self.slack += self.rest / (known + self.rest).max(1e-300);
        self.rest = 0.0;
    }

    /// Applies a temperature.
    fn apply_temperature(&mut self, temperature: f64) -> Option<()> {
        if temperature == 1.0 {
            return Some(());
        }
        // Above 1 the probability of the rest has no bound.
        if temperature > 1.0 || temperature <= 0.0 {
            return None;
        }
        let power = 1.0 / temperature;
        let before = self.rest;
        for cell in &mut self.cells {
            cell.probability = cell.probability.powf(power);
        }
        let known: f64 = self.cells.iter().map(|cell| cell.probability).sum();
        // Σ p^(1/T) over the rest is at most its mass times its largest p^(1/T - 1).
        let most = before * self.most_of_rest.powf(power - 1.0);
        self.rest = most / 2.0;
        self.most_of_rest = self.most_of_rest.powf(power).min(most);
        self.slack += most / 2.0 / known.max(1e-300);
        Some(())
    }

    fn normalise(&mut self) {
        let sum = self.cells.iter().map(|cell| cell.probability).sum::<f64>() + self.rest;
        if sum > 0.0 {
            for cell in &mut self.cells {
                cell.probability /= sum;
            }
            self.rest /= sum;
            self.most_of_rest /= sum;
        }
        self.cells.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    }

    /// Applies truncation; `None` where it cuts near a boundary, or beyond the known tokens.
    fn truncate(&mut self, setting: &Setting) -> Option<()> {
        let probability = |at: usize| self.cells.get(at).map(|cell| cell.probability);
        let mut retained = None;
        if let Some(k) = setting.top_k {
            let (last, next) = (probability(k - 1)?, probability(k).unwrap_or(self.most_of_rest));
            if next > last * (1.0 - NEAR) {
                return None;
            }
            retained = Some(k);
        }
        if let Some(top_p) = setting.top_p {
            let mut sum = 0.0;
            let mut count = 0;
            for cell in &self.cells {
                if (sum - top_p).abs() < NEAR / 4.0 {
                    return None;
                }
                if sum >= top_p {
                    break;
                }
                sum += cell.probability;
                count += 1;
            }
            if sum < top_p + NEAR / 4.0 {
                return None;
            }
            // A tie at the end may be broken either way.
            let last = probability(count - 1)?;
            let next = probability(count).unwrap_or(self.most_of_rest);
            if next > last * (1.0 - NEAR) {
                return None;
            }
            retained = Some(retained.map_or(count, |retained: usize| retained.min(count)));
        }
        if let Some(min_p) = setting.min_p {
            let threshold = min_p * probability(0)?;
            let assert_near = |p: f64| p > threshold * (1.0 - NEAR) && p < threshold * (1.0 + NEAR);
            let count = self.cells.iter().filter(|cell| cell.probability >= threshold).count();
            let unclear = self.cells.iter().any(|cell| assert_near(cell.probability));
            if unclear
                || (count == self.cells.len() && self.most_of_rest > threshold * (1.0 - NEAR))
            {
                return None;
            }
            retained = Some(retained.map_or(count, |retained: usize| retained.min(count)));
        }
        if let Some(retained) = retained {
            self.cells.truncate(retained);
            self.rest = 0.0;
            self.most_of_rest = 0.0;
        }
        Some(())
    }
}

/// Returns whether a text is a prefix of a sequence of words.
pub fn is_prefix_of_words(words: &[String], text: &str) -> bool {
    let mut starts = vec![0];
    let mut seen = vec![false; text.len() + 1];
    while let Some(at) = starts.pop() {
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let rest = &text[at..];
        if words.iter().any(|word| word.starts_with(rest)) {
            return true;
        }
        let complete = words.iter().filter(|word| !word.is_empty() && rest.starts_with(*word));
        starts.extend(complete.map(|word| at + word.len()));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(cells: &[f64]) -> PartialDistribution {
        let cell = |(at, &probability): (usize, &f64)| Cell {
            key: Key::Id(at as u32),
            text: format!(" w{at}"),
            probability,
        };
        PartialDistribution::new(cells.iter().enumerate().map(cell).collect())
    }

    fn under(cells: &[f64], setting: Setting, answer: &[u32]) -> Option<Vec<f64>> {
        let answer: Vec<Key> = answer.iter().map(|id| Key::Id(*id)).collect();
        let history = History { prompt: &[], answer: &answer, text: "" };
        let next = distribution(cells).apply(&setting, Counting::Answer, history)?;
        Some(next.cells.iter().map(|cell| cell.probability).chain([next.rest]).collect())
    }

    fn assert_near(got: Option<Vec<f64>>, want: &[f64]) {
        let got = got.expect("a distribution");
        assert_eq!(got.len(), want.len(), "{got:?}");
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        }
    }

    #[test]
    fn settings_follow_their_definitions() {
        let cells = [0.5, 0.3, 0.2];
        assert_near(under(&cells, Setting::default(), &[]), &[0.5, 0.3, 0.2, 0.0]);
        let half = Setting { temperature: 0.5, ..Setting::default() };
        assert_near(under(&cells, half, &[]), &[0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38, 0.0]);
        let two = Setting { top_k: Some(2), ..Setting::default() };
        assert_near(under(&cells, two, &[]), &[0.625, 0.375, 0.0]);
        let nucleus = Setting { top_p: Some(0.6), ..Setting::default() };
        assert_near(under(&cells, nucleus, &[]), &[0.625, 0.375, 0.0]);
        let threshold = Setting { min_p: Some(0.5), ..Setting::default() };
        assert_near(under(&cells, threshold, &[]), &[0.625, 0.375, 0.0]);
        let penalised = Setting {
            presence_penalty: 2f64.ln(),
            frequency_penalty: 2f64.ln(),
            ..Setting::default()
        };
        // Two occurrences leave an eighth.
        assert_near(
            under(&cells, penalised, &[0, 0]),
            &[0.3 / 0.5625, 0.2 / 0.5625, 0.0625 / 0.5625, 0.0],
        );
        let biased = Setting { bias: vec![(2, 2f64.ln()), (0, -100.0)], ..Setting::default() };
        assert_near(under(&cells, biased, &[]), &[0.4 / 0.7, 0.3 / 0.7, 0.0]);
        let least = Setting { ends: vec![0], min_tokens: 2, ..Setting::default() };
        assert_near(under(&cells, least.clone(), &[1]), &[0.6, 0.4, 0.0]);
        assert_near(under(&cells, least, &[1, 1]), &[0.5, 0.3, 0.2, 0.0]);
        let words =
            Setting { words: vec![" w0".to_owned(), " w2x".to_owned()], ..Setting::default() };
        assert_near(under(&cells, words, &[]), &[0.5 / 0.7, 0.2 / 0.7, 0.0]);
    }

    #[test]
    fn unknown_boundaries_give_none_or_slack() {
        // The boundary lies beyond the returned tokens, or within rounding errors of a token.
        let nucleus = Setting { top_p: Some(0.9), ..Setting::default() };
        assert_eq!(under(&[0.5, 0.3], nucleus, &[]), None);
        let tied = Setting { top_k: Some(1), ..Setting::default() };
        assert_eq!(under(&[0.4, 0.4, 0.2], tied, &[]), None);
        let threshold = Setting { min_p: Some(0.1), ..Setting::default() };
        assert_eq!(under(&[0.5, 0.3], threshold, &[]), None);
        // Most of the rest may be allowed.
        let words = Setting { words: vec![" w1".to_owned()], ..Setting::default() };
        assert_eq!(under(&[0.5, 0.3], words, &[]), None);
        // The bound on the rest under a temperature holds for the most uneven rest.
        let half = Setting { temperature: 0.5, ..Setting::default() };
        let history = History { prompt: &[], answer: &[], text: "" };
        let known = distribution(&[0.6, 0.3, 0.05]);
        let next = known.apply(&half, Counting::Answer, history).expect("little rest");
        for rest in [vec![0.05], vec![0.001; 50]] {
            let all: Vec<f64> = [0.6, 0.3, 0.05].into_iter().chain(rest).collect();
            let sum: f64 = all.iter().map(|p| p * p).sum();
            let off = |at: usize| (all[at] * all[at] / sum - next.cells[at].probability).abs();
            let tail = all[3..].iter().map(|p| p * p / sum).sum::<f64>();
            let distance = (off(0) + off(1) + off(2) + (tail - next.rest).abs()) / 2.0;
            assert!(distance <= next.slack + 1e-12, "{distance} > {}", next.slack);
        }
    }

    #[test]
    fn recognises_prefixes_of_word_sequences() {
        let words = ["ab".to_owned(), "abc".to_owned()];
        for text in ["", "a", "ab", "abcab", "ababc", "abca"] {
            assert!(is_prefix_of_words(&words, text), "{text}");
        }
        for text in ["b", "abb", "abcc", "abd"] {
            assert!(!is_prefix_of_words(&words, text), "{text}");
        }
    }
}
