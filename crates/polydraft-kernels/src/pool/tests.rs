use super::*;

/// How often each number was worked on.
fn counts(pool: &Pool, count: usize, parts: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    pool.run(count, parts, &|range| {
        for count in &counts[range] {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn each_number_is_worked_on_once() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::start(threads);
        for turn in 0..300 {
            let count = turn * 7 % 101;
            assert_eq!(counts(&pool, count, 1 + turn % 9), vec![1; count]);
            if turn % 50 == 0 {
                // Long enough for them to fall asleep.
                std::thread::sleep(2 * SPIN);
            }
        }
    }
}

#[test]
fn callers_at_once_do_not_disturb_each_other() {
    let pool = &Pool::start(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| assert_eq!(counts(pool, 50, 3), vec![1; 50])));
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::start(3);
    for bad in 0..30 {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run(30, 3, &|range| assert!(!range.contains(&bad)));
        }));
        assert!(failed.is_err());
        assert_eq!(counts(&pool, 40, 3), vec![1; 40]);
    }
}

/// Threads do not follow into a forked process: there the caller works alone, and waits for nobody.
#[cfg(unix)]
#[test]
#[expect(unsafe_code, reason = "the standard library does not fork")]
fn a_forked_process_works_alone() {
    let pool = Pool::start(2);
    assert_eq!(counts(&pool, 40, 2), vec![1; 40]);
    // SAFETY: the child counts, and leaves without running what others have registered.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let whole = Mutex::new(Vec::new());
        pool.run(40, 2, &|range| whole.lock().unwrap().push(range));
        let alone = whole.lock().unwrap().as_slice() == std::slice::from_ref(&(0..40));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!alone)) };
    }
    let mut status = -1;
    // SAFETY: the child's number, and a number to write to.
    let found = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((found, status), (child, 0));
    assert_eq!(counts(&pool, 40, 2), vec![1; 40]);
}
