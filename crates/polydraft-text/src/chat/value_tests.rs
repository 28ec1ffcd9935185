//! Tests of Jinja2 (`x is mapping`) that the engine lacks or that differ there.

use minijinja::Environment;
use minijinja::value::{Value, ValueKind};

use super::python;

/// Adds the tests, and removes the engine's that Jinja2 lacks.
pub(super) fn install(environment: &mut Environment) {
    environment.add_test("iterable", is_iterable);
    // Python's test asks for a length and for items: strings and dictionaries have both.
    environment.add_test("sequence", is_iterable);
    environment.add_test("mapping", |value: Value| python::is_dict(&value));
    environment.add_test("callable", |value: Value| {
        let is_macro = value.as_object().is_some_and(|it| it.type_name().ends_with("::Macro"));
        is_macro || matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
    });
    environment.add_test("lower", |value: Value| {
        let text = python::text(&value);
        text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
    });
    environment.add_test("upper", |value: Value| {
        let text = python::text(&value);
        text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
    });
    for name in ["startingwith", "endingwith"] {
        environment.remove_test(name);
    }
}

fn is_iterable(value: Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Undefined => true,
        _ => python::is_dict(&value),
    }
}
