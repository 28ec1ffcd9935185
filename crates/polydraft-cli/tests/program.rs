//! End-to-end tests of the program: name, manual, completions.

use crate::common;

use crate::common::{fails, ok, run};

/// Commands of every build.
const COMMANDS: [&str; 9] =
    ["generate", "chat", "score", "inspect", "certify", "bench", "list", "completions", "man"];
#[test]
fn version_and_help_list_commands() {
    let version = format!("polydraft {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(ok(&["--version"]), version);
    let help = ok(&["--help"]);
    let listed = |command: &&str| {
        help.lines().any(|line| line.trim_start().starts_with(&format!("{command} ")))
    };
    assert!(COMMANDS.iter().all(listed), "{help}");
    assert_eq!(listed(&"serve"), cfg!(feature = "server"), "{help}");
    assert!(!help.contains("polydraft-cli"));
}

#[test]
#[cfg(target_os = "linux")]
fn full_device_is_an_error_and_closed_pipe_is_not() {
    for args in [&["--help"][..], &["--version"], &["generate", "-h"], &["list"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = common::program(args).stdout(full).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.contains("cannot write the output"), "{args:?}: {message}");
        // A closed pipe is not an error.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = common::program(args).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
#[cfg(not(feature = "llama"))]
fn rpc_server_without_backend_names_build_feature() {
    fails(&["rpc-server"], 1, &["--features llama"]);
    assert!(!ok(&["--help"]).contains("rpc-server"));
}

#[test]
fn prints_completions_for_every_shell() {
    for (shell, part) in [
        ("bash", "complete -F _polydraft"),
        ("zsh", "#compdef polydraft"),
        ("fish", "complete -c polydraft"),
        ("powershell", "Register-ArgumentCompleter -Native -CommandName 'polydraft'"),
        ("elvish", "edit:completion:arg-completer[polydraft]"),
    ] {
        let script = ok(&["completions", shell]);
        assert!(script.contains(part), "{shell}");
        assert_eq!(script.contains("rpc-server"), cfg!(feature = "llama"), "{shell}");
        for expected in ["generate", "max-tokens", "verifier"] {
            assert!(script.contains(expected), "{shell}: {expected}");
        }
    }
    let output = run(&["completions", "csh"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("bash, elvish, fish, powershell, zsh")
    );
    assert!(ok(&["completions", "--help"]).contains("/polydraft.fish"));
}

#[test]
fn man_has_a_page_for_every_command() {
    let page = ok(&["man"]);
    assert!(page.contains(".TH polydraft 1") && page.contains(r"polydraft\-generate(1)"), "{page}");
    let title = format!(".TH polydraft 1  \"polydraft {}\" \"Manual", env!("CARGO_PKG_VERSION"));
    assert!(page.contains(&title), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    assert!(ok(&["man", "--out", out.to_str().unwrap()]).is_empty());
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    assert_eq!(read("polydraft.1"), page);
    for command in COMMANDS {
        assert!(
            read(&format!("polydraft-{command}.1"))
                .contains(&format!(r".SH NAME{}polydraft\-{command}", '\n')),
            "{command}"
        );
    }
    assert!(read("polydraft-generate.1").contains(r"\-\-max\-tokens"));
    assert!(read("polydraft-generate.1").contains(".SH EXAMPLES\n.nf\n  polydraft generate"));
    assert!(out.join("polydraft-bench-speed.1").exists());
    assert!(!out.join("polydraft-help.1").exists());
    let output = run(&["man", "--out", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/proc/nowhere"));
    let file = tempfile::NamedTempFile::new().unwrap();
    fails(&["man", "--out", file.path().to_str().unwrap()], 1, &["expected a folder, got a file"]);
    assert!(ok(&["man", "--help"]).contains("man polydraft-generate"));
}

#[test]
fn list_names_verifiers_rules_and_trees() {
    let list = ok(&["list"]);
    for expected in ["nested-priority", "walk:hub", "k-seq", "sequoia:16", "none"] {
        assert!(list.contains(expected), "{expected}: {list}");
    }
    let json: serde_json::Value = serde_json::from_str(&ok(&["list", "--json"])).unwrap();
    let has =
        |name: &str| json["rules"].as_array().unwrap().iter().any(|rule| rule["name"] == name);
    assert!(has("priority"));
    // Reference solvers are only in the laboratory.
    assert!(!has("max-flow"));
}
