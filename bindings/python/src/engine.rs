//! The decode loop: an engine with its models, and sessions.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use polydraft::policy::Choices;
use polydraft::{PolicyKind, Token};
use polydraft_engine::{Engine, Limits, NoDetokenizer, Request, Speculation};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{self, MaxTokens, OPTIONS, Seed, Stops, check_keywords};
use crate::distribution::PySampling;
use crate::drafting::{DraftSampling, DraftingOf, Lesson, check_plain};
use crate::drafts::{DraftArgument, drafter, path_of, table};
use crate::errors::{Failure, Result, lock, wrong_type};
use crate::models::{Copies, DraftTokens, Drafts, Facts, Language, Options};
use crate::names::Named;
use crate::session::{self, Learn, PyGeneration, PySession};
use crate::threads::work;
use crate::tree;
use crate::{arrays, models, random, verify};

/// A target model, its draft and any number of sessions.
///
/// `target`: a directory as published on the hub, a GGUF file, an id of the hub, to download
/// (`"org/name"`, `"org/name-GGUF:Q4_K_M"`), or a `TableModel`. `draft`: `"auto"`, what the
/// `polydraft` program chooses (a layer that the model brings, else a quantised self-draft of
/// f32 and bf16 weights, else n-grams; none for a table); a model, a draft head, a table of n-grams
/// or a
/// `TableModel`; `"self"` (a quantised self-draft, in 5 or 4 bits; `"self:q8_0"` in 8), `"mtp"` (a
/// layer that the model brings), `"ngram"` (the tokens that the sequence repeats); several as a
/// list, each of which draws a path; or `"none"` for plain decoding.
///
/// `dtype` and `draft_dtype`: the weight types, such as `"f32"`, `"bf16"`, `"q8_0"`, `"file"`
/// (default: as the file of a GGUF has them, else f32). `copies`: where the quantised self-draft is
/// cached for the next time, a folder, or `True` for the user's cache, or `False` for nowhere.
/// `corpus`: a file whose n-grams draft too. `learn`: a table of n-grams, created if missing, that
/// drafts and learns from the output; `store()` writes it. `mix_ngrams`: whether n-grams are mixed
/// into the draft's distribution (default: for heads and MTP layers). `draft_vocabulary`: tokens
/// that the draft may propose, how many of the first or a file that lists them. `draft_layers`: the
/// layers that a draft head reads. `cache_type`: the KV cache's type, `"f32"` or `"f16"`.
/// `acceptance`: measured acceptances, from which sequoia trees are made, as numbers or a file of
/// them (`Tree`). `offline`: never use the network.
///
/// >>> target = TableModel({(): [0.9, 0.1], (0,): [0.2, 0.8]})
/// >>> engine = Engine(target, TableModel({(): [0.5, 0.5]}))
/// >>> generation = engine.generate([1], tree="paths:2,3", max_tokens=20, seed=1)
/// >>> len(generation.tokens), generation.finish, generation.statistics["target_calls"] < 20
/// (20, 'max-tokens', True)
#[pyclass(name = "Engine", module = "polydraft", frozen)]
pub struct PyEngine {
    /// No Python runs while it is locked: whatever does may drop a session, which waits for it.
    pub engine: Arc<Mutex<Engine>>,
    language: Option<Language>,
    facts: Option<Facts>,
    /// The acceptances that sequoia trees are made from.
    acceptance: Option<Vec<f64>>,
    /// Names of the target and of what drafts.
    name: String,
    drafter_name: Option<String>,
    /// Number of drafters.
    pub drafters: usize,
    /// Number of tokens.
    #[pyo3(get)]
    vocabulary: usize,
    /// Tokens that a sequence may have, its prompt included.
    #[pyo3(get)]
    context: usize,
}

impl PyEngine {
    /// The tokens of a text, or those that were given.
    pub fn prompt(&self, prompt: &Bound<'_, PyAny>) -> Result<Vec<Token>> {
        match arguments::text("prompt", prompt)? {
            Some(text) => work(prompt.py(), || self.language()?.encode(&text)),
            None if arguments::is_message(prompt) => Err(Failure::input(
                "prompt: expected text or token ids, got messages: give \
                 engine.encode_chat(messages)",
            )),
            None if prompt.hasattr("__len__")? || prompt.hasattr("tolist")? => {
                arrays::tokens("prompt", prompt)
            }
            None => Err(wrong_type("prompt", "text or token ids", prompt)),
        }
    }

    /// Returns what determines how it drafts.
    pub fn drafting(&self) -> DraftingOf<'_> {
        let (acceptance, facts) = (self.acceptance.as_deref(), self.facts.as_ref());
        DraftingOf { drafters: self.drafters, acceptance, facts }
    }

    /// Learns the costs of steps from a finished sequence without a seed.
    pub fn learn(&self, (verifier, sampling): &Lesson, choices: &Choices) {
        if let Some(facts) = &self.facts {
            facts.learn(verifier, sampling, choices);
        }
    }

    fn language(&self) -> Result<&Language> {
        let none = || {
            Failure::unsupported(
                "text: expected a model with a tokenizer, got a table; give token ids",
            )
        };
        self.language.as_ref().ok_or_else(none)
    }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (
        target, draft=Some(DraftArgument::Name("auto".into())), *, dtype=None, draft_dtype=None,
        copies=Copies::UserFolder(true), corpus=None, learn=None, mix_ngrams=None,
        draft_vocabulary=None,
        draft_layers=None, cache_type=None, acceptance=None, offline=false
    ))]
    #[pyo3(
        text_signature = "(target, draft='auto', *, dtype=None, draft_dtype=None, copies=True, \
            corpus=None, learn=None, mix_ngrams=None, draft_vocabulary=None, draft_layers=None, \
            cache_type=None, acceptance=None, offline=False)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        draft: Option<DraftArgument<'_>>,
        dtype: Option<String>,
        draft_dtype: Option<String>,
        copies: Copies,
        corpus: Option<PathBuf>,
        learn: Option<PathBuf>,
        mix_ngrams: Option<bool>,
        draft_vocabulary: Option<DraftTokens>,
        draft_layers: Option<Vec<usize>>,
        cache_type: Option<String>,
        acceptance: Option<&Bound<'_, PyAny>>,
        offline: bool,
    ) -> Result<Self> {
        let how = Options {
            dtype,
            draft_dtype,
            copies,
            corpus,
            learn,
            mix_ngrams,
            draft_vocabulary,
            draft_layers,
            cache_type,
            offline,
        };
        let acceptance = tree::read_acceptance(acceptance)?;
        let (engine, language, facts) = match (table(target), draft) {
            (None, draft) if !draft.as_ref().is_some_and(DraftArgument::has_table) => {
                let path = path_of("target", target)?;
                let drafts = draft.map_or(Ok(Drafts::None("None")), |draft| draft.names())?;
                let (engine, language, facts) = work(py, || models::load(&path, drafts, &how))?;
                (engine, Some(language), Some(facts))
            }
            (of_table, draft) => {
                let (target, language) = match of_table {
                    Some(target) => {
                        let of_draft = ["dtype", "draft_dtype", "cache_type"];
                        let has_files = draft.as_ref().is_some_and(DraftArgument::has_files);
                        let used = if has_files { &of_draft[..] } else { &[] };
                        how.check(used, "a target with weights, got a table")?;
                        (target, None)
                    }
                    None => {
                        how.check(&["dtype", "cache_type"], "a draft with weights, got a table")?;
                        let path = path_of("target", target)?;
                        let (model, language) = work(py, || models::load_target(&path, &how))?;
                        (model, Some(language))
                    }
                };
                let info = target.info();
                let drafter = draft.map(|draft| drafter(py, info, &draft, &how)).transpose()?;
                (Engine::new(target, drafter.flatten()), language, None)
            }
        };
        let drafters = engine.drafter_count();
        let (vocabulary, context) = (engine.info().vocabulary.size(), engine.info().context);
        let name = engine.info().name.clone();
        let drafter_name = engine.drafter_name().map(str::to_owned);
        let engine = Arc::new(Mutex::new(engine));
        Ok(Self {
            engine,
            language,
            facts,
            acceptance,
            name,
            drafter_name,
            drafters,
            vocabulary,
            context,
        })
    }

    /// The draft's name; none where nothing drafts, and for tables.
    #[getter]
    fn draft(&self) -> Option<String> {
        self.facts.as_ref()?.draft.clone()
    }

    fn __repr__(&self) -> String {
        let draft = self.draft().or_else(|| self.drafter_name.clone());
        let draft = draft.map_or_else(|| "None".to_owned(), |draft| format!("'{draft}'"));
        let context = match self.context {
            usize::MAX => String::new(),
            context => format!(", context={context}"),
        };
        format!("Engine('{}', draft={draft}, vocabulary={}{context})", self.name, self.vocabulary)
    }

    /// Stores the n-grams that were learned (`learn`), and learns no more. They are also stored
    /// every five minutes.
    fn store(&self, py: Python<'_>) -> Result<()> {
        work(py, || self.facts.as_ref().map_or(Ok(()), Facts::store))
    }

    /// The token ids of a text, with the special ones that the model expects around it.
    fn encode(&self, text: &Bound<'_, PyAny>) -> Result<Vec<Token>> {
        let given = arguments::text("text", text)?;
        let given = given.ok_or_else(|| wrong_type("text", "text", text))?;
        work(text.py(), || self.language()?.encode(&given))
    }

    /// The token ids of a conversation, up to where the model answers: a list of pairs of role and
    /// content, or of dictionaries with these keys.
    fn encode_chat(&self, messages: &Bound<'_, PyAny>) -> Result<Vec<Token>> {
        let py = messages.py();
        let messages = arguments::messages(messages)?;
        work(py, || self.language()?.encode_chat(messages))
    }

    /// The sampling that the program and the server use in conversations: the settings published
    /// with the model or, if there are none, temperature 0.7 and top-p 0.95.
    #[getter]
    fn chat_sampling(&self) -> Result<PySampling> {
        Ok(PySampling { settings: self.language()?.chat_sampling() })
    }

    /// The text of token ids.
    fn decode(&self, tokens: &Bound<'_, PyAny>) -> Result<String> {
        let (py, tokens) = (tokens.py(), arrays::tokens("tokens", tokens)?);
        work(py, || self.language()?.decode(&tokens))
    }

    /// The target's logits after a prompt: float32, `[vocabulary]`.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
    ) -> Result<Bound<'py, numpy::PyArray1<f32>>> {
        let prompt = self.prompt(prompt)?;
        let logits = work(py, || {
            let mut engine = lock(&self.engine);
            engine.check_prompt(&prompt)?;
            let target = engine.target();
            let sequence = target.open()?;
            let tree = polydraft::DraftTree::new();
            let scored =
                target.extend(sequence, &prompt).and_then(|()| target.score(&[(sequence, &tree)]));
            let logits =
                scored.map(|()| target.logits(sequence, polydraft::DraftTree::ROOT).to_vec());
            target.close(sequence);
            Ok(logits?)
        })?;
        Ok(numpy::PyArray1::from_vec(py, logits))
    }

    /// Measures the costs of passes and steps on this machine, and the expected acceptance after a
    /// prompt like yours, in a second or two: `tree={"tree": "auto", "costs": engine.costs()}`
    /// chooses by it, and gives the same output for a seed as long as the costs are the same.
    #[pyo3(signature = (
        prompt=None, *, verifier="nested-priority".into(), sampling=None, draft_sampling=None
    ))]
    #[pyo3(text_signature = "($self, prompt=None, *, verifier='nested-priority', sampling=None, \
            draft_sampling=None)")]
    fn costs<'py>(
        &self,
        py: Python<'py>,
        prompt: Option<&Bound<'py, PyAny>>,
        verifier: Named<'py>,
        sampling: Option<PySampling>,
        draft_sampling: Option<PySampling>,
    ) -> Result<Bound<'py, PyAny>> {
        let text = prompt.map(|prompt| self.prompt(prompt)).transpose()?.unwrap_or_default();
        let verifier = verify::given(&verifier.object(py)?)?;
        let (kind, sampling) = (&verifier.get().kind, sampling.unwrap_or_default().settings);
        let of_draft = draft_sampling.map_or(sampling, |sampling| sampling.settings);
        let mut request = |prompt, tree: PolicyKind| {
            let speculation = Speculation::new(kind.build()?, tree.build()?)?;
            Ok(Request::new(prompt)
                .sampling(sampling)
                .speculation(speculation.with_sampling(of_draft))
                .rng(random::seeded(0)))
        };
        let costs = work(py, || Ok(lock(&self.engine).measure_costs(&text, &mut request)?))?;
        let json =
            serde_json::to_string(&costs).map_err(|error| Failure::input(error.to_string()))?;
        Ok(py.import("json")?.call_method1("loads", (json,))?)
    }

    /// Begins a sequence; iterate over it for its tokens, or advance several together with `step`.
    ///
    /// `prompt`: text, or token ids. `verifier`: one of `polydraft.VERIFIERS`, or `"none"`: plain
    /// decoding, without a tree. `tree`: where drafts grow, with the draws that the verifier is
    /// made for; by default `"auto"`, one path, as deep as is worth it by what steps cost on this
    /// machine, or with several drafts a path from each.
    /// `sampling` makes the target's logits the distribution of the output; `draft_sampling` makes
    /// the draft model's the one that drafts are drawn from (default: the same), or a list of one
    /// for each path. It ends after `max_tokens`, with one of `end_tokens` (default: the model's),
    /// or before a string of `stop`, one or a list. The same `seed` gives the same output, here and
    /// in the `polydraft` program with the same draft: drafts then depend on no time that was
    /// measured (but on the table that `learn` trains).
    #[pyo3(signature = (
        prompt, *, verifier=Some("nested-priority".into()), tree=None,
        sampling=None, draft_sampling=None, max_tokens=Some(MaxTokens(128)), end_tokens=None,
        stop=Stops::default(), seed=None, **unknown
    ))]
    #[pyo3(text_signature = "($self, prompt, *, verifier='nested-priority', tree='auto', \
            sampling=None, draft_sampling=None, max_tokens=128, end_tokens=None, stop=(), \
            seed=None)")]
    #[allow(clippy::too_many_arguments)]
    fn session(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        verifier: Option<Named<'_>>,
        tree: Option<&Bound<'_, PyAny>>,
        sampling: Option<PySampling>,
        draft_sampling: Option<DraftSampling>,
        max_tokens: Option<MaxTokens>,
        end_tokens: Option<&Bound<'_, PyAny>>,
        stop: Stops,
        seed: Option<Seed>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> Result<PySession> {
        check_keywords("session", unknown, &[])?;
        let (py, engine) = (slf.py(), slf.get());
        let prompt = engine.prompt(prompt)?;
        let sampling = sampling.unwrap_or_default().settings;
        let verifier = match verifier {
            Some(verifier) if !verifier.is_none() => Some(verifier),
            plain => {
                let given =
                    [("tree", tree.is_some()), ("draft_sampling", draft_sampling.is_some())];
                check_plain(plain.is_some(), given)?;
                None
            }
        };
        let is_seeded = seed.is_some();
        let (speculation, lesson) = match verifier {
            Some(verifier) if engine.drafters > 0 => {
                let verifier = verify::given(&verifier.object(py)?)?;
                let verifier = verifier.get();
                let drafting = engine.drafting().with(
                    py,
                    &verifier.kind,
                    tree,
                    sampling,
                    draft_sampling,
                    is_seeded,
                )?;
                (Some(drafting.verified_by(verifier.build()?)?), drafting.lesson)
            }
            _ => (None, None),
        };
        if !stop.0.is_empty() && engine.language.is_none() {
            return Err(Failure::unsupported(
                "stop: expected a model with a tokenizer, got a table",
            ));
        }
        let of_model = || engine.language.as_ref().map_or_else(Vec::new, Language::end_tokens);
        let Seed(seed) = match seed {
            None => py.import("secrets")?.call_method1("randbits", (64,))?.extract()?,
            Some(seed) => seed,
        };
        let text = engine.language.as_ref().map(|language| language.stream(&prompt));
        let request = Request::new(prompt)
            .sampling(sampling)
            .speculation(speculation)
            .limits(Limits {
                max_tokens: max_tokens.map_or(Ok(None), MaxTokens::limit)?,
                end_tokens: match end_tokens {
                    Some(tokens) => arrays::tokens("end_tokens", tokens)?,
                    None => of_model(),
                },
                stop: stop.0,
                stop_outside: None,
            })
            .detokenizer(text.unwrap_or_else(|| Box::new(NoDetokenizer)))
            .rng(random::seeded(seed));
        let mut session = work(py, || Ok(lock(&engine.engine).open(request)?))?;
        if is_seeded {
            session.make_independent();
        }
        let owner = slf.clone().unbind();
        let learn = lesson.map(|lesson| -> Learn {
            let engine = owner.clone_ref(py);
            Box::new(move |choices| engine.get().learn(&lesson, choices))
        });
        Ok(PySession::new(owner.into_any(), engine.engine.clone(), session, learn))
    }

    /// Decodes one sequence from beginning to end; arguments are those of `session`.
    #[pyo3(signature = (prompt, **options))]
    #[pyo3(text_signature = "($self, prompt, *, verifier='nested-priority', tree='auto', \
            sampling=None, draft_sampling=None, max_tokens=128, end_tokens=None, stop=(), \
            seed=None)")]
    fn generate(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<PyGeneration> {
        check_keywords("generate", options, &OPTIONS)?;
        let session = slf.call_method("session", (prompt,), options)?;
        let session = session.cast::<PySession>().map_err(PyErr::from)?.get();
        let py = slf.py();
        while !session.is_done() {
            // Ctrl-C is looked for between steps.
            if let Err(interrupted) = py.check_signals() {
                session.close(py)?;
                return Err(interrupted.into());
            }
            session.advance(py)?;
        }
        session.close(py)
    }

    /// Advances several sequences in one pass of the target. What each gets does not depend on the
    /// others, to the last bit, but for the tree `"auto"` without a seed: the more sequences there
    /// are, the less it drafts.
    fn step(&self, py: Python<'_>, sessions: Vec<PyRef<'_, PySession>>) -> Result<()> {
        let sessions: Vec<&PySession> = sessions.iter().map(|session| &**session).collect();
        for (index, session) in sessions.iter().enumerate() {
            if !Arc::ptr_eq(&session.engine, &self.engine) {
                return Err(Failure::input(
                    "step: expected sessions of this engine, got one of another",
                ));
            }
            if sessions[..index].iter().any(|other| std::ptr::eq(*other, *session)) {
                return Err(Failure::input("step: expected each session once, got one twice"));
            }
        }
        work(py, || session::step(&mut lock(&self.engine), &sessions))
    }
}
