//! All tests of this crate in one program, which links once instead of four times.

mod dequantize;
mod model;
mod reader;
mod support;
mod tokenizer;
