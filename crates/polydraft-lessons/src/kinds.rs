//! Kinds of samples, and the words that they begin with.
//!
//! A chat model writes both sides of a conversation. Without a given beginning its questions are
//! much alike, so part of the questions begin with words from these lists, and part of the samples
//! are not conversations. The prompts used for benchmarks are not in these lists.

use rand::RngExt;
use rand_chacha::ChaCha12Rng;

/// Kind of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A conversation whose question is chosen by the model.
    Chat,
    /// A conversation about code.
    ChatCode,
    /// A conversation about prose.
    ChatProse,
    /// A conversation about a list.
    ChatList,
    /// Code without a conversation.
    Code,
    /// Prose without a conversation.
    Prose,
    /// A part of a text file.
    Given,
}

impl Kind {
    /// All kinds, in the order of their numbers in a shard.
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::ChatCode,
        Self::ChatProse,
        Self::ChatList,
        Self::Code,
        Self::Prose,
        Self::Given,
    ];

    /// Returns the name.
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

    /// Returns the number in a shard.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Draws the kind of the next sample, for a model with or without a chat template.
    pub(crate) fn draw(has_chat_template: bool, rng: &mut ChaCha12Rng) -> Self {
        let at: f64 = rng.random();
        match (has_chat_template, at) {
            (true, ..0.30) => Self::Chat,
            (true, ..0.48) => Self::ChatCode,
            (true, ..0.61) => Self::ChatProse,
            (true, ..0.74) => Self::ChatList,
            (true, ..0.86) | (false, ..0.5) => Self::Code,
            _ => Self::Prose,
        }
    }

    /// Returns whether samples of this kind use the chat template.
    pub(crate) fn is_conversation(self) -> bool {
        matches!(self, Self::Chat | Self::ChatCode | Self::ChatProse | Self::ChatList)
    }

    /// Draws the words with which a sample of this kind begins; empty for some kinds.
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
    "Plan a",
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
