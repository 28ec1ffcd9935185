//! How many threads compute. One test: the pool is the process's.

use polydraft_kernels::use_threads;

#[test]
fn the_first_call_counts() {
    use_threads(1).unwrap();
    assert_eq!(rayon::current_num_threads(), 1);
    // Again, the same: nothing to do. Another number: they run already.
    use_threads(1).unwrap();
    let message = use_threads(2).unwrap_err().to_string();
    assert!(message.contains("expected to start 2, got 1"), "{message}");
}
