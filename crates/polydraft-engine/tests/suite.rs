//! The tests of this crate as one program: one is linked in place of nine.

mod common;
mod exactness;
mod failures;
mod features;
mod generation;
mod learning;
mod observers;
mod processors;
mod several;
mod threads;
