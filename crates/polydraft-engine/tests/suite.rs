//! All tests of this crate in one binary, to link once instead of ten times.

mod combined;
mod common;
mod exactness;
mod failures;
mod features;
mod generation;
mod learning;
mod observers;
mod processors;
mod remote;
mod threads;
mod translated;
