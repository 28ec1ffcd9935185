//! Tool calls as a grammar.

use polydraft_text::CallForm;
use serde_json::{Value, json};

use super::literal::literal;

/// The calls that are allowed, and their form.
pub struct CallGrammar<'a> {
    /// Form in which the model writes calls.
    pub form: CallForm,
    /// Tools by name, with the schemas of their arguments.
    pub tools: Vec<(&'a str, Value)>,
    /// Whether several calls are allowed.
    pub allow_several: bool,
    /// Whether text is allowed in place of calls, and between them. Calls must still be valid.
    pub allow_text: bool,
}

impl CallGrammar<'_> {
    /// Grammar in the library's dialect of Lark. JSON has the spaces that models were trained with:
    /// one after a comma or a colon.
    pub(super) fn lark(&self) -> String {
        let Self { form, tools, allow_several, allow_text } = self;
        let (opening, gap) = (form.opening(), form.gap());
        let open = literal(&format!("{opening}{gap}"));
        // After another call.
        let next = literal(&format!("{gap}{opening}{gap}"));
        let allow_several = *allow_several && !opening.is_empty();
        let start = match (allow_text, opening, allow_several) {
            (false, "", _) => "call".to_owned(),
            (false, _, false) => format!("{open} call"),
            (false, _, true) => format!("{open} call ({next} call)*"),
            (true, "", _) => "call | TEXT?".to_owned(),
            (true, _, false) => format!("before {gap} call | TEXT?", gap = literal(gap)),
            (true, _, true) => format!("(before {gap} call)* TEXT?", gap = literal(gap)),
        };
        let text = match opening {
            // An answer that begins with a brace is a call.
            "" => r"TEXT: /(?s:\s*[^{\s].*)/".to_owned(),
            opening => {
                format!("before[lazy]: /(?s:.*){opening}/\nTEXT: /(?s:.+)/ & ~/(?s:.*{opening}.*)/")
            }
        };
        let mut lark = format!("start: {start}\n");
        if *allow_text {
            lark += &format!("{text}\n");
        }
        let names: Vec<String> = (0..tools.len()).map(|number| format!("call_{number}")).collect();
        lark += &format!("call: {}\n", names.join(" | "));
        for (number, (name, schema)) in tools.iter().enumerate() {
            let head = format!("{{\"name\": {}, \"{}\": ", json!(name), form.arguments());
            let tail = format!("}}{gap}{}", form.closing());
            let mut schema = schema.clone();
            let space = json!({ "whitespace_flexible": false, "item_separator": ", ",
                "key_separator": ": " });
            schema["x-guidance"] = space;
            lark += &format!(
                "call_{number}: {} arguments_{number} {}\narguments_{number}: %json {schema}\n",
                literal(&head),
                literal(&tail)
            );
        }
        lark
    }
}
