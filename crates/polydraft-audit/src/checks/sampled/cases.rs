//! Tested settings, and the capabilities that each requires.

use std::collections::HashMap;

use crate::answer::Key;
use crate::error::Result;
use crate::probe::{self, GrammarForm};
use crate::prompts::Kind;
use crate::server::Grammar;
use crate::setting::{Cell, Counting, Setting};
use crate::state::AuditState;

/// A tested setting.
pub struct Case {
    pub name: &'static str,
    pub title: &'static str,
    /// Tokens per answer.
    pub tokens: usize,
    /// Error that all checks together should find.
    pub sensitivity: f64,
    /// Whether the check continues until all checks together find their target error.
    pub main: bool,
    /// Minimum share of the requests to spend, whatever the power: some errors take longer to
    /// appear than the simulated ones.
    pub share: f64,
    /// Whether concurrent requests have other settings.
    pub crowded: bool,
    /// Whether requests are sent one at a time.
    pub alone: bool,
    /// Ways in which the server may count penalties.
    pub countings: &'static [Counting],
    kind: Kind,
    openings: usize,
    source: SettingSource,
}

/// Origin of a setting.
enum SettingSource {
    Fixed(Setting),
    /// A ban of the most frequent token, and biases of others.
    Bias,
    /// A frequent token that ends answers, but not at the first position.
    Ends,
    /// Probable words.
    Words,
}

/// A case with its setting and openings.
pub struct Prepared {
    pub setting: Setting,
    pub openings: Vec<usize>,
    pub grammar: Option<Grammar>,
}

/// Reason why a case is not tested.
pub enum Skipped {
    /// The server lacks a capability, or rejects the setting.
    NotApplicable(String),
    /// The server takes the setting and ignores it, as this request shows.
    Ignored(String),
}

impl From<&str> for Skipped {
    fn from(reason: &str) -> Self {
        Self::NotApplicable(reason.to_owned())
    }
}

const ANSWER: &[Counting] = &[Counting::Answer];
const EITHER: &[Counting] = &[Counting::Answer, Counting::Everything];

/// Lists all cases.
pub fn cases(sensitivity: f64) -> Vec<Case> {
    let plain = |name, title, setting| Case {
        name,
        title,
        tokens: 8,
        sensitivity,
        main: false,
        share: 0.03,
        crowded: false,
        alone: false,
        countings: ANSWER,
        kind: Kind::Plain,
        openings: 3,
        source: SettingSource::Fixed(setting),
    };
    let one = Setting::default;
    vec![
        Case {
            main: true,
            share: 0.3,
            ..plain("temperature-1", "distribution at temperature 1", one())
        },
        plain(
            "temperature-0.7",
            "distribution at temperature 0.7",
            Setting { temperature: 0.7, ..one() },
        ),
        plain("top-p", "distribution with top-p 0.8", Setting { top_p: Some(0.8), ..one() }),
        plain("top-k", "distribution with top-k 3", Setting { top_k: Some(3), ..one() }),
        plain("min-p", "distribution with min-p 0.15", Setting { min_p: Some(0.15), ..one() }),
        Case { alone: true, ..plain("alone", "distribution, one request at a time", one()) },
        Case {
            crowded: true,
            ..plain("crowded", "distribution with concurrent requests of other settings", one())
        },
        Case {
            kind: Kind::Repeating,
            tokens: 12,
            ..plain("repeating", "distribution on repetitive text", one())
        },
        Case {
            kind: Kind::Hard,
            openings: 2,
            ..plain("hard", "distribution where drafts fail", one())
        },
        Case {
            countings: EITHER,
            tokens: 12,
            kind: Kind::Repeating,
            ..plain(
                "penalties",
                "presence and frequency penalty",
                Setting { presence_penalty: 1.5, frequency_penalty: 1.0, ..one() },
            )
        },
        Case {
            openings: 1,
            source: SettingSource::Bias,
            ..plain("bias", "logit bias and a ban", one())
        },
        Case {
            openings: 1,
            source: SettingSource::Ends,
            ..plain("ends", "end tokens, and a minimum number of tokens before them", one())
        },
        Case {
            kind: Kind::Repeating,
            openings: 1,
            source: SettingSource::Words,
            ..plain("grammar", "answers under a grammar", one())
        },
    ]
}

/// Ratio of the error that each check should find by itself to the error that all should find
/// together. The number of tokens falls with its square: to about a tenth, or a third.
const SINGLE_CHECK_FACTOR: f64 = 10.0 / 3.0;
const SINGLE_CHECK_FACTOR_WITH_ECHO: f64 = 5.0 / 3.0;

impl Case {
    /// Returns the error that the check should find: a smaller one where one request scores all
    /// positions of an answer.
    pub fn target_error(&self, state: &AuditState<'_>) -> f64 {
        self.sensitivity
            * if state.has_echo() { SINGLE_CHECK_FACTOR_WITH_ECHO } else { SINGLE_CHECK_FACTOR }
    }

    /// Returns the setting and openings to test, or the capability that the server lacks.
    pub fn prepare(
        &self,
        state: &mut AuditState<'_>,
    ) -> Result<std::result::Result<Prepared, Skipped>> {
        if !state.has_distributions() {
            let reason = "the server does not return its tokens, or no server returns their \
                log-probabilities";
            return Ok(Err(reason.into()));
        }
        let openings = state.choose(self.kind, self.openings)?;
        let mut grammar = None;
        let setting = match &self.source {
            SettingSource::Fixed(setting) => {
                let narrowed = setting.top_k.is_some() || setting.min_p.is_some();
                if narrowed && state.server.capabilities.top_k_off.is_none() {
                    return Ok(Err("the server does not accept this parameter".into()));
                }
                setting.clone()
            }
            SettingSource::Bias | SettingSource::Ends if !state.server.capabilities.ids => {
                return Ok(Err("the server does not return token ids".into()));
            }
            SettingSource::Bias => bias(state, openings[0])?,
            SettingSource::Ends => match ends(state, openings[0], self.tokens)? {
                Some(setting) => setting,
                None => return Ok(Err("the server does not accept stop_token_ids".into())),
            },
            SettingSource::Words => {
                let Some(setting) = words(state, openings[0])? else {
                    return Ok(Err("no prompt has probable words".into()));
                };
                // The least probable word: a server that ignores grammars rarely begins with it.
                let last = setting.words.iter().next_back().cloned().into_iter().collect();
                let probe = Setting { words: last, ..Setting::default() };
                let request = state.continuation(openings[0], 1, &probe);
                match probe::grammar(&state.server, &request, state.listener)? {
                    GrammarForm::Applied(form) => grammar = Some(form),
                    GrammarForm::Ignored(form) => {
                        let curl = state.server.curl(&state.server.grammar_call(&request, form));
                        return Ok(Err(Skipped::Ignored(curl)));
                    }
                    GrammarForm::Rejected => {
                        return Ok(Err(
                            "the server accepts none of the known forms of grammars".into()
                        ));
                    }
                }
                setting
            }
        };
        Ok(Ok(Prepared { setting, openings, grammar }))
    }
}

/// Returns the tokens that follow an opening, most frequent first.
fn frequent(state: &mut AuditState<'_>, opening: usize, tokens: usize) -> Result<Vec<u32>> {
    let request = state.continuation(opening, tokens, &Setting::default());
    let answers = state.send(&vec![request; 32], usize::MAX)?;
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for answer in &answers {
        // Skips the first token.
        for key in state.tokens(&answer.first())?.0.into_iter().skip(1) {
            if let Key::Id(id) = key {
                *counts.entry(id).or_default() += 1;
            }
        }
    }
    let mut counts: Vec<(usize, u32)> = counts.into_iter().map(|(id, n)| (n, id)).collect();
    counts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    Ok(counts.into_iter().map(|(_, id)| id).collect())
}

fn bias(state: &mut AuditState<'_>, opening: usize) -> Result<Setting> {
    let tokens = frequent(state, opening, 8)?;
    let biases = [-100.0, 1.5, -1.0];
    let bias = tokens.into_iter().zip(biases).collect();
    Ok(Setting { bias, ..Setting::default() })
}

fn ends(state: &mut AuditState<'_>, opening: usize, tokens: usize) -> Result<Option<Setting>> {
    const LOOKS: usize = 24;
    for end in frequent(state, opening, tokens)?.into_iter().take(3) {
        let setting = Setting { ends: vec![end], ..Setting::default() };
        let request = state.continuation(opening, tokens, &setting);
        let answers = state.send(&vec![request; LOOKS], usize::MAX)?;
        let stopped = answers.iter().filter(|answer| answer.first().stopped).count();
        // Requires a token that ends some answers.
        if stopped > LOOKS / 8 {
            return Ok(Some(Setting { min_tokens: 3, ..setting }));
        }
    }
    Ok(None)
}

fn words(state: &mut AuditState<'_>, opening: usize) -> Result<Option<Setting>> {
    let prefix = (opening, Vec::new());
    state.fetch_distributions(std::slice::from_ref(&prefix))?;
    let Some(distribution) = state.known_distribution(&prefix) else { return Ok(None) };
    let mut words: Vec<String> = Vec::new();
    let keys: Vec<Key> = distribution.cells.iter().map(|cell| cell.key.clone()).collect();
    state.fetch_texts(&keys)?;
    for (cell, key) in distribution.cells.iter().zip(&keys) {
        let cell = Cell { text: state.text_of(std::slice::from_ref(key))?, ..cell.clone() };
        let plain = cell.text.trim_start_matches(' ').chars().all(char::is_alphanumeric);
        let related =
            words.iter().any(|word| word.starts_with(&cell.text) || cell.text.starts_with(word));
        if plain && !cell.text.trim().is_empty() && !related && words.len() < 4 {
            words.push(cell.text.clone());
        }
    }
    Ok((words.len() > 1).then(|| Setting { words, ..Setting::default() }))
}
