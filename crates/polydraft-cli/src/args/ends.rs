//! End conditions of a sequence other than the token limit.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use polydraft::Token;

/// Options for the end of the output.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Limits")]
pub struct EndArgs {
    /// End the output before this string. May be repeated.
    ///
    /// \n and \t stand for newline and tab, \\ for a backslash.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        value_parser = NonEmptyStringValueParser::new(),
    )]
    stop: Vec<String>,
    /// Continue after an end token.
    #[arg(hide_short_help = true, long)]
    ignore_end: bool,
}

impl EndArgs {
    /// Returns the stop strings.
    pub fn stop(&self) -> Vec<String> {
        self.stop.iter().map(|text| unescape(text)).collect()
    }

    /// Returns whether end tokens are ignored.
    pub fn ignores_end(&self) -> bool {
        self.ignore_end
    }

    /// Returns the end tokens in effect.
    pub fn tokens(&self, end: Vec<Token>) -> Vec<Token> {
        if self.ignore_end { Vec::new() } else { end }
    }
}

/// Parses a limit of tokens; 0 and -1 are no limit.
pub fn token_limit(text: &str) -> Result<TokenLimit, String> {
    match text.parse::<i64>() {
        Ok(-1 | 0) => Ok(TokenLimit(None)),
        Ok(tokens) if tokens > 0 => Ok(TokenLimit(usize::try_from(tokens).ok())),
        _ => Err("expected a number of tokens, or 0 or -1 for no limit but the context".to_owned()),
    }
}

/// Maximum number of tokens; `None` is only limited by the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLimit(pub Option<usize>);

/// Replaces `\n`, `\t` and `\\`, which shells pass as they are; other escapes remain.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('\\', Some(next @ ('n' | 't' | '\\'))) => {
                out.push(match next {
                    'n' => '\n',
                    't' => '\t',
                    _ => '\\',
                });
                rest.next();
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{TokenLimit, token_limit, unescape};

    #[test]
    fn unescapes_newline_tab_and_backslash() {
        assert_eq!(unescape(r"a\n\tb\\n\x\"), "a\n\tb\\n\\x\\");
    }

    #[test]
    fn reads_zero_and_minus_one_as_no_token_limit() {
        for (text, limit) in [("0", None), ("-1", None), ("7", Some(7))] {
            assert_eq!(token_limit(text), Ok(TokenLimit(limit)), "{text}");
        }
        for rejected in ["-2", "x", "1.5"] {
            assert!(token_limit(rejected).unwrap_err().contains("-1 for no limit"), "{rejected}");
        }
    }
}
