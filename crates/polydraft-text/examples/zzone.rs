use polydraft_text::*;
use std::sync::Arc;
fn main() {
    let f = std::env::args().nth(1).unwrap();
    let out = std::env::args().nth(2).unwrap();
    let text = std::fs::read_to_string(&f).unwrap();
    let t = ChatTemplate::from_source(&text, SpecialTokens::from_roles([("bos_token", "<BOS>"), ("eos_token", "<EOS>")]), &f).unwrap();
    let tools: Vec<serde_json::Value> = vec![serde_json::json!({"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}})];
    println!("{:?}", t.render_with(&[Message::user("QQQ")], &Rendering{tools:&tools, ..Default::default()}));
    let form = t.output_form();
    println!("{form:?}");
    for e in [PromptEnd::Before, PromptEnd::After] {
    let mut p = OutputParser::new(form, true, e, Arc::new(vec![Tool{name:"get_weather".into(), schema: serde_json::json!({})}, Tool{name:"add_nums".into(), schema: serde_json::json!({})}]));
    let mut parts = p.push(&out); parts.extend(p.finish(false));
    println!("{e:?} {parts:?}");
    }
}
