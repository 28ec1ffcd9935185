//! Tests of the grammars of calls: at every prefix of a finite language exactly the tokens that
//! continue it are allowed, whatever the notation.

use std::collections::{BTreeSet, VecDeque};

use polydraft_text::{
    ArgumentForm, CallForm, Kind, Nested, ParameterForm, Piece, ReasoningForm, ValueForm,
};
use serde_json::json;

use super::tests::{accepts as accepts_text, allowed_tokens, bytes};
use super::*;

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

fn value(before: &str, after: &str) -> ValueForm {
    let after = Some(text(after)).filter(|_| !after.is_empty()).into_iter().collect();
    ValueForm { before: before.to_owned(), after }
}

/// Calls `<NAME parameters>` with this notation of parameters.
fn call_form(parameters: ParameterForm) -> CallForm {
    CallForm {
        opening: String::new(),
        head: vec![text("<"), Piece::Name, text(" ")],
        arguments: ArgumentForm::Parameters(Box::new(parameters)),
        tail: vec![text(">")],
        separator: String::new(),
        closing: String::new(),
        allows_several: false,
    }
}

fn parameters(
    before_key: &str,
    values: [ValueForm; 6],
    separator: &str,
    nested: Nested,
) -> ParameterForm {
    ParameterForm {
        before_key: before_key.to_owned(),
        values,
        separator: separator.to_owned(),
        nested,
        sorted: nested == Nested::Marked,
    }
}

/// One call of the tool `f`.
fn one_tool<'a>(form: &'a CallForm, answer: &'a ReasoningForm, schema: Value) -> CallGrammar<'a> {
    let tools = vec![("f", Some(schema))];
    CallGrammar { form, answer, marks: Marks(None), tools, allow_several: false, allow_text: false }
}

/// Compares the allowed tokens at every prefix with those of the listed texts.
fn check_language(form: &CallForm, schema: Value, texts: &[&str]) {
    check_language_of(&bytes(), form, schema, texts);
}

fn check_language_of(grammars: &Grammars, form: &CallForm, schema: Value, texts: &[&str]) {
    let answer = ReasoningForm::default();
    let calls = one_tool(form, &answer, schema);
    let grammar = grammars.build(Form::calls(&calls, "tools").unwrap()).unwrap();
    let trie = grammars.factory.tok_env().tok_trie();
    let mut queue = VecDeque::from([Vec::<Token>::new()]);
    let (mut seen, mut ended) = (BTreeSet::new(), BTreeSet::new());
    while let Some(tokens) = queue.pop_front() {
        let prefix = String::from_utf8(trie.decode(&tokens)).unwrap();
        if !seen.insert(prefix.clone()) {
            continue;
        }
        let found = allowed_tokens(grammars, &grammar, &tokens);
        let expected: Vec<Token> = (0..trie.vocab_size() as Token)
            .filter(|token| match trie.eos_tokens().contains(token) {
                true => texts.contains(&prefix.as_str()),
                false => {
                    let more = trie.token(*token);
                    let next = [prefix.as_bytes(), more].concat();
                    !more.is_empty() && texts.iter().any(|text| text.as_bytes().starts_with(&next))
                }
            })
            .collect();
        assert_eq!(found, expected, "after {prefix:?}");
        for token in found {
            match trie.eos_tokens().contains(&token) {
                true => drop(ended.insert(prefix.clone())),
                false => queue.push_back([&tokens[..], &[token]].concat()),
            }
        }
    }
    assert_eq!(ended.len(), texts.len());
}

fn schema() -> Value {
    json!({ "type": "object", "required": ["s"], "additionalProperties": false, "properties": {
        "s": { "enum": ["a", "b c"] }, "b": { "type": "boolean" } } })
}

#[test]
fn masks_plain_values() {
    let plain = Kind::ALL.map(|_| value("=\n", "\n/;"));
    let form = call_form(parameters("", plain, "", Nested::Json));
    check_language(
        &form,
        schema(),
        &[
            "<f s=\na\n/;>",
            "<f s=\nb c\n/;>",
            "<f s=\na\n/;b=\ntrue\n/;>",
            "<f s=\na\n/;b=\nfalse\n/;>",
            "<f s=\nb c\n/;b=\ntrue\n/;>",
            "<f s=\nb c\n/;b=\nfalse\n/;>",
        ],
    );
    // Nothing is required, and a string is a pattern.
    let plain = Kind::ALL.map(|_| value("=", ";"));
    let form = call_form(parameters("", plain, "", Nested::Json));
    let schema = json!({ "type": "object", "properties": {
        "p": { "type": "string", "pattern": "^x?y$" }, "n": { "type": ["null", "string"],
        "maxLength": 0 } } });
    check_language(
        &form,
        schema,
        &[
            "<f >",
            "<f p=y;>",
            "<f p=xy;>",
            "<f n=null;>",
            "<f n=;>",
            "<f p=y;n=null;>",
            "<f p=y;n=;>",
            "<f p=xy;n=null;>",
            "<f p=xy;n=;>",
        ],
    );
}

#[test]
fn masks_values_whose_kind_is_named() {
    let [string, other] = [value(":s=", "."), value(":o=", ".")];
    let values = Kind::ALL.map(|kind| if kind == Kind::String { &string } else { &other }.clone());
    let form = call_form(parameters("p", values, ",", Nested::Json));
    let schema = json!({ "type": "object", "properties": { "v": { "anyOf": [
        { "const": "1" }, { "enum": [1, 2] }] }, "w": { "const": null } },
        "required": ["w"] });
    check_language(
        &form,
        schema,
        &[
            "<f pw:o=null.>",
            "<f pv:s=1.,pw:o=null.>",
            "<f pv:o=1.,pw:o=null.>",
            "<f pv:o=2.,pw:o=null.>",
        ],
    );
}

#[test]
fn masks_literals_of_python_and_other_marks() {
    let quoted = Kind::ALL.map(|_| value("=", ""));
    let form = call_form(parameters("", quoted, ", ", Nested::Python));
    check_language(
        &form,
        schema(),
        &[
            "<f s=\"a\">",
            "<f s='a'>",
            "<f s=\"b c\">",
            "<f s='b c'>",
            "<f s=\"a\", b=True>",
            "<f s=\"a\", b=true>",
            "<f s='a', b=True>",
            "<f s='a', b=true>",
            "<f s=\"a\", b=False>",
            "<f s=\"a\", b=false>",
            "<f s='a', b=False>",
            "<f s='a', b=false>",
            "<f s=\"b c\", b=True>",
            "<f s=\"b c\", b=true>",
            "<f s='b c', b=True>",
            "<f s='b c', b=true>",
            "<f s=\"b c\", b=False>",
            "<f s=\"b c\", b=false>",
            "<f s='b c', b=False>",
            "<f s='b c', b=false>",
        ],
    );
    let quoted = Kind::ALL.map(|_| value("=", ""));
    let form = call_form(parameters("", quoted, ", ", Nested::Python));
    let one = json!({ "type": "string", "maxLength": 1, "pattern": "^[x'\"]$" });
    let schema = json!({ "type": "object", "required": ["o"], "additionalProperties": false,
        "properties": { "o": { "type": "object", "required": ["k"], "properties": {
            "k": { "type": "array", "items": { "type": "null" }, "minItems": 2, "maxItems": 2 },
            "l": one } } } });
    let mut expected = Vec::new();
    for key in ["\"k\"", "'k'"] {
        for [one, two] in [["None", "None"], ["None", "null"], ["null", "None"], ["null", "null"]] {
            expected.push(format!("<f o={{{key}: [{one}, {two}]}}>"));
            for member in ["\"l\"", "'l'"] {
                for text in ["\"x\"", "\"'\"", "'x'", "'\"'"] {
                    expected.push(format!("<f o={{{key}: [{one}, {two}], {member}: {text}}}>"));
                }
            }
        }
    }
    expected.sort_by_key(String::len);
    // Without longer tokens: where one text is left, its usual tokens are forced.
    let bytes = (0..128u8).map(|byte| vec![byte]).chain([b"<end>".to_vec()]).collect();
    let single = Grammars::from_token_bytes(bytes, None, 129, &[128]).unwrap();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    check_language_of(&single, &form, schema, &expected);
    let [string, other] = [value(":|", "|"), value(":", "")];
    let values = Kind::ALL.map(|kind| if kind == Kind::String { &string } else { &other }.clone());
    let form = call_form(parameters("", values, ",", Nested::Marked));
    let schema = json!({ "type": "object", "required": ["s", "o"], "properties": {
        "s": { "const": "a" },
        "o": { "type": "object", "required": ["l"], "properties": {
            "l": { "type": "array", "items": { "$ref": "#/$defs/item" }, "minItems": 1,
                "maxItems": 2 } } } },
        "$defs": { "item": { "anyOf": [{ "const": "x" }, { "const": null }] } } });
    check_language(
        &form,
        schema,
        &[
            "<f o:{l:[|x|]},s:|a|>",
            "<f o:{l:[null]},s:|a|>",
            "<f o:{l:[|x|,|x|]},s:|a|>",
            "<f o:{l:[|x|,null]},s:|a|>",
            "<f o:{l:[null,|x|]},s:|a|>",
            "<f o:{l:[null,null]},s:|a|>",
        ],
    );
}

/// Values that a schema does not describe may have any values in them.
#[test]
fn takes_any_value_in_every_notation() {
    let [string, other] = [value(":|", "|"), value(":", "")];
    let values = Kind::ALL.map(|kind| if kind == Kind::String { &string } else { &other }.clone());
    let form = call_form(parameters("", values, ",", Nested::Marked));
    let (grammars, answer) = (bytes(), ReasoningForm::default());
    for schema in [json!({ "type": "object" }), json!({ "properties": { "a": {} } })] {
        let form = Form::calls(&one_tool(&form, &answer, schema), "tools").unwrap();
        let grammar = grammars.build(form).unwrap();
        for text in ["<f a:1>", "<f a:{b:{c:|x|,d:[true]}}>", "<f a:|x|>", "<f >"] {
            assert!(accepts_text(&grammars, &grammar, text), "{text}");
        }
        assert!(!accepts_text(&grammars, &grammar, "<f a:{b:}>"));
    }
    // Deeper than any client's schema: an error, in bounded stack.
    let inside = |inner, _| json!({ "type": "object", "properties": { "a": inner } });
    let deep = (0..100).fold(json!({}), inside);
    let problem = Form::calls(&one_tool(&form, &answer, deep), "tools").err().unwrap();
    assert!(problem.contains("at most 32 objects"), "{problem}");
}

#[test]
fn masks_nested_tags() {
    let values = Kind::ALL.map(|_| ValueForm {
        before: ":".to_owned(),
        after: vec![text("/"), Piece::Key, text(";")],
    });
    let form = call_form(parameters("!", values, "", Nested::Tags));
    let schema = json!({ "type": "object", "required": ["o"], "properties": {
        "o": { "type": "object", "required": ["s"], "properties": { "s": { "const": "a" } } },
        "l": { "type": "array", "items": { "const": 1 }, "minItems": 2, "maxItems": 2 } } });
    check_language(
        &form,
        schema,
        &["<f !o:!s:a/s;/o;>", "<f !o:!s:a/s;/o;!l:!item:1/item;!item:1/item;/l;>"],
    );
}

/// After text with the mark of a call, only calls are allowed; the same after reasoning.
#[test]
fn masks_what_is_around_calls() {
    let form = call_form(parameters("", Kind::ALL.map(|_| value("=", ";")), "", Nested::Json));
    let answer =
        ReasoningForm { opening: "[".to_owned(), closing: "]".to_owned(), ..Default::default() };
    let grammars = bytes();
    let tools = vec![("f", Some(json!({ "type": "object", "properties": {} })))];
    let calls = CallGrammar {
        form: &form,
        answer: &answer,
        marks: Marks(None),
        tools,
        allow_several: false,
        allow_text: true,
    };
    let form = Form::calls(&calls, "tools").unwrap();
    let accepts = |end: polydraft_text::PromptEnd, text: &str| {
        let form = form.clone().in_output(&answer, end, Marks(None));
        accepts_text(&grammars, &grammars.build(form).unwrap(), text)
    };
    use polydraft_text::PromptEnd::{After, Before, Inside};
    for (end, text, expected) in [
        (After, "Hm.", true),
        (After, "Hm <f >", true),
        (After, "Hm <g", false),
        (Before, "[think <g] <f >", true),
        (Before, "<f >", true),
        (Before, "[think", false),
        (Inside, "think <g]Hm", true),
        (Inside, "think", false),
        (Inside, "a]b<f >", true),
        (Inside, "a]<g >", false),
    ] {
        assert_eq!(accepts(end, text), expected, "{end:?} {text}");
    }
}

/// Reasoning before JSON, opened by the prompt or by the model, with any mark.
#[test]
fn applies_a_form_after_the_reasoning() {
    let grammars = bytes();
    for [opening, closing] in [["<think>", "</think>"], ["[T]", "[/T]"], ["a.b", "$^"]] {
        let answer = ReasoningForm {
            opening: opening.to_owned(),
            closing: closing.to_owned(),
            ..Default::default()
        };
        let accepts = |end, text: &str| {
            let form = Form::json(json!({ "const": 1 }), "response_format").unwrap();
            let form = form.in_output(&answer, end, Marks(None));
            accepts_text(&grammars, &grammars.build(form).unwrap(), text)
        };
        use polydraft_text::PromptEnd::{After, Before, Inside};
        for (end, text, expected) in [
            (Inside, format!("hm < 2{closing}\n\n1"), true),
            (Inside, "1".to_owned(), false),
            (Inside, format!("hm{closing}2"), false),
            (Before, format!("{opening}hm{closing}1"), true),
            (Before, "1".to_owned(), true),
            (Before, format!("{opening}hm"), false),
            (After, "1".to_owned(), true),
            (After, format!("{opening}hm{closing}1"), false),
        ] {
            assert_eq!(accepts(end, &text), expected, "{end:?} {text}");
        }
    }
}

/// Arguments that are not described are any text up to the mark after them.
#[test]
fn takes_any_arguments_of_a_call_by_name() {
    let values = Kind::ALL.map(|_| value("=", ";"));
    for nested in [Nested::Json, Nested::Tags, Nested::Python] {
        let form = call_form(parameters("p", values.clone(), ",", nested));
        let answer = ReasoningForm::default();
        let calls = CallGrammar { tools: vec![("f", None)], ..one_tool(&form, &answer, json!({})) };
        let grammars = bytes();
        let grammar = grammars.build(Form::calls(&calls, "tools").unwrap()).unwrap();
        let is_free = nested != Nested::Python;
        assert!(!accepts_text(&grammars, &grammar, "<g pa=1;>"), "{nested:?}");
        assert_eq!(accepts_text(&grammars, &grammar, "<f any text, at all>"), is_free);
        assert!(accepts_text(&grammars, &grammar, "<f pa=1;>"), "{nested:?}");
        assert!(!accepts_text(&grammars, &grammar, "<f pa=1;>>"), "{nested:?}");
    }
}

/// Arguments that are a choice of objects, nothing or a string, and lists of one.
#[test]
fn masks_choices_of_arguments() {
    let values = Kind::ALL.map(|_| value("=", ";"));
    let form = || call_form(parameters("p", values.clone(), ",", Nested::Json));
    let one = |name: &str| {
        json!({ "properties": { name: { "const": 1 } }, "required": [name],
        "additionalProperties": false })
    };
    let schema = json!({ "type": "object", "anyOf": [one("a"), one("b")] });
    check_language(&form(), schema, &["<f pa=1;>", "<f pb=1;>"]);
    let schema = json!({ "type": "object", "required": ["s"], "properties": {
        "s": { "type": "string", "nullable": true, "enum": ["a", null] } } });
    check_language(&form(), schema, &["<f ps=a;>", "<f ps=null;>"]);
    let quoted = Kind::ALL.map(|_| value("=", ""));
    let python = call_form(parameters("", quoted, ", ", Nested::Python));
    let schema = json!({ "type": "object", "required": ["l"], "properties": {
        "l": { "type": "array", "items": { "enum": [1, 2] }, "maxItems": 1 } } });
    check_language(&python, schema, &["<f l=[]>", "<f l=[1]>", "<f l=[2]>"]);
    for keyword in ["propertyNames", "not", "dependentRequired"] {
        let schema = json!({ "type": "object", "properties": { "a": {} }, keyword: {} });
        let answer = ReasoningForm::default();
        let form = form();
        let calls = one_tool(&form, &answer, schema);
        let problem = Form::calls(&calls, "tools").err();
        // Those that the library's standard form rewrites have no effect here.
        assert!(problem.is_none_or(|problem| problem.contains("not supported")), "{keyword}");
    }
}

/// Names that the schema allows or requires without describing them.
#[test]
fn masks_names_that_are_not_listed() {
    let values = Kind::ALL.map(|_| value("=", ";"));
    let form = || call_form(parameters("p", values.clone(), ",", Nested::Json));
    let schema = json!({ "type": "object", "propertyNames": { "enum": ["a", "b"] },
        "additionalProperties": { "const": 1 }, "minProperties": 1 });
    check_language(&form(), schema, &["<f pa=1;>", "<f pa=1;,pb=1;>", "<f pb=1;>"]);
    let schema = json!({ "type": "object", "patternProperties": { "^x[12]$": { "const": 1 },
        "^y$": { "const": 2 } }, "minProperties": 1, "maxProperties": 1,
        "additionalProperties": false });
    check_language(&form(), schema, &["<f px1=1;>", "<f px2=1;>", "<f py=2;>"]);
    let schema = json!({ "type": "object", "propertyNames": { "pattern": "^[xy]$" },
        "additionalProperties": { "const": 1 }, "minProperties": 1, "maxProperties": 1 });
    check_language(&form(), schema, &["<f px=1;>", "<f py=1;>"]);
    let schema = json!({ "type": "object", "properties": { "a": { "const": 1 } },
        "required": ["b"], "additionalProperties": { "const": 2 }, "maxProperties": 1 });
    check_language(&form(), schema, &["<f pb=2;>"]);
    let quoted = Kind::ALL.map(|_| value("=", ""));
    let python = call_form(parameters("", quoted, ", ", Nested::Python));
    let names = json!({ "type": "object", "patternProperties": { "^k$": { "const": 1 } },
        "minProperties": 1, "maxProperties": 1 });
    let schema = json!({ "type": "object", "required": ["o"], "properties": { "o": names } });
    let (answer, grammars) = (ReasoningForm::default(), bytes());
    let calls = Form::calls(&one_tool(&python, &answer, schema), "tools").unwrap();
    let grammar = grammars.build(calls).unwrap();
    for (text, expected) in
        [("<f o={\"k\": 1}>", true), ("<f o={'k': 1}>", true), ("<f o={'l': 1}>", false)]
    {
        assert_eq!(accepts_text(&grammars, &grammar, text), expected, "{text}");
    }
}

#[test]
fn names_the_place_of_an_unsupported_keyword_in_parameters() {
    let values = Kind::ALL.map(|_| value("=", ";"));
    let list = json!({ "type": "array", "items": { "not": {} } });
    let inner = json!({ "type": "object", "additionalProperties": list, "required": ["x"] });
    for (nested, property, place) in [
        (Nested::Json, &list, "a/items: not"),
        (Nested::Json, &inner, "a/additionalProperties/items: not"),
        (Nested::Json, &json!({ "allOf": [{ "not": {} }] }), "a/allOf/0: not"),
    ] {
        let form = call_form(parameters("p", values.clone(), ",", nested));
        let schema = json!({ "type": "object", "properties": { "a": property } });
        let answer = ReasoningForm::default();
        let problem = Form::calls(&one_tool(&form, &answer, schema), "tools").unwrap_err();
        assert_eq!(problem, format!("f: #/properties/{place} is not supported"));
    }
}

#[test]
fn errors_of_the_library_do_not_show_the_grammar() {
    let error = "at 11(7): failed to compile JSON schema: Unknown keyword\n  9 | p0_1: x";
    assert_eq!(without_grammar(error.to_owned()), "Unknown keyword");
    assert_eq!(without_grammar("at 1(2): no rule".to_owned()), "at 1(2): no rule");
}
