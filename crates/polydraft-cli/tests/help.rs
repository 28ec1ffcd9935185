//! The help of all commands: short enough for a screen, with examples that can be pasted.

use serde_json::{Deserializer, Value};

use crate::common::ok;

/// Lines and columns of a screen.
const SCREEN: (usize, usize) = (60, 100);

/// Every command, as the program's own help lists them.
fn commands() -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(command) = open.pop() {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("--help");
        let help = ok(&args);
        let list = help.split("\nCommands:\n").nth(1).unwrap_or_default();
        let names = list.lines().take_while(|line| !line.is_empty());
        let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        for name in names.filter_map(|line| line.split_whitespace().next()) {
            if name != "help" {
                open.push(command.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        commands.push(command);
    }
    commands
}

fn help(command: &[String], option: &str) -> String {
    let args: Vec<&str> = command.iter().map(String::as_str).chain([option]).collect();
    ok(&args)
}

#[test]
fn short_help_fits_a_screen() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let help = help(&command, "-h");
        assert!(help.lines().count() <= SCREEN.0, "{command:?}: {} lines", help.lines().count());
        let wide = help.lines().find(|line| line.chars().count() > SCREEN.1);
        assert_eq!(wide, None, "{command:?}");
    }
}

#[test]
fn long_help_has_every_option_of_short_help() {
    for command in commands() {
        let (short, long) = (help(&command, "-h"), help(&command, "--help"));
        let options = |help: &str| -> Vec<String> {
            let words = help.split_whitespace().filter(|word| word.starts_with("--"));
            words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned()).collect()
        };
        let known = options(&long);
        for option in options(&short) {
            assert!(known.contains(&option), "{command:?}: --{option}");
        }
    }
}

#[test]
fn json_examples_in_help_parse() {
    let mut count = 0;
    for command in commands() {
        let help = help(&command, "--help");
        assert!(!help.contains("\\\""), "{command:?}: a quote with a backslash");
        let mut end = 0;
        for (start, _) in help.match_indices("{\"") {
            // Inside a string of the example before.
            if start < end {
                continue;
            }
            let mut values = Deserializer::from_str(&help[start..]).into_iter::<Value>();
            let value = values.next().expect("a value");
            assert!(
                value.is_ok(),
                "{command:?}: {value:?}: {}",
                &help[start..].lines().next().unwrap()
            );
            end = start + values.byte_offset();
            count += 1;
        }
    }
    assert!(count > 3, "{count} examples");
}
