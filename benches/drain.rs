//! Question: how much of a bare librdkafka loop's rate does draining a durable queue reach?
//!
//! `cargo bench --bench drain` sends 1 KiB records into librdkafka's mock cluster, in turn by a bare producer with the
//! same client settings and by a drain from a queue on disk, and prints the rates and their ratio. Medians count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use tidegate::Record;
use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::delivery::kafka::{KafkaProducer, KafkaSettings};
use tidegate::delivery::{Drain, DrainSettings};
use tidegate::store::{Durability, QueueDir, QueueDirOptions, QueueOptions, Seq};

const ROUNDS: usize = 5;
const RECORDS: u64 = 200_000;
const RECORD_BYTES: usize = 1024;

fn main() {
    let body: Vec<u8> =
        (0..RECORD_BYTES).map(|i| b'a' + u8::try_from(i * 7919 % 26).expect("small")).collect();
    let kafka = EmbeddedKafka::start(1, &[("bare", 16), ("drained", 16)]).expect("the mock cluster starts");
    let (mut bare, mut drained) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_rate(kafka.bootstrap_servers(), &body));
        drained.push(drain_rate(kafka.bootstrap_servers(), &body));
    }
    let (bare, drained) = (median(&mut bare), median(&mut drained));
    println!("bare librdkafka loop        {bare:>10.0} /s");
    println!("drained from the queue      {drained:>10.0} /s");
    println!("drained / bare              {:>10.2}", drained / bare);
}

struct Reports(AtomicU64);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, _: usize) {
        assert!(result.is_ok(), "every record is delivered");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What librdkafka alone does, with the settings that a drain has.
fn bare_rate(brokers: &str, body: &[u8]) -> f64 {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("acks", "all").set("enable.idempotence", "true");
    config.set("linger.ms", "5").set("compression.type", "lz4").set("partitioner", "fnv1a_random");
    config.set("queue.buffering.max.messages", "100000").set("queue.buffering.max.kbytes", "65536");
    let producer: BaseProducer<Reports> =
        config.create_with_context(Reports(AtomicU64::new(0))).expect("a producer");
    producer.client().fetch_metadata(Some("bare"), Duration::from_secs(10)).expect("metadata");
    let start = Instant::now();
    for number in 0..RECORDS {
        let key = (number % 1000).to_string();
        let mut record = BaseRecord::with_opaque_to("bare", 0).payload(body).key(&key);
        while let Err((error, back)) = producer.send(record) {
            assert_eq!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull));
            producer.poll(Duration::from_millis(1));
            record = back;
        }
        if number % 256 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::from_millis(1));
    }
    assert_eq!(producer.context().0.load(Ordering::Relaxed), RECORDS);
    per_second(start)
}

/// The same records from a queue on disk: read, verified, sent, acknowledged.
fn drain_rate(brokers: &str, body: &[u8]) -> f64 {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("the folder opens");
    let queue = dir.queue("bench", QueueOptions::default().queue_limit(u64::MAX)).expect("the queue opens");
    for number in 0..RECORDS {
        let key = (number % 1000).to_string();
        let record = Record { key: Some(key.as_bytes()), value: body, ..Record::default() };
        drop(queue.append(&record, Durability::Buffered).expect("it is taken"));
    }
    queue
        .append(&Record::default(), Durability::Synced)
        .and_then(tidegate::store::Ticket::wait)
        .expect("durable");

    let settings = KafkaSettings::new([brokers]);
    let connect = Box::new(move |signal: &_| Ok(Box::new(KafkaProducer::connect(&settings, signal)?) as _));
    let start = Instant::now();
    let drain = Drain::start(queue.clone(), DrainSettings::new("bench", "drained"), connect, None)
        .expect("it starts");
    let status = drain.wait(Duration::from_secs(120), |_| queue.status().cursor > Seq::new(RECORDS));
    let rate = per_second(start);
    assert!(queue.status().cursor > Seq::new(RECORDS), "{status:?}");
    let _ = drain.shutdown(Duration::ZERO);
    rate
}

#[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
fn per_second(start: Instant) -> f64 {
    RECORDS as f64 / start.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
