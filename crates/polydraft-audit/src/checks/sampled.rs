//! Is what comes after the first token distributed as the model says?
//!
//! Problem: the tokens that speculation has a hand in must have the distributions that the model
//! has after what stands before them.
//! Source: `evidence`; the model's distributions come from requests of one token each, which no
//! draft has a part in.
//! Complexity: a request for every answer, and one for every place that is looked at.
//! Deviations: (1) not every place is looked at: those that an answer came by before, and one at
//! random in every answer. Which they are depends on what stands before the token, never on the
//! token, so that the bet stays fair. (2) Where prompts come back with log-probabilities, one
//! request tells of all places of an answer.

mod cases;
mod deviation;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use rand::RngExt;

use cases::{Case, Prepared, cases};
use deviation::deviation;

use super::Check;
use crate::answer::{Answer, Key};
use crate::error::{Error, Result};
use crate::evidence::{Bettor, Context, LARGEST, Odds, Trail, p_value, smallest_found, would_find};
use crate::lab::{Lab, Place};
use crate::report::{Outcome, Verdict};
use crate::server::{Ask, is_end};
use crate::setting::{Cell, Conditional, Counting, Setting, may_become};

/// What must be owned for a check to go on though it has seen what it wanted to see.
const SUSPICION: f64 = 20.0;
/// Answers of a round.
const ROUND: usize = 48;
/// Answers that obey a grammar are enough where their distribution cannot be known.
const OBEYED: usize = 480;
/// Where a test does not reach what it should, it goes on to this many tokens at most.
const MOST_TOKENS: usize = 40_000;

/// A check of distributions.
pub struct Sampled {
    case: Case,
    prepared: Option<Prepared>,
    /// Why it cannot be made.
    lacking: Option<String>,
    /// Tokens after the first, a bettor for each way to count.
    bettors: Vec<(Counting, Bettor)>,
    /// The logarithm of the most that the poorest of them owned.
    most: f64,
    /// First tokens, with which no draft has to do; likewise.
    firsts: Vec<Bettor>,
    most_of_first: f64,
    trail: Trail,
    visits: HashMap<Place, usize>,
    /// Contexts that were bet on.
    contexts: HashMap<Place, Rc<Conditional>>,
    answers: usize,
    requests: usize,
    /// When the power is looked at next, and whether it was enough for what is aimed at.
    next_look: usize,
    enough: bool,
    /// At the last look not even the largest error would have been found.
    blind: bool,
    /// An answer that no lossless server gives.
    impossible: Option<(Ask, String)>,
}

/// What came at a place.
enum Came {
    Token(Key),
    End,
}

/// All of them.
pub fn all(sensitivity: f64, tolerance: f64) -> Vec<Sampled> {
    cases(sensitivity).into_iter().map(|case| Sampled::new(case, tolerance)).collect()
}

fn number(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// A place as a bettor knows it.
fn context(place: &Place, emitted: &Conditional) -> Context {
    let before = |back: usize| place.1.iter().rev().nth(back).map_or(0, number);
    Context {
        place: number(place),
        position: place.1.len(),
        before: [before(0), before(1)],
        tokens: emitted.cells.iter().map(|cell| number(&cell.key)).collect(),
    }
}

/// The tokens that end an answer as one: servers do not say which of them it was. Also its key.
fn with_one_end(mut emitted: Conditional, ends: &[u32]) -> (Conditional, Option<Key>) {
    let ending =
        |cell: &Cell| is_end(&cell.text) || ends.iter().any(|end| cell.key == Key::Id(*end));
    let all: f64 = emitted.cells.iter().filter(|cell| ending(cell)).map(|c| c.probability).sum();
    let mut kept = None;
    emitted.cells.retain_mut(|cell| {
        if !ending(cell) {
            return true;
        }
        let first = kept.is_none();
        if first {
            kept = Some(cell.key.clone());
            cell.probability = all;
        }
        first
    });
    emitted.cells.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    (emitted, kept)
}

fn odds(emitted: &Conditional) -> Odds {
    Odds::new(emitted.cells.iter().map(|cell| cell.probability), emitted.slack)
}

impl Sampled {
    fn new(case: Case, tolerance: f64) -> Self {
        let bettors = case.countings.iter().map(|c| (*c, Bettor::new(tolerance))).collect();
        let firsts = case.countings.iter().map(|_| Bettor::new(tolerance)).collect();
        Self {
            case,
            prepared: None,
            lacking: None,
            bettors,
            most: 0.0,
            firsts,
            most_of_first: 0.0,
            trail: Trail::new(),
            visits: HashMap::new(),
            contexts: HashMap::new(),
            answers: 0,
            requests: 0,
            next_look: 500,
            enough: false,
            blind: true,
            impossible: None,
        }
    }

    fn tokens(&self) -> usize {
        self.bettors[0].1.tokens()
    }

    /// A round of answers, with their openings.
    fn sample(&mut self, lab: &mut Lab<'_>) -> Result<Vec<(usize, Answer)>> {
        let Some(prepared) = &self.prepared else { return Ok(Vec::new()) };
        let openings: Vec<usize> = (0..ROUND)
            .map(|at| prepared.openings[(self.answers + at) % prepared.openings.len()])
            .collect();
        let mut asks: Vec<Ask> = openings
            .iter()
            .map(|at| lab.continuation(*at, self.case.tokens, &prepared.setting))
            .collect();
        if self.case.crowded {
            // Neighbours with other settings, between them; their answers are not looked at.
            let others = [
                Setting { temperature: 0.0, ..Setting::default() },
                Setting { temperature: 0.5, top_p: Some(0.5), ..Setting::default() },
            ];
            for (at, other) in (0..ROUND / 2).zip(others.iter().cycle()) {
                let length = self.case.tokens * (1 + at % 4);
                asks.insert(3 * at + 2, lab.continuation(openings[at], length, other));
            }
        }
        let at_most = if self.case.alone { 1 } else { usize::MAX };
        let answers = match prepared.grammar {
            None => lab.ask(&asks, at_most)?,
            Some(grammar) => {
                let calls: Vec<_> =
                    asks.iter().map(|ask| lab.server.call_for_words(ask, grammar)).collect();
                let replies = lab.server.client.send_all(&calls, at_most, lab.listener)?;
                let read = |(call, reply)| lab.server.read(call, reply);
                calls.iter().zip(&replies).map(read).collect::<Result<Vec<_>>>()?
            }
        };
        let kept = answers.into_iter().enumerate();
        let kept = kept.filter(|(at, _)| !self.case.crowded || at % 3 != 2 || *at >= 3 * ROUND / 2);
        let kept: Vec<Answer> = kept.map(|(_, answer)| answer).collect();
        self.answers += ROUND;
        Ok(openings.into_iter().zip(kept).collect())
    }

    /// The places of the answers that are looked at, and what came there. It is decided before it
    /// is known what came.
    fn places(
        &mut self,
        lab: &mut Lab<'_>,
        answers: &[(usize, Answer)],
    ) -> Result<Vec<(Place, Came)>> {
        let Some(prepared) = &self.prepared else { return Ok(Vec::new()) };
        let (setting, length) = (prepared.setting.clone(), self.case.tokens);
        let mut found = Vec::new();
        for (opening, answer) in answers {
            let choice = answer.first();
            let (keys, stopped) = lab.tokens(&choice)?;
            let listed = |key: &Key| setting.ends.iter().any(|end| *key == Key::Id(*end));
            let named = keys.last().is_some_and(listed);
            // Some servers tell the token that ended the answer, others do not.
            let said = keys.len() - usize::from(stopped && named);
            let ended = stopped.then_some(Came::End);
            let chosen = lab.rng.random_range(1..length.max(2));
            let came = keys[..said].iter().cloned().map(Came::Token).chain(ended);
            for (at, came) in came.enumerate().take(length) {
                let place = (*opening, keys[..at.min(keys.len())].to_vec());
                let visits = self.visits.entry(place.clone()).or_default();
                let looked_at = at == 0
                    || *visits > 0
                    || at == chosen
                    || lab.tells_paths()
                    || lab.was_asked(&place);
                *visits += 1;
                if looked_at {
                    found.push((place, came));
                }
            }
        }
        Ok(found)
    }

    /// Bets on what came.
    fn bet(&mut self, lab: &mut Lab<'_>, place: Place, came: &Came) -> Result<()> {
        let Some(prepared) = &self.prepared else { return Ok(()) };
        let mut setting = prepared.setting.clone();
        if setting.min_tokens > 0
            && let Some(conditional) = lab.at(&place)
        {
            // Before so many tokens no end token is possible, the model's own included.
            let ends = conditional.cells.iter().filter(|cell| is_end(&cell.text));
            setting.ends.extend(ends.filter_map(|cell| match cell.key {
                Key::Id(id) => Some(id),
                Key::Text(_) => None,
            }));
        }
        for index in 0..self.bettors.len() {
            let counting = self.bettors[index].0;
            let Some(emitted) = lab.emitted(&place, &setting, counting)? else { continue };
            let (emitted, end) = with_one_end(emitted, &setting.ends);
            let (context, odds) = (context(&place, &emitted), odds(&emitted));
            let cell = match came {
                Came::Token(key) => emitted.cells.iter().position(|cell| cell.key == *key),
                Came::End => end.and_then(|end| emitted.cells.iter().position(|c| c.key == end)),
            };
            let cell = cell.unwrap_or(odds.rest()).min(odds.rest());
            if place.1.is_empty() {
                self.firsts[index].see(&context, &odds, cell);
                continue;
            }
            self.bettors[index].1.see(&context, &odds, cell);
            if index == 0 {
                let odds = Rc::new(odds);
                if self.bettors.len() == 1 {
                    lab.bet_together(&context, &odds, cell);
                }
                self.trail.push(odds);
                self.contexts.entry(place.clone()).or_insert_with(|| Rc::new(emitted));
            }
        }
        // The server may count either way: the poorest has the evidence.
        let poorest = |all: &mut dyn Iterator<Item = &Bettor>| {
            all.map(|bettor| bettor.wealth().now()).fold(f64::INFINITY, f64::min)
        };
        let after = poorest(&mut self.bettors.iter().map(|(_, bettor)| bettor));
        self.most = self.most.max(after);
        self.most_of_first = self.most_of_first.max(poorest(&mut self.firsts.iter()));
        Ok(())
    }

    /// Whether anything else has to be seen.
    fn is_done(&mut self, lab: &mut Lab<'_>, bar: f64) -> bool {
        if self.impossible.is_some() || self.most >= bar || self.most_of_first >= bar {
            return true;
        }
        if self.tokens() >= self.next_look {
            self.next_look = self.tokens() * 5 / 4;
            let aim = self.case.aim(lab);
            let finds = |size| would_find(&self.trail, lab.options.tolerance, bar, size);
            self.enough = finds(aim);
            self.blind = !self.enough && self.is_grammar() && !finds(LARGEST);
        }
        // Who is suspected is looked at on.
        let now = self.bettors.iter().map(|(_, bettor)| bettor.wealth().now());
        if now.fold(f64::INFINITY, f64::min) > SUSPICION.ln() {
            return self.tokens() > MOST_TOKENS;
        }
        let reached =
            self.enough && self.requests as f64 >= self.case.share * lab.options.requests as f64;
        let obeyed = self.blind && self.is_grammar() && self.answers >= OBEYED;
        (reached && (!self.case.main || lab.finds_enough(bar)))
            || obeyed
            || self.tokens() > MOST_TOKENS
    }

    /// Whether answers that break a rule are what it looks for first.
    fn is_grammar(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.grammar.is_some())
    }
}

impl Check for Sampled {
    fn name(&self) -> &'static str {
        self.case.name
    }

    fn title(&self) -> String {
        self.case.title.to_owned()
    }

    fn is_statistical(&self) -> bool {
        true
    }

    fn round(&mut self, lab: &mut Lab<'_>, bar: f64) -> Result<bool> {
        if self.lacking.is_some() {
            return Ok(true);
        }
        if self.prepared.is_none() {
            match self.case.prepare(lab) {
                Ok(Ok(prepared)) => self.prepared = Some(prepared),
                Ok(Err(lacking)) => self.lacking = Some(lacking),
                Err(Error::Refused { status, reason, .. }) => {
                    self.lacking = Some(format!("the server refused it ({status}): {reason}"));
                }
                Err(error) => return Err(error),
            }
            if self.lacking.is_some() {
                return Ok(true);
            }
        }
        let sent = lab.server.client.sent();
        let answers = match self.sample(lab) {
            Err(Error::Refused { status, reason, .. }) if self.answers == 0 => {
                self.lacking = Some(format!("the server refused it ({status}): {reason}"));
                return Ok(true);
            }
            answers => answers?,
        };
        if let Some(prepared) = &self.prepared
            && !prepared.setting.words.is_empty()
        {
            let words = &prepared.setting.words;
            let strange = answers.iter().find(|(_, a)| !may_become(words, &a.first().text));
            if let Some((opening, answer)) = strange {
                let ask = lab.continuation(*opening, self.case.tokens, &prepared.setting);
                self.impossible = Some((ask, answer.first().text));
                return Ok(true);
            }
        }
        let places = self.places(lab, &answers)?;
        let asked: Vec<Place> = places.iter().map(|(place, _)| place.clone()).collect();
        lab.learn(&asked)?;
        for (place, came) in places {
            self.bet(lab, place, &came)?;
        }
        self.requests += lab.server.client.sent() - sent;
        Ok(self.is_done(lab, bar))
    }

    fn outcome(&mut self, lab: &mut Lab<'_>, bar: f64) -> Result<Outcome> {
        if let Some(lacking) = &self.lacking {
            return Ok(Outcome::not_applicable(lacking.clone()));
        }
        if let Some((ask, text)) = &self.impossible {
            let prepared = self.prepared.as_ref().expect("there was an answer");
            let mut outcome = Outcome::certain(
                Verdict::Fault,
                self.answers,
                format!("an answer that the grammar does not allow: {text:?}"),
            );
            if let Some(grammar) = prepared.grammar {
                let curl = lab.server.curl(&lab.server.call_for_words(ask, grammar));
                outcome.evidence.push(crate::report::Evidence { what: outcome.said.clone(), curl });
            }
            return Ok(outcome);
        }
        let most = self.most.max(self.most_of_first);
        let would_find = match most < bar {
            true => smallest_found(&self.trail, lab.options.tolerance, bar),
            false => None,
        };
        let verdict = match most >= bar {
            true => Verdict::Fault,
            // Somewhat more than what was aimed at is still worth saying.
            false if would_find.is_some_and(|found| found <= 2.0 * self.case.aim(lab)) => {
                Verdict::Passed
            }
            false if self.is_grammar() && self.answers >= OBEYED => Verdict::Passed,
            false => Verdict::NotEnoughData,
        };
        let mut outcome = Outcome {
            verdict,
            p_value: Some(p_value(most)),
            would_find,
            seen: self.tokens(),
            said: String::new(),
            evidence: Vec::new(),
        };
        deviation(self, lab, &mut outcome);
        Ok(outcome)
    }
}
