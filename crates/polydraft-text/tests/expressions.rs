//! Expressions of chat templates compared with the output of transformers:
//! fixtures/expressions.json, whose values make_text.py writes.

use std::fs;
use std::path::Path;

use polydraft_text::{ChatTemplate, Ending, Message, Rendering, SpecialTokens};
use serde_json::Value;

fn rendered(template: &str, variables: &Value) -> Result<String, String> {
    let tokens = SpecialTokens::from_roles([("bos_token", "<s>"), ("eos_token", "</s>")]);
    let template = ChatTemplate::from_source(template, tokens, "t").map_err(|e| e.to_string())?;
    let rendering =
        Rendering { tools: &[], variables: variables.as_object(), ending: Ending::Message };
    template.render_with(&[Message::user("hello")], &rendering).map_err(|e| e.to_string())
}

#[test]
fn expressions_render_as_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/expressions.json");
    let all: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut different = Vec::new();
    for (template, expected) in all["templates"].as_object().unwrap() {
        let found = rendered(template, &all["variables"]);
        if found.as_ref().ok().map(String::as_str) != expected.as_str() {
            different.push(format!("{template}\n  {expected}\n  {found:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Filters and methods that add text are limited like operators.
#[test]
fn rejects_long_output_of_filters_and_methods() {
    for template in [
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.rjust(1000000000) }}",
        "{{ '1'.zfill(1000000000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a\nb' | indent('x' * 1000 * 1000 * 1000) }}",
        "{{ '%1000000000s' % 'a' }}",
        "{{ '%*s' % (1000000000, 'a') }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '{:{w}}'.format(1, w=1000000000) }}",
        "{{ '{:.1000000000%}'.format(0.5) }}",
        "{{ [1] | tojson(indent='x' * 1000 * 1000 * 1000) }}",
        "{{ ('%s' * 1000 * 1) % tuple }}",
        "{% set n = namespace(s='\t') %}{% for i in range(99) %}\
         {% set n.s = (n.s * 9).expandtabs(9999).replace(' ', '\t') %}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(99) %}\
         {% set n.s = n.s.join([n.s, n.s, n.s]) %}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(99) %}\
         {% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(99) %}\
         {% set n.s = '{0}{0}'.format(n.s) %}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(99) %}\
         {% set n.s = n.s.replace('', n.s) %}{% endfor %}",
        "{% set n = namespace(s='\\\\') %}{% for i in range(99) %}\
         {% set n.s = [n.s] | string %}{% endfor %}",
        "{% set n = namespace(s='\\\\') %}{% for i in range(99) %}\
         {% set n.s = [n.s] ~ '' %}{% endfor %}",
        "{% set n = namespace(s='\\\\') %}{% for i in range(99) %}\
         {% set n.s = '%r' % n.s %}{% endfor %}",
        "{% set n = namespace(s='\\\\') %}{% for i in range(99) %}\
         {% set n.s = n.s | tojson %}{% endfor %}",
        "{% set n = namespace(s=1) %}{% for i in range(20000) %}\
         {% set n.s = cycler(n.s) %}{% endfor %}",
        "{% set n = namespace(s=1) %}{% for i in range(20000) %}\
         {% set n.s = dict([('a', n.s)]) %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(20000) %}\
         {% set n.s = [n.s][::-1] %}{% endfor %}",
    ] {
        let problem = rendered(template, &Value::Null).map(|text| text.len());
        problem.expect_err(template);
    }
    // A method that is not called holds no dictionary.
    let nested = "{% set n = namespace(s={}) %}{% for i in range(20000) %}\
                  {% set n.s = {'a': n.s.items} %}{% endfor %}{{ n.s }}";
    let expected = "{'a': <built-in method items of dict object>}";
    assert_eq!(rendered(nested, &Value::Null), Ok(expected.to_owned()));
}
