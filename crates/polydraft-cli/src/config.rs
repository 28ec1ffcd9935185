//! Configuration file with the user's defaults.
//!
//! `polydraft/config.toml` below `$XDG_CONFIG_HOME` (`~/.config`). Keys are long names of options;
//! those at the top apply to all commands that have them, those in a table such as `[generate]` or
//! `[bench.decode]` to that command:
//!
//! ```toml
//! target = "/models/qwen3-8b"
//! draft = "/models/qwen3-0.6b"
//!
//! [generate]
//! max-tokens = 500
//! stop = ["\n\n"]
//! ```
//!
//! They become the options' defaults, so that the command line takes precedence. Contradicting
//! options are an error, also if one of them is from the file. Unknown options and invalid values
//! are errors that name file and line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::usage::UsageError;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use polydraft_files::{FileKind, read_text};
use toml_span::value::{Key, ValueInner};
use toml_span::{Span, Value};

type Result<T> = std::result::Result<T, anyhow::Error>;

/// Options that cannot be set in the file, because they select it, or print and exit.
const EXCLUDED: [&str; 4] = ["config", "no-config", "help", "version"];

/// Applies the defaults of the user's file, if there is one, to the program; the command line
/// `line` may select another file (`--config FILE`) or none (`--no-config`). Also returns the
/// file's path.
///
/// # Errors
/// Fails if a given file is missing, is not valid TOML, or has unknown keys or invalid values.
pub fn apply(program: Command, line: &[OsString]) -> Result<(Command, Option<PathBuf>)> {
    let file = match file_choice(line) {
        FileChoice::None => return Ok((program, None)),
        FileChoice::File(file) => file,
        FileChoice::Default => {
            match default_path(program.get_name()).filter(|file| file.exists()) {
                Some(file) => file,
                None => return Ok((program, None)),
            }
        }
    };
    let shown = file.display();
    let text = read_text(&file, FileKind::CONFIG)
        .map_err(|e| anyhow::anyhow!("cannot read {shown}: {e}"))?;
    Ok((with_defaults(program, &file, &text)?, Some(file)))
}

/// Checks that no option of the file conflicts with one on the command line, which clap does not do
/// for defaults.
///
/// # Errors
/// Fails on a conflict.
pub fn check(program: &Command, matches: &ArgMatches, file: &Path) -> Result<()> {
    let (mut command, mut matches) = (program, matches);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(next) = command.find_subcommand(name) else { return Ok(()) };
        (command, matches) = (next, inner);
    }
    let source = |arg: &Arg| {
        let id = arg.get_id().as_str();
        matches.ids().any(|known| known == id).then(|| matches.value_source(id)).flatten()
    };
    for arg in command.get_arguments().filter(|arg| !arg.is_global_set()) {
        for other in command.get_arg_conflicts_with(arg) {
            for (typed, default) in [(arg, other), (other, arg)] {
                if source(typed) == Some(ValueSource::CommandLine)
                    && source(default) == Some(ValueSource::DefaultValue)
                    && default.get_action().takes_values()
                    && let (Some(typed), Some(default)) = (typed.get_long(), default.get_long())
                {
                    return Err(UsageError::error(format_args!(
                        "--{typed} cannot be used with {default}, which {} sets; --no-config \
                         ignores that file",
                        file.display()
                    )));
                }
            }
        }
    }
    Ok(())
}

enum FileChoice {
    None,
    File(PathBuf),
    Default,
}

/// Finds the file options on the command line, which cannot be parsed before the defaults are
/// known.
fn file_choice(line: &[OsString]) -> FileChoice {
    let mut line = line.iter().skip(1).take_while(|word| *word != "--");
    let mut choice = FileChoice::Default;
    while let Some(word) = line.next() {
        let text = word.to_string_lossy();
        if text == "--no-config" {
            choice = FileChoice::None;
        } else if text == "--config" {
            choice = line.next().map_or(choice, |file| FileChoice::File(file.into()));
        } else if let Some(file) = text.strip_prefix("--config=") {
            choice = FileChoice::File(file.into());
        }
    }
    choice
}

/// Returns the default path of the file: `config.toml` for `polydraft`, else named after the
/// program.
pub fn default_path(program: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".config")))
        .or_else(|| absolute("APPDATA"))?;
    let name = if program == "polydraft" { "config" } else { program };
    Some(folder.join(format!("polydraft/{name}.toml")))
}

/// A file and its text, for error messages.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn error_at(&self, at: Span, problem: impl std::fmt::Display) -> anyhow::Error {
        let line = 1 + self.text.as_bytes()[..at.start.min(self.text.len())]
            .iter()
            .filter(|b| **b == b'\n')
            .count();
        UsageError::error(format_args!("{}, line {line}: {problem}", self.file.display()))
    }
}

fn with_defaults(mut program: Command, file: &Path, text: &str) -> Result<Command> {
    let source = Source { file, text };
    let value = toml_span::parse(text).map_err(|error| source.error_at(error.span, &error))?;
    // A valid file is a table, even if empty.
    let table = value.as_table().into_iter().flatten();
    // Defaults for all commands first, because defaults of a single command override them.
    let (tables, keys): (Vec<_>, Vec<_>) = table.partition(|(_, value)| value.as_table().is_some());
    for (key, value) in keys {
        let values = values(&source, value)?;
        if !has_option(&program, &key.name) {
            let problem = format_args!("no command has an option --{key}");
            return Err(source.error_at(key.span, problem));
        }
        program = set_everywhere(&source, program, key, &values)?;
    }
    for (key, value) in tables {
        program = apply_table(&source, program, key, value)?;
    }
    Ok(program)
}

/// Applies a table's defaults to the command of that name.
fn apply_table(source: &Source, program: Command, name: &Key, table: &Value) -> Result<Command> {
    let Some(table) = table.as_table() else { return Ok(program) };
    if program.find_subcommand(&*name.name).is_none() {
        return Err(source.error_at(name.span, format_args!("unknown command {name}")));
    }
    let mut problem = None;
    let program = program.mut_subcommand(&name.name, |mut command| {
        for (key, value) in table {
            let changed = match value.as_table() {
                Some(_) => apply_table(source, command.clone(), key, value),
                None => values(source, value).and_then(|values| {
                    if command.get_arguments().any(|arg| is_option(arg, &key.name)) {
                        return set(source, command.clone(), key, &values);
                    }
                    let problem = format_args!("{name} has no option --{key}");
                    Err(source.error_at(key.span, problem))
                }),
            };
            match changed {
                Ok(changed) => command = changed,
                Err(error) => {
                    problem.get_or_insert(error);
                }
            }
        }
        command
    });
    problem.map_or(Ok(program), Err)
}

/// Returns whether a key is the name of this option, and may be set in the file.
fn is_option(arg: &Arg, key: &str) -> bool {
    arg.get_long() == Some(key) && !EXCLUDED.contains(&key)
}

/// Returns whether a program, or one of its commands, has an option.
fn has_option(program: &Command, key: &str) -> bool {
    program.get_arguments().any(|arg| is_option(arg, key))
        || program.get_subcommands().any(|command| has_option(command, key))
}

/// Sets a default in the program and in all commands that have the option.
fn set_everywhere(
    source: &Source,
    mut program: Command,
    key: &Key,
    values: &[String],
) -> Result<Command> {
    if program.get_arguments().any(|arg| is_option(arg, &key.name)) {
        program = set(source, program, key, values)?;
    }
    let names: Vec<String> =
        program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names {
        let mut changed = Ok(());
        program = program.mut_subcommand(name, |command| {
            match set_everywhere(source, command.clone(), key, values) {
                Ok(command) => command,
                Err(error) => {
                    changed = Err(error);
                    command
                }
            }
        });
        changed?;
    }
    Ok(program)
}

/// Sets a default after checking that the option accepts it.
fn set(source: &Source, command: Command, key: &Key, values: &[String]) -> Result<Command> {
    let name = &*key.name;
    let Some(arg) = command.get_arguments().find(|arg| is_option(arg, name)) else {
        return Ok(command);
    };
    let id = arg.get_id().clone();
    let flag = !arg.get_action().takes_values();
    if flag && !matches!(values, [value] if value == "true" || value == "false") {
        return Err(source.error_at(key.span, format_args!("{name}: expected true or false")));
    }
    if !flag {
        let words = values.iter().map(|value| format!("--{name}={value}"));
        let line = std::iter::once(command.get_name().to_owned()).chain(words);
        // Ignores errors from missing options, or conflicts of this one alone.
        let is_invalid = |e: &clap::Error| {
            matches!(
                e.kind(),
                ErrorKind::InvalidValue
                    | ErrorKind::ValueValidation
                    | ErrorKind::NoEquals
                    | ErrorKind::TooManyValues
                    | ErrorKind::TooFewValues
                    | ErrorKind::WrongNumberOfValues
            )
        };
        if let Err(error) = command.clone().try_get_matches_from(line)
            && is_invalid(&error)
        {
            let message = error.to_string();
            let problem =
                message.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            return Err(source.error_at(key.span, problem));
        }
    }
    let values: Vec<String> = values.to_vec();
    Ok(command.mut_arg(id, |arg| arg.default_values(values)))
}

/// Formats a value, or several, as on the command line.
fn values(source: &Source, value: &Value) -> Result<Vec<String>> {
    let one = |value: &Value| match value.as_ref() {
        ValueInner::String(text) => Ok(text.to_string()),
        ValueInner::Integer(number) => Ok(number.to_string()),
        ValueInner::Float(number) => Ok(number.to_string()),
        ValueInner::Boolean(truth) => Ok(truth.to_string()),
        other @ (ValueInner::Array(_) | ValueInner::Table(_)) => {
            let problem = "expected a string, a number, true or false, got a value of type";
            Err(source.error_at(value.span, format_args!("{problem} {}", other.type_str())))
        }
    };
    match value.as_array() {
        Some(all) => all.iter().map(one).collect(),
        None => Ok(vec![one(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, value_parser};

    use super::*;
    use crate::usage::is_usage;

    fn program() -> Command {
        let number = |name: &'static str| {
            Arg::new(name).long(name).value_parser(value_parser!(u32).range(1..=9))
        };
        let text = |name: &'static str| Arg::new(name).long(name);
        Command::new("program")
            .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue).global(true))
            .subcommand(
                Command::new("write")
                    .args([number("depth"), text("draft"), text("file").conflicts_with("draft")])
                    .arg(text("stop").action(ArgAction::Append)),
            )
            .subcommand(
                Command::new("bench")
                    .subcommand(Command::new("decode").args([number("depth"), text("draft")])),
            )
    }

    fn read(text: &str) -> Result<Command> {
        with_defaults(program(), Path::new("c.toml"), text)
    }

    #[test]
    fn command_line_overrides_file() {
        let text = "quiet = true\ndepth = 3\ndraft = 'd'\n[write]\nstop = ['a', \
            \"b\\n\"]\n[bench.decode]\ndepth = 4\n";
        let parse = |line: &str| read(text).unwrap().try_get_matches_from(line.split(' ')).unwrap();
        // Defaults conflict with nothing.
        let matches = parse("program write --file x");
        assert!(matches.get_flag("quiet"));
        let write = matches.subcommand_matches("write").unwrap();
        assert_eq!(write.get_one("depth"), Some(&3_u32));
        let stops =
            |m: &ArgMatches| m.get_many::<String>("stop").unwrap().cloned().collect::<Vec<_>>();
        assert_eq!(stops(write), ["a", "b\n"]);
        let matches = parse("program write --file x --depth 5 --stop c");
        let write = matches.subcommand_matches("write").unwrap();
        assert_eq!((write.get_one("depth"), stops(write)), (Some(&5_u32), vec!["c".to_owned()]));
        let matches = parse("program bench decode");
        let decode =
            matches.subcommand_matches("bench").unwrap().subcommand_matches("decode").unwrap();
        assert_eq!(decode.get_one("depth"), Some(&4_u32));
        assert_eq!(decode.get_one("draft"), Some(&"d".to_owned()));
    }

    #[test]
    fn rejects_option_that_conflicts_with_file() {
        let check = |text: &str, line: &str| {
            let program = read(text).unwrap();
            let matches = program.clone().try_get_matches_from(line.split(' ')).unwrap();
            check(&program, &matches, Path::new("c.toml"))
        };
        for (text, line, expected) in [
            (
                "draft = 'd'",
                "program write --file x",
                "--file cannot be used with draft, which c.toml sets",
            ),
            (
                "file = 'f'",
                "program write --draft x",
                "--draft cannot be used with file, which c.toml sets",
            ),
        ] {
            let error = check(text, line).unwrap_err();
            assert!(is_usage(&error) && error.to_string().contains(expected), "{error}");
        }
        for line in ["program write --depth 2", "program write --draft x --depth 2", "program"] {
            check("draft = 'd'\ndepth = 3", line).unwrap();
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, expected) in [
            ("depth = 3\ndepht = 4", "c.toml, line 2: no command has an option --depht"),
            ("[write]\n\ndepth = 10", "line 3: invalid value '10' for '--depth"),
            ("[write]\ndepth = 'x'", "line 2: invalid value 'x'"),
            ("[wrte]\n", "line 1: unknown command wrte"),
            ("[bench.decode]\nstop = 'x'", "line 2: decode has no option --stop"),
            ("quiet = 1", "line 1: quiet: expected true or false"),
            ("depth = [[3]]", "line 1: expected a string, a number"),
            ("depth = 1979-05-27", "line 1: invalid number"),
            ("depth = 3\ndepth = 4", "line 2: duplicate key: `depth`"),
            ("draft = d", "line 1: invalid TOML value, did you mean to use a quoted string?"),
            ("depth = ", "line 1: "),
            ("help = true", "no command has an option --help"),
        ] {
            let error = read(text).unwrap_err();
            assert!(is_usage(&error));
            assert!(error.to_string().contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn command_line_selects_file_or_none() {
        let choice =
            |line: &str| file_choice(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(matches!(choice("p write"), FileChoice::Default));
        assert!(matches!(choice("p --no-config write"), FileChoice::None));
        assert!(
            matches!(choice("p write --config a"), FileChoice::File(file) if file == Path::new("a"))
        );
        assert!(matches!(choice("p write --config=a -- --no-config"), FileChoice::File(_)));
    }
}
