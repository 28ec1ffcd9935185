//! Copies of a target's own weights, kept from one start to the next: where, and what is said of
//! it.

use std::path::Path;

use polydraft_models::{Copies, CopyFile, TransformerModel};

use crate::output::note;

/// The folder that was named, which may be `none`, or else the user's, if there is one.
pub fn of(named: Option<&Path>) -> Option<Copies> {
    match named {
        Some(folder) if folder == "none" => None,
        Some(folder) => Some(Copies::at(folder.to_owned())),
        None => Copies::of_user(),
    }
}

/// Keeps a copy, and says so if it is new.
pub fn keep(file: &CopyFile, copy: &TransformerModel, was_kept: bool) {
    let path = file.path().display();
    match file.keep(copy, was_kept) {
        Ok(()) if was_kept => (),
        Ok(()) => note(format_args!("note: kept for the next start: {path}")),
        Err(problem) => note(format_args!(
            "note: the copy is not kept for the next start: cannot write {path}: {problem}; see --copies"
        )),
    }
}
