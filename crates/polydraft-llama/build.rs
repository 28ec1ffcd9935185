//! Compiles the few lines of C++ at llama.cpp's border, where there is a llama.cpp.

fn main() {
    println!("cargo:rerun-if-changed=src/native/border.cpp");
    #[cfg(feature = "native")]
    cc::Build::new().cpp(true).file("src/native/border.cpp").compile("polydraft_llama_border");
}
