//! Body of the fuzz target: an ordinary function, so that tests on stable Rust can call it.

#![allow(dead_code)] // each target uses a part

use polydraft_gguf::{Gguf, ModelDescription, TokenizerDescription};

/// Opens arbitrary bytes as a file. Returns false on an error; otherwise reads all of the file,
/// which must not panic, and returns true.
pub fn gguf(bytes: &[u8]) -> bool {
    let Ok(gguf) = Gguf::from_bytes("fuzz", bytes.to_vec()) else { return false };
    for tensor in gguf.tensors() {
        assert!(tensor.offset() + tensor.bytes() as u64 <= bytes.len() as u64);
        assert_eq!(tensor.read().expect("a tensor inside the file").len(), tensor.bytes());
        // A block of 32 numbers has at least 17 bytes, so this needs at most eight times the size
        // of the file.
        if let Ok(values) = tensor.dequantize() {
            assert_eq!(values.len(), tensor.rows() * tensor.columns());
        }
    }
    let metadata = gguf.metadata();
    for (key, _, value) in metadata.iter() {
        assert!(value.to_string().len() < 2_000);
        assert_eq!(metadata.get(key).map(|v| v.to_string()), Some(value.to_string()));
        let _ = (metadata.u32(key), metadata.str(key), metadata.strings(key), metadata.f32s(key));
    }
    if let Ok(model) = ModelDescription::read(&gguf) {
        let _ = model.check_tensors(&gguf);
    }
    if let Ok(description) = TokenizerDescription::read(metadata) {
        // Only sometimes, because compiling the regular expressions takes milliseconds.
        #[cfg(feature = "tokenizers")]
        if bytes.len() % 64 == 7 {
            let _ = description.tokenizer();
        }
        assert_eq!(description.tokens.len(), description.types.len());
    }
    true
}
