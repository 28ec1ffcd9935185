//! Compiles the few lines of C++ between Rust and llama.cpp, if the crate is built with it.

fn main() {
    println!("cargo:rerun-if-changed=src/native/border.cpp");
    #[cfg(feature = "native")]
    cc::Build::new().cpp(true).file("src/native/border.cpp").compile("polydraft_llama_border");
}
