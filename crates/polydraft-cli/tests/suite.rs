//! The tests of this crate as one program: one is linked in place of eight.

mod chat;
mod common;
mod generate;
mod heads;
mod help;
mod hostile;
mod hub;
mod learning;
mod messages;
mod own_copy;
mod program;
