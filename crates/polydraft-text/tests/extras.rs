//! Variables of chat templates that llama.cpp's server provides, and transformers does not.

use polydraft_text::{ChatTemplate, Message, Rendering, SpecialTokens};
use serde_json::json;

#[test]
fn provides_llama_cpp_variables_on_request() {
    let source = "{{ date_string is defined }} {{ date_string }}, {{ datetime }}";
    let template = ChatTemplate::from_source(source, SpecialTokens::default(), "t.jinja").unwrap();
    let messages = [Message::user("a")];
    assert_eq!(template.render(&messages).unwrap(), "False , ");
    let template = template.with_extras();
    let rendered = template.render(&messages).unwrap();
    // 26 Jul 2024, Jul 26 2024
    let words: Vec<&str> = rendered.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let [defined, day, month, year, ..] = words[..] else { panic!("{rendered}") };
    assert_eq!((defined, &words[4..]), ("True", &[month, day, year][..]));
    assert!(
        day.len() == 2 && month.len() == 3 && year.parse::<u16>().unwrap() > 2000,
        "{rendered}"
    );
    // Values of a conversation or of the model's user take precedence.
    let mut variables = serde_json::Map::new();
    variables.insert("date_string".to_owned(), "then".into());
    let how = Rendering { variables: Some(&variables), ..Rendering::default() };
    assert!(template.render_with(&messages, &how).unwrap().starts_with("True then, "));
    let template = template.with_variables(&variables);
    assert!(template.render(&messages).unwrap().starts_with("True then, "));
    let source = "Functions: {{ '' + functions }}";
    let template = ChatTemplate::from_source(source, SpecialTokens::default(), "t.jinja").unwrap();
    assert!(template.render(&messages).is_err());
    let template = template.with_extras();
    assert_eq!(template.render(&messages).unwrap(), "Functions: ");
    let how = Rendering { tools: &[json!({ "name": "f" })], ..Rendering::default() };
    let rendered = template.render_with(&messages, &how).unwrap();
    assert_eq!(rendered, "Functions: [{\"name\":\"f\"}]");
}
