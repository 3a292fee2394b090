//! Full: a queue at its limit refuses, says so, loses nothing of what it has accepted, and accepts again.

use serde_json::json;

use crate::setup::{
    ARN, NDJSON, Serve, TOPIC, folder, lines, mock_kafka, number_of, primary, read_topic, write_config,
};

const KEY: &str = "images/cat.jpg";

#[test]
fn a_full_queue_answers_503_with_both_lists_and_accepts_again_when_it_is_drained() {
    let folder = folder();
    let kafka = mock_kafka();
    kafka.stop_brokers().expect("the mock obeys");
    let text = primary(kafka.bootstrap_servers(), TOPIC, &folder.path().join("queues"), "queue_limit = 100");
    let serve = Serve::start(&write_config(folder.path(), &text));

    let answer = serve.post(NDJSON, &lines(KEY, 0..80));
    assert_eq!(answer.status, 200, "{answer:?}");

    // Twenty of forty fit: the answer says of both how many.
    let answer = serve.post(NDJSON, &lines(KEY, 80..120));
    assert_eq!(answer.status, 503, "{answer:?}");
    let seconds = answer.header("retry-after").expect("a 503 has Retry-After");
    assert!(seconds.parse::<u32>().is_ok_and(|seconds| seconds > 0), "{seconds}");
    let body = answer.json();
    assert_eq!((&body["events"], &body["unmatched"]), (&json!(40), &json!(0)));
    assert_eq!(body["accepted"], json!([{ "arn": ARN, "first": 81, "last": 100, "events": 20 }]));
    assert_eq!((&body["refused"][0]["arn"], &body["refused"][0]["events"]), (&json!(ARN), &json!(20)));
    let reason = body["refused"][0]["reason"].as_str().expect("a refusal has a reason");
    assert!(reason.contains("queue_limit is 100"), "{reason}");

    // Full stays full, and a full target keeps what it has: it is no failure.
    let answer = serve.post(NDJSON, &lines(KEY, 100..101));
    assert_eq!((answer.status, &answer.json()["accepted"]), (503, &json!([])));
    let health = serve.request("GET", "/healthz", NDJSON, "");
    assert_eq!((health.status, &health.json()["targets"][0]["queued"]), (200, &json!(100)));

    kafka.start_brokers().expect("the mock obeys");
    serve.drained();
    let answer = serve.post(NDJSON, &lines(KEY, 100..180));
    assert_eq!(answer.status, 200, "{answer:?}");
    serve.drained();
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 180);
    let numbers: Vec<_> = messages.iter().map(|message| number_of(&message.value)).collect();
    assert_eq!(numbers, (0..180).collect::<Vec<_>>());
}
