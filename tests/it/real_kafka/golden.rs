//! The reference's own messages, recorded: posted here, they end as the same messages, in the same partitions.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate::delivery::kafka::Received;

use super::Node;
use crate::setup::{JSON, NDJSON, Serve, folder, primary, write_config};

/// 122 messages that the reference wrote to a topic of 3 partitions, one a line.
const GOLDEN: &str = include_str!("../../../crates/notify/tests/golden/messages.jsonl");

type Messages = BTreeMap<i32, Vec<(String, String)>>;

#[test]
fn without_headers_every_golden_message_has_the_same_bytes_key_partition_and_nothing_else() {
    let node = Node::given();

    let (expected, messages) = post_all(&node, "headers = \"off\"");

    assert_eq!(by_partition(&messages), expected);
    assert!(messages.iter().all(|message| message.headers.is_empty()));
}

#[test]
fn with_headers_every_golden_message_is_the_same_but_for_its_identity() {
    let node = Node::given();

    let (expected, messages) = post_all(&node, "");

    assert_eq!(by_partition(&messages), expected);
    assert!(
        messages.iter().all(|message| message.headers.len() == 1 && message.headers[0].0 == "tidegate-id")
    );
}

/// Posts half of them one by one, the rest together; returns what is expected and what came.
fn post_all(node: &Node, keys: &str) -> (Messages, Vec<Received>) {
    let folder = folder();
    let topic = node.topic("golden");
    let queues = folder.path().join("queues");
    let serve = Serve::start(&write_config(folder.path(), &primary(&node.address, &topic, &queues, keys)));
    let golden: Vec<Value> =
        GOLDEN.lines().map(|line| serde_json::from_str(line).expect("a golden line")).collect();
    let value = |golden: &Value| golden["kafka_value"].as_str().expect("a text").to_owned();
    assert_eq!(golden.len(), 122);

    let (single, together) = golden.split_at(golden.len() / 2);
    for golden in single {
        let answer = serve.post(JSON, &value(golden));
        assert_eq!((answer.status, &answer.json()["unmatched"]), (200, &0.into()), "{golden}");
    }
    let lines: Vec<_> = together.iter().map(value).collect();
    let answer = serve.post(NDJSON, &lines.join("\n"));
    assert_eq!((answer.status, &answer.json()["unmatched"]), (200, &0.into()), "{answer:?}");
    serve.drained();

    let mut expected = Messages::new();
    for golden in &golden {
        let partition = golden["partition"].as_i64().and_then(|partition| i32::try_from(partition).ok());
        let key = golden["kafka_key"].as_str().expect("a text").to_owned();
        expected.entry(partition.expect("a partition")).or_default().push((key, value(golden)));
    }
    (expected, node.read(&topic))
}

/// Keys and values of each partition, in order.
fn by_partition(messages: &[Received]) -> Messages {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
    let mut found = Messages::new();
    for message in messages {
        let key = text(message.key.as_deref().expect("every message has a key"));
        found.entry(message.partition).or_default().push((key, text(&message.value)));
    }
    found
}
