//! The client against librdkafka's mock cluster, and what its events become. Kept short: the outcomes of the drain
//! are tested with the scripted producer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_store::{Durability, Queue, QueueDir, QueueDirOptions, QueueOptions, Record};

use super::embedded::{BrokerError, EmbeddedKafka};
use super::*;
use crate::{BackoffLimits, Connect, Drain, DrainSettings, OpenDeadLetters, TargetState, TargetStatus};

const PATIENCE: Duration = Duration::from_secs(30);

fn context() -> Context {
    Context::new(Arc::new(Signal::default()))
}

/// As rdkafka does it.
fn event(context: &Context, code: Code, reason: &str) {
    for _ in 0..2 {
        context.error(KafkaError::Global(code), reason);
    }
}

fn problem(context: &Context) -> Option<(bool, String)> {
    let health = context.connection().health.clone();
    health.problem.map(|problem| (problem.blocked, problem.reason.to_string()))
}

#[test]
fn the_linked_librdkafka_has_the_fixes_that_we_rely_on() {
    let (number, text) = rdkafka::util::get_rdkafka_version();

    assert!(number >= 0x020c_01ff, "librdkafka is {text}, 2.12.1 is the least");
}

#[test]
fn one_broker_that_is_down_is_no_problem_and_all_of_them_are_with_the_cause_as_the_reason() {
    let context = context();

    event(&context, Code::BrokerTransportFailure, "connection refused");
    assert_eq!(problem(&context), None);
    event(&context, Code::AllBrokersDown, "3/3 brokers are down");

    assert_eq!(problem(&context), Some((false, "connection refused".to_owned())));
}

#[test]
fn a_wrong_password_blocks_and_what_follows_does_not_hide_it() {
    let context = context();

    event(&context, Code::Authentication, "invalid credentials");
    event(&context, Code::BrokerTransportFailure, "disconnected");
    event(&context, Code::AllBrokersDown, "1/1 brokers are down");

    assert_eq!(problem(&context), Some((true, "invalid credentials".to_owned())));
}

#[test]
fn an_answering_broker_ends_every_problem() {
    let context = context();
    event(&context, Code::AllBrokersDown, "1/1 brokers are down");

    context.is_up();
    assert_eq!(context.connection().health, Health { up: Some(true), problem: None });

    event(&context, Code::AllBrokersDown, "1/1 brokers are down");
    assert_eq!(problem(&context), Some((false, "1/1 brokers are down".to_owned())));
}

struct Bench {
    cluster: EmbeddedKafka,
    queue: Queue,
    dead: Queue,
    settings: KafkaSettings,
    _dirs: QueueDir,
    _folder: TempDir,
}

impl Bench {
    fn new(brokers: i32, partitions: i32) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let dirs = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("a queue_dir");
        let open = |name| dirs.queue(name, QueueOptions::default()).expect("a queue");
        let (queue, dead) = (open("main"), open("dead"));
        let cluster = EmbeddedKafka::start(brokers, &[("events", partitions)]).expect("a cluster");
        let mut settings = KafkaSettings::new([cluster.bootstrap_servers()]);
        for (name, value) in
            [("reconnect.backoff.max.ms", "200"), ("topic.metadata.refresh.interval.ms", "200")]
        {
            settings.properties.insert(name.to_owned(), value.to_owned());
        }
        Bench { cluster, queue, dead, settings, _dirs: dirs, _folder: folder }
    }

    fn append(&self, count: usize, keys: usize) {
        let mut last = None;
        for number in 0..count {
            let key = format!("k{}", number % keys);
            let value = number.to_string();
            let record = Record { key: Some(key.as_bytes()), value: value.as_bytes(), ..Record::default() };
            last = Some(self.queue.append(&record, Durability::Synced).expect("room"));
        }
        if let Some(ticket) = last {
            ticket.wait().expect("durable");
        }
    }

    fn start(&self) -> Drain {
        let (settings, dead) = (self.settings.clone(), self.dead.clone());
        let connect: Connect =
            Box::new(move |signal| Ok(Box::new(KafkaProducer::connect(&settings, signal)?)));
        let open: OpenDeadLetters = Box::new(move || Ok(dead.clone()));
        let mut settings = DrainSettings::new("test", "events");
        settings.backoff =
            BackoffLimits { first: Duration::from_millis(20), cap: Duration::from_millis(200) };
        Drain::start(self.queue.clone(), settings, connect, Some(open)).expect("a thread")
    }

    /// Reads until every one of `values` is there, and checks that the last writes of each key are in order.
    #[track_caller]
    fn assert_topic_has(&self, values: impl Iterator<Item = usize>) -> u64 {
        let mut missing: std::collections::BTreeSet<usize> = values.collect();
        let reader = TopicReader::open(&self.settings, "events", PATIENCE).expect("the topic");
        let deadline = Instant::now() + PATIENCE;
        let mut logs: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        let mut count = 0;
        let total = reader.count(PATIENCE).expect("an answer");
        while count < total {
            assert!(Instant::now() < deadline, "read {count} of {total}, missing {missing:?}");
            if let Some(received) = reader.next(Duration::from_millis(500)) {
                let value: usize = String::from_utf8_lossy(&received.value).parse().expect("a number");
                missing.remove(&value);
                logs.entry(received.key.expect("a key")).or_default().push(value);
                count += 1;
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
        for (key, log) in logs {
            let last: BTreeMap<usize, usize> =
                log.iter().enumerate().map(|(at, value)| (*value, at)).collect();
            assert!(
                last.values().is_sorted(),
                "key {} is out of order: {log:?}",
                String::from_utf8_lossy(&key)
            );
        }
        count
    }
}

#[track_caller]
fn assert_delivered(drain: &Drain, count: u64) -> TargetStatus {
    let status = drain.wait(PATIENCE, |status| status.counters.delivered == count);
    assert_eq!(status.counters.delivered, count, "{status:?}");
    status
}

#[test]
fn messages_arrive_with_key_value_and_identity() {
    let bench = Bench::new(1, 4);
    bench.append(1, 1);

    let drain = bench.start();
    assert_delivered(&drain, 1);

    let reader = TopicReader::open(&bench.settings, "events", PATIENCE).expect("the topic");
    assert_eq!(reader.partitions().len(), 4);
    let received = reader.next(PATIENCE).expect("a message");
    assert_eq!((received.key.as_deref(), received.value.as_slice()), (Some(&b"k0"[..]), &b"0"[..]));
    let id = format!("{}-1", bench.queue.uuid());
    assert_eq!(received.headers, [(IDENTITY_HEADER.to_owned(), id.into_bytes())]);
}

#[test]
fn moving_leaders_lose_nothing_and_keep_the_order_of_each_key() {
    let bench = Bench::new(3, 4);
    let drain = bench.start();

    for round in 0..6 {
        bench.append(500, 20);
        for partition in 0..4 {
            bench
                .cluster
                .move_leader("events", partition, Some(1 + (round + partition) % 3))
                .expect("a broker");
        }
    }

    assert_delivered(&drain, 3000);
    assert_eq!(bench.queue.status().cursor.get(), 3001);
}

#[test]
fn an_outage_is_seen_within_two_seconds_and_over_soon_after_the_brokers_are_back() {
    let bench = Bench::new(3, 4);
    let drain = bench.start();
    bench.append(100, 10);
    assert_delivered(&drain, 100);

    bench.cluster.stop_brokers().expect("a cluster");
    bench.append(100, 10);
    let begun = Instant::now();
    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Backoff { .. }));
    assert!(matches!(status.state, TargetState::Backoff { until: None, .. }), "{:?}", status.state);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());

    bench.cluster.start_brokers().expect("a cluster");
    let status = assert_delivered(&drain, 200);
    assert_eq!((status.counters.retried, status.counters.client_restarts), (0, 0));
    bench.assert_topic_has(0..100);
}

#[test]
fn one_record_too_large_for_the_broker_is_a_dead_letter_and_its_batch_is_delivered() {
    let bench = Bench::new(1, 1);
    // The mock fails whole requests and never looks into them: a batch, its halves down to one record, nothing else.
    bench.append(8, 8);
    bench.cluster.fail_produce(&[BrokerError::MessageTooLarge; 4]).expect("a cluster");

    let drain = bench.start();

    let status =
        drain.wait(PATIENCE, |status| status.counters.delivered == 7 && status.counters.dead_lettered == 1);
    assert_eq!((status.counters.delivered, status.counters.dead_lettered), (7, 1));
    assert_eq!(bench.dead.status().end.get(), 2);
    bench.assert_topic_has(1..8);
}

#[test]
fn one_record_too_large_for_the_client_is_a_dead_letter_and_the_other_99_are_delivered() {
    let bench = Bench::new(1, 4);
    bench.append(50, 5);
    let large = vec![b'x'; 2_000_000];
    let record = Record { key: Some(b"k0"), value: &large, ..Record::default() };
    bench.queue.append(&record, Durability::Synced).expect("room").wait().expect("durable");
    bench.append(49, 5);

    let drain = bench.start();

    let status =
        drain.wait(PATIENCE, |status| status.counters.delivered == 99 && status.counters.dead_lettered == 1);
    assert_eq!((status.counters.delivered, status.counters.dead_lettered), (99, 1));
    assert_eq!(bench.queue.status().cursor.get(), 101);
}

#[test]
fn a_forbidden_topic_blocks_and_goes_on_by_itself_when_it_is_allowed() {
    let bench = Bench::new(1, 1);
    bench.append(20, 4);
    bench.cluster.fail_produce(&[BrokerError::TopicAuthorizationFailed; 2]).expect("a cluster");

    let drain = bench.start();

    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Blocked { .. }));
    assert!(status.state.to_string().contains("TopicAuthorizationFailed"), "{}", status.state);
    assert_delivered(&drain, 20);
    bench.assert_topic_has(0..20);
}

#[test]
fn an_unknown_topic_blocks_and_goes_on_by_itself_when_it_appears() {
    let mut bench = Bench::new(1, 1);
    bench.settings.properties.insert("topic.metadata.propagation.max.ms".to_owned(), "300".to_owned());
    bench.cluster.fail_topic("events", BrokerError::UnknownTopic).expect("a cluster");
    bench.append(20, 4);

    let drain = bench.start();

    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Blocked { .. }));
    assert!(status.state.to_string().contains("Unknown"), "{}", status.state);
    bench.cluster.fail_topic("events", BrokerError::None).expect("a cluster");
    assert_delivered(&drain, 20);
    bench.assert_topic_has(0..20);
}

#[test]
fn a_broken_sequence_replaces_the_client_and_loses_nothing() {
    let bench = Bench::new(1, 1);
    bench.append(200, 4);
    bench.cluster.fail_produce(&[BrokerError::OutOfOrderSequence]).expect("a cluster");
    let begun = Instant::now();

    let drain = bench.start();

    let status = assert_delivered(&drain, 200);
    assert_eq!(status.counters.client_restarts, 1);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    bench.assert_topic_has(0..200);
}

#[test]
fn throttling_is_retried() {
    let bench = Bench::new(1, 1);
    bench.append(20, 4);
    bench.cluster.fail_produce(&[BrokerError::ThrottlingQuotaExceeded; 2]).expect("a cluster");

    let drain = bench.start();

    assert_delivered(&drain, 20);
    bench.assert_topic_has(0..20);
}

#[test]
fn shutdown_with_all_brokers_down_keeps_its_time_and_a_restart_delivers_all() {
    let bench = Bench::new(1, 4);
    bench.cluster.stop_brokers().expect("a cluster");
    bench.append(5000, 50);
    let drain = bench.start();
    drain.wait(PATIENCE, |status| status.in_flight == 5000);
    let begun = Instant::now();

    let summary = drain.shutdown(Duration::from_millis(100));

    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!((summary.counters.delivered, summary.unacknowledged), (0, 5000));
    bench.cluster.start_brokers().expect("a cluster");
    let drain = bench.start();
    assert_delivered(&drain, 5000);
    assert_eq!(bench.assert_topic_has(0..5000), 5000);
}

#[test]
fn a_certificate_that_is_not_there_is_an_error_that_names_it() {
    let mut settings = KafkaSettings::new(["127.0.0.1:1"]);
    settings.tls = Some(Tls { ca: Some("/no/such/ca.pem".into()), ..Tls::default() });

    let Err(error) = KafkaProducer::connect(&settings, &Arc::new(Signal::default())) else {
        panic!("a client without its certificates")
    };

    assert!(error.to_string().contains("/no/such/ca.pem"), "{error}");
}
