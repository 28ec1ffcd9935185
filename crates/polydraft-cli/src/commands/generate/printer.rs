//! Text as it is decided, in colour or between marks.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use polydraft_engine::{Origin, OutputChunk};

use crate::output::visible;

/// Writes pieces as they come: to a terminal with what could move its cursor made visible, else as
/// they are, byte for byte.
pub struct Printer<W = io::StdoutLock<'static>> {
    out: W,
    terminal: bool,
    colors: bool,
    drafts: bool,
    silent: bool,
    /// The text before the output, and its style.
    before: (Style, String),
    result: io::Result<()>,
}

/// How a token of this origin is shown: in colour, or between marks where there is none.
fn mark(origin: Origin) -> (Style, [&'static str; 2], &'static str) {
    let color = |c: AnsiColor| Style::new().fg_color(Some(c.into()));
    match origin {
        Origin::Accepted => (color(AnsiColor::Green), ["", ""], "accepted draft"),
        Origin::Correction => (color(AnsiColor::Red).bold(), ["[", "]"], "correction"),
        Origin::Bonus => (color(AnsiColor::Cyan), ["{", "}"], "bonus"),
    }
}

fn has_colors(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

impl Printer {
    /// To standard output. Shows pieces by their origin if `drafts`; shows nothing at all if
    /// `silent`.
    pub fn new(drafts: bool, silent: bool) -> Self {
        let out = io::stdout();
        Self::to(out.lock(), out.is_terminal(), has_colors(&out), drafts, silent)
    }
}

impl<W: Write> Printer<W> {
    fn to(out: W, terminal: bool, colors: bool, drafts: bool, silent: bool) -> Self {
        let before = (Style::new(), String::new());
        Self { out, terminal, colors, drafts, silent, before, result: Ok(()) }
    }

    /// Writes this before the first piece: not yet, for an error before it is to stand alone.
    pub fn before(&mut self, text: &str) {
        self.before = (Style::new(), text.to_owned());
    }

    /// Shows the end of the prompt before its continuation, dimmed, if this is a terminal.
    pub fn remind(&mut self, prompt: &str) {
        if self.terminal && !self.silent {
            self.before = (Style::new().dimmed(), end(prompt).into_owned());
        }
    }

    fn plain(&mut self, style: Style, text: &str) {
        if self.silent || text.is_empty() || self.result.is_err() {
            return;
        }
        let text = if self.terminal { visible(text) } else { Cow::Borrowed(text) };
        let style = if self.colors { style } else { Style::new() };
        self.result = write!(self.out, "{style}{text}{style:#}").and_then(|()| self.out.flush());
    }

    fn begin(&mut self) {
        let (style, text) = std::mem::take(&mut self.before);
        self.plain(style, &text);
    }

    /// Whether to go on.
    pub fn show(&mut self, piece: OutputChunk) -> bool {
        self.begin();
        let (style, [open, close], _) = mark(piece.origin);
        match (self.drafts, self.colors) {
            (false, _) => self.plain(Style::new(), &piece.text),
            (true, true) => self.plain(style, &piece.text),
            (true, false) => self.plain(style, &format!("{open}{}{close}", piece.text)),
        }
        self.result.is_ok()
    }

    /// Ends the last line of the output.
    ///
    /// # Errors
    /// Output that is closed.
    pub fn finish(mut self) -> io::Result<()> {
        self.begin();
        self.plain(Style::new(), "\n");
        self.result
    }
}

/// The last lines of a text, as many as serve as a reminder.
fn end(text: &str) -> Cow<'_, str> {
    const LINES: usize = 5;
    const CHARACTERS: usize = 400;
    let line = text.rmatch_indices('\n').nth(LINES - 1).map_or(0, |(at, _)| at + 1);
    let character = text.char_indices().rev().nth(CHARACTERS - 1).map_or(0, |(at, _)| at);
    match line.max(character) {
        0 => Cow::Borrowed(text),
        start => Cow::Owned(format!("…{}", &text[start..])),
    }
}

/// What the colours or marks mean.
pub fn legend() -> String {
    let colors = has_colors(&io::stdout());
    let entry = |origin| match mark(origin) {
        (style, _, name) if colors => format!("{style}{name}{style:#}"),
        (_, [open, close], name) => format!("{open}{name}{close}"),
    };
    [Origin::Accepted, Origin::Correction, Origin::Bonus].map(entry).join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WILD: &str = "a\u{1b}[2J\r\u{8}b\u{0}";

    fn printed(terminal: bool, colors: bool, prompt: &str) -> String {
        let mut out = Vec::new();
        let mut printer = Printer::to(&mut out, terminal, colors, false, false);
        printer.remind(prompt);
        assert!(printer.show(OutputChunk { text: WILD.to_owned(), origin: Origin::Bonus }));
        printer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pipes_get_the_bytes_and_terminals_no_commands() {
        assert_eq!(printed(false, false, "p"), format!("{WILD}\n"));
        // Also where colours are asked for.
        assert_eq!(printed(false, true, "p"), format!("{WILD}\n"));
        assert_eq!(printed(true, false, "p"), "pa␛[2J␍␈b␀\n");
        assert_eq!(printed(true, true, "p"), "\u{1b}[2mp\u{1b}[0ma␛[2J␍␈b␀\n");
    }

    #[test]
    fn long_prompts_are_remembered_by_their_end() {
        assert_eq!(end("a\nb"), "a\nb");
        assert_eq!(end("1\n2\n3\n4\n5\n6"), "…2\n3\n4\n5\n6");
        assert_eq!(end(&"é".repeat(1000)).chars().count(), 401);
    }
}
