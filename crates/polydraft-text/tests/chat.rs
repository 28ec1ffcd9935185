//! Rendered chat templates compared with the output of transformers: fixtures/chats.json, written
//! by make_text.py.

use std::fs;
use std::path::Path;

use polydraft_text::{ChatTemplate, Ending, Message, Rendering, SpecialTokens};
use serde_json::{Value, json};

fn write_json(directory: &Path, name: &str, value: &Value) {
    fs::write(directory.join(name), value.to_string()).unwrap();
}

fn template(directory: &Path, text: &str) -> polydraft_text::Result<Option<ChatTemplate>> {
    let settings =
        json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": text});
    write_json(directory, "tokenizer_config.json", &settings);
    ChatTemplate::read(directory)
}

/// Renders one message, or returns the error.
fn rendered(text: &str) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let template = template(directory.path(), text).map_err(|e| e.to_string())?.unwrap();
    template.render(&[Message::user("hello")]).map_err(|e| e.to_string())
}

#[test]
fn templates_render_as_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chats.json");
    let all: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for case in all["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let template =
            template(directory.path(), all["templates"][name].as_str().unwrap()).unwrap().unwrap();
        let messages: Vec<Message> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| {
                let content = message["content"].as_str().unwrap();
                match message["role"].as_str().unwrap() {
                    "system" => Message::system(content),
                    "user" => Message::user(content),
                    _ => Message::assistant(content),
                }
            })
            .collect();
        match (template.render(&messages), case["text"].as_str()) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected, "{name}"),
            (Err(found), None) => {
                let found = found.to_string();
                assert!(found.contains(case["error"].as_str().unwrap()), "{name}: {found}");
            }
            (found, expected) => panic!("{name}: {found:?} for {expected:?}"),
        }
    }
}

#[test]
fn reads_template_from_jinja_file_before_settings() {
    let directory = tempfile::tempdir().unwrap();
    let read = || ChatTemplate::read(directory.path()).unwrap();
    assert!(read().is_none());
    write_json(directory.path(), "tokenizer_config.json", &json!({"chat_template": "one"}));
    let source = |t: &ChatTemplate| {
        let file = t.path().file_name().unwrap().to_string_lossy().into_owned();
        (file, t.render(&[]).unwrap())
    };
    assert_eq!(source(&read().unwrap()), ("tokenizer_config.json".to_owned(), "one".to_owned()));
    let several =
        json!([{"name": "tool_use", "template": "a"}, {"name": "default", "template": "two"}]);
    write_json(directory.path(), "tokenizer_config.json", &json!({"chat_template": several}));
    assert_eq!(source(&read().unwrap()).1, "two");
    fs::write(directory.path().join("chat_template.jinja"), "three").unwrap();
    assert_eq!(source(&read().unwrap()), ("chat_template.jinja".to_owned(), "three".to_owned()));
    // Special tokens may be in a separate file.
    fs::write(directory.path().join("chat_template.jinja"), "{{ bos_token }}{{ pad_token }}")
        .unwrap();
    write_json(
        directory.path(),
        "special_tokens_map.json",
        &json!({"bos_token": "<b>", "pad_token": "<p>"}),
    );
    assert_eq!(source(&read().unwrap()).1, "<b><p>");
    fs::write(directory.path().join("tokenizer_config.json"), "[1").unwrap();
    assert!(
        ChatTemplate::read(directory.path())
            .unwrap_err()
            .to_string()
            .contains("tokenizer_config.json")
    );
}

/// Formats as `json.dumps` of Python 3.12.
#[test]
fn tojson_formats_like_python() {
    for (options, expected) in [
        ("", r#"{"b": [1, 2.5, {}], "a": "é\n😀"}"#),
        ("ensure_ascii=true", r#"{"b": [1, 2.5, {}], "a": "\u00e9\n\ud83d\ude00"}"#),
        ("separators=(',', ':'), sort_keys=true", r#"{"a":"é\n😀","b":[1,2.5,{}]}"#),
        ("indent=1", "{\n \"b\": [\n  1,\n  2.5,\n  {}\n ],\n \"a\": \"é\\n😀\"\n}"),
        (
            "indent='-', sort_keys=true",
            "{\n-\"a\": \"é\\n😀\",\n-\"b\": [\n--1,\n--2.5,\n--{}\n-]\n}",
        ),
        (
            "indent=0, separators=('; ', '=')",
            "{\n\"b\"=[\n1; \n2.5; \n{}\n]; \n\"a\"=\"é\\n😀\"\n}",
        ),
    ] {
        let text = format!("{{{{ {{'b': [1, 2.5, {{}}], 'a': 'é\\n😀'}} | tojson({options}) }}}}");
        assert_eq!(rendered(&text), Ok(expected.to_owned()), "{options}");
    }
}

/// Variables reach the template, and do not override messages and special tokens.
#[test]
fn variables_do_not_override_messages() {
    let text = "{{ enable_thinking }} {{ messages | length }} {{ bos_token }} {{ other }}";
    let tokens = SpecialTokens::default();
    let template = ChatTemplate::from_source(text, tokens, "t").unwrap();
    let variables = json!({ "enable_thinking": false, "messages": [1, 2], "other": "x" });
    let rendering = Rendering { variables: variables.as_object(), ..Rendering::default() };
    let rendered = template.render_with(&[Message::user("a")], &rendering);
    assert_eq!(rendered.unwrap(), "False 1  x");
}

/// Ends of a rendered conversation, as in transformers.
#[test]
fn renders_to_start_continuation_or_end_of_message() {
    let text = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[/]{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";
    let template = ChatTemplate::from_source(text, SpecialTokens::default(), "t").unwrap();
    let messages = [Message::user("a"), Message::assistant("b ")];
    let rendered_to = |ending| {
        template.render_with(&messages, &Rendering { ending, ..Rendering::default() }).unwrap()
    };
    assert_eq!(rendered_to(Ending::Answer), "[user]a[/][assistant]b[/][assistant]");
    assert_eq!(rendered_to(Ending::Continue), "[user]a[/][assistant]b");
    assert_eq!(rendered_to(Ending::Message), "[user]a[/][assistant]b[/]");
    let rendering = Rendering { ending: Ending::Continue, ..Rendering::default() };
    assert!(template.render_with(&messages[..1], &rendering).is_err());
}

/// Conversations with tools use the separate template.
#[test]
fn reads_tool_template_from_separate_file() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("chat_template.jinja", "plain");
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let read = || {
        let template = ChatTemplate::read(directory.path()).unwrap().unwrap();
        (
            template.render(&[]).unwrap(),
            template
                .render_with(&[], &Rendering { tools: &tools, ..Rendering::default() })
                .unwrap(),
        )
    };
    assert_eq!(read(), ("plain".to_owned(), "plain".to_owned()));
    fs::create_dir(directory.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", "{{ tools[0].function.name }}");
    assert_eq!(read(), ("plain".to_owned(), "f".to_owned()));
}

#[test]
fn strftime_now_formats_current_date() {
    let year = rendered("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.len() == 4 && year.as_str() >= "2025", "{year}");
    assert!(rendered("{{ strftime_now('%d %b %Y') }}").unwrap().ends_with(&year));
    assert!(rendered("{{ strftime_now('%!') }}").unwrap_err().contains("strftime_now"));
}

#[test]
fn hostile_templates_return_errors() {
    for (text, expected) in [
        ("{% if %}", "line 1"),
        ("{{ messages[0].content", "line 1"),
        ("{{ raise_exception('no such thing') }}", "no such thing"),
        ("{{ nothing() }}", "nothing"),
        (
            "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
            "ran out of operations",
        ),
        ("{% for x in [1] %}{{ loop.cycle() }}{% endfor %}", "made the template engine panic"),
        ("{{ messages | tojson(indent=[]) }}", "indent: expected a number of spaces or a string"),
        ("{{ messages | tojson(separators=(',',)) }}", "separators: expected two strings"),
        ("{% include 'other' %}", "other"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ""),
        ("{{ 'x' * 100000000000 }}", "repeated at most 1000"),
        ("{{ ([0] * 100000)|list|length }}", "repeated at most 1000"),
        (
            "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% \
             endfor %}",
            "longer",
        ),
        (
            "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% \
             endfor %}",
            "longer",
        ),
        (
            "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(9) %}{% set n.s = n.s * 999 \
             %}{% endfor %}",
            "longer",
        ),
        (
            "{% set n = namespace(s=1) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% \
             endfor %}",
            "may never end",
        ),
        (
            "{% set n = namespace(s=1) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor \
             %}",
            "nested lists",
        ),
        ("{% set n = namespace() %}{% set n.n = n %}{{ n }}", ""),
        (
            "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% \
             endfor %}{{ n.l }}",
            "",
        ),
        (
            "{% set n = namespace(s=\"'\") %}{% for i in range(99) %}{% set n.s = n.s|pprint %}{% \
             endfor %}",
            "may never end",
        ),
        (
            "{% set s = 'x' * 1000 ~ 'x' * 999 %}{% for i in range(99999) %}{% if s|upper %}{% \
             endif %}{% endfor %}",
            "may never end",
        ),
        (
            "{% macro f(s, n) %}{% if n %}{{ f(s ~ s, n - 1) }}{% endif %}{% endmacro %}{{ f('x', \
             99) }}",
            "",
        ),
        ("{{ [1, 2] | tojson(indent=100000000000) }}", ""),
    ] {
        match rendered(text) {
            Err(message) => assert!(message.contains(expected), "{text}: {message}"),
            Ok(found) => assert!(expected.is_empty(), "{text}: {found}"),
        }
    }
}

/// Names that are keywords elsewhere, and places where a string literal only seems to start.
#[test]
fn rejects_doubled_strings_in_any_notation() {
    let doubled = |name: &str| format!("{{% set {name} = {name} ~ {name} %}}").repeat(40);
    for name in ["call", "block", "filter", "from", "do", "if", "is", "and", "recursive"] {
        let text = format!("{{% set {name} = 'xxxxxxxx' %}}{}", doubled(name));
        let message = rendered(&text).map(|t| t.len()).expect_err(name);
        assert!(message.contains("longer than any prompt"), "{name}: {message}");
    }
    for hidden in ["{% raw %}{% ' %}{% endraw %}", "{%\x0craw %}{{ \" {%- endraw +%}", "{#}{{ ' #}"]
    {
        let text = format!("{hidden}{{% set a = 'xxxxxxxx' %}}{}", doubled("a"));
        let message = rendered(&text).map(|t| t.len()).expect_err(hidden);
        assert!(message.contains("longer than any prompt"), "{hidden}: {message}");
        // The same prefix does not hide the nesting depth of what follows.
        let text = format!("{hidden}{{{{ {}true }}}}", "not ".repeat(3_000));
        let message = rendered(&text).map(|t| t.len()).expect_err(hidden);
        assert!(message.contains("levels of nesting"), "{hidden}: {message}");
    }
    let feeds = format!("{{% set a = 'xxxxxxxx' %}}{}", "{% set a = a\x0c~\x0ca %}".repeat(40));
    assert!(rendered(&feeds).unwrap_err().contains("longer than any prompt"));
}

/// Deeply nested values: dropping one that is too deep would overflow the stack.
#[test]
fn rejects_deeply_nested_values() {
    let looped = |part: &str| {
        format!(
            "{{% set n = namespace(s=1, m=1) %}}{{% for i in range(20000) %}}{part}{{% endfor %}}"
        )
    };
    for (part, expected) in [
        ("{% set n.s = (n.s,) %}", "nested lists"),
        ("{% set n.s = n.s, %}", "nested lists"),
        ("{% set n.s = dict(a=n.s) %}", "nested lists"),
        ("{% set n.s = namespace(a=n.s) %}", "nested lists"),
        ("{% set n.m = namespace() %}{% set n.m.s = n.s %}{% set n.s = n.m %}", "nested lists"),
        ("{% set n.s = {}|chain(n.s) %}", "chain"),
    ] {
        let message = rendered(&looped(part)).expect_err(part);
        assert!(message.contains(expected), "{part}: {message}");
    }
    // Slices are lazy, each of the one before.
    let slices = format!("{{% set s = [1] %}}{}{{{{ s }}}}", "{% set s = s[:] %}".repeat(50_000));
    assert_eq!(rendered(&slices), Ok("[1]".to_owned()));
}

/// Operations of Qwen 3's template on its list of messages, for each message.
#[test]
fn accepts_long_conversations() {
    let text = "{%- set ns = namespace(last=messages|length - 1) %}\
        {%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}\
        {%- if message.role == 'user' and index > 0 %}{%- set ns.last = index %}{%- endif %}{%- \
        endfor %}\
        {%- for message in messages %}{{ message.role }}: {{ message.content }}\
        {%- if loop.index0 < messages|length - 1 %}{{ '\n' }}{%- endif %}{%- endfor %}";
    let template = ChatTemplate::from_source(text, SpecialTokens::default(), "long").unwrap();
    let messages: Vec<Message> =
        (0..2_000).map(|_| Message::user("some words of a message ".repeat(20))).collect();
    assert_eq!(template.render(&messages).unwrap().lines().count(), messages.len());
}

#[test]
fn rejects_templates_beyond_limits() {
    let long = "a".repeat(5_000_000);
    let nots = format!("{{{{ {}true }}}}", "not ".repeat(3_000));
    let minuses = format!("{{{{ {}1 }}}}", "-".repeat(100_000));
    let sums = format!("{{{{ 1{} }}}}", " + 1".repeat(100_000));
    let filters = format!("{{{{ 'x'{} }}}}", "|trim".repeat(100_000));
    let fields = format!("{{{{ messages{} }}}}", ".x".repeat(100_000));
    let elses = format!("{{{{ {}3 }}}}", "1 if 0 else ".repeat(50_000));
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(50_000));
    let ifs = format!("{}{}", "{% if 1 %}".repeat(20_000), "{% endif %}".repeat(20_000));
    let raw = format!(
        "{{% set x %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}",
        "b".repeat(900_000)
    );
    let fill = "{% set x %}{% for i in range(100000) %}{{ messages[0].content * 1000 }}{% endfor \
        %}{% endset %}";
    let repeated = |field: &str| field.repeat(50_000);
    let fields_in_braces = format!("{{{{ '{}'.format('x' * 1000) | length }}}}", repeated("{0}"));
    let fields_by_percent =
        format!("{{{{ '{}' | format(a='x' * 1000) | length }}}}", repeated("%(a)s"));
    for (text, expected) in [
        (long.as_str(), "at most 1048576 bytes, got 5000000"),
        (&nots, "levels of nesting"),
        (&minuses, "levels of nesting"),
        (&sums, "levels of nesting"),
        (&filters, "levels of nesting"),
        (&fields, "levels of nesting"),
        (&elses, "levels of nesting"),
        (&elifs, "levels of nesting"),
        (&ifs, "levels of nesting"),
        (&raw, "ran out of operations"),
        (fill, "longer than any prompt"),
        ("{{ 'x' * 100000000 }}", "at most 1000 times"),
        (
            "{{ ('x' * 1000) | replace('x', 'y' * 1000) | replace('y', 'z' * 1000) }}",
            "longer than any prompt",
        ),
        (
            "{{ ('x' * 1000).replace('', 'y' * 1000).replace('y', 'z' * 1000) }}",
            "longer than any prompt",
        ),
        (
            "{{ (('x' * 1000) ~ 'x' * 1000).join(['1'] * 1000 + ['1'] * 1000 + ['1'] * 1000) }}",
            "longer than any prompt",
        ),
        (
            "{{ ([1] * 1000 + [1] * 1000 + [1] * 1000) | join('x' * 1000 ~ 'x' * 1000) }}",
            "longer than any prompt",
        ),
        ("{{ ([1] * 50000000) | tojson }}", "at most 1000 times"),
        ("{{ '%1000000000d' | format(1) }}", "width of at most"),
        ("{{ '{:1000000000}'.format(1) }}", "width of at most"),
        ("{{ '%*d' | format(1000000000, 1) }}", "width of at most"),
        ("{{ '%(a)1000000000d' | format(a=1) }}", "width of at most"),
        ("{{ '%%%1000000000d' | format(1) }}", "width of at most"),
        ("{{ '{:{}}'.format(1, 1000000000) }}", "width of at most"),
        ("{{ '{:_>100000000000000}'.format(1) }}", "width of at most"),
        ("{{ '{0[}]:300000000}'.format({'}': 1}) }}", "width of at most"),
        ("{{ '{0[:}}].x:300000000}'.format({':}}': {'x': 1}}) }}", "width of at most"),
        ("{{ '}}{{{:300000000}'.format(1) }}", "width of at most"),
        ("{{ '{:é>300000000}'.format(1) }}", "width of at most"),
        ("{{ '{:.300000000f}'.format(1) }}", "width of at most"),
        ("{{ '%(a%b)300000000d' % {'a%b': 1} }}", "width of at most"),
        ("{{ '%(%%)300000000d' % {'%%': 1} }}", "width of at most"),
        ("{{ '%(d)-+0300000000d' % {'d': 1} }}", "width of at most"),
        ("{{ '%.300000000f' | format(1) }}", "width of at most"),
        (&fields_in_braces, "longer than any prompt"),
        (&fields_by_percent, "longer than any prompt"),
        (
            "{{ ([1] * 1000) | replace(',', 'y' * 1000 ~ 'y' * 1000 ~ 'y' * 1000 ~ 'y' * 1000 ~ \
             'y' * 1000) | length }}",
            "longer than any prompt",
        ),
        (
            "{{ ([1] * 1000 + [1] * 1000 + [1] * 1000) | join(d='x' * 1000 ~ 'x' * 1000) | length \
             }}",
            "longer than any prompt",
        ),
        (
            "{{ ('x' * 1000 ~ 'x' * 1000).join((['1'] * 1000 + ['1'] * 1000 + ['1'] * 1000)[:]) | \
             length }}",
            "longer than any prompt",
        ),
        ("{{ ''.join(([1] | batch(100000, 'x' * 1000))[0]) | length }}", "may never end"),
        ("{{ 'x\n' | indent(1000000000) }}", "width of at most"),
        ("{{ 'x\n' | indent(width=1000000000) }}", "width of at most"),
    ] {
        let message = rendered(text).map(|t| t.len()).expect_err(&text[..text.len().min(80)]);
        assert!(message.contains(expected), "{}: {message}", &text[..text.len().min(80)]);
    }
}

#[test]
fn accepts_templates_within_limits() {
    let chain = format!("{{{{ 'a'{} }}}}", " ~ 'b'".repeat(390));
    let elifs = format!("{{% if 0 %}}{}{{% else %}}c{{% endif %}}", "{% elif 0 %}".repeat(390));
    let nots = format!("{{% if {}true %}}y{{% endif %}}", "not ".repeat(390));
    let brackets = "{ ".repeat(500_000);
    let list = format!("{{{{ [{}1] | length }}}}", "{'a': 1 + 2}, ".repeat(5_000));
    for (text, expected) in [
        (chain.as_str(), format!("a{}", "b".repeat(390))),
        (&elifs, "c".to_owned()),
        (&nots, "y".to_owned()),
        (&brackets, brackets.clone()),
        (&list, "5001".to_owned()),
        ("{{ 'a-b' | replace('-', '+') }}{{ 'a-b'.replace('-', '') }}", "a+bab".to_owned()),
        (
            "{{ '%s is %5d' | format('x', 3) }}{{ '{}:{:>3}'.format(1, 2) }}",
            "x is     31:  2".to_owned(),
        ),
        ("{{ 'Since 20240101: {} {:*>3}'.format(1, 2) }}", "Since 20240101: 1 **2".to_owned()),
        ("{{ '20240101: %s 100%%20240101' | format(1) }}", "20240101: 1 100%20240101".to_owned()),
        ("{{ '{{:99999}} {0[:99999]:>3}'.format({':99999': 1}) }}", "{:99999}   1".to_owned()),
        ("{{ '%(99999)s%%99999' % {'99999': 1} }}", "1%99999".to_owned()),
        ("{{ ['a', 'b'] | join(', ') }}{{ '-'.join(['c', 'd']) }}", "a, bc-d".to_owned()),
        ("{{ ', '.join((messages * 2) | map(attribute='content')) }}", "hello, hello".to_owned()),
        ("{{ [1, 2] | join(d='-') }}{{ [1, 2] | replace(',', 3) }}", "1-2[13 2]".to_owned()),
        ("{{ 'a\nb' | indent(2) }}{{ 'a' | indent(width=1, first=true) }}", "a\n  b a".to_owned()),
        ("{% set a = 1 %}{% set b = 2 %}{% set c %}{{ a }}{% endset %}{{ c }}", "1".to_owned()),
        ("{% raw %}{{ not }}{% endraw %}{", "{{ not }}{".to_owned()),
    ] {
        assert_eq!(rendered(text), Ok(expected));
    }
}

/// Instrumented operators give the same results.
#[test]
fn operators_keep_their_results() {
    for (text, expected) in [
        ("{{ 1 + 2 * 3 }}{{ 'a' ~ (1 + 2) }}", "7a3"),
        ("{{ 1 ~ 2 ~ 'a' }}", "12a"),
        ("{{ 'ab' * 3 }}{{ -1 + 4 }}{{ (1, 2) + (3,) }}", "ababab3(1, 2, 3)"),
        ("{% for x in [1] + [2, 3] %}{{ x ~ ',' }}{% endfor %}", "1,2,3,"),
        ("{{ 'a' ~ 'b'|upper ~ 'c'.upper() ~ {'k': 'v'}['k'] ~ [4][0] }}", "aBCv4"),
        (
            "{{ 100000 * 100000 }}{{ 'x' + 'y' if true else 'z' + 'w' }}{{ 2 ** 3 }}",
            "10000000000xy8",
        ),
        ("{% raw %}{{ a ~ b }}{% endraw %}", "{{ a ~ b }}"),
        ("{{ 'a' + 'b' == 'ab' and 'b' in 'a' ~ 'b' }}", "True"),
        ("{% for call in [{'x': {'y': 3}}] %}{{ call['x']['y'] }}{% endfor %}", "3"),
        ("{% set not, block = [1], [2] %}{{ 0 + not[0] }}{{ block[0] }}{{ 1 in [1] }}", "12True"),
        ("{{ 'a' + 'b' 'c' }}{{ 'd' 'e' ~ 'f' }}{{ 1.5e+3 + 1 }}", "abcdef1501.0"),
        (
            "{% set a, b = (1, 2) %}{% set c = a, b %}{{ c[1] }}{{ c|length }}{{ (a, b)|last }}",
            "222",
        ),
        ("{% set n = namespace(a=1) %}{% set n.b = n.a + 1 if n.a else 0 %}{{ n.b }}", "2"),
        (
            "{% macro f(a, b=(1, 2)) %}{{ a }}{{ b[1] }}{{ caller(3) }}{% endmacro %}\
          {% call(x) f(0) %}{{ x }}{% endcall %}{{ dict(a=1)['a'] }}",
            "0231",
        ),
    ] {
        let got = rendered(text).unwrap();
        assert!(got.starts_with(expected), "{text}: {got}");
    }
}
