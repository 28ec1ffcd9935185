//! Body of the fuzz target, which reads arbitrary bytes. It is an ordinary function, so that a test
//! with stable Rust can call it too.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use polydraft_reference::trace::Shard;

/// Reads arbitrary bytes as an uncompressed shard; the first byte is the vocabulary size. The
/// result is an error, or valid drafts and distributions.
pub fn shard(bytes: &[u8]) {
    let Some((vocabulary, bytes)) = bytes.split_first() else { return };
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(bytes).expect("memory");
    let file = gzip.finish().expect("memory");
    let Ok(shard) = Shard::read("fuzz", &file, usize::from(*vocabulary)) else { return };
    for position in 0..shard.positions() {
        let Ok(position) = shard.position(position) else { continue };
        assert_eq!(position.target.len(), position.draft.tree().len());
        for probs in &position.target {
            assert!((probs.support().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-8);
        }
    }
}
