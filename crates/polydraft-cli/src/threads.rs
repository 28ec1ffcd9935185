//! Number of threads, set before the program does anything else.

use anyhow::Result;
use clap::{ArgMatches, Command};
use polydraft_runtime::{model_files, threads_or_all, use_threads};

use crate::output::Terminal;

/// Starts the threads for the selected command, if it computes with models.
pub fn start_threads(program: &Command, matches: &ArgMatches) -> Result<()> {
    let Some(threads) = requested_threads(program, matches) else { return Ok(()) };
    use_threads(threads)
}

/// Returns the number of threads for commands with `--threads`, which compute with models: one for
/// a small `--target`, unless set otherwise.
fn requested_threads(program: &Command, matches: &ArgMatches) -> Option<usize> {
    let (mut command, mut matches) = (program, matches);
    while let Some((name, inner)) = matches.subcommand() {
        (command, matches) = (command.find_subcommand(name)?, inner);
    }
    // Checked in the command: for an argument that it does not have, the matches would report that
    // it is not given.
    let has = |name: &str| command.get_arguments().any(|argument| argument.get_id() == name);
    if !has("threads") {
        return None;
    }
    let given = matches.get_one::<u32>("threads").map(|threads| *threads as usize);
    let value = |name: &str| has(name).then(|| matches.get_one::<String>(name)).flatten();
    let target = || value("target").or_else(|| value("unnamed"));
    let small = || has("target") && model_files::is_small(target().map(String::as_str));
    Some(threads_or_all(given.or_else(|| small().then_some(1)), &Terminal))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, value_parser};

    use super::*;

    #[test]
    fn small_target_uses_one_thread() {
        let threads = || Arg::new("threads").long("threads").value_parser(value_parser!(u32));
        let bench = Command::new("bench")
            .subcommand(Command::new("model").arg(threads()).arg(Arg::new("model")));
        let generate =
            Command::new("generate").args([threads(), Arg::new("target").long("target")]);
        let generate = generate.arg(Arg::new("unnamed"));
        let mut program =
            Command::new("polydraft").subcommands([bench, generate, Command::new("list")]);
        let mut threads_for = |line: &str| {
            let matches = program.try_get_matches_from_mut(line.split(' ')).unwrap();
            requested_threads(&program, &matches)
        };
        let all = Some(threads_or_all(None, &Terminal));
        assert_eq!(
            threads_for("polydraft bench model"),
            all,
            "it has no target, so no small one either"
        );
        assert_eq!(threads_for("polydraft bench model x"), all);
        assert_eq!(threads_for("polydraft bench model --threads 1"), Some(1));
        assert_eq!(threads_for("polydraft generate"), Some(1), "the demo's target is small");
        assert_eq!(threads_for("polydraft generate --target /nowhere"), all);
        assert_eq!(threads_for("polydraft generate /nowhere"), all);
        assert_eq!(threads_for("polydraft list"), None);
    }
}
