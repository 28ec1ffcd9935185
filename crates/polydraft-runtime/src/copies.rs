//! Quantised copies of a target's weights, cached for the next start.

use std::path::Path;

use polydraft_models::{SelfDraftCache, SelfDraftFile, TransformerModel};

use crate::listen::Listener;
use crate::message::{OptionName, message};

/// Returns the cache of copies: the given folder, unless it is `none`, otherwise the user's cache,
/// if there is one.
pub fn cache_folder(named: Option<&Path>) -> Option<SelfDraftCache> {
    match named {
        Some(folder) if folder == "none" => None,
        Some(folder) => Some(SelfDraftCache::new(folder.to_owned())),
        None => SelfDraftCache::in_user_folder(),
    }
}

/// Caches a copy, and notes where if it is new.
pub fn store(
    file: &SelfDraftFile,
    copy: &TransformerModel,
    was_cached: bool,
    listener: &dyn Listener,
) {
    let path = file.path().display();
    match file.save_or_touch(copy, was_cached) {
        Ok(()) if was_cached => (),
        Ok(()) => listener.note(&format!("note: cached for the next start: {path}").into()),
        Err(problem) => {
            let problem = format!("cannot write {path}: {problem}; see ");
            listener.note(&message![
                "note: the copy is not cached for the next start: ",
                problem,
                OptionName::Copies,
            ]);
        }
    }
}
