//! Number of threads of the global pool. One test, because a process has one pool.

use polydraft_kernels::use_threads;

#[test]
fn rejects_another_thread_count_than_the_first() {
    use_threads(1).unwrap();
    assert_eq!(rayon::current_num_threads(), 1);
    use_threads(1).unwrap();
    let message = use_threads(2).unwrap_err().to_string();
    assert!(message.contains("expected to start 2, got 1"), "{message}");
}
