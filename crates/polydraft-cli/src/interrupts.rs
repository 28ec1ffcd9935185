//! Ctrl-C and SIGTERM: running commands may end in order, and temporary files are removed in any
//! case.
//!
//! The first interrupt asks a command with an [`InterruptGuard`] to end with the results so far.
//! Without a guard, and at the second interrupt, the program ends at once, with the exit code that
//! shells give to an interrupted program.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// The exit code of an interrupted program: 128 and the number of the signal.
pub const EXIT_CODE: u8 = 130;

/// How many guards there are.
static ORDERLY: AtomicUsize = AtomicUsize::new(0);
static ASKED: AtomicBool = AtomicBool::new(false);
/// Whether an interrupt is ending the program.
static LEAVING: AtomicBool = AtomicBool::new(false);
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// As long as this lives, the first interrupt does not end the program.
#[derive(Debug)]
pub struct InterruptGuard(());

impl InterruptGuard {
    /// From now on [`asked`](Self::asked) is checked.
    pub fn begin() -> Self {
        listen();
        ASKED.store(false, Ordering::SeqCst);
        ORDERLY.fetch_add(1, Ordering::SeqCst);
        Self(())
    }

    /// Whether the user has interrupted.
    pub fn asked(&self) -> bool {
        ASKED.load(Ordering::SeqCst)
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        ORDERLY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A file or folder that an interrupt removes. Its owner removes it in all other cases.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Makes it, and registers where `path` says that it lies; an interrupt comes before both or
    /// after both.
    ///
    /// # Errors
    /// That of making it.
    pub fn made<T, E>(
        make: impl FnOnce() -> Result<T, E>,
        path: impl FnOnce(&T) -> &Path,
    ) -> Result<(T, Self), E> {
        listen();
        let mut all = temporary();
        let made = make()?;
        let path = path(&made).to_owned();
        all.push(path.clone());
        Ok((made, Self(path)))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        temporary().retain(|path| *path != self.0);
    }
}

fn temporary() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To be called before the program ends by itself: where an interrupt is ending it this waits for
/// that end. What had failed may have failed because its files were being removed, and is no error
/// of the user's.
pub fn give_way() {
    while LEAVING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Listens, from the first call on.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Where that cannot be had an interrupt ends the program as it ends any.
        let _ = ctrlc::set_handler(|| {
            let again = ASKED.swap(true, Ordering::SeqCst);
            if !again && ORDERLY.load(Ordering::SeqCst) > 0 {
                return;
            }
            LEAVING.store(true, Ordering::SeqCst);
            for path in temporary().drain(..) {
                // Twice: a file may be made while the first goes on.
                for _ in 0..2 {
                    let _ = if path.is_dir() {
                        std::fs::remove_dir_all(&path)
                    } else {
                        std::fs::remove_file(&path)
                    };
                }
            }
            polydraft_runtime::leave(EXIT_CODE.into());
        });
    });
}
