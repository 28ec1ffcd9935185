//! Incremental output, with colours or marks for drafts.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use polydraft_engine::{Origin, OutputChunk};

use crate::output::visible;

/// Writer of output chunks: to a terminal with control characters made visible, else byte for byte.
pub struct Printer<W = io::StdoutLock<'static>> {
    out: W,
    terminal: bool,
    colors: bool,
    drafts: bool,
    silent: bool,
    /// Text before the output, and its style.
    prefix: (Style, String),
    result: io::Result<()>,
}

/// Returns style, marks (for output without colours) and name of an origin.
fn style_of(origin: Origin) -> (Style, [&'static str; 2], &'static str) {
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
    /// Creates a printer to standard output. Marks chunks by origin if `drafts`; prints nothing if
    /// `silent`.
    pub fn new(drafts: bool, silent: bool) -> Self {
        let out = io::stdout();
        Self::with_writer(out.lock(), out.is_terminal(), has_colors(&out), drafts, silent)
    }
}

impl<W: Write> Printer<W> {
    fn with_writer(out: W, terminal: bool, colors: bool, drafts: bool, silent: bool) -> Self {
        let prefix = (Style::new(), String::new());
        Self { out, terminal, colors, drafts, silent, prefix, result: Ok(()) }
    }

    /// Sets text to write before the first chunk, so that an earlier error is printed alone.
    pub fn set_prefix(&mut self, text: &str) {
        self.prefix = (Style::new(), text.to_owned());
    }

    /// Shows the end of the prompt before the output, dimmed, on a terminal.
    pub fn set_reminder(&mut self, prompt: &str) {
        if self.terminal && !self.silent {
            self.prefix = (Style::new().dimmed(), reminder(prompt).into_owned());
        }
    }

    fn write_styled(&mut self, style: Style, text: &str) {
        if self.silent || text.is_empty() || self.result.is_err() {
            return;
        }
        let text = if self.terminal { visible(text) } else { Cow::Borrowed(text) };
        let style = if self.colors { style } else { Style::new() };
        self.result = write!(self.out, "{style}{text}{style:#}").and_then(|()| self.out.flush());
    }

    fn begin(&mut self) {
        let (style, text) = std::mem::take(&mut self.prefix);
        self.write_styled(style, &text);
    }

    /// Writes a chunk; returns whether to continue.
    pub fn show(&mut self, chunk: OutputChunk) -> bool {
        self.begin();
        let (style, [open, close], _) = style_of(chunk.origin);
        match (self.drafts, self.colors) {
            (false, _) => self.write_styled(Style::new(), &chunk.text),
            (true, true) => self.write_styled(style, &chunk.text),
            (true, false) => self.write_styled(style, &format!("{open}{}{close}", chunk.text)),
        }
        self.result.is_ok()
    }

    /// Ends the last line of the output.
    ///
    /// # Errors
    /// Fails if the output is closed.
    pub fn finish(mut self) -> io::Result<()> {
        self.begin();
        self.write_styled(Style::new(), "\n");
        self.result
    }
}

/// Returns the last lines of a prompt, as a reminder.
fn reminder(text: &str) -> Cow<'_, str> {
    const LINES: usize = 5;
    const CHARACTERS: usize = 400;
    let line = text.rmatch_indices('\n').nth(LINES - 1).map_or(0, |(at, _)| at + 1);
    let character = text.char_indices().rev().nth(CHARACTERS - 1).map_or(0, |(at, _)| at);
    match line.max(character) {
        0 => Cow::Borrowed(text),
        start => Cow::Owned(format!("…{}", &text[start..])),
    }
}

/// Returns the legend of the colours or marks.
pub fn legend() -> String {
    let colors = has_colors(&io::stdout());
    let entry = |origin| match style_of(origin) {
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
        let mut printer = Printer::with_writer(&mut out, terminal, colors, false, false);
        printer.set_reminder(prompt);
        assert!(printer.show(OutputChunk { text: WILD.to_owned(), origin: Origin::Bonus }));
        printer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes_control_characters_on_terminals_only() {
        assert_eq!(printed(false, false, "p"), format!("{WILD}\n"));
        // Also with colours enabled.
        assert_eq!(printed(false, true, "p"), format!("{WILD}\n"));
        assert_eq!(printed(true, false, "p"), "pa␛[2J␍␈b␀\n");
        assert_eq!(printed(true, true, "p"), "\u{1b}[2mp\u{1b}[0ma␛[2J␍␈b␀\n");
    }

    #[test]
    fn reminder_is_end_of_prompt() {
        assert_eq!(reminder("a\nb"), "a\nb");
        assert_eq!(reminder("1\n2\n3\n4\n5\n6"), "…2\n3\n4\n5\n6");
        assert_eq!(reminder(&"é".repeat(1000)).chars().count(), 401);
    }
}
