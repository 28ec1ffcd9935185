//! What the fuzz target does with arbitrary bytes. An ordinary function, so that a test on stable
//! Rust drives it too.

#![allow(dead_code)] // each target uses its own part

use polydraft_gguf::{Gguf, ModelDescription, TokenizerDescription};

/// Any bytes as a file: an error, or a file all of which can be read. Says which.
pub fn gguf(bytes: &[u8]) -> bool {
    let Ok(gguf) = Gguf::from_bytes("fuzz", bytes.to_vec()) else { return false };
    for tensor in gguf.tensors() {
        assert!(tensor.offset() + tensor.bytes() as u64 <= bytes.len() as u64);
        assert_eq!(tensor.read().expect("bytes that are there").len(), tensor.bytes());
        // A block of 32 numbers has at least 17 bytes, so that this is no more than eight times the
        // file.
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
        // Not each time: to compile the expressions that split text takes milliseconds.
        #[cfg(feature = "tokenizers")]
        if bytes.len() % 64 == 7 {
            let _ = description.tokenizer();
        }
        assert_eq!(description.tokens.len(), description.types.len());
    }
    true
}
