//! The tests of this crate as one program: one is linked in place of six.

mod chat;
mod extras;
mod generation;
mod gguf;
mod tekken;
mod text;
