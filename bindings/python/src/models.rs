//! Models from files, where the wheel was built with them (feature `models`).

use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Detokenizer, Engine, Model};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};

/// How to load models.
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "there are none to load"))]
pub struct Options<'a> {
    /// The target's weight type; none is as its file has it, else f32.
    pub dtype: Option<&'a str>,
    /// The draft's; none is the target's.
    pub draft_dtype: Option<&'a str>,
    /// Where a quantised copy of the target is cached for the next time.
    pub copies: Copies,
}

/// Where quantised copies of targets are cached.
#[derive(Clone, FromPyObject)]
pub enum Copies {
    /// In the user's cache folder, or nowhere.
    #[pyo3(transparent)]
    Kept(bool),
    /// In a folder.
    #[pyo3(transparent)]
    Folder(PathBuf),
}

#[cfg(feature = "models")]
pub use with::{Language, load, load_one, use_threads};

#[cfg(feature = "models")]
mod with {
    use polydraft_runtime::{ModelOptions, Models};
    use polydraft_text::{LanguageModel, Message};

    use super::*;
    use crate::downloads::Downloads;

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

        /// The text of the tokens after a prompt, as they come.
        pub fn stream(&self, prompt: &[Token]) -> Box<dyn Detokenizer> {
            Box::new(self.0.tokenizer.stream(prompt))
        }
    }

    /// What the runtime is asked for.
    fn described(target: &Path, draft: Option<String>, how: &Options<'_>) -> Result<ModelOptions> {
        let typed = |name: Option<&str>| name.map(|name| name.parse()).transpose();
        let copies = match &how.copies {
            Copies::Kept(true) => None,
            Copies::Kept(false) => Some("none".into()),
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
            target: Some(target.to_string_lossy().into_owned()),
            draft,
            dtype: typed(how.dtype).map_err(Failure::input)?,
            draft_dtype: typed(how.draft_dtype).map_err(Failure::input)?,
            copies,
            ..ModelOptions::default()
        })
    }

    /// Loads a target and, if one is named, its draft.
    pub fn load(
        target: &Path,
        draft: Option<String>,
        how: &Options<'_>,
    ) -> Result<(Engine, Language)> {
        let (drafts, options) = (draft.is_some(), described(target, draft, how)?);
        let Models { engine, language, .. } =
            Downloads::watch(|watch| options.load(drafts, watch))?;
        Ok((engine, Language(language)))
    }

    /// Loads one model, to work with a table.
    pub fn load_one(path: &Path, how: &Options<'_>) -> Result<(Box<dyn Model>, Language)> {
        let options = described(path, None, how)?;
        let loaded = Downloads::watch(|watch| options.load_target(watch));
        let LanguageModel { model, language } = loaded?;
        Ok((model, Language(language)))
    }

    /// Settles how many threads compute, before anything has been computed.
    #[pyfunction]
    pub fn use_threads(threads: usize) -> Result<()> {
        Ok(polydraft_runtime::use_threads(threads)?)
    }
}

#[cfg(not(feature = "models"))]
pub use without::{Language, load, load_one};

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

        pub fn stream(&self, _: &[Token]) -> Box<dyn Detokenizer> {
            match *self {}
        }
    }

    /// Refuses.
    pub fn load(path: &Path, _: Option<String>, _: &Options<'_>) -> Result<(Engine, Language)> {
        Err(refusal(path))
    }

    /// Refuses.
    pub fn load_one(path: &Path, _: &Options<'_>) -> Result<(Box<dyn Model>, Language)> {
        Err(refusal(path))
    }

    fn refusal(path: &Path) -> Failure {
        let path = path.display();
        Failure::unsupported(format!(
            "{path}: expected a wheel built with models, got one without (feature models)"
        ))
    }
}
