//! Web pages: all their parts are served, under a strict policy, and nothing is in line.

use std::time::Duration;

use serde_json::json;

use crate::common::start;

#[test]
fn pages_load_only_parts_that_are_served() {
    let server = start(Duration::ZERO, |_| ());
    for path in ["/", "/docs"] {
        let page = server.get(path);
        assert_eq!(page.status, 200);
        for allowed in ["script-src 'self';", "style-src 'self';", "default-src 'none';"] {
            assert!(page.head.contains(allowed), "{path}: {}", page.head);
        }
        assert!(!page.head.contains("unsafe"), "{path}: {}", page.head);
        for inline in ["<style", " style=", "onclick=", "<script>"] {
            assert!(!page.body.contains(inline), "{path}: {inline}");
        }
        let parts = page.body.split(['"', '\'']).skip(1).step_by(2);
        let parts = parts.filter(|part| [".js", ".css", ".svg"].iter().any(|e| part.ends_with(e)));
        let parts: Vec<&str> = parts.collect();
        assert!(parts.len() >= 3, "{parts:?}");
        for part in parts {
            assert_eq!(server.get(&format!("/{part}")).status, 200, "{path}: {part}");
        }
    }
    assert_eq!(server.get("/favicon.ico").status, 200);
}

/// The page shows them.
#[test]
fn models_and_props_report_default_parameters() {
    let server = start(Duration::ZERO, |options| {
        let defaults = json!({ "temperature": 0.5, "max_completion_tokens": 7 });
        options.defaults = defaults.as_object().unwrap().clone();
    });
    let defaults = server.get("/v1/models").json()["data"][0]["defaults"].clone();
    for kind in ["chat", "completions"] {
        assert_eq!(defaults[kind]["temperature"], 0.5, "{defaults}");
        assert_eq!(defaults[kind]["top_p"], 1.0, "{defaults}");
        assert_eq!(defaults[kind]["max_tokens"], 7, "{defaults}");
    }
    let params = server.get("/props").json()["default_generation_settings"]["params"].clone();
    assert_eq!((&params["temperature"], &params["n_predict"]), (&json!(0.5), &json!(7)));
}
