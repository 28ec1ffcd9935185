//! What samples are about, and the words that they begin with.
//!
//! A model that was trained for conversations writes both sides of one. Left to itself it asks much
//! the same, so part of the questions begin with words from here, and part of the samples are no
//! conversation at all. The prompts that the project measures with are not among these words.

use rand::RngExt;
use rand_chacha::ChaCha12Rng;

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A conversation whose question is left to the model.
    Chat,
    /// A conversation that asks for code.
    ChatCode,
    /// A conversation that asks for prose.
    ChatProse,
    /// A conversation that asks for a list.
    ChatList,
    /// Code without a conversation.
    Code,
    /// Prose without a conversation.
    Prose,
    /// A text that was given.
    Given,
}

impl Kind {
    /// All kinds, by their number in a shard.
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::ChatCode,
        Self::ChatProse,
        Self::ChatList,
        Self::Code,
        Self::Prose,
        Self::Given,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::ChatCode => "chat-code",
            Self::ChatProse => "chat-prose",
            Self::ChatList => "chat-list",
            Self::Code => "code",
            Self::Prose => "prose",
            Self::Given => "given",
        }
    }

    /// Its number in a shard.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The kind of the next text, for a model with a chat template or without one.
    pub(crate) fn draw(talks: bool, rng: &mut ChaCha12Rng) -> Self {
        let at: f64 = rng.random();
        match (talks, at) {
            (true, ..0.30) => Self::Chat,
            (true, ..0.48) => Self::ChatCode,
            (true, ..0.61) => Self::ChatProse,
            (true, ..0.74) => Self::ChatList,
            (true, ..0.86) | (false, ..0.5) => Self::Code,
            _ => Self::Prose,
        }
    }

    /// Whether it is put into the model's chat template.
    pub(crate) fn is_talk(self) -> bool {
        matches!(self, Self::Chat | Self::ChatCode | Self::ChatProse | Self::ChatList)
    }

    /// Words that a text of this kind begins with; none in some cases.
    pub(crate) fn opening(self, rng: &mut ChaCha12Rng) -> &'static str {
        let openings = match self {
            Self::Chat | Self::Given => return "",
            Self::ChatCode => CHAT_CODE,
            Self::ChatProse => CHAT_PROSE,
            Self::ChatList => CHAT_LIST,
            Self::Code => CODE,
            Self::Prose => PROSE,
        };
        openings[rng.random_range(0..openings.len())]
    }
}

const CHAT_CODE: &[&str] = &[
    "Write a Python function",
    "Write a Python program that",
    "Write a Python class for",
    "Implement",
    "Write a JavaScript function",
    "Write an SQL query",
    "Write a Rust function",
    "Write a C program that",
    "Write a Java method",
    "Write a shell script that",
    "How do I parse",
    "How do I sort",
    "What does this code do?\n\n```python\n",
    "Fix the bug in this code:\n\n```python\n",
    "Rewrite this function so that",
    "Add a docstring to",
    "Show me an example of",
    "Write unit tests for",
    "Convert this",
    "Write HTML for",
    "Explain the difference between a list and",
];

const CHAT_PROSE: &[&str] = &[
    "Tell me a story about",
    "Write a short story in which",
    "Write a poem about",
    "Write an essay on",
    "Describe",
    "Summarize",
    "Write a letter to",
    "Write an email to",
    "Who was",
    "What happened in",
    "Explain why",
    "Explain how",
    "Why do",
    "Rewrite this text:",
    "Translate",
    "Continue this story:",
    "Write a dialogue between",
    "What is the meaning of",
    "Compare",
];

const CHAT_LIST: &[&str] = &[
    "List",
    "List the",
    "Give me five",
    "Give me a list of",
    "What are the main",
    "What are some",
    "What are the steps",
    "Name ten",
    "Make a table of",
    "Write a recipe for",
    "ShardPlan a",
    "Give instructions for",
    "Suggest",
    "Create a schedule",
    "What are the advantages and disadvantages of",
    "How can I",
];

const CODE: &[&str] = &[
    "def ",
    "import ",
    "from ",
    "class ",
    "import numpy as np\n",
    "import os\nimport sys\n",
    "#!/usr/bin/env python\n",
    "# ",
    "\"\"\"",
    "def main():\n",
    "fn ",
    "use std::",
    "pub struct ",
    "impl ",
    "// ",
    "#include <stdio.h>\n",
    "#include <vector>\n",
    "int main(",
    "public class ",
    "package main\n\nimport (",
    "function ",
    "const ",
    "import React from 'react';\n",
    "SELECT ",
    "CREATE TABLE ",
    "<!DOCTYPE html>\n",
    "{\n  \"",
    "```python\n",
];

const PROSE: &[&str] = &[
    "The ",
    "A ",
    "In ",
    "It was ",
    "When ",
    "There ",
    "Many ",
    "For centuries, ",
    "On a ",
    "She ",
    "He ",
    "I ",
    "We ",
    "You ",
    "One of ",
    "According to ",
    "Chapter 1\n\n",
    "# ",
    "Introduction\n\n",
    "Abstract\n\n",
    "Q: ",
    "Dear ",
    "- ",
    "1. ",
    "As ",
    "To ",
    "How ",
    "What ",
];
