//! Panics of a library that is given files and strings of strangers, as results.
//!
//! `tokenizers` trusts `tokenizer.json`: a post-processor that names a token which is not defined,
//! a prefix that cuts a character, and other files that nobody checked, panic when they are read
//! or, later, used.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is about to be made a result.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; what it panics with is the error.
///
/// The panic is not printed: the first call puts a hook before the program's own that passes on all
/// but these.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                before(info);
            }
        }));
    });
    let outer = CONTAINED.replace(true);
    // Whatever `work` left half done is its own: callers drop it, or only read it.
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    result.map_err(|payload| {
        let said = payload.downcast_ref::<String>().map(String::as_str);
        said.or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no reason given")
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::contained;

    #[test]
    fn panics_become_messages() {
        assert_eq!(contained(|| 7), Ok(7));
        assert_eq!(contained(|| -> u8 { panic!("plain") }), Err("plain".to_owned()));
        assert_eq!(contained(|| -> u8 { panic!("with {}", 3) }), Err("with 3".to_owned()));
        // One inside another.
        let nested =
            contained(|| (contained(|| -> u8 { panic!("in") }), [1, 2].iter().sum::<u8>()));
        assert_eq!(nested, Ok((Err("in".to_owned()), 3)));
    }
}
