//! Conversion of panics to errors, for a library that parses untrusted files and strings.
//!
//! `tokenizers` trusts `tokenizer.json`: a post-processor with an undefined token, a prefix that
//! splits a character, and other invalid files make it panic on loading or later.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether panics of this thread are converted to errors.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; a panic is returned as its message.
///
/// The panic is not printed: the first call installs a hook that calls the previous hook for all
/// other panics.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                previous(info);
            }
        }));
    });
    let outer = CONTAINED.replace(true);
    // Callers drop the values that `work` may have left inconsistent, or only read them.
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    result.map_err(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        message
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no reason given")
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::contained;

    #[test]
    fn returns_panic_message() {
        assert_eq!(contained(|| 7), Ok(7));
        assert_eq!(contained(|| -> u8 { panic!("plain") }), Err("plain".to_owned()));
        assert_eq!(contained(|| -> u8 { panic!("with {}", 3) }), Err("with 3".to_owned()));
        // Nested calls.
        let nested =
            contained(|| (contained(|| -> u8 { panic!("in") }), [1, 2].iter().sum::<u8>()));
        assert_eq!(nested, Ok((Err("in".to_owned()), 3)));
    }
}
