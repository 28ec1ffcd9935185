//! The tests of this crate as one program: one is linked in place of nine.

mod alternatives;
mod common;
mod dialects;
mod native;
mod options;
mod parameters;
mod progress;
mod refusals;
mod roles;
mod serving;
