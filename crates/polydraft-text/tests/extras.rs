//! Variables of chat templates that llama.cpp's server gives them, and transformers does not.

use polydraft_text::{ChatTemplate, Message, Rendering, SpecialTokens};
use serde_json::json;

#[test]
fn a_template_may_be_told_what_llama_cpp_tells_it() {
    let source = "{{ date_string is defined }} {{ date_string }}, {{ datetime }}";
    let template = ChatTemplate::from_source(source, SpecialTokens::default(), "t.jinja").unwrap();
    let messages = [Message::user("a")];
    assert_eq!(template.render(&messages).unwrap(), "False , ");
    let template = template.with_extras();
    let told = template.render(&messages).unwrap();
    // 26 Jul 2024, Jul 26 2024
    let words: Vec<&str> = told.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let [defined, day, month, year, ..] = words[..] else { panic!("{told}") };
    assert_eq!((defined, &words[4..]), ("True", &[month, day, year][..]));
    assert!(day.len() == 2 && month.len() == 3 && year.parse::<u16>().unwrap() > 2000, "{told}");
    // What a conversation or the model's user says of it counts.
    let mut said = serde_json::Map::new();
    said.insert("date_string".to_owned(), "then".into());
    let how = Rendering { variables: Some(&said), ..Rendering::default() };
    assert!(template.render_with(&messages, &how).unwrap().starts_with("True then, "));
    let template = template.with_variables(&said);
    assert!(template.render(&messages).unwrap().starts_with("True then, "));
    let source = "Functions: {{ '' + functions }}";
    let template = ChatTemplate::from_source(source, SpecialTokens::default(), "t.jinja").unwrap();
    assert!(template.render(&messages).is_err());
    let template = template.with_extras();
    assert_eq!(template.render(&messages).unwrap(), "Functions: ");
    let how = Rendering { tools: &[json!({ "name": "f" })], ..Rendering::default() };
    let told = template.render_with(&messages, &how).unwrap();
    assert_eq!(told, "Functions: [{\"name\":\"f\"}]");
}
