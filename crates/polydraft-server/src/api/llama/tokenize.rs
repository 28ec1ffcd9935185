//! `/tokenize`, `/detokenize` and `/apply-template`, as in vLLM and llama.cpp.

use polydraft::Token;
use polydraft_text::{Ending, Rendering};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::LoadedModel;
use crate::api::shared::conversation::or_simplified;
use crate::api::shared::error::Problem;
use crate::api::shared::messages::{ChatMessage, to_messages};
use crate::api::shared::read::read;
use crate::api::shared::thinking::Thinking;
use crate::api::shared::values::null_is_default;

#[derive(Deserialize)]
struct Tokenize {
    /// vLLM's name.
    prompt: Option<String>,
    /// llama.cpp's name: a string, or a list of strings and token ids.
    content: Option<Content>,
    #[serde(flatten)]
    chat: Chat,
    /// Whether to add the special tokens that the model expects around a text.
    #[serde(alias = "add_special")]
    add_special_tokens: Option<bool>,
    /// Whether special tokens in the text are tokens, not text.
    parse_special: Option<bool>,
    #[serde(default, deserialize_with = "null_is_default")]
    return_token_strs: bool,
    /// llama.cpp's option to return tokens with their strings.
    #[serde(default, deserialize_with = "null_is_default")]
    with_pieces: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string, or a list of strings and token ids")]
enum Content {
    Text(String),
    Mixed(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Token(Token),
    Text(String),
}

#[derive(Deserialize)]
struct Chat {
    messages: Option<Vec<ChatMessage>>,
    tools: Option<Vec<Value>>,
    #[serde(flatten)]
    thinking: Thinking,
    add_generation_prompt: Option<bool>,
    #[serde(default, deserialize_with = "null_is_default")]
    continue_final_message: bool,
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<Token>,
}

/// Renders a conversation with the chat template.
fn render_chat(model: &LoadedModel, chat: Chat) -> Result<Option<String>, Problem> {
    let Some(messages) = chat.messages else { return Ok(None) };
    let messages = to_messages(model, messages, &mut Vec::new())?;
    let template = model.language.chat.as_ref().ok_or_else(|| {
        Problem::from(polydraft_text::Error::NoTemplate { model: model.name().to_owned() })
    })?;
    let variables = chat.thinking.variables();
    let ending = match (chat.continue_final_message, chat.add_generation_prompt) {
        (true, _) => Ending::Continue,
        (false, Some(false)) => Ending::Message,
        (false, _) => Ending::Answer,
    };
    let tools = chat.tools.unwrap_or_default();
    let rendering = Rendering { tools: &tools, variables: Some(&variables), ending };
    let text = or_simplified(&messages, &rendering, |messages, rendering| {
        template.render_joined(messages, rendering)
    });
    Ok(Some(text?))
}

/// `/tokenize`: encodes a text or a conversation.
///
/// # Errors
/// Neither of them, or both; a text that the tokenizer rejects; errors of the chat template.
pub fn tokenize(model: &LoadedModel, body: Value) -> Result<Value, Problem> {
    let request: Tokenize = read(body)?;
    let tokenizer = &model.language.tokenizer;
    let chat_text = render_chat(model, request.chat)?;
    let given = [request.prompt.is_some(), request.content.is_some(), chat_text.is_some()];
    if given.into_iter().filter(|given| *given).count() != 1 {
        return Err(Problem::invalid("expected either prompt or messages").with_param("prompt"));
    }
    let special = request.add_special_tokens;
    let (parts, special) = match (request.prompt, request.content, chat_text) {
        (Some(prompt), ..) => (vec![Part::Text(prompt)], special.unwrap_or(true)),
        (_, Some(Content::Text(text)), _) => (vec![Part::Text(text)], special.unwrap_or(false)),
        (_, Some(Content::Mixed(parts)), _) => (parts, special.unwrap_or(false)),
        // The template adds special tokens itself.
        (_, None, text) => (text.map(Part::Text).into_iter().collect(), special.unwrap_or(false)),
    };
    let mut tokens = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        match part {
            Part::Token(token) => tokens.push(token),
            Part::Text(text) if request.parse_special == Some(false) => {
                tokens.extend(tokenizer.encode_as_text(&text)?);
            }
            Part::Text(text) if special && number == 0 => tokens.extend(tokenizer.encode(&text)?),
            Part::Text(text) => tokens.extend(tokenizer.encode_plain(&text)?),
        }
    }
    let string = |token: &Token| model.language.vocabulary.token(*token).unwrap_or_default();
    let strings: Vec<&str> = tokens.iter().map(string).collect();
    if request.with_pieces {
        let pieces = tokens.iter().map(|token| {
            let piece = tokenizer.decode(&[*token]).unwrap_or_default();
            // A part of a character is its bytes, as in llama.cpp.
            let bytes = tokenizer.token_bytes(*token).filter(|_| piece.contains('\u{fffd}'));
            let piece = bytes.map_or_else(|| json!(piece), |bytes| json!(bytes));
            json!({ "id": token, "piece": piece })
        });
        return Ok(json!({ "tokens": pieces.collect::<Vec<_>>() }));
    }
    let strings = request.return_token_strs.then_some(strings);
    Ok(json!({ "count": tokens.len(), "max_model_len": model.context, "tokens": tokens,
        "token_strs": strings }))
}

/// `/detokenize`: decodes tokens. Returns the text under the names of both servers.
///
/// # Errors
/// Unknown tokens.
pub fn detokenize(model: &LoadedModel, body: Value) -> Result<Value, Problem> {
    let Detokenize { tokens } = read(body)?;
    if let Some(got) = tokens.iter().find(|token| **token as usize >= model.vocabulary) {
        let problem = format!("tokens: expected ids below {}, got {got}", model.vocabulary);
        return Err(Problem::invalid(problem).with_param("tokens"));
    }
    let text = model.language.tokenizer.decode_with_special(&tokens)?;
    Ok(json!({ "prompt": text, "content": text }))
}

/// `/apply-template`: renders a conversation with the chat template.
///
/// # Errors
/// No messages; errors of the chat template.
pub fn apply_template(model: &LoadedModel, body: Value) -> Result<Value, Problem> {
    let missing = || Problem::invalid("the parameter messages is missing").with_param("messages");
    Ok(json!({ "prompt": render_chat(model, read(body)?)?.ok_or_else(missing)? }))
}
