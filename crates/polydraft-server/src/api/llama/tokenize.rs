//! `/tokenize`, `/detokenize` and `/apply-template`, as vLLM and llama.cpp have them.

use polydraft::Token;
use polydraft_text::{Ending, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::App;
use crate::api::shared::error::Problem;
use crate::api::shared::messages::{Spoken, conversation, variables};
use crate::api::shared::read::read;
use crate::api::shared::values::null_is_default;

#[derive(Deserialize)]
struct Tokenize {
    /// vLLM's name of the text, and llama.cpp's.
    #[serde(alias = "content")]
    prompt: Option<String>,
    #[serde(flatten)]
    chat: Chat,
    /// Whether the special tokens that the model expects around a text are added.
    #[serde(alias = "add_special")]
    add_special_tokens: Option<bool>,
    #[serde(default, deserialize_with = "null_is_default")]
    return_token_strs: bool,
    /// llama.cpp's: tokens with their strings.
    #[serde(default, deserialize_with = "null_is_default")]
    with_pieces: bool,
}

#[derive(Deserialize)]
struct Chat {
    messages: Option<Vec<Spoken>>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
    #[serde(default, deserialize_with = "null_is_default")]
    continue_final_message: bool,
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<Token>,
}

/// The text of a conversation, as the model reads it.
fn rendered(app: &App, chat: Chat) -> Result<Option<String>, Problem> {
    let Some(messages) = chat.messages else { return Ok(None) };
    let messages = conversation(app, messages)?;
    let template = app.language.chat.as_ref().ok_or_else(|| {
        let model = app.name().to_owned();
        Problem::from(polydraft_text::Error::NoTemplate { model })
    })?;
    let variables = variables(chat.chat_template_kwargs, None);
    let ending = match (chat.continue_final_message, chat.add_generation_prompt) {
        (true, _) => Ending::Continue,
        (false, Some(false)) => Ending::Message,
        (false, _) => Ending::Answer,
    };
    let tools = chat.tools.unwrap_or_default();
    let how = Rendering { tools: &tools, variables: Some(&variables), ending };
    Ok(Some(template.render_with(&messages, &how)?))
}

/// The tokens of a text or a conversation.
///
/// # Errors
/// Neither of them; a text that the tokenizer refuses; what the chat template objects to.
pub fn tokenize(app: &App, body: Value) -> Result<Value, Problem> {
    let request: Tokenize = read(body)?;
    let tokenizer = &app.language.tokenizer;
    let of_chat = rendered(app, request.chat)?;
    let (text, special) = match (request.prompt, of_chat) {
        (Some(prompt), None) => (prompt, request.add_special_tokens.unwrap_or(true)),
        // A template writes its special tokens itself.
        (None, Some(text)) => (text, request.add_special_tokens.unwrap_or(false)),
        _ => return Err(Problem::invalid("expected either prompt or messages").of("prompt")),
    };
    let tokens = if special { tokenizer.encode(&text)? } else { tokenizer.encode_plain(&text)? };
    let string = |token: &Token| app.language.vocabulary.token(*token).unwrap_or_default();
    let strings: Vec<&str> = tokens.iter().map(string).collect();
    if request.with_pieces {
        let pieces = tokens.iter().map(|token| {
            let piece = tokenizer.decode(&[*token]).unwrap_or_default();
            json!({ "id": token, "piece": piece })
        });
        return Ok(json!({ "tokens": pieces.collect::<Vec<_>>() }));
    }
    let strings = request.return_token_strs.then_some(strings);
    Ok(json!({ "count": tokens.len(), "max_model_len": app.context, "tokens": tokens,
        "token_strs": strings }))
}

/// The text of tokens, under both names that it goes by.
///
/// # Errors
/// Tokens that there are not.
pub fn detokenize(app: &App, body: Value) -> Result<Value, Problem> {
    let Detokenize { tokens } = read(body)?;
    if let Some(got) = tokens.iter().find(|token| **token as usize >= app.vocabulary) {
        let problem = format!("tokens: expected ids below {}, got {got}", app.vocabulary);
        return Err(Problem::invalid(problem).of("tokens"));
    }
    let text = app.language.tokenizer.decode(&tokens)?;
    Ok(json!({ "prompt": text, "content": text }))
}

/// A conversation as the model reads it.
///
/// # Errors
/// No conversation; what the chat template objects to.
pub fn apply_template(app: &App, body: Value) -> Result<Value, Problem> {
    let missing = || Problem::invalid("the parameter messages is missing").of("messages");
    Ok(json!({ "prompt": rendered(app, read(body)?)?.ok_or_else(missing)? }))
}
