//! The tokens of a tag, each with what it is at its place.
//!
//! minijinja reserves no names but `true`, `none` and a few more: `call`, `in` or even `not` is a
//! variable wherever its parser expects an operand. So it goes by the place, not by the word.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name or a number.
    Word,
    /// A word after which something begins: `in`, `if`, ..
    Keyword,
    /// A string in quotes.
    Text,
    /// A bracket that begins a value.
    Begin,
    /// A bracket after an operand, of a call or an item, or around names.
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
    Other,
}

/// A token: its kind and where it is.
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
    /// For an opening bracket the token that closes it.
    pub(super) closed_by: usize,
}

impl Token {
    /// Whether an operand may end with it. A keyword is followed by no operator: where one seems to
    /// be, it is a name.
    pub(super) fn ends_operand(&self) -> bool {
        matches!(self.kind, Kind::Word | Kind::Keyword | Kind::Text | Kind::Close)
    }
}

/// What the parser expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The word of a statement.
    Statement,
    /// The names of a loop, up to `in`.
    Loop,
    /// The parameters of a call's block, or the call.
    Call,
    /// An operand, perhaps after `not`.
    Operand,
    /// An operand, or a name: whatever the word is.
    Name,
    /// What comes after an operand.
    Behind,
    /// A test's name, perhaps after `not`.
    Test,
    /// A test's name.
    TestName,
    /// A test's argument, or what comes after the test.
    Tested,
}

impl Place {
    /// What a word is, and what is expected after it.
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
            (Self::Test | Self::TestName, _) => (Kind::Word, Self::Tested),
            (Self::Behind | Self::Tested, "is") => (Kind::Keyword, Self::Test),
            (Self::Tested, "and" | "or" | "else") => (Kind::Keyword, Self::Operand),
            (Self::Behind, "in") => (Kind::Keyword, Self::Name),
            // With `in` after it.
            (Self::Behind, "not") => (Kind::Keyword, Self::Behind),
            (Self::Behind, _) => (Kind::Keyword, Self::Operand),
            (Self::Call | Self::Operand | Self::Name | Self::Tested, _) => {
                (Kind::Word, Self::Behind)
            }
        }
    }

    /// What is expected after another token than a word or a bracket.
    fn behind(self, kind: Kind, text: &str) -> Self {
        match kind {
            _ if self == Self::Loop => self,
            Kind::Text | Kind::Word => Self::Behind,
            Kind::Comma | Kind::Assign => Self::Operand,
            // Its arguments, not two factors.
            Kind::Other if matches!(text, "*" | "**") && !self.is_behind() => Self::Operand,
            _ if text == ":" => Self::Operand,
            _ => Self::Name,
        }
    }

    /// Whether a bracket begins a value, what is expected in it, and after it.
    fn bracket(self, bracket: u8) -> (Kind, Self, Self) {
        match self {
            Self::Loop => (Kind::Open, self, self),
            Self::Call if bracket == b'(' => (Kind::Open, Self::Operand, Self::Operand),
            Self::Behind if bracket != b'{' => (Kind::Open, Self::Operand, Self::Behind),
            Self::Tested if bracket == b'(' => (Kind::Open, Self::Operand, Self::Behind),
            _ => (Kind::Begin, Self::Operand, Self::Behind),
        }
    }

    fn is_behind(self) -> bool {
        matches!(self, Self::Behind | Self::Tested)
    }
}

/// The tokens of what a tag holds, of a statement or of an expression.
pub(super) fn tokens(text: &str, is_statement: bool) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut all: Vec<Token> = Vec::new();
    let mut open: Vec<(usize, Place)> = Vec::new();
    let mut place = if is_statement { Place::Statement } else { Place::Operand };
    let mut start = 0;
    while let Some(&byte) = bytes.get(start) {
        if byte.is_ascii_whitespace() {
            start += 1;
            continue;
        }
        let (mut kind, mut end) = lexed(text, start);
        // A string may end within a character only if it does not end at all.
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let token = &text[start..end];
        match kind {
            Kind::Word if !byte.is_ascii_digit() => (kind, place) = place.word(token),
            Kind::Open => {
                let behind;
                (kind, place, behind) = place.bracket(byte);
                open.push((all.len(), behind));
            }
            Kind::Close => {
                if let Some((opened, behind)) = open.pop() {
                    let closes = all.len();
                    all[opened].closed_by = closes;
                    place = behind;
                }
            }
            _ => {
                if kind == Kind::Product && !place.is_behind() {
                    kind = Kind::Other;
                }
                place = place.behind(kind, token);
            }
        }
        all.push(Token { kind, start, end, closed_by: usize::MAX });
        start = end;
    }
    all
}

/// The token that begins at a byte, by its looks, and where it ends.
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
        _ => Kind::Other,
    };
    (kind, start + 1)
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Where a number ends, its fraction and exponent included: `1.`, `1.5e+3`.
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

/// Where a string in quotes ends.
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
