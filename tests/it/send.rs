//! `tidegate send`: 0 means that every line has arrived, or is durable if nobody wanted to wait.

use std::path::Path;

use crate::setup::{NO_BROKER, Serve, TOPIC, folder, mock_kafka, primary, read_topic, run, write_config};

#[test]
fn every_line_arrives_in_order_and_the_exit_code_says_so() {
    let folder = folder();
    let kafka = mock_kafka();
    let config = config(folder.path(), kafka.bootstrap_servers());

    let ended = run(&["send", "--config", &config, "--key", "k", "primary"], "one\ntwo\r\n\nfour");

    assert_eq!(ended.code, Some(0), "{ended:?}");
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 4);
    let values: Vec<_> = messages.iter().map(|message| String::from_utf8_lossy(&message.value)).collect();
    assert_eq!(values, ["one", "two", "", "four"]);
    assert!(messages.iter().all(|message| message.key.as_deref() == Some(b"k")));
}

#[test]
fn a_file_and_an_arn_do_as_well() {
    let folder = folder();
    let kafka = mock_kafka();
    let config = config(folder.path(), kafka.bootstrap_servers());
    let file = folder.path().join("lines.txt");
    std::fs::write(&file, "line\n".repeat(3000)).expect("the folder takes a file");

    let file = file.to_str().expect("a path of ours");
    let ended = run(&["send", "--config", &config, "arn:minio:sqs::primary:kafka", file], "");

    assert_eq!(ended.code, Some(0), "{ended:?}");
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 3000);
    assert!(messages.iter().all(|message| message.key.is_none() && message.value == b"line"));
}

#[test]
fn no_wait_needs_no_broker_and_the_lines_are_in_the_queue() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);

    let ended = run(&["send", "--config", &config, "--no-wait", "primary"], "one\ntwo\nthree\n");
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let queue = stat(folder.path());
    assert_eq!((&queue["name"], queue["waiting"].as_u64()), (&"primary".into(), Some(3)));
    assert_eq!((queue["durable"].as_u64(), queue["end"].as_u64()), (Some(4), Some(4)));
}

#[test]
fn lines_that_do_not_arrive_in_time_are_exit_code_1_stay_queued_and_are_sent_by_the_next() {
    let folder = folder();
    let kafka = mock_kafka();
    kafka.stop_brokers().expect("the mock obeys");
    let config = config(folder.path(), kafka.bootstrap_servers());

    let ended =
        run(&["send", "--config", &config, "--timeout", "0.5", "--key", "k", "primary"], "one\ntwo\n");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("2 records are not delivered and stay queued"), "{}", ended.err);
    assert_eq!(stat(folder.path())["waiting"], 2);

    kafka.start_brokers().expect("the mock obeys");
    let ended = run(&["send", "--config", &config, "--key", "k", "primary"], "three\n");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 3);
    let values: Vec<_> = messages.iter().map(|message| String::from_utf8_lossy(&message.value)).collect();
    assert_eq!(values, ["one", "two", "three"]);
}

#[test]
fn a_queue_dir_that_a_daemon_holds_is_exit_code_2_and_names_its_pid() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);
    let serve = Serve::start(Path::new(&config));

    let ended = run(&["send", "--config", &config, "--no-wait", "primary"], "one\n");

    assert_eq!(ended.code, Some(2), "{ended:?}");
    let said = ended.err.lines().last().unwrap_or_default();
    assert!(said.starts_with("tidegate: ") && said.contains(&serve.pid().to_string()), "{}", ended.err);
    assert_eq!(serve.health()["queue"]["end"], 1);
}

#[test]
fn an_unknown_target_or_file_is_exit_code_2_and_says_what_there_is() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);

    let ended = run(&["send", "--config", &config, "secondary"], "one\n");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("secondary") && ended.err.contains("primary"), "{}", ended.err);

    let ended = run(&["send", "--config", &config, "primary", "/no/such/file"], "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("/no/such/file"), "{}", ended.err);

    let ended = run(&["send", "--config", "/no/such/tidegate.toml", "primary"], "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("/no/such/tidegate.toml"), "{}", ended.err);
}

#[test]
fn an_empty_input_is_done_at_once() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);

    let ended = run(&["send", "--config", &config, "primary"], "");

    assert_eq!(ended.code, Some(0), "{ended:?}");
    let queues = folder.path().join("queues");
    let stat = run(&["queue", "stat", "--json", queues.to_str().expect("a path of ours")], "");
    assert_eq!((stat.code, stat.json()), (Some(0), serde_json::json!({ "queues": [] })));
}

fn config(folder: &Path, brokers: &str) -> String {
    let text = primary(brokers, TOPIC, &folder.join("queues"), "");
    write_config(folder, &text).to_str().expect("a path of ours").to_owned()
}

/// The one queue, as `queue stat --json` shows it.
fn stat(folder: &Path) -> serde_json::Value {
    let dir = folder.join("queues");
    let ended = run(&["queue", "stat", "--json", dir.to_str().expect("a path of ours")], "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.json()["queues"][0].take()
}
