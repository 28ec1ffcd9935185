//! Formats that templates describe in words only, or that have a structure of their own.

use std::sync::Arc;

use crate::output::{
    ArgumentForm, CHANNEL_MARKS, CallForm, Kind, Nested, OutputForm, ParameterForm, Piece,
    ReasoningForm, ValueForm,
};

/// Format of messages in channels: OpenAI's Harmony.
pub(super) fn channels(source: &str, lists_tools: bool) -> Option<OutputForm> {
    let has_all = CHANNEL_MARKS[..2].iter().all(|mark| source.contains(mark))
        && source.contains("analysis")
        && source.contains("final");
    let reasoning = ReasoningForm {
        opening: "<|channel|>analysis<|message|>".to_owned(),
        closing: "<|end|><|start|>assistant".to_owned(),
        answer_opening: "<|channel|>final<|message|>".to_owned(),
        answer_closing: String::new(),
    };
    let calls = CallForm {
        opening: String::new(),
        head: vec![
            literal("<|channel|>commentary to=functions."),
            Piece::Name,
            literal(" <|constrain|>json<|message|>"),
        ],
        arguments: ArgumentForm::Json,
        tail: vec![literal("<|call|>")],
        separator: String::new(),
        closing: String::new(),
        allows_several: false,
    };
    let calls = lists_tools.then(|| Arc::new(calls));
    has_all.then_some(OutputForm {
        reasoning,
        calls,
        has_channels: true,
        lists_tools,
        ..OutputForm::default()
    })
}

/// Marks of reasoning by their closing mark: Qwen 3, DeepSeek R1, SmolLM3, GLM and others;
/// Magistral; Seed-OSS; Command A Reasoning; Apertus; Apriel, which opens it in the prompt.
const REASONING: [[&str; 2]; 6] = [
    ["<think>", "</think>"],
    ["[THINK]", "[/THINK]"],
    ["<seed:think>", "</seed:think>"],
    ["<|START_THINKING|>", "<|END_THINKING|>"],
    ["<|inner_prefix|>", "<|inner_suffix|>"],
    ["", "[BEGIN FINAL RESPONSE]"],
];

/// Marks of reasoning that a template names; empty ones if it names none.
pub(super) fn reasoning(source: &str) -> ReasoningForm {
    let known = REASONING.iter().find(|[_, closing]| source.contains(closing));
    let [opening, closing] = known.copied().unwrap_or_default().map(str::to_owned);
    // Granite 3.3 asks for marks around the answer, too.
    let [answer_opening, answer_closing] = match source.contains("<response></response>") {
        true => ["<response>", "</response>"],
        false => [""; 2],
    }
    .map(str::to_owned);
    ReasoningForm { opening, closing, answer_opening, answer_closing }
}

/// Format of calls that a template describes in words, or that a rendering does not show: a list of
/// JSON objects after a mark (Granite 3.3, Command R+), calls as in Python (LFM2), the sections of
/// Kimi K2, and the nested tags of MiniMax M3.
pub(super) fn calls(source: &str) -> Option<CallForm> {
    if source.contains("<|tool_call|>") {
        return Some(list("<|tool_call|>", ["name", "arguments"], ""));
    }
    if source.contains("Write 'Action:'") {
        return Some(list("Action: ```json\n", ["tool_name", "parameters"], "\n```"));
    }
    if source.contains("<|tool_list_start|>") || source.contains("List of tools: [") {
        return Some(python("<|tool_call_start|>[", "]<|tool_call_end|>"));
    }
    if source.contains("<|tool_calls_section_begin|>") {
        return Some(kimi());
    }
    source.contains(TAG).then(minimax)
}

/// Format of calls that a template only describes to the model: JSON objects between tags (Hermes),
/// or alone (Llama 3).
pub(super) fn described_calls(source: &str) -> Option<CallForm> {
    let others = ["<function=", "<arg_key>", "<parameter=", "[TOOL_CALLS]"];
    if !source.contains("tools") || others.into_iter().any(|other| source.contains(other)) {
        return None;
    }
    // Some templates escape quotes.
    let plain = source.replace("\\\"", "\"");
    if source.contains("<tool_call>") && source.contains("</tool_call>") {
        let form = object("<tool_call>\n", ["name", "arguments"], "\n</tool_call>");
        return plain.contains("\"arguments\"").then_some(CallForm {
            separator: "\n".to_owned(),
            allows_several: true,
            ..form
        });
    }
    // The format shown to the model: {"name": .., "parameters": ..}
    let (before, _) = plain.split_once("\"parameters\":")?;
    let (_, between) = before.rsplit_once("{\"name\":")?;
    (between.len() < 80).then(|| object("", ["name", "parameters"], ""))
}

fn object(opening: &str, [name, arguments]: [&str; 2], closing: &str) -> CallForm {
    CallForm {
        opening: String::new(),
        head: vec![
            literal(&format!("{opening}{{\"{name}\": \"")),
            Piece::Name,
            literal(&format!("\", \"{arguments}\": ")),
        ],
        arguments: ArgumentForm::Json,
        tail: vec![literal(&format!("}}{closing}"))],
        separator: String::new(),
        closing: String::new(),
        allows_several: false,
    }
}

fn literal(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

fn list(opening: &str, keys: [&str; 2], closing: &str) -> CallForm {
    CallForm {
        opening: format!("{opening}["),
        separator: ", ".to_owned(),
        closing: format!("]{closing}"),
        allows_several: true,
        ..object("", keys, "")
    }
}

fn python(opening: &str, closing: &str) -> CallForm {
    let value = ValueForm { before: "=".to_owned(), after: Vec::new() };
    let parameters = ParameterForm {
        before_key: String::new(),
        values: Kind::ALL.map(|_| value.clone()),
        separator: ", ".to_owned(),
        nested: Nested::Python,
        sorted: false,
    };
    CallForm {
        opening: opening.to_owned(),
        head: vec![Piece::Name, literal("(")],
        arguments: ArgumentForm::Parameters(Box::new(parameters)),
        tail: vec![literal(")")],
        separator: ", ".to_owned(),
        closing: closing.to_owned(),
        allows_several: true,
    }
}

fn kimi() -> CallForm {
    CallForm {
        opening: "<|tool_calls_section_begin|>".to_owned(),
        head: vec![
            literal("<|tool_call_begin|>functions."),
            Piece::Name,
            literal(":"),
            Piece::Number(0),
            literal("<|tool_call_argument_begin|>"),
        ],
        arguments: ArgumentForm::Json,
        tail: vec![literal("<|tool_call_end|>")],
        separator: String::new(),
        closing: "<|tool_calls_section_end|>".to_owned(),
        allows_several: true,
    }
}

/// Text before every tag of MiniMax M3.
const TAG: &str = "]<]minimax[>[";

fn minimax() -> CallForm {
    let tag = |tag: &str| format!("{TAG}{tag}");
    let value = ValueForm {
        before: ">".to_owned(),
        after: vec![literal(&tag("</")), Piece::Key, literal(">")],
    };
    let parameters = ParameterForm {
        before_key: tag("<"),
        values: Kind::ALL.map(|_| value.clone()),
        separator: String::new(),
        nested: Nested::Tags,
        sorted: false,
    };
    CallForm {
        opening: tag("<tool_call>\n"),
        head: vec![literal(&tag("<invoke name=\"")), Piece::Name, literal("\">")],
        arguments: ArgumentForm::Parameters(Box::new(parameters)),
        tail: vec![literal(&tag("</invoke>\n"))],
        separator: String::new(),
        closing: tag("</tool_call>"),
        allows_several: true,
    }
}
