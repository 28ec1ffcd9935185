//! Ctrl-C and SIGTERM: orderly end of running commands, and removal of temporary files.
//!
//! The first interrupt asks a command with an [`InterruptGuard`] to end with its results so far.
//! Without a guard, and at the second interrupt, the program exits at once, with [`EXIT_CODE`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// Exit code after Ctrl-C or SIGTERM: 128 + 2, as shells report a program that SIGINT ended.
pub const EXIT_CODE: u8 = 130;

/// Number of guards.
static GUARDS: AtomicUsize = AtomicUsize::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Whether an interrupt is ending the program.
static LEAVING: AtomicBool = AtomicBool::new(false);
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// While a guard exists, the first interrupt does not end the program.
#[derive(Debug)]
pub struct InterruptGuard(());

impl InterruptGuard {
    /// Creates a guard; the command must check [`is_interrupted`](Self::is_interrupted).
    pub fn install() -> Self {
        install_handler();
        INTERRUPTED.store(false, Ordering::SeqCst);
        GUARDS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }

    /// Returns whether the user has interrupted.
    pub fn is_interrupted(&self) -> bool {
        INTERRUPTED.load(Ordering::SeqCst)
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        GUARDS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// File or folder that an interrupt removes. In all other cases its owner removes it.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Creates the file or folder and registers its path, atomically with respect to interrupts.
    ///
    /// # Errors
    /// Fails as `make` does.
    pub fn create<T, E>(
        make: impl FnOnce() -> Result<T, E>,
        path: impl FnOnce(&T) -> &Path,
    ) -> Result<(T, Self), E> {
        install_handler();
        let mut all = temporary();
        let created = make()?;
        let path = path(&created).to_owned();
        all.push(path.clone());
        Ok((created, Self(path)))
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

/// Waits for the exit if an interrupt is ending the program. Call it before the program exits by
/// itself: errors may be caused by the removal of temporary files, and are not to be reported.
pub fn wait_for_exit() {
    while LEAVING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Installs the signal handler once.
fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without a handler, an interrupt ends the program as usual.
        let _ = ctrlc::set_handler(|| {
            let again = INTERRUPTED.swap(true, Ordering::SeqCst);
            if !again && GUARDS.load(Ordering::SeqCst) > 0 {
                return;
            }
            LEAVING.store(true, Ordering::SeqCst);
            for path in temporary().drain(..) {
                // Twice, since a file may be created during the first removal.
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
