//! What a stranger sees: an event posted as with curl, read by Kafka's own console consumer.

use super::Node;
use crate::setup::{JSON, PARTITIONS, Serve, event, folder, primary, write_config};

#[test]
fn a_posted_event_is_what_kafkas_console_consumer_prints() {
    let node = Node::given();
    let folder = folder();
    let topic = node.topic("console");
    let queues = folder.path().join("queues");
    let serve = Serve::start(&write_config(folder.path(), &primary(&node.address, &topic, &queues, "")));

    assert_eq!(serve.post(JSON, &event("images/cat.jpg", 7)).status, 200);

    let printed = node.script(&["consume", &topic, "--max", "1", "--timeout-ms", "60000"]);
    let (partition, rest) = printed.split_once('\t').expect("partition, key, value");
    assert!(partition.parse::<i32>().is_ok_and(|partition| partition < PARTITIONS), "{printed}");
    assert_eq!(rest, format!("images/cat.jpg\t{}", event("images/cat.jpg", 7)));
}
