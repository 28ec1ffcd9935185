//! The tests of this crate as one program: one is linked in place of four.

mod dequantize;
mod model;
mod reader;
mod support;
mod tokenizer;
