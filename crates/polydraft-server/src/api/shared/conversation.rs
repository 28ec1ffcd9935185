//! Prompts of conversations, and the reasoning in their answers.

use polydraft::Token;
use polydraft_engine::Finish;
use polydraft_text::{ChatPrompt, Message, ReasoningForm, Rendering};

use super::error::Problem;
use super::params::Truncation;
use super::reasoning::Reasoning;
use crate::App;
use crate::grammar::Form;
use crate::worker::RequestParams;

/// How the model's chat template marks reasoning, if it does.
fn marks(app: &App) -> Option<ReasoningForm> {
    app.language.chat.as_ref().and_then(|template| template.reasoning())
}

/// Renders and encodes a conversation.
///
/// # Errors
/// What the chat template objects to; a prompt that does not fit and is not to be cut off.
pub fn encode(
    app: &App,
    messages: &[Message],
    rendering: &Rendering,
    truncation: Option<Truncation>,
) -> Result<ChatPrompt, Problem> {
    let most = if truncation.is_some() { usize::MAX } else { app.context };
    Ok(app.language.encode_chat_with(messages, rendering, most)?)
}

/// The prompt of a conversation whose tokens are known.
///
/// # Errors
/// Tokens that there are not.
pub fn encoded(app: &App, tokens: Vec<Token>) -> Result<ChatPrompt, Problem> {
    let text = app.language.tokenizer.decode_all(&tokens)?;
    let in_reasoning = marks(app).is_some_and(|marks| marks.is_open(&text));
    Ok(ChatPrompt { tokens, in_reasoning })
}

/// Parses reasoning apart from the answer, where the output may have some. The marks around it
/// become part of the output, and the answer's form holds after it. `continued` is the message that
/// the model goes on with, and `in_reasoning` whether the prompt ends where reasoning begins.
pub fn separate_reasoning(
    app: &App,
    params: &mut RequestParams,
    form: &mut Option<Form>,
    continued: Option<&Message>,
    in_reasoning: bool,
) -> Option<Reasoning> {
    let marks = marks(app)?;
    let inside = continued.map_or(in_reasoning, |message| {
        message.content.contains(marks.opening) && !message.content.contains(marks.closing)
    });
    params.marks = vec![marks.opening, marks.closing];
    // A grammar knows no special tokens: there the form holds from the first token on.
    let tokenizer = &app.language.tokenizer;
    let special = tokenizer.token(marks.closing).is_some_and(|t| tokenizer.is_special(t));
    if inside && !special {
        *form = form.take().map(|form| form.after(marks.closing));
    }
    (continued.is_none() || inside).then(|| Reasoning::new(marks, inside))
}

/// Whether an answer broke off at a limit.
pub fn is_cut(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::MaxTokens | Finish::Context))
}
