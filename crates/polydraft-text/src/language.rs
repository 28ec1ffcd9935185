//! The text side of a model, all of it.

use std::path::Path;

use polydraft::{Token, Vocabulary};

use crate::{
    ChatTemplate, Error, Message, Published, PublishedSampling, Rendering, Result, SpecialTokens,
    Tokenizer,
};

/// Everything that stands between text and the tokens of a model: no tensors, and the same for
/// every backend.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use polydraft_text::{ChatTemplate, Language, Message, SpecialTokens, Tokenizer};
///
/// let file = br#"{"model": {"type": "WordLevel", "vocab": {"user": 0, "hi": 1},
///                           "unk_token": "hi"},
///                 "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}"#;
/// let tokenizer = Tokenizer::parse(file, "tokenizer.json")?;
/// let template = "{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}";
/// let language = Language {
///     name: "example".to_owned(),
///     // An embedding may have more rows than the tokenizer has tokens: the tokenizer's count.
///     vocabulary: tokenizer.vocabulary(8)?,
///     tokenizer,
///     end_tokens: vec![],
///     chat: Some(ChatTemplate::from_source(
///         template,
///         SpecialTokens::from_roles([]),
///         "chat.jinja",
///     )?),
///     special_tokens: SpecialTokens::from_roles([]),
///     sampling: Default::default(),
/// };
/// assert_eq!(language.encode_chat(&[Message::user("hi")])?, [0, 1]);
/// assert_eq!(language.vocabulary.size(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Language {
    /// The model's name, for messages.
    pub name: String,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The tokens that the model has a row for.
    pub vocabulary: Vocabulary,
    /// Tokens that end a sequence.
    pub end_tokens: Vec<Token>,
    /// How conversations are put to the model, if it was trained for them.
    pub chat: Option<ChatTemplate>,
    /// Tokens by role, which chat templates name.
    pub special_tokens: SpecialTokens,
    /// How its makers would sample.
    pub sampling: PublishedSampling,
}

impl Language {
    /// Reads the tokenizer, the chat template and `generation_config.json` of a directory in
    /// Hugging Face layout. The model has `rows` rows of logits, and `end_tokens` end its output
    /// unless `generation_config.json` names others.
    ///
    /// # Errors
    /// Files that are missing, cannot be read or make no sense; a tokenizer that does not fit the
    /// rows.
    pub fn read(directory: &Path, rows: usize, end_tokens: &[Token]) -> Result<Self> {
        let name = directory
            .file_name()
            .map_or_else(|| directory.display().to_string(), |name| name.to_string_lossy().into());
        let special = SpecialTokens::read(directory)?;
        let text = Tokenizer::read_with(directory, &special)?.with_rows(rows);
        let vocabulary = text.vocabulary(rows)?;
        let published = Published::read(directory)?;
        let end_tokens = match published.end_tokens.is_empty() {
            true => end_tokens.to_vec(),
            false => published.end_tokens,
        };
        let chat = ChatTemplate::read_with(directory, special.clone())?;
        Ok(Self {
            name,
            tokenizer: text,
            vocabulary,
            end_tokens,
            chat,
            special_tokens: special,
            sampling: published.sampling,
        })
    }

    /// Puts conversations to the model by this template in place of its own; `path` is the file
    /// that it is from, for messages.
    ///
    /// # Errors
    /// A text that is no template.
    pub fn use_template(&mut self, text: &str, path: &Path) -> Result<()> {
        self.chat = Some(ChatTemplate::from_source(text, self.special_tokens.clone(), path)?);
        Ok(())
    }

    /// The tokens of a conversation, up to where the model answers.
    ///
    /// # Errors
    /// A model without a chat template; what the template objects to; text that the tokenizer
    /// refuses.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<Token>> {
        let missing = || Error::NoTemplate { model: self.name.clone() };
        self.tokenizer.encode_plain(&self.chat.as_ref().ok_or_else(missing)?.render(messages)?)
    }

    /// The same in other ways than the default, for a model whose context holds `most` tokens: in
    /// little memory however long the conversation is.
    ///
    /// # Errors
    /// As for [`encode_chat`](Self::encode_chat) and [`ChatTemplate::render_with`], and a
    /// conversation that leaves no room.
    pub fn encode_chat_with(
        &self,
        messages: &[Message],
        how: &Rendering,
        most: usize,
    ) -> Result<ChatPrompt> {
        let missing = || Error::NoTemplate { model: self.name.clone() };
        let chat = self.chat.as_ref().ok_or_else(missing)?;
        let text = chat.render_with(messages, how)?;
        let in_reasoning = chat.reasoning().is_some_and(|form| form.is_open(&text));
        Ok(ChatPrompt { tokens: self.tokenizer.encode_plain_within(&text, most)?, in_reasoning })
    }

    /// The tokens that end an answer: [`end_tokens`](Self::end_tokens), and the one that the
    /// tokenizer's settings name.
    pub fn answer_end_tokens(&self) -> Vec<Token> {
        let named = self.chat.as_ref().and_then(|c| self.tokenizer.token(c.end_token()?));
        let missing = named.filter(|token| !self.end_tokens.contains(token));
        self.end_tokens.iter().copied().chain(missing).collect()
    }
}

/// A conversation as a model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Whether it ends where the model's reasoning begins.
    pub in_reasoning: bool,
}
