use super::*;

/// Runs `count` indices on a pool, and returns how often each was visited.
fn counts(pool: &Pool, count: usize, shares: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    pool.run(count, shares, &|range| {
        for count in &counts[range] {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn visits_each_index_once() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads);
        for round in 0..300 {
            let count = round * 7 % 101;
            assert_eq!(counts(&pool, count, 1 + round % 9), vec![1; count]);
            if round % 50 == 0 {
                // Long enough for the threads to fall asleep.
                std::thread::sleep(2 * SPIN);
            }
        }
    }
}

#[test]
fn concurrent_callers_get_correct_results() {
    let pool = &Pool::new(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| assert_eq!(counts(pool, 50, 3), vec![1; 50])));
        }
    });
}

#[test]
fn panic_reaches_caller_and_pool_stays_usable() {
    let pool = Pool::new(3);
    for bad in 0..30 {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run(30, 3, &|range| assert!(!range.contains(&bad)));
        }));
        assert!(failed.is_err());
        assert_eq!(counts(&pool, 40, 3), vec![1; 40]);
    }
}

/// A forked process has none of the pool's threads: the caller does all of the work alone.
#[cfg(unix)]
#[test]
#[expect(unsafe_code, reason = "the standard library does not fork")]
fn forked_process_works_without_threads() {
    let pool = Pool::new(2);
    assert_eq!(counts(&pool, 40, 2), vec![1; 40]);
    // SAFETY: the child only runs the pool, and exits without running exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ranges = Mutex::new(Vec::new());
        pool.run(40, 2, &|range| ranges.lock().unwrap().push(range));
        let alone = ranges.lock().unwrap().as_slice() == std::slice::from_ref(&(0..40));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!alone)) };
    }
    let mut status = -1;
    // SAFETY: `child` is a child of this process, and `status` is valid for writes.
    let found = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((found, status), (child, 0));
    assert_eq!(counts(&pool, 40, 2), vec![1; 40]);
}
