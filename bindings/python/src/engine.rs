//! The decode loop: an engine with its models, and sessions.

use std::path::PathBuf;
use std::sync::Mutex;

use polydraft::{PolicyKind, Token};
use polydraft_engine::{
    Drafter, DrafterKind, Engine, Limits, Model, ModelDrafter, ModelInfo, NoDetokenizer, Request,
    Speculation,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::distribution::PySampling;
use crate::errors::{Failure, Result, lock, work, wrong_type};
use crate::models::{Copies, Language, Options};
use crate::names::Named;
use crate::session::{self, PyGeneration, PySession};
use crate::tables::PyTableModel;
use crate::{arrays, models, random, tree, verify};

/// A target model, its draft and any number of sessions.
///
/// `target`: a directory as published on the hub, a GGUF file, an id of the hub, to download
/// (`"org/name"`, `"org/name-GGUF:Q4_K_M"`), or a `TableModel`. `draft`: likewise, or `"self"` (a
/// quantised self-draft, in 5 or 4 bits; `"self:q8_0"` in 8), or `"ngram"` (the tokens that the
/// sequence repeats), or none for plain decoding. `dtype` and `draft_dtype`: the weight types, such
/// as `"f32"`, `"bf16"`, `"q8_0"`, `"file"` (default: as the file of a GGUF has them, else f32).
/// `device`: `"cpu"`, the only one.
/// `copies`: where the quantised self-draft is cached for the next time, a folder, or `True`
/// for the user's cache, or `False` for nowhere.
///
/// >>> target = TableModel({(): [0.9, 0.1], (0,): [0.2, 0.8]})
/// >>> engine = Engine(target, TableModel({(): [0.5, 0.5]}))
/// >>> generation = engine.generate([1], tree="paths:2,3", max_tokens=20, seed=1)
/// >>> len(generation.tokens), generation.finish, generation.statistics["target_calls"] < 20
/// (20, 'max-tokens', True)
#[pyclass(name = "Engine", module = "polydraft", frozen)]
pub struct PyEngine {
    /// No Python runs while it is locked: whatever does may drop a session, which waits for it.
    pub engine: Mutex<Engine>,
    language: Option<Language>,
    drafts: bool,
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
        match prompt.extract::<String>() {
            Ok(text) => self.encode(prompt.py(), &text),
            Err(_) => arrays::tokens("prompt", prompt),
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
        target, draft=None, *, dtype=None, draft_dtype=None, device="cpu",
        copies=Copies::Kept(true)
    ))]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        draft: Option<&Bound<'_, PyAny>>,
        dtype: Option<&str>,
        draft_dtype: Option<&str>,
        device: &str,
        copies: Copies,
    ) -> Result<Self> {
        if device != "cpu" {
            return Err(Failure::unsupported(format!(
                "device {device}: models are computed on the CPU here; llama.cpp is the way to a \
                 GPU, with the polydraft program built with --features llama-cuda"
            )));
        }
        let how = Options { dtype, draft_dtype, copies };
        let (engine, language) = match (table(target), draft) {
            (None, None) => opened(py, target, None, &how)?,
            (None, Some(name)) if table(name).is_none() => opened(py, target, Some(name), &how)?,
            (of_table, draft) => {
                let (target, language) = match of_table {
                    Some(target) => (target, None),
                    None => one("target", py, target, &how)?,
                };
                let info = target.info();
                let drafter = draft.map(|draft| drafter(py, info, draft, &how)).transpose()?;
                (Engine::new(target, drafter), language)
            }
        };
        let drafts = engine.drafter().is_some();
        let (vocabulary, context) = (engine.info().vocabulary.size(), engine.info().context);
        Ok(Self { engine: Mutex::new(engine), language, drafts, vocabulary, context })
    }

    /// The token ids of a text, with the special ones that the model expects around it.
    fn encode(&self, py: Python<'_>, text: &str) -> Result<Vec<Token>> {
        work(py, || self.language()?.encode(text))
    }

    /// The token ids of a conversation, up to where the model answers: pairs of role and content.
    fn encode_chat(&self, py: Python<'_>, messages: Vec<(String, String)>) -> Result<Vec<Token>> {
        work(py, || self.language()?.encode_chat(messages))
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
            engine.admits(&prompt)?;
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

    /// What passes and steps cost on this machine, and what to expect of drafts after a prompt like
    /// yours, in a second or two: `tree={"tree": "auto", "costs": engine.costs()}` chooses by it,
    /// and gives the same output for a seed as long as the costs are the same.
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
        let costs = work(py, || Ok(lock(&self.engine).costs(&text, &mut request)?))?;
        let json =
            serde_json::to_string(&costs).map_err(|error| Failure::input(error.to_string()))?;
        Ok(py.import("json")?.call_method1("loads", (json,))?)
    }

    /// Begins a sequence; iterate over it for its tokens, or advance several together with `step`.
    ///
    /// `prompt`: text, or token ids. `verifier`: one of `polydraft.VERIFIERS`, or none for plain
    /// decoding; `tree`: where drafts grow. `sampling` makes the target's logits the distribution
    /// of the output; `draft_sampling` makes the draft model's the one that drafts are drawn from
    /// (default: the same). It ends after `max_tokens`, with one of `end_tokens` (default: the
    /// model's), or before one of the strings `stop`. The same `seed` gives the same output, here
    /// and in the `polydraft` program.
    #[pyo3(signature = (
        prompt, *, verifier=Some("nested-priority".into()), tree="paths:2,3".into(),
        sampling=None, draft_sampling=None, max_tokens=Some(128), end_tokens=None, stop=vec![],
        seed=None
    ))]
    #[pyo3(text_signature = "($self, prompt, *, verifier='nested-priority', tree='paths:2,3', \
            sampling=None, draft_sampling=None, max_tokens=128, end_tokens=None, stop=(), \
            seed=None)")]
    #[allow(clippy::too_many_arguments)]
    fn session(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        verifier: Option<Named<'_>>,
        tree: Named<'_>,
        sampling: Option<PySampling>,
        draft_sampling: Option<PySampling>,
        max_tokens: Option<usize>,
        end_tokens: Option<Vec<Token>>,
        stop: Vec<String>,
        seed: Option<u64>,
    ) -> Result<PySession> {
        let (py, engine) = (slf.py(), slf.get());
        let prompt = engine.prompt(prompt)?;
        let sampling = sampling.unwrap_or_default().settings;
        let speculation = match verifier {
            Some(verifier) if engine.drafts => {
                let verifier = verify::given(&verifier.object(py)?)?.get().build()?;
                let policy = tree::given(&tree.object(py)?)?.get().kind.build()?;
                let of_draft = draft_sampling.map_or(sampling, |sampling| sampling.settings);
                Some(Speculation::new(verifier, policy)?.with_sampling(of_draft))
            }
            _ => None,
        };
        if !stop.is_empty() && engine.language.is_none() {
            return Err(Failure::unsupported(
                "stop: expected a model with a tokenizer, got a table",
            ));
        }
        let of_model = || engine.language.as_ref().map_or_else(Vec::new, Language::end_tokens);
        let seed: u64 = match seed {
            None => py.import("secrets")?.call_method1("randbits", (64,))?.extract()?,
            Some(seed) => seed,
        };
        let text = engine.language.as_ref().map(|language| language.stream(&prompt));
        let request = Request::new(prompt)
            .sampling(sampling)
            .speculation(speculation)
            .limits(Limits { max_tokens, end_tokens: end_tokens.unwrap_or_else(of_model), stop })
            .detokenizer(text.unwrap_or_else(|| Box::new(NoDetokenizer)))
            .rng(random::seeded(seed));
        let session = work(py, || Ok(lock(&engine.engine).open(request)?))?;
        Ok(PySession::new(slf.clone().unbind(), session))
    }

    /// Decodes one sequence from beginning to end; arguments are those of `session`.
    #[pyo3(signature = (prompt, **options))]
    #[pyo3(text_signature = "($self, prompt, *, verifier='nested-priority', tree='paths:2,3', \
            sampling=None, draft_sampling=None, max_tokens=128, end_tokens=None, stop=(), \
            seed=None)")]
    fn generate(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<PyGeneration> {
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
    /// others, to the last bit.
    fn step(&self, py: Python<'_>, sessions: Vec<PyRef<'_, PySession>>) -> Result<()> {
        let sessions: Vec<&PySession> = sessions.iter().map(|session| &**session).collect();
        for (index, session) in sessions.iter().enumerate() {
            if !std::ptr::eq(session.engine.get(), self) {
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

/// A model that is given as a table.
fn table(value: &Bound<'_, PyAny>) -> Option<Box<dyn Model>> {
    let table = value.cast::<PyTableModel>().ok()?;
    Some(Box::new((*table.get().model).clone()))
}

/// A target by its path, and its draft by its name.
fn opened(
    py: Python<'_>,
    target: &Bound<'_, PyAny>,
    draft: Option<&Bound<'_, PyAny>>,
    how: &Options<'_>,
) -> Result<(Engine, Option<Language>)> {
    let path = path_of("target", target)?;
    let name = draft.map(|draft| path_of("draft", draft)).transpose()?;
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let (engine, language) = work(py, || models::load(&path, name, how))?;
    Ok((engine, Some(language)))
}

/// The draft for a table, or a table as the draft.
fn drafter(
    py: Python<'_>,
    target: &ModelInfo,
    draft: &Bound<'_, PyAny>,
    how: &Options<'_>,
) -> Result<Box<dyn Drafter>> {
    let name = draft.extract::<String>().unwrap_or_default();
    if name == "self" || name.starts_with("self:") {
        return Err(Failure::unsupported(
            "draft self: expected a target with weights, got a table",
        ));
    }
    if let Some(kind) = DrafterKind::named(&name) {
        return Ok(kind.build(target)?);
    }
    let model = match table(draft) {
        Some(table) => table,
        None => one("draft", py, draft, how)?.0,
    };
    Ok(Box::new(ModelDrafter::new(model, &target.vocabulary)?))
}

/// A model by its path.
fn one(
    role: &'static str,
    py: Python<'_>,
    value: &Bound<'_, PyAny>,
    how: &Options<'_>,
) -> Result<(Box<dyn Model>, Option<Language>)> {
    let path = path_of(role, value)?;
    let (model, language) = work(py, || models::load_one(&path, how))?;
    Ok((model, Some(language)))
}

fn path_of(role: &'static str, value: &Bound<'_, PyAny>) -> Result<PathBuf> {
    value.extract().map_err(|_| wrong_type(role, "a path or a TableModel", value))
}
