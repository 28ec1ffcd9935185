//! Benchmark of products with packed matrices, for all formats or for the given ones:
//! `cargo bench -p polydraft-kernels --bench products [-- q8_0 q4_k ..]`.
//!
//! Results are checked first. For each format, reports the time to pack the weights, the bytes per
//! second of a product with one row (over matrices that exceed all caches), and the time of several
//! rows relative to one. Times are the lower quartile of single products. Runs with one and with
//! two threads, each in a separate process, and reports the read bandwidth of memory for
//! comparison.

use std::hint::black_box;
use std::time::{Duration, Instant};

use polydraft_kernels::{Format, Packed, ReadRows};
use pulp::Arch;

/// Shapes `[out, in]` of the layers of a model with 500 million weights.
const SHAPES: [[usize; 2]; 4] = [[2560, 1536], [1536, 1536], [8192, 1536], [1536, 4096]];
const ROWS: [usize; 6] = [2, 4, 8, 16, 32, 256];
/// Total size in bytes of the matrices of a format.
const BYTES: usize = 400 << 20;
/// Duration of a measurement.
const TIME: Duration = Duration::from_millis(600);

fn main() {
    // Cargo passes `--bench`.
    let named: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let kind = |name: &String| {
        Format::ROUNDED.into_iter().find(|kind| kind.name() == name).unwrap_or_else(|| {
            eprintln!(
                "expected some of {}, got {name:?}",
                Format::ROUNDED.map(Format::name).join(", ")
            );
            std::process::exit(2)
        })
    };
    let kinds: Vec<Format> =
        if named.is_empty() { Format::ROUNDED.to_vec() } else { named.iter().map(kind).collect() };
    match std::env::var("PRODUCTS_THREADS") {
        Ok(threads) => measure(threads.parse().expect("a number of threads"), &kinds),
        // A process has one thread pool, so each thread count needs a process.
        Err(_) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            for threads in [1, 2].into_iter().filter(|t| *t <= cores) {
                let mut command =
                    std::process::Command::new(std::env::current_exe().expect("a path"));
                command.args(&named).env("PRODUCTS_THREADS", threads.to_string());
                command.env("RAYON_NUM_THREADS", threads.to_string());
                assert!(command.status().expect("a process").success());
            }
        }
    }
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + 0.5) * 1.618).sin()).collect()
}

/// Synthetic weights, a function of their index.
struct Synthetic {
    columns: usize,
    seed: u32,
}

impl Synthetic {
    /// Fills `values` with numbers that are uniform between −1 and 1.
    fn fill<T>(&self, first: usize, values: &mut [T], convert: impl Fn(f32) -> T) {
        for (at, value) in values.iter_mut().enumerate() {
            let mixed = ((first * self.columns + at) as u32 ^ self.seed).wrapping_mul(0x9e37_79b1);
            *value = convert((mixed ^ mixed >> 15) as f32 / (1u64 << 31) as f32 - 1.0);
        }
    }
}

impl ReadRows<()> for Synthetic {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), ()> {
        self.fill(first, values, |v| v);
        Ok(())
    }

    fn f16(&self, first: usize, values: &mut [half::f16]) -> Result<(), ()> {
        self.fill(first, values, half::f16::from_f32);
        Ok(())
    }

    fn bf16(&self, first: usize, values: &mut [half::bf16]) -> Result<(), ()> {
        self.fill(first, values, half::bf16::from_f32);
        Ok(())
    }
}

/// Returns a matrix of synthetic weights.
fn matrix(kind: Format, [out, columns]: [usize; 2], seed: u32) -> Packed {
    Packed::load(kind, out, columns, Synthetic { columns, seed }).expect("weights that can be read")
}

/// Checks that sums are near those in double precision, and that rows do not depend on each other.
fn check(kind: Format) {
    let (out, columns, rows) = (96, 1536, 9);
    let (matrix, x) = (matrix(kind, [out, columns], 1), values(9 * 1536));
    let y = matrix.product(&x, rows);
    for row in 0..rows {
        let x = &x[row * columns..][..columns];
        assert_eq!(matrix.product(x, 1), y[row * out..][..out], "{kind}");
        for o in 0..out {
            let stored = matrix.rows(&[o as u32]).expect("a row of the matrix");
            let pairs =
                || stored.numbers().iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (sum, size): (f64, f64) = (pairs().sum(), pairs().map(f64::abs).sum());
            // Rounding of inputs to 8 bits has an error of up to 1/254 of the largest input.
            let error = (f64::from(y[row * out + o]) - sum).abs();
            assert!(error < 0.01 * size, "{kind}: {} for {sum}", y[row * out + o]);
        }
    }
}

fn quartile(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 4]
}

/// Returns the seconds of one product of every shape, each the lower quartile over all matrices.
fn time(matrices: &[Packed], rows: usize) -> f64 {
    let inputs: Vec<Vec<f32>> = SHAPES.iter().map(|[_, columns]| values(rows * columns)).collect();
    let mut seconds = vec![Vec::new(); SHAPES.len()];
    let start = Instant::now();
    // Use every shape at least twice.
    for number in 0.. {
        if number >= 2 * SHAPES.len() && start.elapsed() > TIME {
            break;
        }
        let shape = number % SHAPES.len();
        let start = Instant::now();
        black_box(matrices[number % matrices.len()].product(&inputs[shape], rows));
        seconds[shape].push(start.elapsed().as_secs_f64());
    }
    seconds.into_iter().map(quartile).sum()
}

fn measure(threads: usize, kinds: &[Format]) {
    let memory = bandwidth(threads);
    println!("{threads} thread(s); memory {:.1} GB/s", memory / 1e9);
    println!(
        "{:<9} {:>11} {:>9} {:>10}   cost relative to one row",
        "format", "pack, ns/w", "GB/s", "of memory"
    );
    for &kind in kinds {
        check(kind);
        let one: usize = SHAPES.iter().map(|[out, columns]| out * columns).sum();
        let stored: u64 = SHAPES.iter().map(|[out, columns]| kind.bytes(*out, *columns)).sum();
        let sets = (BYTES / stored as usize).max(1);
        let start = Instant::now();
        let matrices: Vec<Packed> = (0..sets * SHAPES.len())
            .map(|n| matrix(kind, SHAPES[n % SHAPES.len()], n as u32))
            .collect();
        let make = start.elapsed().as_secs_f64() / (sets * one) as f64;
        let bytes: usize = matrices[..SHAPES.len()].iter().map(Packed::bytes).sum();
        let single = time(&matrices, 1);
        let costs: Vec<String> = ROWS
            .iter()
            .map(|rows| format!("{rows}: {:.2}", time(&matrices, *rows) / single))
            .collect();
        println!(
            "{:<9} {:>11.2} {:>9.1} {:>8.0} %   {}",
            kind.name(),
            make * 1e9,
            bytes as f64 / single / 1e9,
            100.0 * bytes as f64 / single / memory,
            costs.join("  ")
        );
    }
}

/// Returns the bytes per second that `threads` threads read together. Each reads in chunks; its
/// rate is by the lower quartile of their times.
fn bandwidth(threads: usize) -> f64 {
    const CHUNK: usize = 1 << 21;
    let numbers = vec![1u64; BYTES / size_of::<u64>()];
    let share = numbers.len() / threads;
    let rates: Vec<f64> = std::thread::scope(|scope| {
        let read = |part: &[u64]| {
            let chunks = part.chunks_exact(CHUNK / 8).cycle().take(3 * part.len() / (CHUNK / 8));
            let times = chunks.map(|chunk| {
                let start = Instant::now();
                black_box(Arch::new().dispatch(|| sum(black_box(chunk))));
                start.elapsed().as_secs_f64()
            });
            CHUNK as f64 / quartile(times.collect())
        };
        let all: Vec<_> =
            numbers.chunks_exact(share).map(|part| scope.spawn(move || read(part))).collect();
        all.into_iter().map(|thread| thread.join().expect("a sum")).collect()
    });
    rates.into_iter().sum()
}

/// Sums in independent lanes, which the compiler vectorizes.
#[inline(always)]
fn sum(numbers: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in numbers.as_chunks::<32>().0 {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*number);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}
