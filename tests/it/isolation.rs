//! Isolation: a target that is full, misconfigured or without a place on the disk hinders no other, nor the caller.

use std::time::Duration;

use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::{Engine, Published};

use crate::setup::{
    NO_BROKER, TOPIC, block_on, envelope, event, folder, mock_kafka, numbers, parse_config, read_topic, rule,
    target, until_true,
};

const KEY: &str = "images/cat.jpg";
const GOOD: &str = "arn:minio:sqs::good:kafka";
const BAD: &str = "arn:minio:sqs::bad:kafka";

#[test]
fn a_full_target_refuses_and_the_other_accepts_and_delivers() {
    let folder = folder();
    let kafka = mock_kafka();
    let bad = target("bad", NO_BROKER, TOPIC, &folder.path().join("bad"), "queue_limit = 3");
    let engine = open(&kafka, folder.path(), &bad);

    let published: Vec<_> = (0..5).map(|number| publish(&engine, number)).collect();

    for published in &published[..3] {
        assert!(published.is_complete(), "{published:?}");
        assert_eq!(published.accepted.len(), 2);
    }
    for published in &published[3..] {
        let reason = assert_bad_refused(published);
        assert!(reason.contains("queue_limit is 3"), "{reason}");
    }
    delivers_five(&engine, &kafka);
    let bad = engine.status().targets.into_iter().find(|report| report.name == BAD).expect("it is listed");
    assert_eq!(bad.queue.expect("its queue is open").queued, 3);
    drop(engine.shutdown_blocking(Duration::ZERO));
}

#[test]
fn a_target_with_a_broken_configuration_refuses_and_the_other_delivers() {
    let folder = folder();
    let kafka = mock_kafka();
    let queue_dir = folder.path().join("bad");
    let bad = target("bad", NO_BROKER, TOPIC, &queue_dir, "sasl = \"on\"\nsasl_mechanism = \"sha1024\"");
    let engine = open(&kafka, folder.path(), &bad);

    for number in 0..5 {
        let reason = assert_bad_refused(&publish(&engine, number));
        assert!(reason.contains("sasl_mechanism") && reason.contains("sha1024"), "{reason}");
    }

    delivers_five(&engine, &kafka);
    assert!(!queue_dir.exists(), "a broken target makes no folder");
}

#[test]
fn a_target_whose_queue_dir_cannot_be_made_refuses_and_the_other_delivers() {
    let folder = folder();
    let kafka = mock_kafka();
    let file = folder.path().join("a-file");
    std::fs::write(&file, "in the way").expect("the folder takes a file");
    let bad = target("bad", NO_BROKER, TOPIC, &file.join("queues"), "");
    let engine = open(&kafka, folder.path(), &bad);

    for number in 0..5 {
        let reason = assert_bad_refused(&publish(&engine, number));
        assert!(reason.contains("a-file/queues"), "{reason}");
    }

    delivers_five(&engine, &kafka);
}

#[test]
fn a_target_whose_topic_blocks_holds_up_only_itself() {
    let folder = folder();
    let kafka = EmbeddedKafka::start(1, &[(TOPIC, 3), ("forbidden", 3)]).expect("the mock cluster starts");
    let error = tidegate::delivery::kafka::embedded::BrokerError::TopicAuthorizationFailed;
    kafka.fail_topic("forbidden", error).expect("the mock obeys");
    let bad = target("bad", kafka.bootstrap_servers(), "forbidden", &folder.path().join("bad"), "");
    let engine = open(&kafka, folder.path(), &bad);

    for number in 0..5 {
        assert!(publish(&engine, number).is_complete());
    }

    delivers_five(&engine, &kafka);
    let waits =
        || engine.status().targets.into_iter().find(|report| report.name == BAD).expect("it is listed");
    until_true("the bad target to say why", || waits().state.reason().is_some());
    assert_eq!(waits().queue.expect("its queue is open").queued, 5);
    drop(engine.shutdown_blocking(Duration::ZERO));
}

/// The good target, the bad one, and a rule for each.
fn open(kafka: &EmbeddedKafka, folder: &std::path::Path, bad: &str) -> Engine {
    let good = target("good", kafka.bootstrap_servers(), TOPIC, &folder.join("good"), "");
    Engine::open_blocking(&parse_config(&[bad, &good, &rule("*", "bad"), &rule("*", "good")].concat()))
}

fn publish(engine: &Engine, number: u64) -> Published {
    let text = event(KEY, number);
    block_on(engine.publish(envelope(&text)))
}

/// Exactly the bad one refuses, exactly the good one accepts; the reason.
fn assert_bad_refused(published: &Published) -> String {
    let accepted: Vec<_> = published.accepted.iter().map(|accepted| accepted.arn.to_string()).collect();
    let refused: Vec<_> = published.refused.iter().map(|refused| refused.arn.to_string()).collect();
    assert_eq!(
        (accepted.as_slice(), refused.as_slice()),
        ([GOOD.to_owned()].as_slice(), [BAD.to_owned()].as_slice())
    );
    assert_eq!((published.events, published.unmatched), (1, 0));
    published.refused[0].reason.to_string()
}

fn delivers_five(engine: &Engine, kafka: &EmbeddedKafka) {
    let good = engine.target(&"good".parse().expect("an identifier")).expect("it works");
    until_true("the good target to deliver", || good.queue().status().queued == 0);
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 5);
    assert_eq!(numbers(&messages, KEY), [0, 1, 2, 3, 4]);
}
