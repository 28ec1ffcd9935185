//! Memory bandwidth, and the peak memory of this process.

use std::hint::black_box;
use std::time::Instant;

use pulp::Arch;

/// Returns the memory bandwidth of `threads` threads in bytes per second: the best of several sums
/// over an array larger than any cache.
pub fn bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 1 << 30;
    let numbers = vec![1u64; BYTES / size_of::<u64>()];
    let share = numbers.len().div_ceil(threads);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in numbers.chunks(share) {
                // Uses the widest vectors of this CPU.
                scope.spawn(move || black_box(Arch::new().dispatch(|| sum(black_box(part)))));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    BYTES as f64 / best
}

/// Sums in independent lanes, which the compiler vectorises.
#[inline(always)]
fn sum(numbers: &[u64]) -> u64 {
    let (chunks, _) = numbers.as_chunks::<32>();
    let mut lanes = [0u64; 32];
    for chunk in chunks {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*number);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Resets the peak of the process's memory; returns its current memory, or `None` where the system
/// does not support it.
pub fn reset_peak() -> Option<u64> {
    // Reuse of freed memory would be missing from the peak.
    polydraft_models::release_freed_memory();
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    field("VmRSS:")
}

/// Returns the peak memory since the last reset.
pub fn peak() -> Option<u64> {
    field("VmHWM:")
}

fn field(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}
