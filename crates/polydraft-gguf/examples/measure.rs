//! Measures how fast a file is opened, read and converted to f32: `measure FILE`. Reports the
//! minimum of several runs on one thread.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use polydraft_gguf::{DEQUANTIZED, Gguf, ModelDescription, TokenizerDescription, dequantize};

fn fastest<T>(mut call: impl FnMut() -> T) -> Duration {
    let one = |_| {
        let start = Instant::now();
        black_box(call());
        start.elapsed()
    };
    (0..9).map(one).min().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of a file")?;
    let path = Path::new(&path);
    println!("open: {:.1?}", fastest(|| Gguf::open(path)));
    let gguf = Gguf::open(path)?;
    println!("describe the model: {:.1?}", fastest(|| ModelDescription::read(&gguf)));
    println!(
        "describe the tokenizer: {:.1?}",
        fastest(|| TokenizerDescription::read(gguf.metadata()).map(drop))
    );
    #[cfg(feature = "tokenizers")]
    {
        let description = TokenizerDescription::read(gguf.metadata())?;
        println!("build the tokenizer: {:.1?}", fastest(|| description.tokenizer()));
    }
    let rate = |bytes: usize, time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let bytes: usize = gguf.tensors().map(|tensor| tensor.bytes()).sum();
    let largest = gguf.tensors().map(|tensor| tensor.bytes()).max().unwrap_or(0);
    // Read into one buffer, so that page faults of new memory are not measured.
    let mut buffer = vec![1; largest];
    let time = fastest(|| {
        for tensor in gguf.tensors() {
            let blocks = &mut buffer[..tensor.bytes()];
            tensor.read_rows(0..tensor.rows(), blocks).expect("a file that can be read");
        }
    });
    println!("read all blocks: {:.1?}, {:.1} GB/s of {bytes} bytes", time, rate(bytes, time));
    let from = vec![2_u8; largest];
    let time = fastest(|| buffer.copy_from_slice(black_box(&from)));
    println!("copy as much as the largest tensor: {:.1} GB/s", rate(largest, time));
    let max = gguf.tensors().map(|tensor| tensor.rows() * tensor.columns()).max().unwrap_or(0);
    let mut values = vec![1.0_f32; max];
    let time = fastest(|| {
        for tensor in gguf.tensors() {
            let values = &mut values[..tensor.rows() * tensor.columns()];
            tensor.dequantize_rows(0..tensor.rows(), values).expect("a supported type");
        }
    });
    println!("read all as f32: {:.1?}, {:.1} GB/s of blocks", time, rate(bytes, time));
    println!("\ntype    blocks, GB/s    f32, GB/s    (one thread, in the cache)");
    for kind in DEQUANTIZED {
        let count = (1 << 16) / kind.block();
        let blocks: Vec<u8> = (0..count * kind.block_bytes()).map(|i| (i * 7 % 64) as u8).collect();
        let values = &mut values[..count * kind.block()];
        const TIMES: usize = 64;
        let time = fastest(|| {
            for _ in 0..TIMES {
                dequantize(kind, black_box(&blocks), values).expect("full blocks");
            }
        });
        let (from, to) = (rate(TIMES * blocks.len(), time), rate(TIMES * 4 * values.len(), time));
        println!("{kind:<7} {from:>12.2} {to:>12.2}");
    }
    Ok(())
}
