//! Who is told what happens while models are loaded and measured.

/// Is told, in sentences for people. The library itself prints nothing.
pub trait Listener {
    /// Something that most users want to know: what was chosen for them, what is not used.
    fn note(&self, text: &str);

    /// What is done and how, for those who asked for more.
    fn detail(&self, text: &str);
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {
    fn note(&self, _: &str) {}

    fn detail(&self, _: &str) {}
}
