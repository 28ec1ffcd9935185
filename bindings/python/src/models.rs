//! Models from files, where the wheel was built with them (feature `models`).

use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Model, TextStream};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};

/// How to load a model.
#[cfg_attr(not(feature = "models"), allow(dead_code, reason = "there are none to load"))]
pub struct Options<'a> {
    /// How weights are held; none for what its file is for.
    pub dtype: Option<&'a str>,
    /// How a copy that drafts is held, if there is to be one: a name, or nothing for the usual.
    pub copy: Option<Option<String>>,
    /// Where such a copy is kept for the next time.
    pub copies: Copies,
}

/// Where copies of targets are kept.
#[derive(Clone, FromPyObject)]
pub enum Copies {
    /// In the user's cache folder, or nowhere.
    #[pyo3(transparent)]
    Kept(bool),
    /// In a folder.
    #[pyo3(transparent)]
    Folder(PathBuf),
}

/// If a draft's name says that it is the target itself, how it is to be held.
pub fn own_copy(name: &str) -> Option<Result<Option<String>>> {
    match name.split_once(':') {
        None if name == "self" => Some(Ok(None)),
        Some(("self", "file")) => Some(Err(Failure::input(
            "draft self:file: that would be the target again; name a type of fewer bits",
        ))),
        Some(("self", kind)) => Some(Ok(Some(kind.to_owned()))),
        _ => None,
    }
}

/// A model, its language, and its copy.
pub type Loaded<L = Language> = (Box<dyn Model>, L, Option<Box<dyn Model>>);

#[cfg(feature = "models")]
pub use with::{Language, load, use_threads};

#[cfg(feature = "models")]
mod with {
    use std::str::FromStr;

    use polydraft_models::{LoadOptions, Opened, Precision, is_gguf};
    use polydraft_text::Message;

    use super::*;

    /// Everything between text and tokens.
    pub struct Language(polydraft_text::Language);

    impl Language {
        /// The tokens of a text.
        pub fn encode(&self, text: &str) -> Result<Vec<Token>> {
            Ok(self.0.text.encode(text)?)
        }

        /// The text of tokens.
        pub fn decode(&self, tokens: &[Token]) -> Result<String> {
            Ok(self.0.text.decode(tokens)?)
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

        /// The text of tokens behind a prompt, as they come.
        pub fn stream(&self, prompt: &[Token]) -> Box<dyn TextStream> {
            Box::new(self.0.text.stream(prompt))
        }
    }

    fn parsed<T: FromStr<Err = String>>(name: &str) -> Result<T> {
        name.parse().map_err(Failure::input)
    }

    /// Loads a model.
    pub fn load(path: &Path, options: &Options<'_>) -> Result<Loaded> {
        let of_file = if is_gguf(path) { Precision::File } else { Precision::F32 };
        let precision: Precision = options.dtype.map_or(Ok(of_file), parsed)?;
        let opened = Opened::new(path)?;
        let copy = match &options.copy {
            None => None,
            Some(None) => Some(opened.description.best_copy(precision)),
            Some(Some(kind)) => Some(parsed(kind)?),
        };
        let how = LoadOptions { precision, copy, ..LoadOptions::default() };
        let folder = match &options.copies {
            Copies::Kept(false) => None,
            Copies::Kept(true) => polydraft_models::Copies::of_user(),
            Copies::Folder(folder) => Some(polydraft_models::Copies::at(folder.clone())),
        };
        let file = folder.and_then(|folder| folder.place(&opened.description, &how));
        let loaded = opened.load_with(how, file.as_ref())?;
        if let (Some(file), Some(copy)) = (&file, &loaded.copy) {
            let kept = file.keep(copy, loaded.was_kept);
            // Only where it was asked for is it missed.
            if let (Err(problem), Copies::Folder(_)) = (kept, &options.copies) {
                let path = file.path().display();
                return Err(Failure::input(format!("copies: cannot write {path}: {problem}")));
            }
        }
        let copy = loaded.copy.map(|copy| Box::new(copy) as Box<dyn Model>);
        Ok((Box::new(loaded.model), Language(loaded.language), copy))
    }

    /// Settles how many threads compute, before anything has been computed.
    #[pyfunction]
    pub fn use_threads(threads: usize) -> Result<()> {
        polydraft_models::use_threads(threads)?;
        Ok(())
    }
}

#[cfg(not(feature = "models"))]
pub use without::{Language, load};

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

        pub fn stream(&self, _: &[Token]) -> Box<dyn TextStream> {
            match *self {}
        }
    }

    /// Refuses.
    pub fn load(path: &Path, _: &Options<'_>) -> Result<Loaded> {
        let path = path.display();
        Err(Failure::unsupported(format!(
            "{path}: expected a wheel built with models, got one without (feature models)"
        )))
    }
}
