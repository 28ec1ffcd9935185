//! Formats of tool calls: literal text, and where name, id and arguments stand in it.

use super::pattern::Piece;

/// Format of a model's tool calls.
///
/// Calls are written as `opening call (separator call)* closing`, a call as `head arguments tail`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallForm {
    /// Text before the first call.
    pub opening: String,
    /// A call up to its arguments.
    pub head: Vec<Piece>,
    /// Arguments.
    pub arguments: ArgumentForm,
    /// A call after its arguments.
    pub tail: Vec<Piece>,
    /// Text between two calls.
    pub separator: String,
    /// Text after the last call, up to the end of the answer.
    pub closing: String,
    /// Whether an answer may have several calls.
    pub allows_several: bool,
}

/// Format of a call's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentForm {
    /// A JSON object.
    Json,
    /// One parameter after the other.
    Parameters(Box<ParameterForm>),
}

/// Format of arguments that are written as parameters: `before_key key before value after`,
/// separated by `separator`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterForm {
    /// Text before the name of a parameter.
    pub before_key: String,
    /// Text around values, by their kind.
    pub values: [ValueForm; Kind::ALL.len()],
    /// Text between two parameters.
    pub separator: String,
    /// How objects and lists, and their parts, are written.
    pub nested: Nested,
    /// Whether parameters are sorted by name.
    pub sorted: bool,
}

/// Text around a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ValueForm {
    /// Text between the parameter's name and the value.
    pub before: String,
    /// Text after the value; it may repeat the name.
    pub after: Vec<Piece>,
}

/// Notation of objects and lists in parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nested {
    /// JSON.
    Json,
    /// Literals of Python.
    Python,
    /// JSON without quotes around names, and with the marks of strings around strings.
    Marked,
    /// Parameters inside a parameter; elements of lists are named `item`.
    Tags,
}

/// Kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    String,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// `null`
    Null,
    /// An object.
    Object,
    /// A list.
    Array,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::String, Self::Number, Self::Boolean, Self::Null, Self::Object, Self::Array];

    /// Kind of a value.
    pub fn of(value: &serde_json::Value) -> Self {
        match value {
            serde_json::Value::String(_) => Self::String,
            serde_json::Value::Number(_) => Self::Number,
            serde_json::Value::Bool(_) => Self::Boolean,
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Object(_) => Self::Object,
            serde_json::Value::Array(_) => Self::Array,
        }
    }
}

impl ParameterForm {
    /// Text around values of a kind.
    pub fn value(&self, kind: Kind) -> &ValueForm {
        &self.values[kind as usize]
    }

    /// Text around strings if they are written between marks, such as `<|"|>`, and other values
    /// are not.
    pub fn string_marks(&self) -> Option<(&str, &str)> {
        let (string, other) = (self.value(Kind::String), self.value(Kind::Number));
        let opening = string.before.strip_prefix(other.before.as_str())?;
        match string.after.as_slice() {
            [Piece::Text(closing)] if other.after.is_empty() && !opening.is_empty() => {
                Some((opening, closing))
            }
            _ => None,
        }
    }
}

impl CallForm {
    /// First literal of a call: where it stands in a text a call may begin, if it is a mark, such
    /// as `<tool_call>`. Empty if a call has no mark of its own, so that it may only begin an
    /// answer or follow another call.
    pub fn trigger(&self) -> &str {
        let first = match self.head.first() {
            _ if !self.opening.trim().is_empty() => self.opening.as_str(),
            Some(Piece::Text(text)) => text.as_str(),
            _ => "",
        };
        let first = first.trim();
        match first.chars().next() {
            Some('<') => match first.find('>') {
                Some(end) => &first[..=end],
                None => first,
            },
            Some('[') if !first.starts_with("[{") => match first.find(']') {
                Some(end) => &first[..=end],
                None => "",
            },
            Some(character) if character.is_alphabetic() && first.len() > 4 => {
                first.split(char::is_whitespace).next().unwrap_or_default()
            }
            Some(']') => first,
            _ => "",
        }
    }

    /// Whether a call is a JSON object that has the name and the arguments.
    pub fn is_object(&self) -> bool {
        self.arguments == ArgumentForm::Json && self.object_depth() > 0
    }

    /// The form without its outermost tags, where a call stands in two: some models leave out the
    /// outer ones.
    pub(crate) fn inner(&self) -> Option<Self> {
        let ArgumentForm::Parameters(_) = &self.arguments else { return None };
        let (Some(Piece::Text(first)), true) = (self.head.first(), self.opening.trim().is_empty())
        else {
            return None;
        };
        let (outer, rest) = first.trim_start().split_once('>')?;
        let mut inner = self.clone();
        inner.head[0] = Piece::Text(rest.trim_start().to_owned());
        let closing = self.last_tag();
        let Some(Piece::Text(last)) = inner.tail.last_mut() else { return None };
        last.truncate(last.trim_end().len().checked_sub(closing.len())?);
        let is_pair = outer.starts_with('<') && closing.starts_with("</");
        (is_pair && rest.trim_start().starts_with('<') && last.trim().ends_with('>'))
            .then_some(inner)
    }

    /// Last tag of a call.
    pub(crate) fn last_tag(&self) -> &str {
        match self.tail.last() {
            Some(Piece::Text(text)) => text.rfind('<').map_or("", |at| text[at..].trim_end()),
            _ => "",
        }
    }

    /// Number of objects around the arguments.
    pub(crate) fn object_depth(&self) -> usize {
        let count = |bracket: char| {
            let texts = self.head.iter().filter_map(|piece| match piece {
                Piece::Text(text) => Some(text.matches(bracket).count()),
                _ => None,
            });
            texts.sum::<usize>()
        };
        count('{').saturating_sub(count('}'))
    }

    /// Text of a call after the object that it is.
    pub fn after_object(&self) -> &str {
        match self.tail.last() {
            Some(Piece::Text(text)) => text.rsplit('}').next().unwrap_or_default(),
            _ => "",
        }
    }

    /// All literal text, for the marks that must be visible in the output.
    pub fn literals(&self) -> Vec<&str> {
        fn texts(pieces: &[Piece]) -> impl Iterator<Item = &str> {
            pieces.iter().filter_map(|piece| match piece {
                Piece::Text(text) => Some(text.as_str()),
                _ => None,
            })
        }
        let mut all = vec![self.opening.as_str(), &self.separator, &self.closing];
        all.extend(texts(&self.head).chain(texts(&self.tail)));
        if let ArgumentForm::Parameters(form) = &self.arguments {
            all.extend([form.before_key.as_str(), &form.separator]);
            for value in &form.values {
                all.push(&value.before);
                all.extend(texts(&value.after));
            }
        }
        all.retain(|text| !text.trim().is_empty());
        all
    }
}
