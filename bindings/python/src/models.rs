//! Models from files, where the wheel was built with them (feature `models`).

use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Detokenizer, Engine, Model};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};

/// Options of loading models; each field is the keyword of the same name.
#[derive(Default)]
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "there are none to load"))]
pub struct Options {
    /// The target's weight type; none is as its file has it, else f32.
    pub dtype: Option<String>,
    /// The draft's; none is the target's.
    pub draft_dtype: Option<String>,
    /// Where a quantised copy of the target is cached for the next time.
    pub copies: Copies,
    /// A file whose n-grams draft too.
    pub corpus: Option<PathBuf>,
    /// A table of n-grams that drafts, and learns from the target's output.
    pub learn: Option<PathBuf>,
    /// Whether n-grams of the sequence are mixed into the draft's distribution.
    pub mix_ngrams: Option<bool>,
    /// Tokens that the draft may propose.
    pub draft_vocabulary: Option<DraftTokens>,
    /// The layers of the target whose inputs a draft head reads.
    pub draft_layers: Option<Vec<usize>>,
    /// The type of the KV cache.
    pub cache_type: Option<String>,
    /// Never uses the network.
    pub offline: bool,
}

impl Options {
    /// Refuses options that are given and would have no effect: all but those that are `used`.
    pub fn check(&self, used: &[&str], expected: &str) -> Result<()> {
        let given = [
            ("dtype", self.dtype.is_some()),
            ("draft_dtype", self.draft_dtype.is_some()),
            ("corpus", self.corpus.is_some()),
            ("learn", self.learn.is_some()),
            ("mix_ngrams", self.mix_ngrams.is_some()),
            ("draft_vocabulary", self.draft_vocabulary.is_some()),
            ("draft_layers", self.draft_layers.is_some()),
            ("cache_type", self.cache_type.is_some()),
        ];
        match given.into_iter().find(|(name, given)| *given && !used.contains(name)) {
            Some((name, _)) => Err(Failure::input(format!("{name}=: expected {expected}"))),
            None => Ok(()),
        }
    }
}

/// Tokens that a draft may propose.
#[derive(FromPyObject)]
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "there are none to load"))]
pub enum DraftTokens {
    /// The first so many tokens.
    #[pyo3(transparent)]
    First(usize),
    /// Tokens that a file lists.
    #[pyo3(transparent)]
    File(PathBuf),
}

/// The drafts of a target.
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "there are none to load"))]
pub enum Drafts {
    /// The default of the program.
    Auto,
    /// None, as it is written: plain decoding.
    None(&'static str),
    /// By their names or paths.
    Named(Vec<String>),
}

/// Where quantised copies of targets are cached.
#[derive(Clone, FromPyObject)]
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "there are none to load"))]
pub enum Copies {
    /// In the user's cache folder, or nowhere.
    #[pyo3(transparent)]
    UserFolder(bool),
    /// In a folder.
    #[pyo3(transparent)]
    Folder(PathBuf),
}

impl Default for Copies {
    fn default() -> Self {
        Self::UserFolder(true)
    }
}

#[cfg(feature = "models")]
pub use with::{Facts, Language, load, load_draft, load_target, read_acceptance, use_threads};

#[cfg(feature = "models")]
mod with {
    use std::fmt::Display;
    use std::str::FromStr;
    use std::sync::Mutex;

    use polydraft::policy::{Auto, Choices};
    use polydraft::{Sampling, VerifierKind};
    use polydraft_runtime::costs::{CostKey, StepCosts};
    use polydraft_runtime::{
        AcceptanceFile, LanguageModel, ModelOptions, Models, SamplingOptions, TableSaver,
    };
    use polydraft_text::Message;

    use super::*;
    use crate::arguments::Threads;
    use crate::downloads::Downloads;
    use crate::errors::lock;

    /// Everything between text and tokens.
    pub struct Language(polydraft_text::Language);

    impl Language {
        /// The tokens of a text.
        pub fn encode(&self, text: &str) -> Result<Vec<Token>> {
            Ok(self.0.tokenizer.encode(text)?)
        }

        /// The text of tokens.
        pub fn decode(&self, tokens: &[Token]) -> Result<String> {
            Ok(self.0.tokenizer.decode(tokens)?)
        }

        /// The tokens that end a text.
        pub fn end_tokens(&self) -> Vec<Token> {
            self.0.end_tokens.clone()
        }

        /// The tokens of a conversation: role and content of each message.
        pub fn encode_chat(&self, messages: Vec<(String, String)>) -> Result<Vec<Token>> {
            let message = |(role, content): (String, String)| match role.as_str() {
                "system" => Ok(Message::system(content)),
                "user" => Ok(Message::user(content)),
                "assistant" => Ok(Message::assistant(content)),
                _ => Err(Failure::input(format!(
                    "chat: expected a role of system, user, assistant, got {role:?}"
                ))),
            };
            let messages: Vec<Message> =
                messages.into_iter().map(message).collect::<Result<_>>()?;
            Ok(self.0.encode_chat(&messages)?)
        }

        /// The sampling of conversations: published with the model, or the program's default.
        pub fn chat_sampling(&self) -> Sampling {
            SamplingOptions::default().or_published(&self.0.sampling).or_chat_defaults().target()
        }

        /// The text of the tokens after a prompt, as they come.
        pub fn stream(&self, prompt: &[Token]) -> Box<dyn Detokenizer> {
            Box::new(self.0.tokenizer.stream(prompt))
        }
    }

    /// Facts of loaded models that sessions go by.
    pub struct Facts {
        /// The draft's name, if it has one.
        pub draft: Option<String>,
        key: CostKey,
        /// Costs that were looked up, with the verifier, and whether the target is sampled
        /// greedily.
        known: Mutex<Vec<(VerifierKind, bool, StepCosts)>>,
        learned: Mutex<Option<TableSaver>>,
    }

    impl Facts {
        /// Calls a function with the costs of steps that this verifier decides.
        fn with_costs<T>(
            &self,
            verifier: &VerifierKind,
            sampling: &Sampling,
            call: impl FnOnce(&mut StepCosts) -> T,
        ) -> T {
            let greedy = sampling.temperature == 0.0;
            let mut known = lock(&self.known);
            let is_same =
                |(kind, is, _): &(VerifierKind, bool, StepCosts)| kind == verifier && *is == greedy;
            let index = known.iter().position(is_same).unwrap_or_else(|| {
                known.push((verifier.clone(), greedy, self.key.find(sampling, verifier)));
                known.len() - 1
            });
            call(&mut known[index].2)
        }

        /// Sets the costs of an adaptive tree. With a seed they depend on no measured time.
        pub fn apply_costs(
            &self,
            tree: &mut Auto,
            verifier: &VerifierKind,
            sampling: &Sampling,
            is_seeded: bool,
        ) {
            self.with_costs(verifier, sampling, |costs| costs.apply(tree, is_seeded));
        }

        /// Learns costs from an output without a seed.
        pub fn learn(&self, verifier: &VerifierKind, sampling: &Sampling, choices: &Choices) {
            self.with_costs(verifier, sampling, |costs| {
                costs.learn(choices);
                costs.store();
            });
        }

        /// Stores the n-grams that were learned, and learns no more.
        pub fn store(&self) -> Result<()> {
            Ok(lock(&self.learned).take().map_or(Ok(()), TableSaver::close)?)
        }
    }

    /// The type of a name, if there is one.
    fn typed<T: FromStr<Err: Display>>(name: Option<&String>) -> Result<Option<T>> {
        let parsed = name.map(|name| name.parse()).transpose();
        parsed.map_err(|error: T::Err| Failure::input(error.to_string()))
    }

    /// The options of the runtime.
    fn described(
        target: Option<&Path>,
        drafts: Vec<String>,
        how: &Options,
    ) -> Result<ModelOptions> {
        let copies = match &how.copies {
            Copies::UserFolder(true) => None,
            Copies::UserFolder(false) => Some("none".into()),
            Copies::Folder(folder) => {
                // Only where it was asked for is it missed.
                std::fs::create_dir_all(folder).map_err(|problem| {
                    let folder = folder.display();
                    Failure::input(format!("copies: cannot write {folder}: {problem}"))
                })?;
                Some(folder.clone())
            }
        };
        Ok(ModelOptions {
            target: target.map(|target| target.to_string_lossy().into_owned()),
            drafts,
            dtype: typed(how.dtype.as_ref())?,
            draft_dtype: typed(how.draft_dtype.as_ref())?,
            copies,
            corpus: how.corpus.clone(),
            learn: how.learn.clone(),
            mix_ngrams: how.mix_ngrams,
            draft_vocabulary: how.draft_vocabulary.as_ref().map(|tokens| match tokens {
                DraftTokens::First(count) => count.to_string(),
                DraftTokens::File(file) => file.to_string_lossy().into_owned(),
            }),
            draft_layers: how.draft_layers.clone(),
            cache_type: typed(how.cache_type.as_ref())?,
            offline: how.offline,
            // Any output may have a seed.
            is_seeded: true,
            ..ModelOptions::default()
        })
    }

    /// Loads a target and its drafts.
    pub fn load(target: &Path, drafts: Drafts, how: &Options) -> Result<(Engine, Language, Facts)> {
        let (drafts, names) = match drafts {
            Drafts::Auto => (true, Vec::new()),
            Drafts::None(none) => {
                how.check(&["dtype", "cache_type"], &format!("a draft, got draft={none}"))?;
                (false, Vec::new())
            }
            Drafts::Named(names) => (true, names),
        };
        let models = described(Some(target), names, how)?;
        let loaded = Downloads::watch(|watch| models.load(drafts, watch))?;
        let key = CostKey::new(&models, &loaded);
        let Models { engine, language, draft, table_saver: learned, .. } = loaded;
        let facts = Facts {
            draft: draft.filter(|_| drafts),
            key,
            known: Mutex::default(),
            learned: Mutex::new(learned),
        };
        Ok((engine, Language(language), facts))
    }

    /// Loads a target alone, for a table to draft.
    pub fn load_target(path: &Path, how: &Options) -> Result<(Box<dyn Model>, Language)> {
        let options = described(Some(path), Vec::new(), how)?;
        let loaded = Downloads::watch(|watch| options.load_target(watch));
        let LanguageModel { model, language } = loaded?;
        Ok((model, Language(language)))
    }

    /// Loads a draft alone, for a table, or beside one.
    pub fn load_draft(name: &str, how: &Options) -> Result<Box<dyn Model>> {
        let options = described(None, Vec::new(), how)?;
        Ok(Downloads::watch(|watch| options.load_draft(name, watch))?.model)
    }

    /// Reads a file of measured acceptances.
    pub fn read_acceptance(file: &Path) -> Result<Vec<f64>> {
        Ok(AcceptanceFile::read(file)?.acceptance)
    }

    /// Settles how many threads compute, before anything has been computed.
    #[pyfunction]
    pub fn use_threads(threads: Threads) -> Result<()> {
        let Threads(threads) = threads;
        if !(1..=1024).contains(&threads) {
            return Err(Failure::input(format!("threads: expected from 1 to 1024, got {threads}")));
        }
        Ok(polydraft_runtime::use_threads(threads)?)
    }
}

#[cfg(not(feature = "models"))]
pub use without::{Facts, Language, load, load_draft, load_target, read_acceptance};

#[cfg(not(feature = "models"))]
mod without {
    use super::*;

    /// Text needs a tokenizer, which comes with models: there is none.
    pub enum Language {}

    impl Language {
        pub fn encode(&self, _: &str) -> Result<Vec<Token>> {
            match *self {}
        }

        pub fn decode(&self, _: &[Token]) -> Result<String> {
            match *self {}
        }

        pub fn end_tokens(&self) -> Vec<Token> {
            match *self {}
        }

        pub fn encode_chat(&self, _: Vec<(String, String)>) -> Result<Vec<Token>> {
            match *self {}
        }

        pub fn chat_sampling(&self) -> polydraft::Sampling {
            match *self {}
        }

        pub fn stream(&self, _: &[Token]) -> Box<dyn Detokenizer> {
            match *self {}
        }
    }

    /// Facts of loaded models: there are none.
    pub struct Facts {
        /// The draft's name.
        pub draft: Option<String>,
        never: Never,
    }

    enum Never {}

    impl Facts {
        pub fn apply_costs(
            &self,
            _: &mut polydraft::policy::Auto,
            _: &polydraft::VerifierKind,
            _: &polydraft::Sampling,
            _: bool,
        ) {
            match self.never {}
        }

        pub fn learn(
            &self,
            _: &polydraft::VerifierKind,
            _: &polydraft::Sampling,
            _: &polydraft::policy::Choices,
        ) {
            match self.never {}
        }

        pub fn store(&self) -> Result<()> {
            match self.never {}
        }
    }

    /// Refuses.
    pub fn load(path: &Path, _: Drafts, _: &Options) -> Result<(Engine, Language, Facts)> {
        Err(refusal(path))
    }

    /// Refuses.
    pub fn load_target(path: &Path, _: &Options) -> Result<(Box<dyn Model>, Language)> {
        Err(refusal(path))
    }

    /// Refuses.
    pub fn load_draft(name: &str, _: &Options) -> Result<Box<dyn Model>> {
        Err(refusal(Path::new(name)))
    }

    /// Refuses.
    pub fn read_acceptance(file: &Path) -> Result<Vec<f64>> {
        Err(refusal(file))
    }

    fn refusal(path: &Path) -> Failure {
        let path = path.display();
        Failure::unsupported(format!(
            "{path}: expected a wheel built with models, got one without (feature models)"
        ))
    }
}
