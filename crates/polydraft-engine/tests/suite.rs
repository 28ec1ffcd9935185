//! The tests of this crate as one program: one is linked in place of nine.

mod combined;
mod common;
mod exactness;
mod failures;
mod features;
mod generation;
mod learning;
mod observers;
mod processors;
mod threads;
