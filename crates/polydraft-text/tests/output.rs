//! Formats of reasoning and tool calls: derived from templates, and read from outputs however they
//! are divided.

use std::sync::Arc;

use polydraft_text::{
    ChatTemplate, OutputForm, OutputParser, OutputPart, PromptEnd, SpecialTokens, Tool,
};
use serde_json::{Value, json};

/// Template that writes calls with `call`, after `opening`, before `closing`, with `separator`.
fn template(opening: &str, call: &str, separator: &str, closing: &str) -> String {
    let text = |text: &str| json!(text);
    format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{{% for m in messages %}}\
         {{{{ '<' + m.role + '>' + m.content }}}}{{% if m.tool_calls %}}{{{{ {} }}}}\
         {{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}\
         {{% if not loop.last %}}{{{{ {} }}}}{{% endif %}}{{% endfor %}}{{{{ {} }}}}{{% endif %}}\
         {{{{ '<end>' }}}}{{% endfor %}}{{% if add_generation_prompt %}}<assistant>{{% endif %}}",
        text(opening),
        text(separator),
        text(closing)
    )
}

fn form(template: &str) -> OutputForm {
    let tokens = SpecialTokens::from_roles([("eos_token", "<end>")]);
    ChatTemplate::from_source(template, tokens, "chat.jinja").unwrap().output_form().clone()
}

fn tools() -> Arc<Vec<Tool>> {
    let schema = json!({ "type": "object", "properties": { "s": { "type": "string" },
        "n": { "type": "integer" }, "l": { "type": "array" } } });
    let tool = |name: &str| Tool { name: name.to_owned(), schema: schema.clone() };
    Arc::new(vec![tool("add"), tool("add_all"), tool("now")])
}

/// Text, and calls with their arguments.
type Parsed = (String, Vec<(String, String)>);

fn parse(form: &OutputForm, chunks: &[&str], is_cut: bool) -> Parsed {
    let mut parser = OutputParser::new(form, true, PromptEnd::Before, tools());
    let mut parts: Vec<OutputPart> = chunks.iter().flat_map(|chunk| parser.push(chunk)).collect();
    parts.extend(parser.finish(is_cut));
    let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
    let mut thoughts = String::new();
    for part in parts {
        match part {
            OutputPart::Text(more) => text.push_str(&more),
            OutputPart::Reasoning(more) => thoughts.push_str(&more),
            OutputPart::Call(name) => calls.push((name, String::new())),
            OutputPart::Arguments(more) => calls.last_mut().expect("a call").1.push_str(&more),
        }
    }
    if !thoughts.is_empty() {
        text = format!("({thoughts}){text}");
    }
    (text, calls)
}

/// Parses an output whole, by characters, and split at each position: all must agree.
fn parse_any(form: &OutputForm, output: &str, is_cut: bool) -> Parsed {
    let expected = parse(form, &[output], is_cut);
    let single: Vec<String> = output.chars().map(String::from).collect();
    let single: Vec<&str> = single.iter().map(String::as_str).collect();
    assert_eq!(parse(form, &single, is_cut), expected, "{output}");
    for (cut, _) in output.char_indices() {
        let (a, b) = output.split_at(cut);
        assert_eq!(parse(form, &[a, b], is_cut), expected, "{a}|{b}");
    }
    expected
}

fn owned(text: &str, calls: &[(&str, &str)]) -> Parsed {
    let calls = calls.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string()));
    (text.to_owned(), calls.collect())
}

const OBJECT: &str =
    "{{ '{\"name\": \"' + f.name + '\", \"arguments\": ' + (f.arguments | tojson) + '}' }}";

fn hermes() -> OutputForm {
    let call = format!("{{{{ '<tool_call>\\n' }}}}{OBJECT}{{{{ '\\n</tool_call>' }}}}");
    form(&template("", &call, "\n", ""))
}

#[test]
fn reads_objects_in_marks() {
    let form = hermes();
    let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"s\": \"}\\\"{\", \"l\": \
        [{}]}}\n</tool_call>";
    let add = ("add", "{\"s\": \"}\\\"{\", \"l\": [{}]}");
    assert_eq!(parse_any(&form, one, false), owned("", &[add]));
    // Members in another order, and other white space.
    let two = format!(
        "Let me see.\n\n{one}\n<tool_call>{{ \"arguments\" : {{}}, \"name\":\"now\"}}</tool_call>\n"
    );
    assert_eq!(parse_any(&form, &two, false), owned("Let me see.", &[add, ("now", "{}")]));
    let compact = "<tool_call>{\"name\":\"add\",\"arguments\":{\"n\":1}}</tool_call>";
    assert_eq!(parse_any(&form, compact, false), owned("", &[("add", "{\"n\":1}")]));
    // Text is unchanged, even if it looks like a call.
    for text in [
        "a <b>\n ",
        "x <tool_",
        "Sure. <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> ü",
        "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call> x",
        "  ",
    ] {
        assert_eq!(parse_any(&form, text, false), owned(text, &[]));
    }
    // The end of the answer stands for the closing mark.
    let unclosed = "<tool_call>{\"arguments\": \"{}\", \"name\": \"now\"}";
    assert_eq!(parse_any(&form, unclosed, false), owned("", &[("now", "{}")]));
    // A cut call has the arguments so far; one that is cut before them, after others, is no text.
    let cut = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": ";
    assert_eq!(parse_any(&form, cut, true), owned("", &[("add", "{\"n\": ")]));
    let next = format!("{compact}\n<tool_call>\n{{\"name\": \"ad");
    assert_eq!(parse_any(&form, &next, true), owned("", &[("add", "{\"n\":1}")]));
    for first in ["<", "<tool", "<tool_call>", "<tool_call>\n{\"name\": \"ad", "\n<tool_call>{\"a"]
    {
        assert_eq!(parse_any(&form, first, true), owned("", &[]), "{first}");
        let text = format!("Let me see.\n{first}");
        assert_eq!(parse_any(&form, &text, true), owned("Let me see.", &[]), "{first}");
    }
    // Not so what is another's call, or a character of a line.
    for text in ["a <", "<tool_call>\n{\"name\": \"other\", \"arg", "<tool_box", "{\"name"] {
        assert_eq!(parse_any(&form, text, true), owned(text, &[]));
    }
}

#[test]
fn reads_lists_and_bare_objects() {
    let list = form(&template("[CALLS][", OBJECT, ", ", "]"));
    let object =
        |name: &str, n: usize| format!("{{\"name\": \"{name}\", \"arguments\": {{\"n\": {n}}}}}");
    let two = format!("Hm [CALLS][{}, {}]", object("add", 1), object("now", 2));
    let expected = owned("Hm", &[("add", "{\"n\": 1}"), ("now", "{\"n\": 2}")]);
    assert_eq!(parse_any(&list, &two, false), expected);
    // Without a mark a call is one only at the start.
    let bare = form(
        &template("", OBJECT, "", "")
            .replace("{% for c in m.tool_calls %}", "{% for c in m.tool_calls[:1] %}"),
    );
    let call = object("add", 1);
    assert_eq!(parse_any(&bare, &call, false), owned("", &[("add", "{\"n\": 1}")]));
    let two = format!("{call}; {}", object("now", 2));
    let expected = owned("", &[("add", "{\"n\": 1}"), ("now", "{\"n\": 2}")]);
    assert_eq!(parse_any(&bare, &two, false), expected);
    for text in [format!("Hello {call}"), "{\"a\": 1} b".to_owned(), object("other", 1)] {
        assert_eq!(parse_any(&bare, &text, false), owned(&text, &[]));
    }
}

/// Forms of Qwen3-Coder, GLM, DeepSeek V3.2, LFM2 and Gemma 4, in templates of their kind.
#[test]
fn reads_parameters_of_every_notation() {
    let each = |body: &str, separator: &str| {
        format!(
            "{{% for k, v in f.arguments.items() %}}{body}{{% if not loop.last %}}{separator}{{% \
                endif %}}{{% endfor %}}"
        )
    };
    let value = "{{ v if v is string else v | tojson }}";
    let coder = format!(
        "<tool_call>\n<function={{{{ f.name }}}}>{{{{ '\\n' }}}}{}</function>\n</tool_call>",
        each(
            &format!("<parameter={{{{ k }}}}>{{{{ '\\n' }}}}{value}{{{{ '\\n</parameter>\\n' }}}}"),
            ""
        )
    );
    let typed = format!(
        "<call name=\"{{{{ f.name }}}}\">{}</call>",
        each(
            &format!(
                "<p name=\"{{{{ k }}}}\" string=\"{{{{ 'yes' if v is string else 'no' \
                    }}}}\">{value}</p>"
            ),
            ""
        )
    );
    let pairs = format!(
        "<tool_call>{{{{ f.name }}}}{}</tool_call>",
        each(&format!("<arg_key>{{{{ k }}}}</arg_key><arg_value>{value}</arg_value>"), "")
    );
    let python = format!(
        "{{{{ f.name }}}}({})",
        each("{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v | tojson }}{% endif %}", ", ")
    );
    let marked = format!(
        "<call>call:{{{{ f.name }}}}{{{{ '{{' }}}}{}{{{{ '}}<call_end>' }}}}",
        each("{{ k }}:{{ value(v) }}", ",")
    );
    let marked_value = "{% macro value(v) %}{% if v is string %}<q>{{ v }}<q>{% elif v is \
        mapping %}\
        {{ '{' }}{% for k, x in v.items() %}{{ k }}:{{ value(x) }}{% if not loop.last %},{% \
            endif %}\
        {% endfor %}{{ '}' }}{% elif v is iterable %}[{% for x in v %}{{ value(x) }}\
        {% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}\
        {% endmacro %}";
    let text = "1 < 2, \"a\"\n</b> ü";
    for (template, output) in [
        (
            template("", &coder, "\n", ""),
            format!(
                "<tool_call>\n<function=add_all>\n<parameter=s>\n{text}\n</parameter>\n\
                 <parameter=n>\n7\n\
             </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n\
             </tool_call>"
            ),
        ),
        (
            template("<calls>", &typed, "", "</calls>"),
            format!(
                "<calls><call name=\"add_all\"><p name=\"s\" string=\"yes\">{text}</p><p \
                    name=\"n\" \
             string=\"no\">7</p></call><call name=\"now\"></call></calls>"
            ),
        ),
        (
            template("", &pairs, "", ""),
            format!(
                "<tool_call>add_all<arg_key>s</arg_key><arg_value>{text}</arg_value>\
                 <arg_key>n</arg_key>\
             <arg_value>7</arg_value></tool_call><tool_call>now</tool_call>"
            ),
        ),
        (
            template("<calls>[", &python, ", ", "]</calls>"),
            format!("<calls>[add_all(s={}, n=7), now()]</calls>", json!(text)),
        ),
        (
            format!("{marked_value}{}", template("", &marked, "", "")),
            format!(
                "<call>call:add_all{{s:<q>{text}<q>,n:7}}<call_end><call>call:now{{}}<call_end>"
            ),
        ),
    ] {
        let form = form(&template);
        assert!(form.calls.is_some(), "{template}");
        let arguments = format!("{{\"s\": {}, \"n\": 7}}", json!(text));
        let expected = owned("", &[("add_all", &arguments), ("now", "{}")]);
        assert_eq!(parse_any(&form, &output, false), expected, "{template}");
        let (said, calls) = parse_any(&form, &format!("Hm.\n{output}"), false);
        assert_eq!((said.as_str(), calls), ("Hm.", expected.1), "{template}");
    }
}

/// A number stays text where the tool takes strings only, and a string that is no number stays one.
#[test]
fn kinds_of_plain_values_follow_the_schema() {
    let each = "{% for k, v in f.arguments.items() %}<p={{ k }}>{{ v if v is string else v | \
        tojson }}</p>{% endfor %}";
    let form = form(&template("", &format!("<f={{{{ f.name }}}}>{each}</f>"), "", ""));
    let output = "<f=add><p=s>7</p><p=n>x</p><p=l>[1]</p><p=other>true</p></f>";
    let arguments = "{\"s\": \"7\", \"n\": \"x\", \"l\": [1], \"other\": true}";
    assert_eq!(parse_any(&form, output, false), owned("", &[("add", arguments)]));
    // What follows a closing mark decides whether it is one.
    let output = "<f=add><p=s>a</p>b</p></f>";
    assert_eq!(parse_any(&form, output, false), owned("", &[("add", "{\"s\": \"a</p>b\"}")]));
    let cut = "<f=add><p=s>a</p><p=n>1";
    assert_eq!(parse_any(&form, cut, true), owned("", &[("add", "{\"s\": \"a\"")]));
}

#[test]
fn derives_reasoning_and_the_marks_of_answers() {
    let reasoning = |template: &str| {
        let form = form(template).reasoning;
        [form.opening, form.closing, form.answer_opening, form.answer_closing]
            .map(|mark| mark.trim().to_owned())
    };
    let thinking = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{{ \
        '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}{{ \
        m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
    assert_eq!(reasoning(thinking), ["<think>", "</think>", "", ""]);
    let channel = "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content \
        %}<|channel>thought{{ m.reasoning_content }}<channel|>{% endif %}{% if m.role == \
        'assistant' %}<a>{% endif %}{{ m.content }}{% if m.role == 'assistant' %}</a>{% endif \
        %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let [opening, closing, answer, _] = reasoning(channel);
    assert_eq!([opening, closing, answer], ["<|channel>thought", "<channel|>", "<a>"]);
    // Older templates remove thoughts, and name the mark.
    let removes = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    assert_eq!(reasoning(removes)[..2], ["<think>", "</think>"]);
    assert_eq!(reasoning("{% for m in messages %}{{ m.content }}{% endfor %}"), ["", "", "", ""]);
    let output = "<think>\nhm\n</think>\n\nYes";
    assert_eq!(parse_any(&form(thinking), output, false), owned("(hm)Yes", &[]));
}

#[test]
fn templates_without_calls_have_no_form() {
    let hermes_described = "{% if tools %}<tool_call>{\\\"name\\\": .., \\\"arguments\\\": \
        ..}</tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    assert!(form(hermes_described).calls.is_some_and(|form| form.is_object()));
    let described = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ \
        m.content }}{% endfor %}";
    let described = form(described);
    assert!(described.calls.is_none() && described.lists_tools);
    let plain = form("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert!(plain.calls.is_none() && !plain.lists_tools);
    let fails = form(
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{% for m in messages %}{{ \
            m.content }}{% endfor %}",
    );
    assert!(fails.tools_problem.is_some_and(|problem| problem.contains("no tools")));
    let parsed: Value = json!(parse(&plain, &["x"], false).0);
    assert_eq!(parsed, "x");
}

/// Channels that stay in the text, without the mark of the output's end.
#[test]
fn keeps_channels_where_reasoning_is_not_separate() {
    let form = OutputForm { has_channels: true, ..OutputForm::default() };
    let mut parser = OutputParser::new(&form, false, PromptEnd::Before, Arc::default());
    let mut parts = parser.push("<|channel|>final<|message|>Hi");
    parts.extend(parser.push("<|return|>"));
    parts.extend(parser.finish(false));
    let text: String = parts
        .into_iter()
        .map(|part| match part {
            OutputPart::Text(text) => text,
            part => panic!("{part:?}"),
        })
        .collect();
    assert_eq!(text, "<|channel|>final<|message|>Hi");
}

#[test]
fn reads_calls_without_their_outer_tag() {
    let call = "{{ '<tool_call>\\n<function=' + f.name + '>\\n' }}\
        {% for k, v in f.arguments | items %}{{ '<parameter=' + k + '>\\n' }}\
        {{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' }}{% endfor %}\
        {{ '</function>\\n</tool_call>' }}";
    let form = form(&template("", call, "\n", ""));
    let bare = "<function=add>\n<parameter=s>\nx\n</parameter>\n</function>";
    let add = ("add", "{\"s\": \"x\"}");
    for (output, text, calls) in [
        (bare.to_owned(), "", vec![add]),
        (format!("<tool_call>\n{bare}\n</tool_call>"), "", vec![add]),
        // The closing tag alone, as such models write it.
        (format!("I look.\n\n{bare}\n</tool_call>"), "I look.", vec![add]),
        (format!("{bare}\n{bare}"), "", vec![add, add]),
        (format!("{bare}\n</tool_call>\n<tool_call>\n{bare}\n</tool_call>"), "", vec![add, add]),
        (format!("<tool_call>\n{bare}\n</tool_call>\n{bare}"), "", vec![add, add]),
        ("a <function=other>\n</function>".to_owned(), "a <function=other>\n</function>", vec![]),
    ] {
        assert_eq!(parse_any(&form, &output, false), owned(text, &calls), "{output}");
    }
    let mut complete = OutputParser::new(&form, true, PromptEnd::Before, tools());
    complete.require_outer_tags();
    let parts = [complete.push(bare), complete.finish(false)].concat();
    assert!(parts.iter().all(|part| matches!(part, OutputPart::Text(_))), "{parts:?}");
    for length in 1..bare.find("add").unwrap() + 5 {
        let (text, calls) = parse_any(&form, &bare[..length], true);
        assert!(text.is_empty(), "{length}: {text:?}, {calls:?}");
    }
}

/// The marks of a call, or of reasoning, that a limit cut are no text.
#[test]
fn omits_marks_that_a_limit_cuts() {
    let bare = form(&template("", OBJECT, "\n", ""));
    for cut in ["{", "{\"na", "{\"name\": \"ad", "{\"name\": \"add\", \"argum"] {
        assert_eq!(parse_any(&bare, cut, true), owned("", &[]), "{cut}");
        assert_eq!(parse_any(&bare, cut, false), owned(cut, &[]));
    }
    for object in ["{\"nation\": 1, ", "{\"name\": \"Ada\", \"arg"] {
        assert_eq!(parse_any(&bare, object, true), owned(object, &[]));
    }
    let words = form(&template("Calling:", OBJECT, "\n", ""));
    for (output, text) in [("Call", ""), ("Well.\nCalling:{", "Well."), ("I C", "I C")] {
        assert_eq!(parse_any(&words, output, true), owned(text, &[]), "{output}");
    }
    let mut form = hermes();
    (form.reasoning.opening, form.reasoning.closing) = ("<think>".into(), "</think>".into());
    for (output, text) in [
        ("<th", ""),
        ("<think>a\n</thi", "(a)"),
        ("<think>a</think>\n<tool_", "(a)"),
        ("<think>a</think>b\n<tool_call>\n{\"name\": \"add", "(a)b"),
    ] {
        assert_eq!(parse_any(&form, output, true), owned(text, &[]), "{output}");
    }
    let channels = OutputForm { has_channels: true, ..OutputForm::default() };
    for (output, text) in [
        ("<|channel|>analysis<|message|>a<|en", "(a)"),
        ("<|channel|>final<|message|>a<|ret", "a"),
        ("<|channel|>commentary to=functions.ad", ""),
    ] {
        assert_eq!(parse_any(&channels, output, true), owned(text, &[]), "{output}");
    }
}
