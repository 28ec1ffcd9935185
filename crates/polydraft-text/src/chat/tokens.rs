//! Tokens of a tag, with kinds that depend on their position.
//!
//! minijinja reserves only `true`, `none` and a few more names: `call`, `in` or even `not` is a
//! variable where its parser expects an operand. So the lexer tracks what the parser expects.

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Name or number.
    Word,
    /// Word that is followed by an expression: `in`, `if`, ..
    Keyword,
    /// String literal.
    Text,
    /// Bracket that begins a value.
    Begin,
    /// Bracket after an operand, of a call or an index, or around names.
    Open,
    Close,
    Dot,
    Pipe,
    Comma,
    /// `=`
    Assign,
    /// `~` or `+`.
    Sum,
    /// `*` between two operands.
    Product,
    Minus,
    Percent,
    Other,
}

/// Token with kind and position.
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Index of the closing token, for an opening bracket.
    pub(super) closed_by: usize,
}

impl Token {
    /// Returns whether an operand may end with the token. No operator follows a keyword: where one
    /// seems to, the keyword is a name.
    pub(super) fn ends_operand(&self) -> bool {
        matches!(self.kind, Kind::Word | Kind::Keyword | Kind::Text | Kind::Close)
    }
}

/// State of the lexer: what the parser expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// First word of a statement.
    Statement,
    /// Loop variables, up to `in`.
    Loop,
    /// Parameters of a call block, or the call.
    Call,
    /// Operand, possibly after `not`.
    Operand,
    /// Operand, or a name, which may be any word.
    Name,
    /// Continuation after an operand.
    AfterOperand,
    /// Name of a test, possibly after `not`.
    Test,
    /// Name of a test.
    TestName,
    /// Argument of a test, or continuation after the test.
    AfterTest,
}

impl State {
    /// Returns the kind of a word, and the state after it.
    fn word(self, word: &str) -> (Kind, Self) {
        match (self, word) {
            (Self::Statement, "for") => (Kind::Keyword, Self::Loop),
            (Self::Statement, "call") => (Kind::Keyword, Self::Call),
            (Self::Statement, "set" | "with" | "macro" | "block" | "filter") => {
                (Kind::Keyword, Self::Name)
            }
            (Self::Statement, _) => (Kind::Keyword, Self::Operand),
            (Self::Loop, "in") => (Kind::Keyword, Self::Operand),
            (Self::Loop, _) => (Kind::Word, Self::Loop),
            (Self::Call | Self::Operand, "not") => (Kind::Keyword, Self::Operand),
            (Self::Test, "not") => (Kind::Keyword, Self::TestName),
            (Self::Test | Self::TestName, _) => (Kind::Word, Self::AfterTest),
            (Self::AfterOperand | Self::AfterTest, "is") => (Kind::Keyword, Self::Test),
            (Self::AfterTest, "and" | "or" | "else") => (Kind::Keyword, Self::Operand),
            (Self::AfterOperand, "in") => (Kind::Keyword, Self::Name),
            // Followed by `in`.
            (Self::AfterOperand, "not") => (Kind::Keyword, Self::AfterOperand),
            (Self::AfterOperand, _) => (Kind::Keyword, Self::Operand),
            (Self::Call | Self::Operand | Self::Name | Self::AfterTest, _) => {
                (Kind::Word, Self::AfterOperand)
            }
        }
    }

    /// Returns the state after a token other than a word or a bracket.
    fn after(self, kind: Kind, text: &str) -> Self {
        match kind {
            _ if self == Self::Loop => self,
            Kind::Text | Kind::Word => Self::AfterOperand,
            Kind::Comma | Kind::Assign => Self::Operand,
            // Argument unpacking, not a product.
            Kind::Other if matches!(text, "*" | "**") && !self.is_after_operand() => Self::Operand,
            _ if text == ":" => Self::Operand,
            _ => Self::Name,
        }
    }

    /// Returns the kind of an opening bracket, the state inside, and the state after it.
    fn bracket(self, bracket: u8) -> (Kind, Self, Self) {
        match self {
            Self::Loop => (Kind::Open, self, self),
            Self::Call if bracket == b'(' => (Kind::Open, Self::Operand, Self::Operand),
            Self::AfterOperand if bracket != b'{' => {
                (Kind::Open, Self::Operand, Self::AfterOperand)
            }
            Self::AfterTest if bracket == b'(' => (Kind::Open, Self::Operand, Self::AfterOperand),
            _ => (Kind::Begin, Self::Operand, Self::AfterOperand),
        }
    }

    fn is_after_operand(self) -> bool {
        matches!(self, Self::AfterOperand | Self::AfterTest)
    }
}

/// Splits the inside of a statement or expression tag into tokens.
pub(super) fn tokens(text: &str, is_statement: bool) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut all: Vec<Token> = Vec::new();
    let mut open: Vec<(usize, State)> = Vec::new();
    let mut state = if is_statement { State::Statement } else { State::Operand };
    let mut start = 0;
    while let Some(&byte) = bytes.get(start) {
        if byte.is_ascii_whitespace() {
            start += 1;
            continue;
        }
        let (mut kind, mut end) = lexed(text, start);
        // Only an unterminated string may end inside a character.
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let token = &text[start..end];
        match kind {
            Kind::Word if !byte.is_ascii_digit() => (kind, state) = state.word(token),
            Kind::Open => {
                let after;
                (kind, state, after) = state.bracket(byte);
                open.push((all.len(), after));
            }
            Kind::Close => {
                if let Some((opened, after)) = open.pop() {
                    let closes = all.len();
                    all[opened].closed_by = closes;
                    state = after;
                }
            }
            _ => {
                if kind == Kind::Product && !state.is_after_operand() {
                    kind = Kind::Other;
                }
                state = state.after(kind, token);
            }
        }
        all.push(Token { kind, start, end, closed_by: usize::MAX });
        start = end;
    }
    all
}

/// Returns the kind of the token at a byte without context, and its end.
fn lexed(text: &str, start: usize) -> (Kind, usize) {
    let bytes = text.as_bytes();
    let kind = match bytes[start] {
        quote @ (b'\'' | b'"') => return (Kind::Text, string_end(bytes, start, quote)),
        b'0'..=b'9' => return (Kind::Word, number_end(bytes, start)),
        byte if is_letter(byte) => {
            let rest = bytes[start..].iter().position(|byte| !is_letter(*byte));
            return (Kind::Word, rest.map_or(bytes.len(), |length| start + length));
        }
        _ if matches!(
            bytes.get(start..start + 2),
            Some(b"//" | b"**" | b"==" | b"!=" | b">=" | b"<=")
        ) =>
        {
            return (Kind::Other, start + 2);
        }
        b'(' | b'[' | b'{' => Kind::Open,
        b')' | b']' | b'}' => Kind::Close,
        b'.' => Kind::Dot,
        b'|' => Kind::Pipe,
        b',' => Kind::Comma,
        b'=' => Kind::Assign,
        b'~' | b'+' => Kind::Sum,
        b'*' => Kind::Product,
        b'-' => Kind::Minus,
        b'%' => Kind::Percent,
        _ => Kind::Other,
    };
    (kind, start + 1)
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Returns the end of a number, including fraction and exponent: `1.`, `1.5e+3`.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let digits = |from: usize| {
        bytes[from..]
            .iter()
            .position(|b| !is_letter(*b))
            .map_or(bytes.len(), |length| from + length)
    };
    let is_item = start > 0 && bytes[start - 1] == b'.';
    let mut end = digits(start);
    let is_plain = bytes[start..end].iter().all(|b| b.is_ascii_digit() || *b == b'_');
    let begins_name =
        |at: usize| bytes.get(at).is_some_and(|b| is_letter(*b) && !b.is_ascii_digit());
    let begins_exponent = |at: usize| {
        matches!(bytes.get(at), Some(b'e' | b'E'))
            && matches!(bytes.get(at + 1), Some(b'+' | b'-' | b'0'..=b'9'))
    };
    if is_plain
        && !is_item
        && bytes.get(end) == Some(&b'.')
        && (!begins_name(end + 1) || begins_exponent(end + 1))
    {
        end = digits(end + 1);
    }
    let has_radix = matches!(bytes.get(start + 1), Some(b'x' | b'X' | b'o' | b'O' | b'b' | b'B'));
    let is_signed = !has_radix
        && matches!(bytes[end - 1], b'e' | b'E')
        && matches!(bytes.get(end), Some(b'+' | b'-'))
        && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
    if is_signed { digits(end + 1) } else { end }
}

/// Returns the end of a string literal.
pub(super) fn string_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}
