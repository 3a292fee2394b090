//! One record that Kafka will never take stops nobody: it is a dead letter, with the reason, and the rest goes on.

use std::time::Duration;

use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::store::QueueOptions;
use tidegate::store::inspect::overview;
use tidegate::{Config, Engine, Record, TargetId};

use crate::setup::{folder, primary};

#[tokio::test]
async fn a_record_as_large_as_the_queue_takes_becomes_a_dead_letter_and_stops_nobody() {
    let kafka = EmbeddedKafka::start(1, &[("dead", 1)]).expect("the mock cluster starts");
    let folder = folder();
    let queues = folder.path().join("queues");
    let text = primary(kafka.bootstrap_servers(), "dead", &queues, "");
    let config = Config::parse(Some(&text), std::iter::empty()).expect("it is TOML");
    let engine = Engine::open(config).await;
    let id: TargetId = "primary".parse().expect("an identifier");
    // The value, its length and the other fields fill the queue's limit to the last byte.
    let value = vec![b'v'; QueueOptions::default().record_bytes_max - 9];
    let largest = Record { value: &value, ..Record::default() };
    let small = Record { value: b"small", ..Record::default() };

    engine.send(&id, &largest).await.expect("the queue takes it");
    let too_large = vec![b'v'; value.len() + 1];
    engine
        .send(&id, &Record { value: &too_large, ..Record::default() })
        .await
        .expect_err("one byte more is refused");
    engine.send(&id, &small).await.expect("the queue takes it");

    let target = engine.target(&id).expect("it works").clone();
    let waiting = tokio::task::spawn_blocking(move || {
        target.wait(Duration::from_secs(30), |status| {
            status.counters.delivered == 1 && status.counters.dead_lettered == 1
        })
    });
    let status = waiting.await.expect("waiting does not panic");
    assert_eq!((status.counters.delivered, status.counters.dead_lettered), (1, 1), "{:?}", status.state);
    engine.shutdown(Duration::from_secs(5)).await;
    let dead =
        overview(&queues).expect("it is read").into_iter().find(|queue| queue.name == "primary/dead-letters");
    assert_eq!(dead.expect("there is a queue of dead letters").end.get(), 2);
}
