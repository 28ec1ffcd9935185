//! From a conversation, however it was asked for, to the engine's request and the answer's frame.

use polydraft::Token;
use polydraft_engine::Finish;
use polydraft_text::{ChatPrompt, Ending, Message, Rendering};
use serde_json::{Map, Value};

use super::answer::{Answer, Shape, UsageTold};
use super::error::Problem;
use super::messages::left_out;
use super::params::Truncation;
use super::reasoning::Reasoning;
use super::tools::Tools;
use crate::App;
use crate::api::{Prepared, Reply};
use crate::grammar::Form;
use crate::worker::RequestParams;

/// What becomes of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningMode {
    /// It is told apart from the answer.
    #[default]
    Apart,
    /// It is part of the answer's text.
    InText,
}

/// A conversation to be continued.
pub struct Wanted {
    /// The model's name, as the client said it.
    pub model: Option<String>,
    /// The engine's request, but for the prompt.
    pub asked: RequestParams,
    /// What was said.
    pub messages: Vec<Message>,
    /// What the model may call.
    pub tools: Option<Tools>,
    /// The form that the answer must have.
    pub form: Option<Form>,
    /// For the chat template.
    pub variables: Map<String, Value>,
    /// Whether the model answers, or goes on with the last message.
    pub ending: Ending,
    /// What becomes of its reasoning.
    pub reasoning: ReasoningMode,
    /// Where a stream tells its usage.
    pub usage: UsageTold,
    /// Whether the answer begins with what it goes on with.
    pub echo: bool,
    /// What becomes of a long prompt.
    pub truncation: Option<Truncation>,
    /// The prompt, where it is not that of the messages.
    pub prompt: Option<Vec<Token>>,
}

/// The same, ready for the engine.
pub struct Conversation {
    /// What the engine is asked for.
    pub asked: RequestParams,
    form: Option<Form>,
    /// Its answer.
    pub answer: Answer,
    /// Messages that the model does not read.
    ignored: Vec<String>,
}

impl Conversation {
    /// Renders and encodes it.
    ///
    /// # Errors
    /// What the chat template objects to; a prompt that does not fit.
    pub fn of(app: &App, wanted: Wanted) -> Result<Self, Problem> {
        let Wanted { mut asked, messages, tools, form, variables, ending, .. } = wanted;
        let listed = tools.as_ref().map_or(&[][..], |tools| &tools.listed);
        let how = Rendering { tools: listed, variables: Some(&variables), ending };
        let most = if wanted.truncation.is_some() { usize::MAX } else { app.context };
        let mut ignored = Vec::new();
        let marks = app.language.chat.as_ref().and_then(|template| template.reasoning());
        let prompt = match wanted.prompt {
            None => {
                ignored = left_out(app, &messages, &how)?;
                app.language.encode_chat_with(&messages, &how, most)?
            }
            Some(tokens) => {
                let text = app.language.tokenizer.decode_all(&tokens)?;
                ChatPrompt { in_reasoning: marks.is_some_and(|form| form.is_open(&text)), tokens }
            }
        };
        asked.prompt = prompt.tokens;
        if let Some(truncation) = wanted.truncation {
            truncation.cut(&mut asked.prompt, app.context, asked.limits.max_tokens);
        }
        let marks = marks.filter(|_| wanted.reasoning == ReasoningMode::Apart);
        let said = messages.last().filter(|_| ending == Ending::Continue);
        let inside = marks.is_some_and(|marks| match said {
            None => prompt.in_reasoning,
            Some(said) => {
                said.content.contains(marks.opening) && !said.content.contains(marks.closing)
            }
        });
        let mut form = form.or_else(|| tools.as_ref()?.grammar.clone());
        if let Some(marks) = marks {
            asked.marks = vec![marks.opening, marks.closing];
            // A grammar knows no special tokens: there the form holds from the first token on.
            let tokenizer = &app.language.tokenizer;
            let special = tokenizer.token(marks.closing).is_some_and(|t| tokenizer.is_special(t));
            if inside && !special {
                form = form.map(|form| form.after(marks.closing));
            }
        }
        app.check(&asked)?;
        let asked = [asked];
        let echo = said.filter(|_| wanted.echo).map(|said| said.content.clone());
        let echo = echo.into_iter().collect();
        let mut answer = Answer::new(app, wanted.model, Shape::Chat, &asked, wanted.usage, echo);
        if let Some(tools) = &tools {
            answer.reads_calls(|| tools.calls());
        }
        if let Some(marks) = marks.filter(|_| said.is_none() || inside) {
            answer.reads_reasoning(|| Reasoning::new(marks, inside));
        }
        let [asked] = asked;
        Ok(Self { asked, form, answer, ignored })
    }

    /// With the answer in the form of its route.
    pub fn prepared(
        self,
        stream: bool,
        mut ignored: Vec<String>,
        in_form: impl FnOnce(Answer) -> Box<dyn Reply>,
    ) -> Prepared {
        let Self { asked, form, answer, ignored: left_out } = self;
        ignored.extend(left_out);
        Prepared { asked: vec![asked], form, answer: in_form(answer), stream, ignored }
    }
}

/// Whether an answer broke off at a limit.
pub fn is_cut(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::MaxTokens | Finish::Context))
}
