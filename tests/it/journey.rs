//! The journey: publish -> append -> commit -> drain -> produce -> ack -> truncate. Each step moves its own mark, and
//! `start <= cursor <= durable <= end` holds whenever one looks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::delivery::kafka::{KafkaProducer, KafkaSettings};
use tidegate::delivery::{Drain, DrainSettings};
use tidegate::store::{Durability, Queue, QueueDir, QueueDirOptions, QueueOptions, QueueStatus, Record};
use tidegate::{Engine, Target, TargetId};

use crate::setup::{
    TOPIC, block_on, envelope, event, folder, mock_kafka, numbers, parse_config, primary, read_topic,
    until_true,
};

const KEY: &str = "images/cat.jpg";
const GRACE: Duration = Duration::from_secs(5);

#[test]
fn accepting_moves_durable_and_end_and_delivering_moves_the_cursor() {
    let folder = folder();
    let kafka = mock_kafka();
    kafka.stop_brokers().expect("the mock obeys");
    let engine = open(kafka.bootstrap_servers(), folder.path());
    let target = target(&engine);
    let watch = Watch::begin(target.queue());
    assert_eq!(marks(target.queue()), [1, 1, 1, 1]);

    // Publish, append, commit: the broker is down, and the answer does not wait for it.
    publish(&engine, 0..100);
    assert_eq!(marks(target.queue()), [1, 1, 101, 101]);
    publish(&engine, 100..150);
    assert_eq!(marks(target.queue()), [1, 1, 151, 151]);
    assert_eq!(target.queue().status().queued, 150);

    // Drain, produce, ack: the one segment holds the rest of the sequence, so there is nothing to truncate.
    kafka.start_brokers().expect("the mock obeys");
    until_true("the cursor to reach the end", || target.queue().status().queued == 0);
    assert_eq!(marks(target.queue()), [1, 151, 151, 151]);
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 150);
    assert_eq!(numbers(&messages, KEY), (0..150).collect::<Vec<_>>());

    watch.end();
    drop(target);
    let report = engine.shutdown_blocking(GRACE);
    assert_eq!((report.targets[0].1.delivered, report.targets[0].2), (150, 0));
}

#[test]
fn the_marks_outlive_a_restart_and_what_is_delivered_is_not_sent_again() {
    let folder = folder();
    let kafka = mock_kafka();
    let engine = open(kafka.bootstrap_servers(), folder.path());
    publish(&engine, 0..10);
    until_true("ten to be delivered", || target(&engine).queue().status().queued == 0);
    kafka.stop_brokers().expect("the mock obeys");
    publish(&engine, 10..30);
    let report = engine.shutdown_blocking(Duration::ZERO);
    assert_eq!((report.targets[0].1.delivered, report.targets[0].2), (10, 20));

    let engine = open(kafka.bootstrap_servers(), folder.path());
    assert_eq!(marks(target(&engine).queue()), [1, 11, 31, 31]);

    kafka.start_brokers().expect("the mock obeys");
    until_true("the rest to be delivered", || target(&engine).queue().status().queued == 0);
    assert_eq!(marks(target(&engine).queue()), [1, 31, 31, 31]);
    let messages = read_topic(kafka.bootstrap_servers(), TOPIC, 30);
    assert_eq!(numbers(&messages, KEY), (0..30).collect::<Vec<_>>());
}

#[test]
fn append_moves_end_and_the_ticket_says_when_durable_has_followed() {
    let folder = folder();
    let queue = small_segments(folder.path());
    let record = Record { key: Some(KEY.as_bytes()), value: b"{}", ..Record::default() };

    let tickets: Vec<_> = (0..100)
        .map(|before| {
            assert_eq!(queue.status().end.get(), before + 1);
            queue.append(&record, Durability::Synced).expect("there is room")
        })
        .collect();
    assert_eq!(queue.status().end.get(), 101);

    for (ticket, seq) in tickets.into_iter().zip(1..) {
        assert_eq!(ticket.wait().expect("the disk works").get(), seq);
        assert!(queue.status().durable.get() > seq);
    }
    assert_eq!(marks(&queue), [1, 1, 101, 101]);
}

#[test]
fn truncate_moves_start_and_deletes_the_files_of_what_is_delivered() {
    let folder = folder();
    let kafka = mock_kafka();
    kafka.stop_brokers().expect("the mock obeys");
    let queue = small_segments(folder.path());
    let watch = Watch::begin(&queue);
    let value = format!(r#"{{"padding":"{}"}}"#, "x".repeat(4000));
    let record = Record { key: Some(KEY.as_bytes()), value: value.as_bytes(), ..Record::default() };
    let tickets: Vec<_> =
        (0..1000).map(|_| queue.append(&record, Durability::Synced).expect("there is room")).collect();
    for ticket in tickets {
        ticket.wait().expect("the disk works");
    }
    let full = queue.status();
    assert!(full.segments >= 4, "4 MB in segments of 1 MiB: {full:?}");
    assert_eq!(segment_files(folder.path()), full.segments);

    // With the broker down nothing is acknowledged, so nothing is freed.
    let drain = start_drain(&queue, kafka.bootstrap_servers());
    let failing = drain.wait(Duration::from_secs(60), |status| status.state.reason().is_some());
    assert!(failing.state.reason().is_some(), "{failing:?}");
    assert_eq!(marks(&queue), [1, 1, 1001, 1001]);
    assert_eq!(segment_files(folder.path()), full.segments);

    kafka.start_brokers().expect("the mock obeys");
    until_true("the cursor to reach the end", || queue.status().queued == 0);
    until_true("all but the last segment to be deleted", || segment_files(folder.path()) == 1);
    let [start, cursor, durable, end] = marks(&queue);
    assert!(start > 1 && start < 1001, "the last segment's first record: {start}");
    assert_eq!([cursor, durable, end], [1001, 1001, 1001]);

    watch.end();
    assert_eq!(drain.shutdown(GRACE).counters.delivered, 1000);
}

fn open(brokers: &str, folder: &Path) -> Engine {
    let config = parse_config(&primary(brokers, TOPIC, folder, ""));
    Engine::open_blocking(&config)
}

fn target(engine: &Engine) -> Arc<Target> {
    let id: TargetId = "primary".parse().expect("an identifier");
    Arc::clone(engine.target(&id).expect("the target works"))
}

/// Publishes events of one key; all are accepted.
fn publish(engine: &Engine, numbers: std::ops::Range<u64>) {
    let (first, last) = (numbers.start + 1, numbers.end);
    let texts: Vec<_> = numbers.map(|number| event(KEY, number)).collect();
    let events: Vec<_> = texts.iter().map(|text| envelope(text)).collect();

    let published = block_on(engine.publish_all(&events));

    assert!(published.is_complete(), "{published:?}");
    assert_eq!((published.accepted[0].first.get(), published.accepted[0].last.get()), (first, last));
}

fn small_segments(folder: &Path) -> Queue {
    let dir = QueueDir::open(folder, QueueDirOptions::default()).expect("the folder is free");
    let options = QueueOptions::default().segment_bytes(1 << 20);
    dir.queue("primary", options).expect("the queue opens")
}

fn start_drain(queue: &Queue, brokers: &str) -> Drain {
    let settings = KafkaSettings::new([brokers]);
    let connect =
        Box::new(move |signal: &_| Ok(Box::new(KafkaProducer::connect(&settings, signal)?) as Box<_>));
    Drain::start(queue.clone(), DrainSettings::new("primary", TOPIC), connect, None)
        .expect("the system has a thread")
}

fn marks(queue: &Queue) -> [u64; 4] {
    marks_of(&queue.status())
}

fn marks_of(status: &QueueStatus) -> [u64; 4] {
    [status.start, status.cursor, status.durable, status.end].map(tidegate::Seq::get)
}

/// Segment files of the one queue in a queue_dir.
fn segment_files(queue_dir: &Path) -> u64 {
    let list =
        |path: &Path| std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("it").path());
    let folders = list(queue_dir).filter(|path| path.is_dir() && !path.ends_with("index.sled"));
    let files = folders.flat_map(|folder| list(&folder));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).count() as u64
}

/// Looks at the marks all the time: always in order, none ever going back.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Watch {
    fn begin(queue: &Queue) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (queue, stopped) = (queue.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut looks, mut before) = (0, [0; 4]);
            while !stopped.load(Ordering::Acquire) {
                let marks = marks_of(&queue.status());
                assert!(marks.is_sorted(), "start <= cursor <= durable <= end: {marks:?}");
                assert!(
                    before.iter().zip(marks).all(|(before, now)| *before <= now),
                    "{before:?}, then {marks:?}"
                );
                (looks, before) = (looks + 1, marks);
                std::thread::sleep(Duration::from_millis(1));
            }
            looks
        });
        Watch { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Release);
        let looks = self.thread.join().expect("the marks are in order");
        assert!(looks > 0, "nobody looked");
    }
}
