//! A seed decides the output, whatever other requests taught.

use std::time::Duration;

use serde_json::json;

use crate::common::start;

#[test]
fn seeded_outputs_do_not_depend_on_what_others_taught() {
    // Passes take so long that drafts pay, as the server learns.
    let server = start(Duration::from_millis(1), |_| ());
    let text = |seed: Option<u64>| {
        let mut body =
            json!({ "prompt": "a b", "max_tokens": 60, "speculation": { "tree": "auto" } });
        body["seed"] = json!(seed);
        server.complete(body)["choices"][0]["text"].clone()
    };
    let seeds = [1, 2, 3].map(Some);
    let before = seeds.map(text);
    assert!(before[0] != before[1]);
    (0..10).for_each(|_| drop(text(None)));
    // Beside a request without a seed, in one batch.
    let (beside, after) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| (0..3).map(|_| text(None)).collect::<Vec<_>>());
        let after = seeds.map(text);
        (beside.join().unwrap(), after)
    });
    assert_eq!((after, beside.len()), (before, 3));
}
