//! Tokenizers and templates.

use anyhow::Result;
use polydraft_engine::Detokenizer;
use polydraft_text::{ChatTemplate, Message, SpecialTokens, Tokenizer};
use serde_json::{Value, json};

use crate::mutation::{self, Dice};

const TOKENIZERS: [&str; 7] = [
    include_str!("../../../../crates/polydraft-models/tests/fixtures/llama/tokenizer.json"),
    include_str!("../../../../crates/polydraft-text/tests/fixtures/tokenizers/byte-level.json"),
    include_str!(
        "../../../../crates/polydraft-text/tests/fixtures/tokenizers/byte-level-prefix.json"
    ),
    include_str!("../../../../crates/polydraft-text/tests/fixtures/tokenizers/decoded.json"),
    include_str!("../../../../crates/polydraft-text/tests/fixtures/tokenizers/metaspace.json"),
    include_str!("../../../../crates/polydraft-text/tests/fixtures/tokenizers/no-prefix.json"),
    include_str!("../../../../crates/polydraft-text/tests/fixtures/tokenizers/prepend.json"),
];

/// Returns a component of a tokenizer that mutations insert, in the library's JSON format.
fn part(dice: &mut Dice) -> (&'static str, Value) {
    let regex = ["\\s+", "(?i:'s)|\\p{L}+", "(a*)*$", "", "[", "(?=a)"][dice.below(6)];
    let content = ["", "a", "<s>", "\n"][dice.below(4)];
    let all = [
        (
            "truncation",
            json!({"direction": "Right", "max_length": dice.below(9), "strategy": "LongestFirst",
                "stride": dice.below(20)}),
        ),
        (
            "padding",
            json!({"strategy": {"Fixed": 4_000_000_000u64}, "direction": "Left",
                "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": ""}),
        ),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": regex}, "content": "x"})),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip",
                "strip_left": true, "strip_right": true}, {"type": "Prepend", "prepend": "▁"}]}),
        ),
        (
            "normalizer",
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true}),
        ),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                "invert": dice.one_in(2)}),
        ),
        (
            "pre_tokenizer",
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                "split": false}),
        ),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": true})),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>",
                "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                "special_tokens": {}}),
        ),
        (
            "post_processor",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true}),
        ),
        (
            "decoder",
            json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"},
                "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip",
                "content": " ", "start": 1, "stop": 0}]}),
        ),
        ("decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        (
            "decoder",
            json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        ),
        (
            "model",
            json!({"type": "Unigram", "unk_id": dice.below(4), "vocab": [["a", -1.0], ["b",
                1e-310], ["é", f64::MAX]], "byte_fallback": true}),
        ),
        (
            "model",
            json!({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "é",
                "max_input_chars_per_word": dice.below(100), "vocab": {"a": 0, "éb": 1}}),
        ),
        ("model", json!({"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0, "b": 0}})),
        (
            "model",
            json!({"type": "BPE", "dropout": 0.5, "unk_token": "?",
                "continuing_subword_prefix": "é", "end_of_word_suffix": "</w>", "fuse_unk": true,
                "byte_fallback": true, "ignore_merges": true, "vocab": {"a": 0, "éb": 1, "ab": 2,
                "<0x41>": 3}, "merges": ["a éb"]}),
        ),
        (
            "added_tokens",
            json!([{"id": dice.below(300), "content": content, "single_word": true, "lstrip": true,
                "rstrip": true, "normalized": true, "special": true}]),
        ),
    ];
    let index = dice.below(all.len());
    all.into_iter().nth(index).unwrap_or(("model", Value::Null))
}

pub fn tokenizer(dice: &mut Dice) -> Result<()> {
    let mut document: Value = serde_json::from_str(TOKENIZERS[dice.below(TOKENIZERS.len())])?;
    for _ in 0..dice.below(3) {
        let (field, value) = part(dice);
        document[field] = value;
    }
    if dice.below(4) > 0 {
        mutation::json(dice, &mut document);
    }
    let bytes = mutation::written(dice, &document);
    used(&Tokenizer::parse(&bytes, "mutant")?, dice)
}

/// Runs all operations of a tokenizer, on unusual strings.
pub fn used(text: &Tokenizer, dice: &mut Dice) -> Result<()> {
    const PROMPTS: [&str; 6] = [
        "",
        "hello world",
        "é\u{10ffff}\u{feff} \0\n\t",
        "<s></s><unk>",
        "aab abb  ab",
        "'s 1234 x''",
    ];
    let mut prompt = PROMPTS[dice.below(PROMPTS.len())].to_owned();
    mutation::text(dice, &mut prompt);
    let encoded = text.encode(&prompt);
    let plain = text.encode_within(&prompt, 100);
    let tokens = encoded.or(plain).unwrap_or_default();
    let _ = text.decode(&tokens);
    let mut stream = text.stream(&tokens);
    for token in [0, 1, 2, dice.below(400) as u32, u32::MAX] {
        let _ = stream.push(token);
    }
    let _ = stream.finish();
    text.vocabulary(text.size())?;
    Ok(())
}

const TEMPLATES: [&str; 8] = [
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + \
     '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% \
     endif %}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = \
     messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for \
     message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ \
     raise_exception('roles') }}{% endif %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' \
     }}{% endfor %}",
    "{%- macro f(x, n) -%}{% if n > 0 %}{{ f(x ~ x, n - 1) }}{% else %}{{ x }}{% endif %}{%- \
     endmacro -%}{{ f('ab', 6) }}",
    "{% set ns = namespace(s='x', l=[]) %}{% for i in range(30) %}{% set ns.s = ns.s ~ i %}{% set \
     ns.l = ns.l + [ns.s] %}{% endfor %}{{ ns.s }}{{ ns.l | tojson(indent=2) }}",
    "{{ messages | map(attribute='content') | list | join(', ') | upper | replace('A', 'bb') | \
     indent(4) }}{{ strftime_now('%Y') }}",
    "{% for a, b in messages[0].items() %}{{ a.title() }}={{ '%s-%5d' | format(b, 3) }}{{ \
     '{:>10}'.format(a) }}{% endfor %}{{ {'k': [1, 2, {'z': none}]} | tojson }}",
    "{% set x %}{% for i in range(5) %}{{ i * 'ab' }}{{ 'ab' * i }}{% endfor %}{% endset %}{{ x | \
     trim | batch(3, 'z') | list | length }}{{ x[::-1] }}{{ x.split('a') | unique | sort | first \
     }}",
    "{% filter upper %}{% block b %}{{ self.b }}{% endblock %}{% endfilter %}{% raw %}{{ x }}{% \
     endraw %}{# c #}{% generation %}{{ messages[-1].content }}{% endgeneration %}{{ loop.index if \
     loop is defined else 2 ** 10 // 3 }}",
];

/// Template fragments that are expensive or unusual.
const WORDS: [&str; 34] = [
    "{% for i in range(1000) %}",
    "{% endfor %}",
    "{% if true %}",
    "{% endif %}",
    "{% set s = s ~ s %}",
    "{% set s = [s, s] %}",
    "{% set ns.s = ns.s ~ ns.s %}",
    "{% set ns.l = [ns.l, ns.l] %}",
    "{% set ns.l = ns.l + ns.l %}",
    "{{ ns }}",
    "{{ ns.s }}",
    " ~ ",
    " + ",
    " * 1000",
    " * 'x'",
    "|list",
    "|tojson",
    "|join('xxxx')",
    "|replace('', 'xxxxxxxx')",
    ".replace('', 'y' * 100)",
    "|sort",
    "|batch(100000, 'x')",
    "|slice(100000)",
    "|map('upper')",
    "|format(99999999)",
    "'%99999999d'",
    "|string",
    "|pprint",
    "(",
    ")",
    "[",
    "]",
    "not ",
    "-",
];

pub fn template(dice: &mut Dice) -> Result<()> {
    let mut template = TEMPLATES[dice.below(TEMPLATES.len())].to_owned();
    for _ in 0..dice.below(4) {
        let word = WORDS[dice.below(WORDS.len())];
        // Statements go between two tags, operators into an expression.
        let sign = if word.starts_with('{') { ["%}", "}}"][dice.below(2)] } else { " }}" };
        let offsets: Vec<usize> = template.match_indices(sign).map(|(at, _)| at).collect();
        let after = if word.starts_with('{') { 2 } else { 0 };
        let offset = offsets.get(dice.below(offsets.len())).map_or(0, |at| at + after);
        let times = if dice.one_in(10) { 1 + dice.below(500) } else { 1 };
        template.insert_str(offset, &word.repeat(times));
    }
    if dice.one_in(3) {
        mutation::text(dice, &mut template);
    }
    let tokens = SpecialTokens::from_roles([("bos_token", "<s>"), ("eos_token", "</s>")]);
    let template = ChatTemplate::from_source(&template, tokens, "mutant")?;
    let messages = [
        Message::system("be brief"),
        Message::user("hi\n{{ x }}"),
        Message::assistant("ho"),
        Message::user("é"),
    ];
    let text = template.render(&messages[dice.below(2)..])?;
    assert!(text.len() <= 8 << 20, "a text of {} bytes", text.len());
    Ok(())
}
