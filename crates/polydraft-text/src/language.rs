//! Tokenizer, chat template and related settings of a model.

use std::path::Path;

use polydraft::{Token, Vocabulary};

use crate::{
    ChatTemplate, Error, Message, OutputForm, PromptEnd, Published, PublishedSampling, Rendering,
    Result, SpecialTokens, Tokenizer,
};

/// Conversion between text and tokens of a model: everything but tensors, and independent of the
/// backend.
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
///     notes: vec![],
/// };
/// assert_eq!(language.encode_chat(&[Message::user("hi")])?, [0, 1]);
/// assert_eq!(language.vocabulary.size(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Language {
    /// Name of the model, for messages.
    pub name: String,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens with a row in the model's embedding.
    pub vocabulary: Vocabulary,
    /// Tokens that end a sequence.
    pub end_tokens: Vec<Token>,
    /// Chat template, if the model was trained for conversations.
    pub chat: Option<ChatTemplate>,
    /// Special tokens by role, for chat templates.
    pub special_tokens: SpecialTokens,
    /// Published sampling settings.
    pub sampling: PublishedSampling,
    /// Remarks for people on what the files leave open.
    pub notes: Vec<String>,
}

impl Language {
    /// Reads the tokenizer, the chat template and `generation_config.json` of a directory in
    /// Hugging Face layout. The model has `rows` rows of logits; `end_tokens` apply unless
    /// `generation_config.json` lists others.
    ///
    /// # Errors
    /// Fails if a file is missing, cannot be read or is invalid, or if the tokenizer does not fit
    /// the rows.
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
            notes: Vec::new(),
        })
    }

    /// Replaces the chat template; error messages name `path` as its file.
    ///
    /// # Errors
    /// Fails if the text is not a valid template.
    pub fn use_template(&mut self, text: &str, path: &Path) -> Result<()> {
        self.chat = Some(ChatTemplate::from_source(text, self.special_tokens.clone(), path)?);
        Ok(())
    }

    /// Encodes a conversation, up to the start of the model's answer.
    ///
    /// # Errors
    /// Fails without a chat template, or if template or tokenizer reject the conversation.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<Token>> {
        let missing = || Error::NoTemplate { model: self.name.clone() };
        self.tokenizer.encode_plain(&self.chat.as_ref().ok_or_else(missing)?.render(messages)?)
    }

    /// Encodes a conversation with options, for a context of `most` tokens: in little memory
    /// however long the conversation is.
    ///
    /// # Errors
    /// Fails as [`encode_chat`](Self::encode_chat) and [`ChatTemplate::render_joined`], and if the
    /// conversation exceeds the context.
    pub fn encode_chat_with(
        &self,
        messages: &[Message],
        how: &Rendering,
        most: usize,
    ) -> Result<ChatPrompt> {
        let missing = || Error::NoTemplate { model: self.name.clone() };
        let chat = self.chat.as_ref().ok_or_else(missing)?;
        let text = chat.render_joined(messages, how)?;
        let end = chat.output_form().reasoning.prompt_end(&text);
        Ok(ChatPrompt { tokens: self.tokenizer.encode_plain_within(&text, most)?, end })
    }

    /// Returns the formats of an answer, which ends at an end token: text after one in the
    /// template's conversations is not part of it. `None` without a chat template.
    pub fn output_form(&self) -> Option<OutputForm> {
        let form = self.chat.as_ref()?.output_form().clone();
        let ends = self.answer_end_tokens();
        let strings =
            ends.iter().filter_map(|end| self.tokenizer.decode_with_special(&[*end]).ok());
        let strings: Vec<String> = strings.filter(|end| !end.trim().is_empty()).collect();
        Some(form.until(&strings))
    }

    /// Returns the tokens that end an answer: [`end_tokens`](Self::end_tokens), and the end token
    /// of the tokenizer's settings.
    pub fn answer_end_tokens(&self) -> Vec<Token> {
        let named = self.chat.as_ref().and_then(|c| self.tokenizer.token(c.end_token()?));
        let missing = named.filter(|token| !self.end_tokens.contains(token));
        self.end_tokens.iter().copied().chain(missing).collect()
    }
}

/// Encoded conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// Tokens of the prompt.
    pub tokens: Vec<Token>,
    /// Where it ends: before, inside or after the model's reasoning.
    pub end: PromptEnd,
}
