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
