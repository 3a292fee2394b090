//! HTTP as `serve` speaks it: every answer says what became of the events, and an end leaves nothing behind.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::setup::{
    ARN, JSON, NDJSON, NO_BROKER, Serve, TOPIC, event, folder, lines, mock_kafka, numbers, primary,
    read_topic, rule, run, target, write_config,
};

const KEY: &str = "images/cat.jpg";

#[test]
fn one_envelope_is_answered_with_its_sequence_number_and_reaches_the_topic_as_it_was_posted() {
    let folder = folder();
    let kafka = mock_kafka();
    let serve = Serve::start(&config(folder.path(), kafka.bootstrap_servers()));

    for (number, content_type) in (0..).zip([JSON, "application/json; charset=utf-8", "text/plain"]) {
        let answer = serve.post(content_type, &event(KEY, number));
        let seq = number + 1;
        let accepted = json!([{ "arn": ARN, "first": seq, "last": seq, "events": 1 }]);
        let expected = json!({ "events": 1, "unmatched": 0, "accepted": accepted, "refused": [] });
        assert_eq!((answer.status, answer.json()), (200, expected));
        assert_eq!(answer.header("content-type"), Some(JSON));
    }

    serve.drained();
    for message in read_topic(kafka.bootstrap_servers(), TOPIC, 3) {
        let number = crate::setup::number_of(&message.value);
        assert_eq!(message.key.as_deref(), Some(KEY.as_bytes()));
        assert_eq!(message.value, event(KEY, number).into_bytes());
    }
}

#[test]
fn lines_are_accepted_together_and_in_order() {
    let folder = folder();
    let kafka = mock_kafka();
    let serve = Serve::start(&config(folder.path(), kafka.bootstrap_servers()));

    for (content_type, events) in [
        (NDJSON, 0..10),
        ("application/x-ndjson; charset=utf-8", 10..20),
        ("application/ndjson", 20..30),
        ("application/jsonl", 30..40),
        ("Application/X-NDJSON", 40..50),
    ] {
        let (first, last) = (events.start + 1, events.end);
        let body = format!("\n{}\r\n\n", lines(KEY, events).replace('\n', "\r\n"));
        let answer = serve.post(content_type, &body);
        let accepted = json!([{ "arn": ARN, "first": first, "last": last, "events": 10 }]);
        let expected = json!({ "events": 10, "unmatched": 0, "accepted": accepted, "refused": [] });
        assert_eq!((answer.status, answer.json()), (200, expected), "{content_type}");
    }

    serve.drained();
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 50);
    assert_eq!(numbers(&messages, KEY), (0..50).collect::<Vec<_>>());
}

#[test]
fn bad_input_is_400_with_reason_and_line_and_nothing_of_the_request_is_accepted() {
    let folder = folder();
    let serve = Serve::start(&config(folder.path(), NO_BROKER));
    let bad_line = format!("{}not json\n{}", lines(KEY, 0..3), lines(KEY, 3..5));
    let bad_key = format!("{}{}", lines(KEY, 0..1), event("", 1));
    for (content_type, body, line) in [
        (NDJSON, bad_line.as_str(), 4),
        (NDJSON, bad_key.as_str(), 2),
        (JSON, "", 1),
        (JSON, "{}", 1),
        (JSON, "[1, 2", 1),
        (JSON, r#"{"EventName":"s3:NoSuch:Thing","Key":"b/k","Records":[{}]}"#, 1),
        (JSON, bad_line.as_str(), 1),
    ] {
        let answer = serve.post(content_type, body);
        assert_eq!((answer.status, &answer.json()["line"]), (400, &json!(line)), "{body}");
        let reason = answer.json()["error"].as_str().map(str::to_owned).expect("a 400 has a reason");
        assert!(!reason.is_empty(), "{body}");
    }

    assert_eq!(serve.health()["queue"]["end"], 1, "the queue is as it was");

    let answer = serve.post(JSON, &event(KEY, 0));
    assert_eq!((answer.status, &answer.json()["accepted"][0]["first"]), (200, &json!(1)));
}

#[test]
fn a_body_over_the_limit_is_413_and_not_accepted() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);
    let serve = Serve::start_with(&config, &["--body-bytes-max", "1000"]);

    let answer = serve.post(NDJSON, &lines(KEY, 0..50));
    assert_eq!(answer.status, 413, "{answer:?}");
    let answer = serve.post(NDJSON, &lines(KEY, 0..5));
    assert_eq!(answer.status, 200, "{answer:?}");

    assert_eq!(serve.health()["queue"]["end"], 6);
}

#[test]
fn other_paths_and_methods_are_refused() {
    let folder = folder();
    let serve = Serve::start(&config(folder.path(), NO_BROKER));

    assert_eq!(serve.request("GET", "/events", JSON, "").status, 405);
    assert_eq!(serve.request("POST", "/healthz", JSON, "{}").status, 405);
    assert_eq!(serve.request("POST", "/", JSON, &event(KEY, 0)).status, 404);

    assert_eq!(serve.health()["queue"]["end"], 1);
}

#[test]
fn an_event_that_no_rule_wants_is_answered_and_counted() {
    let folder = folder();
    let primary = target("primary", NO_BROKER, TOPIC, &folder.path().join("queues"), "");
    let config = write_config(folder.path(), &(primary + &rule("images", "primary")));
    let serve = Serve::start(&config);

    let answer = serve.post(NDJSON, &(lines(KEY, 0..2) + &lines("other/cat.jpg", 0..3)));

    assert_eq!(
        (answer.status, &answer.json()["events"], &answer.json()["unmatched"]),
        (200, &json!(5), &json!(3))
    );
    assert_eq!(answer.json()["accepted"][0]["events"], 2);
    let nothing = json!({ "events": 1, "unmatched": 1, "accepted": [], "refused": [] });
    assert_eq!(serve.post(JSON, &event("other/dog.jpg", 0)).json(), nothing);
    assert_eq!(serve.request("GET", "/healthz", JSON, "").json()["unmatched"], 4);
}

#[test]
fn healthz_says_what_every_target_does_and_fails_when_one_cannot_keep_events() {
    let folder = folder();
    let good = primary(NO_BROKER, TOPIC, &folder.path().join("queues"), "");
    let serve = Serve::start(&write_config(folder.path(), &good));
    serve.post(NDJSON, &lines(KEY, 0..7));

    // A broker that is down is not the sender's business: what it posts is kept.
    let answer = serve.request("GET", "/healthz", JSON, "");
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("ok")));
    let target = serve.health();
    assert_eq!(
        (&target["arn"], &target["queued"], &target["delivered"]),
        (&json!(ARN), &json!(7), &json!(0))
    );
    let marks = ["start", "cursor", "durable", "end"].map(|mark| target["queue"][mark].clone());
    assert_eq!(marks, [json!(1), json!(1), json!(8), json!(8)]);
    drop(serve);

    let bad = "[notify_kafka.bad]\nbrokers = \"127.0.0.1:1\"\n";
    let serve = Serve::start(&write_config(folder.path(), &(bad.to_owned() + &good)));
    let answer = serve.request("GET", "/healthz", JSON, "");
    assert_eq!((answer.status, &answer.json()["status"]), (503, &json!("failing")));
    let failed = serve.health();
    assert_eq!((&failed["arn"], &failed["state"]), (&json!("arn:minio:sqs::bad:kafka"), &json!("failed")));
    let reason = failed["reason"].as_str().expect("a failed target says why");
    assert!(reason.contains("topic") && reason.contains("queue_dir"), "{reason}");
}

#[test]
fn sigterm_ends_with_0_and_the_next_start_delivers_what_was_accepted() {
    let folder = folder();
    let kafka = mock_kafka();
    kafka.stop_brokers().expect("the mock obeys");
    let config = config(folder.path(), kafka.bootstrap_servers());
    let serve = Serve::start_with(&config, &["--grace", "0.5"]);
    assert_eq!(serve.post(NDJSON, &lines(KEY, 0..50)).status, 200);

    let (status, said) = serve.terminate();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains(&format!("{ARN}: 0 delivered, 50 wait on disk")), "{said}");

    kafka.start_brokers().expect("the mock obeys");
    let serve = Serve::start(&config);
    assert_eq!(serve.post(NDJSON, &lines(KEY, 50..60)).json()["accepted"][0]["first"], 51);
    serve.drained();
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 60);
    assert_eq!(numbers(&messages, KEY), (0..60).collect::<Vec<_>>());
    let (status, said) = serve.terminate();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("60 delivered, 0 wait on disk"), "{said}");
}

#[test]
fn sigkill_loses_nothing_that_was_answered() {
    let folder = folder();
    let kafka = mock_kafka();
    kafka.stop_brokers().expect("the mock obeys");
    let config = config(folder.path(), kafka.bootstrap_servers());
    let serve = Serve::start(&config);
    assert_eq!(serve.post(NDJSON, &lines(KEY, 0..50)).status, 200);

    serve.kill();

    kafka.start_brokers().expect("the mock obeys");
    let serve = Serve::start(&config);
    serve.drained();
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 50);
    assert_eq!(numbers(&messages, KEY), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_log_that_is_no_terminal_has_no_colours() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);
    let serve = Serve::start(&config);
    assert_eq!(serve.post(JSON, &event(KEY, 0)).status, 200);

    assert_eq!(serve.terminate().0.code(), Some(0));

    let log = std::fs::read_to_string(config.with_extension("log")).expect("serve has a log");
    assert!(log.contains("SIGTERM: ending") && !log.contains('\u{1b}'), "{log}");
}

#[test]
fn a_second_daemon_on_the_same_queue_dir_ends_with_exit_code_2_and_names_the_first() {
    let folder = folder();
    let config = config(folder.path(), NO_BROKER);
    let serve = Serve::start(&config);

    let second = run(&["serve", "--listen", "127.0.0.1:0", "--config", &config.display().to_string()], "");

    assert_eq!(second.code, Some(2), "{}", second.err);
    assert!(second.err.contains(&format!("process {}", serve.pid())), "{}", second.err);
    assert_eq!(serve.post(JSON, &event(KEY, 0)).status, 200);
}

#[test]
fn a_request_that_never_ends_keeps_nobody_from_ending_the_daemon() {
    let folder = folder();
    let serve = Serve::start_with(&config(folder.path(), NO_BROKER), &["--grace", "0.2"]);
    let mut unfinished = TcpStream::connect(serve.address()).expect("it listens");
    unfinished
        .write_all(b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        .expect("it reads");

    let (status, _) = serve.terminate();

    assert_eq!(status.code(), Some(0));
}

fn config(folder: &Path, brokers: &str) -> PathBuf {
    write_config(folder, &primary(brokers, TOPIC, &folder.join("queues"), ""))
}
