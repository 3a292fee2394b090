//! `tidegate queue stat`: looks at a queue_dir from outside, whether a daemon has it or none does.

use std::path::Path;

use serde_json::{Value, json};

use crate::setup::{
    Ended, NDJSON, NO_BROKER, Serve, TOPIC, folder, lines, mock_kafka, primary, run, until_true, write_config,
};

const KEY: &str = "images/cat.jpg";

#[test]
fn it_works_while_a_daemon_runs_and_when_none_does() {
    let folder = folder();
    let kafka = mock_kafka();
    let dir = folder.path().join("queues");
    let config = write_config(folder.path(), &primary(kafka.bootstrap_servers(), TOPIC, &dir, ""));
    let serve = Serve::start(&config);
    assert_eq!(serve.post(NDJSON, &lines(KEY, 0..20)).status, 200);
    serve.drained();
    kafka.stop_brokers().expect("the mock obeys");
    assert_eq!(serve.post(NDJSON, &lines(KEY, 20..50)).status, 200);

    // The log states cursor and durable with the next watermark.
    until_true("the log to state all marks", || marks(&queue(&dir)) == [1, 21, 51, 51]);
    assert_eq!(queue(&dir)["waiting"], 30);

    assert_eq!(serve.terminate().0.code(), Some(0));
    assert_eq!(marks(&queue(&dir)), [1, 21, 51, 51]);
}

#[test]
fn json_has_these_fields_and_no_others() {
    let folder = folder();
    let dir = folder.path().join("queues");
    let config = write_config(folder.path(), &primary(NO_BROKER, TOPIC, &dir, ""));
    let sent = run(&["send", "--no-wait", "--config", path(&config), "primary"], "one\ntwo\n");
    assert_eq!(sent.code, Some(0), "{sent:?}");

    let queue = queue(&dir);

    let mut fields: Vec<_> = queue.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "bytes", "cursor", "damage", "durable", "end", "folder", "ignored", "name", "segments", "start",
        "uuid", "waiting",
    ];
    assert_eq!(fields, expected);
    assert_eq!((&queue["name"], &queue["segments"]), (&json!("primary"), &json!(1)));
    assert_eq!((&queue["damage"], &queue["ignored"]), (&json!([]), &json!([])));
    assert!(queue["folder"].as_str().is_some_and(|folder| Path::new(folder).starts_with(&dir)));
}

#[test]
fn people_read_the_marks_in_the_order_of_the_journey() {
    let folder = folder();
    let dir = folder.path().join("queues");
    let config = write_config(folder.path(), &primary(NO_BROKER, TOPIC, &dir, ""));
    run(&["send", "--no-wait", "--config", path(&config), "primary"], "one\ntwo\n");

    let ended = run(&["queue", "stat", path(&dir)], "");

    assert_eq!(ended.code, Some(0), "{ended:?}");
    let words: Vec<_> =
        ended.out.lines().filter_map(|line| line.split_once(' ')).map(|(word, _)| word).collect();
    let expected =
        ["queue", "folder", "uuid", "start", "cursor", "durable", "end", "waiting", "segments", "damage"];
    assert_eq!(words, expected, "{}", ended.out);
}

#[test]
fn a_folder_without_a_queue_is_no_error_and_one_that_is_not_there_is() {
    let folder = folder();

    let ended = run(&["queue", "stat", "--json", path(folder.path())], "");
    assert_eq!((ended.code, ended.json()), (Some(0), json!({ "queues": [] })));

    let ended = run(&["queue", "stat", "/no/such/folder"], "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("/no/such/folder"), "{}", ended.err);
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

fn queue(dir: &Path) -> Value {
    let ended: Ended = run(&["queue", "stat", "--json", path(dir)], "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["queues"].as_array().map(Vec::len), Some(1));
    ended.json()["queues"][0].take()
}

fn marks(queue: &Value) -> [u64; 4] {
    ["start", "cursor", "durable", "end"].map(|mark| queue[mark].as_u64().expect("a number"))
}
