//! State shared by all checks: the server, the known distributions of its model, and the power
//! reached so far.

use std::collections::HashMap;
use std::rc::Rc;

use rand_chacha::ChaCha8Rng;

use crate::answer::{Answer, AnswerToken, Choice, Key};
use crate::error::Result;
use crate::evidence::{Bettor, Context, Odds, Trail, would_find};
use crate::prompts::{Kind, candidates};
use crate::server::{Detail, Prompt, Request, Server, is_end};
use crate::setting::{Cell, Counting, History, PartialDistribution, Setting};
use crate::{Listener, Options, probe};

/// Prompt in the form that the server takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Opening {
    pub text: String,
    /// Token ids, where they are known.
    pub ids: Option<Vec<u32>>,
    /// Length in tokens, as counted by the server.
    length: usize,
}

impl Opening {
    fn keys(&self) -> Vec<Key> {
        self.ids.iter().flatten().map(|id| Key::Id(*id)).collect()
    }

    /// Returns the prompt for a request.
    pub fn prompt(&self) -> Prompt {
        match &self.ids {
            Some(ids) => Prompt::Ids(ids.clone()),
            None => Prompt::Text(self.text.clone()),
        }
    }
}

/// Returns whether two of the most probable tokens have the same text: it is then unknown which of
/// them was emitted and, where the strings are keys of an object, how probable the second is.
/// Duplicates make the list shorter.
fn is_ambiguous(token: &AnswerToken, top: usize) -> bool {
    let mut keys: Vec<&Key> = token.top.iter().map(|scored| &scored.key).collect();
    keys.sort();
    keys.len() < top || keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// Minimum probability of tokens whose text is fetched, to see which of them end answers.
const MIN_NAMED_PROBABILITY: f64 = 0.005;

/// Tokens before a position: the number of the opening, and the tokens after it.
pub type Prefix = (usize, Vec<Key>);

/// Bets on several checks together.
pub struct Overall {
    pub bettor: Bettor,
    /// Tokens that it observed.
    pub trail: Trail,
}

impl Overall {
    /// Creates a bettor without observations.
    pub fn new(tolerance: f64) -> Self {
        Self { bettor: Bettor::new(tolerance), trail: Trail::new() }
    }

    fn observe(&mut self, context: &Context, odds: &Rc<Odds>, observed: usize) {
        self.bettor.observe(context, odds, observed);
        self.trail.push(Rc::clone(odds));
    }
}

/// State of an audit.
pub struct AuditState<'l> {
    pub server: Server,
    pub reference: Option<Server>,
    pub options: &'l Options,
    pub listener: &'l dyn Listener,
    pub rng: ChaCha8Rng,
    /// All openings in use.
    pub openings: Vec<Opening>,
    /// Openings by kind, most informative first.
    pub chosen: HashMap<Kind, Vec<usize>>,
    /// Known distributions by prefix; `None` where the server does not provide one.
    pub known: HashMap<Prefix, Option<Rc<PartialDistribution>>>,
    /// Bets on all checks together.
    pub overall: Overall,
    /// Bets on the checks without a setting that a server may ignore.
    pub overall_without_settings: Overall,
    /// Number of tokens at which the overall power is computed next, and whether it sufficed.
    pub next_power_check: usize,
    pub has_power: bool,
    /// Drafted and accepted tokens, as reported in answers.
    pub drafted: (u64, u64),
}

impl AuditState<'_> {
    /// Returns the server whose log-probabilities are taken as correct.
    fn truth(&self) -> &Server {
        match &self.reference {
            Some(reference) if reference.capabilities.top > 0 => reference,
            _ => &self.server,
        }
    }

    /// Returns whether the server or the reference provides distributions, and the server returns
    /// the tokens of its answers.
    pub fn has_distributions(&self) -> bool {
        self.truth().capabilities.top > 0 && self.server.capabilities.returns_tokens()
    }

    /// Sends requests, and counts drafted tokens.
    pub fn send(&mut self, requests: &[Request], at_most: usize) -> Result<Vec<Answer>> {
        let answers = self.server.send_all(requests, at_most, self.listener)?;
        self.note_drafts(&answers);
        Ok(answers)
    }

    /// Counts drafted tokens.
    pub fn note_drafts(&mut self, answers: &[Answer]) {
        for (drafted, accepted) in answers.iter().filter_map(|answer| answer.drafted) {
            self.drafted.0 += drafted;
            self.drafted.1 += accepted;
        }
    }

    /// Adds a prompt if it is new; returns its number.
    pub fn open(&mut self, text: &str) -> Result<usize> {
        if let Some(at) = self.openings.iter().position(|opening| opening.text == text) {
            return Ok(at);
        }
        let ids = match self.server.capabilities.ids {
            true => probe::tokenize(&self.server, text, self.listener)?,
            false => None,
        };
        let length = match (&ids, self.has_distributions()) {
            (Some(ids), _) => ids.len(),
            (None, false) => 0,
            (None, true) => {
                let send = Request::new(Prompt::Text(text.to_owned()), 1, Setting::default());
                self.send(&[send], 1)?[0].usage.map_or(0, |(prompt, _)| prompt)
            }
        };
        self.openings.push(Opening { text: text.to_owned(), ids, length });
        Ok(self.openings.len() - 1)
    }

    /// Returns the `count` most informative prompts of a kind: those whose continuations share
    /// their beginnings about a third of the time come first.
    pub fn choose(&mut self, kind: Kind, count: usize) -> Result<Vec<usize>> {
        const LOOKS: usize = 12;
        if let Some(chosen) = self.chosen.get(&kind) {
            return Ok(chosen.iter().copied().take(count).collect());
        }
        let mut scored = Vec::new();
        for text in candidates(kind) {
            let at = self.open(text)?;
            let send = Request::new(self.openings[at].prompt(), 3, Setting::default());
            let answers = self.send(&vec![send; LOOKS], usize::MAX)?;
            let outputs: Vec<String> = answers.iter().map(|answer| answer.first().text).collect();
            let pairs = (0..LOOKS).flat_map(|a| (0..a).map(move |b| (a, b)));
            let equal = pairs.filter(|(a, b)| outputs[*a] == outputs[*b]).count();
            let share = equal as f64 / (LOOKS * (LOOKS - 1) / 2) as f64;
            scored.push(((share - 0.3).abs(), at));
        }
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        let chosen: Vec<usize> = scored.into_iter().map(|(_, at)| at).collect();
        self.chosen.insert(kind, chosen.clone());
        Ok(chosen.into_iter().take(count).collect())
    }

    /// Bets for all checks together on an observation of one check; `is_plain` if it has no setting
    /// that a server may ignore.
    pub fn bet_overall(
        &mut self,
        context: &Context,
        odds: &Rc<Odds>,
        observed: usize,
        is_plain: bool,
    ) {
        self.overall.observe(context, odds, observed);
        if is_plain {
            self.overall_without_settings.observe(context, odds, observed);
        }
    }

    /// Returns whether all checks together would find the requested error. Computed at growing
    /// intervals, because simulations take time.
    pub fn has_overall_power(&mut self, threshold: f64) -> bool {
        let tokens = self.overall.bettor.tokens();
        if tokens >= self.next_power_check {
            self.next_power_check = tokens * 6 / 5;
            let (tolerance, size) = (self.options.tolerance, self.options.sensitivity);
            self.has_power = would_find(&self.overall.trail, tolerance, threshold, size);
        }
        self.has_power
    }

    /// Builds a request that continues an opening.
    pub fn continuation(&self, opening: usize, max_tokens: usize, setting: &Setting) -> Request {
        Request::new(self.openings[opening].prompt(), max_tokens, setting.clone())
    }

    /// Builds the request for the distribution at a prefix.
    pub fn single_token_request(&self, prefix: &Prefix) -> Request {
        let opening = &self.openings[prefix.0];
        let prompt = match &opening.ids {
            Some(ids) => {
                let continued = prefix.1.iter().filter_map(|key| match key {
                    Key::Id(id) => Some(*id),
                    Key::Text(_) => None,
                });
                Prompt::Ids(ids.iter().copied().chain(continued).collect())
            }
            None => {
                let continued = prefix.1.iter().filter_map(|key| match key {
                    Key::Text(text) => Some(text.as_str()),
                    Key::Id(_) => None,
                });
                Prompt::Text(format!("{}{}", opening.text, continued.collect::<String>()))
            }
        };
        Request { detail: Detail::Logprobs, ..Request::new(prompt, 1, Setting::default()) }
    }

    /// Returns whether one request returns the distributions of all positions of an answer.
    pub fn has_echo(&self) -> bool {
        self.truth().capabilities.echo
    }

    /// Requests the distributions at prefixes that are not known yet.
    pub fn fetch_distributions(&mut self, prefixes: &[Prefix]) -> Result<()> {
        let mut new: Vec<Prefix> =
            prefixes.iter().filter(|prefix| !self.known.contains_key(*prefix)).cloned().collect();
        new.sort();
        new.dedup();
        if self.has_echo() {
            // In this order an extension of a prefix comes directly after it.
            let begins = |a: &Prefix, b: &Prefix| a.0 == b.0 && b.1.starts_with(&a.1);
            let ends = new.iter().enumerate();
            let ends = ends.filter(|(at, a)| new.get(at + 1).is_none_or(|b| !begins(a, b)));
            new = ends.map(|(_, prefix)| prefix.clone()).collect();
        }
        let echo = self.has_echo();
        let requests: Vec<Request> = new
            .iter()
            .map(|prefix| Request { echo, ..self.single_token_request(prefix) })
            .collect();
        let answers = self.truth().send_all(&requests, usize::MAX, self.listener)?;
        let tokens = answers.iter().flat_map(|answer| answer.choices.first());
        let scored = tokens.flat_map(|choice| &choice.tokens).flat_map(|token| &token.top);
        let likely = scored.filter(|scored| scored.logprob.exp() >= MIN_NAMED_PROBABILITY);
        let likely: Vec<Key> = likely.map(|scored| scored.key.clone()).collect();
        self.truth().fetch_texts(&likely, self.listener)?;
        for (prefix, answer) in new.into_iter().zip(answers) {
            match echo {
                true => self.insert_path(prefix, &answer),
                false => self.insert_next(prefix, &answer),
            }
        }
        Ok(())
    }

    /// Stores the distribution after a prefix.
    fn insert_next(&mut self, prefix: Prefix, answer: &Answer) {
        let opening = &self.openings[prefix.0];
        // The tokenizer may have split a text into other tokens than those emitted.
        let counted = answer.usage.map(|(prompt, _)| prompt);
        let same = opening.ids.is_some()
            || counted.is_none_or(|counted| counted == opening.length + prefix.1.len());
        let token = answer.first().tokens.into_iter().next();
        let distribution = match token.filter(|_| same) {
            None => None,
            Some(token) => self.parse_distribution(token).map(Rc::new),
        };
        self.known.insert(prefix, distribution);
    }

    /// Stores the distributions at all positions up to a prefix.
    fn insert_path(&mut self, prefix: Prefix, answer: &Answer) {
        let (opening, keys) = prefix;
        let before = self.openings[opening].length;
        let mut tokens = answer.first().tokens.into_iter().skip(before);
        for length in 0..=keys.len() {
            let token = tokens.next();
            let next = keys.get(length);
            let here = (opening, keys[..length].to_vec());
            // The tokenizer may have split a text into other tokens than those emitted.
            let astray = next.is_some_and(|next| token.as_ref().is_none_or(|t| t.key != *next));
            let distribution = match token {
                None => None,
                Some(token) => self.parse_distribution(token).map(Rc::new),
            };
            self.known.entry(here).or_insert(distribution);
            if astray {
                for longer in length + 1..=keys.len() {
                    self.known.entry((opening, keys[..longer].to_vec())).or_insert(None);
                }
                break;
            }
        }
    }

    fn parse_distribution(&self, token: AnswerToken) -> Option<PartialDistribution> {
        let (ids, top) = (self.truth().capabilities.ids, self.truth().capabilities.top);
        if !ids && is_ambiguous(&token, top) {
            return None;
        }
        let mut cells = Vec::new();
        for scored in token.top.into_iter().take(top) {
            let text = self.truth().known_text(&scored.key);
            // Partial characters all have the same text.
            if !ids && (text.is_empty() || text.contains(char::REPLACEMENT_CHARACTER)) {
                continue;
            }
            cells.push(Cell { key: scored.key, text, probability: scored.logprob.exp() });
        }
        (!cells.is_empty()).then(|| PartialDistribution::new(cells))
    }

    /// Returns the distribution at a prefix, if it is known.
    pub fn known_distribution(&self, prefix: &Prefix) -> Option<Rc<PartialDistribution>> {
        self.known.get(prefix).cloned().flatten()
    }

    /// Returns whether a prefix has been requested.
    pub fn is_known(&self, prefix: &Prefix) -> bool {
        self.known.contains_key(prefix)
    }

    /// Returns the distribution at a prefix under a setting.
    pub fn emitted(
        &self,
        prefix: &Prefix,
        setting: &Setting,
        counting: Counting,
    ) -> Result<Option<PartialDistribution>> {
        let Some(distribution) = self.known_distribution(prefix) else { return Ok(None) };
        if self.truth().capabilities.processed && *setting != Setting::default() {
            return Ok(None);
        }
        let prompt = self.openings[prefix.0].keys();
        if setting.words.is_empty() {
            let past = History { prompt: &prompt, answer: &prefix.1, text: "" };
            return Ok(distribution.apply(setting, counting, past));
        }
        // A grammar constrains text, so it needs the texts of improbable tokens too.
        let mut named = PartialDistribution::clone(&distribution);
        for cell in &mut named.cells {
            cell.text = self.truth().text(&cell.key, self.listener)?;
        }
        let text = self.text_of(&prefix.1)?;
        let past = History { prompt: &prompt, answer: &prefix.1, text: &text };
        Ok(named.apply(setting, counting, past))
    }

    /// Fetches the texts of tokens.
    pub fn fetch_texts(&self, keys: &[Key]) -> Result<()> {
        self.server.fetch_texts(keys, self.listener)
    }

    /// Concatenates the texts of tokens.
    pub fn text_of(&self, keys: &[Key]) -> Result<String> {
        keys.iter().map(|key| self.server.text(key, self.listener)).collect()
    }

    /// Returns the tokens of a sequence without its end token, and whether it ended at one: servers
    /// differ in whether they return it.
    pub fn tokens(&self, choice: &Choice) -> Result<(Vec<Key>, bool)> {
        let mut keys: Vec<Key> = choice.tokens.iter().map(|token| token.key.clone()).collect();
        if choice.stopped
            && let Some(last) = keys.last()
        {
            let text = self.server.text(last, self.listener)?;
            if is_end(&text) {
                keys.pop();
            }
        }
        Ok((keys, choice.stopped))
    }

    /// Returns the probability of an answer at temperature 1; requests the distributions that it
    /// needs.
    pub fn probability(&mut self, opening: usize, keys: &[Key]) -> Result<Option<f64>> {
        let prefixes: Vec<Prefix> =
            (0..keys.len()).map(|at| (opening, keys[..at].to_vec())).collect();
        self.fetch_distributions(&prefixes)?;
        let mut probability = 1.0;
        for (prefix, key) in prefixes.iter().zip(keys) {
            let Some(distribution) = self.known_distribution(prefix) else { return Ok(None) };
            let cell = distribution.cells.iter().find(|cell| cell.key == *key);
            probability *= cell.map_or(distribution.most_of_rest, |cell| cell.probability);
        }
        Ok(Some(probability))
    }
}
