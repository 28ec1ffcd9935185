//! Text as it is decided, in colour or between marks.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use polydraft_engine::{Origin, Piece};

/// Writes pieces as they come.
pub struct Printer {
    out: anstream::AutoStream<io::StdoutLock<'static>>,
    drafts: bool,
    colors: bool,
    silent: bool,
    /// What the text is to begin with.
    before: String,
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
    /// Shows pieces by their origin if `drafts`; shows nothing at all if `silent`.
    pub fn new(drafts: bool, silent: bool) -> Self {
        Self {
            colors: has_colors(&io::stdout()),
            out: anstream::AutoStream::auto(io::stdout().lock()),
            drafts,
            silent,
            before: String::new(),
            result: Ok(()),
        }
    }

    /// Writes this before the first piece: not yet, for an error before it is to stand alone.
    pub fn before(&mut self, text: &str) {
        self.before = text.to_owned();
    }

    fn plain(&mut self, text: &str) {
        if !self.silent && self.result.is_ok() {
            self.result = write!(self.out, "{text}").and_then(|()| self.out.flush());
        }
    }

    /// Whether to go on.
    pub fn show(&mut self, piece: Piece) -> bool {
        let before = std::mem::take(&mut self.before);
        self.plain(&before);
        let (style, [open, close], _) = mark(piece.origin);
        match (self.drafts, self.colors) {
            (false, _) => self.plain(&piece.text),
            (true, true) => self.plain(&format!("{style}{}{style:#}", piece.text)),
            (true, false) => self.plain(&format!("{open}{}{close}", piece.text)),
        }
        self.result.is_ok()
    }

    pub fn finish(mut self) -> io::Result<()> {
        let before = std::mem::take(&mut self.before);
        self.plain(&before);
        self.plain("\n");
        self.result
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
