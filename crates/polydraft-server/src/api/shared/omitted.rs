//! Messages, and text of messages, that a chat template leaves out without an error.

use polydraft_text::{Message, Rendering};

use super::conversation::or_simplified;
use super::error::Problem;
use crate::LoadedModel;

/// Maximum custom roles and answers with calls that are checked in a prompt.
const MAX_CHECKED: usize = 16;

/// Names what the template omits as ignored: the first message of each custom role, and the text of
/// answers beside their calls.
///
/// # Errors
/// Errors of the template; with the server's option `strict` also omitted text.
pub fn name_omitted(
    model: &LoadedModel,
    messages: &[Message],
    rendering: &Rendering,
    ignored: &mut Vec<String>,
) -> Result<(), Problem> {
    let Some(chat) = &model.language.chat else { return Ok(()) };
    let mut roles: Vec<usize> = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let is_known = matches!(&*message.role, "system" | "user" | "assistant" | "tool");
        if !is_known && roles.iter().all(|first| messages[*first].role != message.role) {
            roles.push(number);
        }
    }
    roles.truncate(MAX_CHECKED);
    let mut beside: Vec<usize> = (0..messages.len())
        .filter(|n| !messages[*n].tool_calls.is_empty() && !messages[*n].content.trim().is_empty())
        .collect();
    beside.truncate(MAX_CHECKED);
    if roles.is_empty() && beside.is_empty() {
        return Ok(());
    }
    // Append marks: a template may write the content in another form.
    let mark = format!("{:032x}", polydraft_runtime::random::<u128>());
    let mark = |number: usize| format!("{mark}n{number}n");
    let mut marked = messages.to_vec();
    roles.iter().chain(&beside).for_each(|number| marked[*number].content.push_str(&mark(*number)));
    let render =
        |messages: &[Message], rendering: &Rendering| chat.render_joined(messages, rendering);
    let text = or_simplified(&marked, rendering, render)?;
    let is_omitted = |number: &&usize| !text.contains(&mark(**number));
    ignored.extend(roles.iter().filter(is_omitted).map(|first| format!("messages[{first}]")));
    if !beside.iter().any(|number| is_omitted(&number)) {
        return Ok(());
    }
    if model.options.strict {
        let problem = "the model's chat template leaves out the text of an answer beside its tool \
                       calls: send such answers without text";
        let problem = Problem::invalid(problem).with_param("messages");
        return Err(problem.with_code("unsupported_parameter"));
    }
    ignored.push("text beside tool calls (the chat template leaves it out)".to_owned());
    Ok(())
}
