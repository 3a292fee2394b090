//! `tidegate demo`: an outage and a crash in front of everyone's eyes, and nothing missing afterwards.

use serde_json::Value;

use crate::setup::{folder, run};

#[test]
fn nothing_is_missing_and_nothing_out_of_order_after_an_outage_and_a_crash() {
    let ended = run(&["demo", "--json", "--events", "2000", "--seconds-down", "1"], "");

    assert_eq!(ended.code, Some(0), "{ended:?}");
    let verdict = ended.json();
    let mut fields: Vec<_> = verdict.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = ["accepted", "delivered", "distinct", "duplicates", "missing", "out_of_order", "timings"];
    assert_eq!(fields, expected);
    let number = |field: &str| verdict[field].as_u64().expect("a number");
    assert_eq!((number("accepted"), number("distinct")), (2000, 2000), "{verdict}");
    assert_eq!((number("missing"), number("out_of_order")), (0, 0), "{verdict}");
    assert_eq!(number("delivered"), number("distinct") + number("duplicates"), "{verdict}");
    assert!(verdict["timings"].as_object().is_some_and(|timings| timings.values().all(Value::is_number)));
}

#[test]
fn its_queue_dir_can_be_kept_and_looked_at() {
    let folder = folder();
    let dir = folder.path().join("kept");
    let dir = dir.to_str().expect("a path of ours");

    let ended = run(&["demo", "--events", "500", "--seconds-down", "0", "--dir", dir], "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("nothing is missing, every key is in order"), "{}", ended.out);

    let queue = run(&["queue", "stat", "--json", dir], "").json()["queues"][0].take();
    assert_eq!((&queue["name"], &queue["waiting"]), (&"demo".into(), &0.into()));
}
