//! The drain's promises, over a real queue and a scripted producer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tempfile::TempDir;
use tidegate_store::{Durability, Header, QueueDir, QueueDirOptions, QueueOptions, Record, Seq};

use super::*;
use crate::outcome::{Outcome, RetryKind};
use crate::produce::{Health, Problem, Refused};
use crate::scripted::{Answer, Attempt, Script};
use crate::{IDENTITY_HEADER, REASON_HEADER};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Bench {
    queue: Queue,
    dead: Queue,
    script: Script,
    dirs: QueueDir,
    _folder: TempDir,
}

impl Bench {
    fn new(plan: impl FnMut(&Attempt) -> Answer + Send + 'static) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let dirs = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("a queue_dir");
        let open = |name| dirs.queue(name, QueueOptions::default()).expect("a queue");
        Bench { queue: open("main"), dead: open("dead"), script: Script::new(plan), dirs, _folder: folder }
    }

    /// Appends records with these keys; the value is the number.
    fn append(&self, keys: &[&str]) {
        for (number, key) in keys.iter().enumerate() {
            self.append_value(key, &number.to_string());
        }
    }

    fn append_value(&self, key: &str, value: &str) {
        let record = Record {
            key: (!key.is_empty()).then_some(key.as_bytes()),
            value: value.as_bytes(),
            timestamp_ms: 1_700_000_000_000,
            ..Record::default()
        };
        self.queue.append(&record, Durability::Synced).expect("room").wait().expect("durable");
    }

    fn settings() -> DrainSettings {
        let mut settings = DrainSettings::new("test", "events");
        settings.backoff = BackoffLimits { first: Duration::from_millis(1), cap: Duration::from_millis(2) };
        settings
    }

    fn connect(&self) -> Connect {
        let script = self.script.clone();
        Box::new(move |signal| Ok(Box::new(script.producer(signal))))
    }

    fn start_with(&self, settings: DrainSettings) -> Drain {
        let dead = self.dead.clone();
        let open: OpenDeadLetters = Box::new(move || Ok(dead.clone()));
        Drain::start(self.queue.clone(), settings, self.connect(), Some(open)).expect("a thread")
    }

    fn start(&self) -> Drain {
        self.start_with(Bench::settings())
    }

    fn cursor(&self) -> u64 {
        self.queue.status().cursor.get()
    }

    /// The values of the dead letters with one header of each.
    fn dead_letters(&self, header: &str) -> Vec<(String, String)> {
        let mut reader = self.dead.reader();
        let mut letters = Vec::new();
        while let Some(entry) = reader.next().expect("readable") {
            let record = entry.record().expect("a record");
            let found = record.headers.iter().find(|found| found.name == header).expect("the header");
            letters.push((text(record.value), text(found.value)));
        }
        letters
    }

    /// The delivered values of each key, in the order of its log.
    fn log(&self) -> BTreeMap<String, Vec<String>> {
        let mut log: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for attempt in self.script.delivered() {
            log.entry(text(&attempt.key.unwrap_or_default())).or_default().push(text(&attempt.value));
        }
        log
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn delivered(count: u64) -> impl FnMut(&TargetStatus) -> bool {
    move |status| status.counters.delivered == count
}

fn deliver() -> Answer {
    Answer::Report(Outcome::Delivered)
}

fn fail(kind: RetryKind) -> Answer {
    Answer::Report(Outcome::retry(kind, "not now"))
}

#[track_caller]
fn assert_delivered(drain: &Drain, count: u64) -> TargetStatus {
    let status = drain.wait(PATIENCE, delivered(count));
    assert_eq!(status.counters.delivered, count, "{status:?}");
    status
}

#[test]
fn what_was_appended_is_delivered_and_acknowledged_and_then_the_target_is_idle() {
    let bench = Bench::new(|_| deliver());
    bench.append(&["a", "b", "a"]);

    let drain = bench.start();

    assert_delivered(&drain, 3);
    assert_eq!(bench.cursor(), 4);
    let status = drain.wait(PATIENCE, |status| status.state == TargetState::Idle);
    assert_eq!((status.state, status.unacknowledged), (TargetState::Idle, 0));
    assert_eq!(bench.log()["a"], ["0", "2"]);
}

#[test]
fn a_record_appended_later_wakes_the_drain() {
    let bench = Bench::new(|_| deliver());
    let drain = bench.start();
    drain.wait(PATIENCE, |status| status.state == TargetState::Idle);

    bench.append(&["a"]);

    assert_delivered(&drain, 1);
}

#[test]
fn nothing_is_acknowledged_before_it_is_reported_and_gaps_are_left_open() {
    let bench = Bench::new(|_| Answer::Hold);
    bench.append(&["a", "b", "c"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 3));
    assert_eq!(bench.cursor(), 1);

    bench.script.release(&[Seq::new(3), Seq::new(2)], &Outcome::Delivered);
    assert_delivered(&drain, 2);
    assert_eq!(bench.cursor(), 1);

    bench.script.release(&[Seq::new(1)], &Outcome::Delivered);
    assert_delivered(&drain, 3);
    assert_eq!(bench.cursor(), 4);
}

#[test]
fn a_restart_sends_again_exactly_what_was_not_acknowledged() {
    let bench = Bench::new(|_| Answer::Hold);
    bench.append(&["a", "b", "c"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 3));
    bench.script.release(&[Seq::new(2)], &Outcome::Delivered);
    assert_delivered(&drain, 1);

    let summary = drain.shutdown(Duration::ZERO);
    assert_eq!((summary.counters.delivered, summary.unacknowledged), (1, 2));
    let before = bench.script.attempts().len();
    bench.script.replan(|_| deliver());
    let drain = bench.start();

    assert_delivered(&drain, 2);
    let again: Vec<u64> = bench.script.attempts()[before..].iter().map(|attempt| attempt.seq.get()).collect();
    assert_eq!(again, [1, 3]);
}

#[test]
fn no_more_than_the_window_is_in_flight() {
    let bench = Bench::new(|_| Answer::Hold);
    bench.append(&["k"; 10]);
    let mut settings = Bench::settings();
    settings.window.records = 4;
    let drain = bench.start_with(settings);
    assert!(bench.script.wait(|script| script.held().len() == 4));

    for _ in 0..10 {
        assert!(bench.script.wait(|script| !script.held().is_empty()));
        bench.script.release(&bench.script.held()[..1], &Outcome::Delivered);
    }

    assert_delivered(&drain, 10);
    assert!(bench.script.attempts().iter().all(|attempt| attempt.in_flight < 4));
    assert_eq!(bench.cursor(), 11);
}

#[test]
fn an_outage_is_retried_until_it_ends_and_the_state_says_why() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let bench =
        Bench::new(
            move |_| {
                if is_down.load(Ordering::Acquire) { fail(RetryKind::Transient) } else { deliver() }
            },
        );
    bench.append(&["a", "b", "a"]);
    let drain = bench.start();
    let status = drain.wait(PATIENCE, |status| {
        status.counters.retried >= 9 && matches!(status.state, TargetState::Backoff { .. })
    });
    assert_eq!(status.state.reason(), Some("not now"));
    assert_eq!(bench.cursor(), 1);

    down.store(false, Ordering::Release);

    let status = assert_delivered(&drain, 3);
    assert_eq!(bench.log()["a"], ["0", "2"]);
    assert_eq!(status.counters.possible_duplicates, 0);
    assert!(status.last_error.is_some());
}

#[test]
fn nothing_new_is_taken_while_failures_wait() {
    let bench = Bench::new(|_| fail(RetryKind::Blocked));
    bench.append(&["a"]);
    let mut settings = Bench::settings();
    settings.backoff.cap = Duration::from_secs(3600);
    let drain = bench.start_with(settings);
    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Blocked { .. }));
    assert_eq!(status.state, TargetState::Blocked { reason: "not now".into() });

    bench.append(&["b", "c"]);
    drop(drain);

    assert_eq!(bench.script.attempts().len(), 1);
}

#[test]
fn order_within_a_key_survives_a_failure_in_the_middle() {
    let bench = Bench::new(|attempt| match (attempt.seq.get(), attempt.nth) {
        (2, 1) => fail(RetryKind::Transient),
        _ => deliver(),
    });
    bench.append(&["k", "k", "k", "other"]);

    let drain = bench.start();

    let status = assert_delivered(&drain, 4);
    // Record 2 (value 1) came after record 3, so record 3 was sent again behind it.
    assert_eq!(bench.log()["k"], ["0", "2", "1", "2"]);
    assert_eq!(bench.log()["other"], ["3"]);
    assert_eq!((status.counters.retried, status.counters.possible_duplicates), (2, 1));
    assert_eq!(bench.cursor(), 5);
}

#[test]
fn one_bad_record_of_a_hundred_is_a_dead_letter_and_the_others_are_delivered() {
    let bench = Bench::new(|attempt| if attempt.value == b"41" { Answer::Poison } else { deliver() });
    bench.append(&["k"; 100]);

    let drain = bench.start();

    let status =
        drain.wait(PATIENCE, |status| status.counters.dead_lettered == 1 && status.unacknowledged == 0);
    let status = drain
        .wait(PATIENCE, |now| now.counters.delivered == 99)
        .counters
        .delivered
        .max(status.counters.delivered);
    assert_eq!(status, 99);
    assert_eq!(bench.cursor(), 101);
    let reason = "the batch has a record that is not acceptable";
    assert_eq!(bench.dead_letters(REASON_HEADER), [("41".to_owned(), reason.to_owned())]);
    let log = bench.log();
    let last: Vec<usize> = (0..100)
        .filter(|number| *number != 41)
        .map(|number| log["k"].iter().rposition(|value| *value == number.to_string()).expect("delivered"))
        .collect();
    assert!(last.is_sorted(), "{:?}", log["k"]);
    // Halving, not one by one.
    assert!(bench.script.attempts().len() < 600, "{}", bench.script.attempts().len());
}

#[test]
fn several_bad_records_in_one_batch_are_all_found() {
    let bad = |value: &[u8]| matches!(value, b"0" | b"7" | b"8" | b"31");
    let bench = Bench::new(move |attempt| if bad(&attempt.value) { Answer::Poison } else { deliver() });
    let keys: Vec<String> = (0..32).map(|number| format!("k{}", number % 5)).collect();
    bench.append(&keys.iter().map(String::as_str).collect::<Vec<_>>());

    let drain = bench.start();

    let status =
        drain.wait(PATIENCE, |status| status.counters.delivered == 28 && status.counters.dead_lettered == 4);
    assert_eq!((status.counters.delivered, status.counters.dead_lettered), (28, 4));
    let mut dead: Vec<String> =
        bench.dead_letters(REASON_HEADER).into_iter().map(|(value, _)| value).collect();
    dead.sort_unstable();
    assert_eq!(dead, ["0", "31", "7", "8"]);
}

#[test]
fn a_record_that_the_client_refuses_is_a_dead_letter_at_once_with_its_story() {
    let bench = Bench::new(|attempt| match attempt.seq.get() {
        2 => Answer::Refuse(Refused::Outcome(Outcome::reject("too large"))),
        _ => deliver(),
    });
    bench.append(&["a", "a", "a"]);

    let drain = bench.start();

    drain.wait(PATIENCE, |status| status.counters.delivered == 2 && status.counters.dead_lettered == 1);
    assert_eq!(bench.cursor(), 4);
    assert_eq!(bench.dead_letters(REASON_HEADER), [("1".to_owned(), "too large".to_owned())]);
    assert_eq!(bench.dead_letters(crate::ATTEMPTS_HEADER)[0].1, "1");
    assert_eq!(bench.dead_letters(crate::SEQ_HEADER)[0].1, "2");
    assert!(bench.dead_letters(crate::FIRST_FAILURE_HEADER)[0].1.parse::<i64>().is_ok());
    assert_eq!(bench.script.attempts().len(), 3);
}

#[test]
fn without_a_dead_letter_queue_a_rejected_record_holds_the_queue_and_is_not_lost() {
    let bench = Bench::new(|_| Answer::Report(Outcome::reject("never")));
    bench.append(&["a"]);
    let drain =
        Drain::start(bench.queue.clone(), Bench::settings(), bench.connect(), None).expect("a thread");

    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Blocked { .. }));

    assert!(status.state.to_string().contains("no dead letter queue"), "{}", status.state);
    assert_eq!(bench.cursor(), 1);
}

#[test]
fn dead_letters_that_cannot_be_written_hold_the_queue_until_they_can() {
    let bench = Bench::new(|attempt| match attempt.seq.get() {
        1 => Answer::Report(Outcome::reject("never")),
        _ => deliver(),
    });
    bench.append(&["a", "b"]);
    let (dead, mended) = (bench.dead.clone(), Arc::new(AtomicBool::new(false)));
    let is_mended = Arc::clone(&mended);
    let open: OpenDeadLetters = Box::new(move || {
        if is_mended.load(Ordering::Acquire) { Ok(dead.clone()) } else { Err("disk on fire".into()) }
    });
    let drain =
        Drain::start(bench.queue.clone(), Bench::settings(), bench.connect(), Some(open)).expect("a thread");
    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Blocked { .. }));
    assert!(status.state.to_string().contains("disk on fire"), "{}", status.state);

    mended.store(true, Ordering::Release);

    let status =
        drain.wait(PATIENCE, |status| status.counters.dead_lettered == 1 && status.counters.delivered == 1);
    assert_eq!((status.counters.dead_lettered, status.counters.delivered), (1, 1));
    assert_eq!(bench.cursor(), 3);
}

#[test]
fn a_broken_client_is_replaced_and_nothing_is_lost_or_out_of_order() {
    let bench =
        Bench::new(
            |attempt| if attempt.client == 1 && attempt.seq.get() > 2 { Answer::Hold } else { deliver() },
        );
    bench.append(&["k", "j", "k", "j", "k"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 3));

    bench.script.break_client("fenced");

    let status = assert_delivered(&drain, 5);
    assert_eq!(status.counters.client_restarts, 1);
    assert_eq!(bench.log()["k"], ["0", "2", "4"]);
    assert_eq!(bench.script.attempts().iter().filter(|attempt| attempt.client == 2).count(), 3);
    assert_eq!(status.counters.possible_duplicates, 3);
}

#[test]
fn a_client_that_hangs_is_dropped_without_its_reports() {
    let bench = Bench::new(|attempt| if attempt.client == 1 { Answer::Hold } else { deliver() });
    bench.script.ignore_purges();
    bench.append(&["k", "k"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 2));

    bench.script.break_client("hangs");

    assert_delivered(&drain, 2);
    assert_eq!(bench.log()["k"], ["0", "1"]);
}

#[test]
fn what_is_still_in_flight_is_not_sent_again_with_what_failed() {
    let bench = Bench::new(|attempt| match (attempt.seq.get(), attempt.nth) {
        (1, 1) => fail(RetryKind::Transient),
        (2, _) => Answer::Hold,
        _ => deliver(),
    });
    bench.append(&["a", "b"]);
    let drain = bench.start();
    assert_delivered(&drain, 1);

    bench.append(&["c"]);
    assert_delivered(&drain, 2);
    bench.script.release(&[Seq::new(2)], &Outcome::Delivered);

    assert_delivered(&drain, 3);
    let seqs: Vec<u64> = bench.script.attempts().iter().map(|attempt| attempt.seq.get()).collect();
    assert_eq!(seqs, [1, 2, 1, 3]);
}

#[test]
fn a_client_that_cannot_be_made_is_the_state_and_is_tried_again() {
    let bench = Bench::new(|_| deliver());
    bench.append(&["a"]);
    let (script, tries) = (bench.script.clone(), AtomicU32::new(0));
    let connect: Connect = Box::new(move |signal| {
        if tries.fetch_add(1, Ordering::AcqRel) < 3 {
            return Err("no such file: ca.pem".into());
        }
        Ok(Box::new(script.producer(signal)))
    });
    let mut settings = Bench::settings();
    settings.backoff.cap = Duration::from_millis(50);

    let drain = Drain::start(bench.queue.clone(), settings, connect, None).expect("a thread");

    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Failed { .. }));
    assert_eq!(status.state, TargetState::Failed { reason: "no client: no such file: ca.pem".into() });
    assert_delivered(&drain, 1);
}

#[test]
fn a_stuck_client_is_replaced_while_a_broker_is_up_and_left_alone_while_none_is() {
    let bench = Bench::new(|attempt| if attempt.client == 1 { Answer::Hold } else { deliver() });
    let problem = Problem { blocked: false, reason: "all brokers are down".into() };
    bench.script.set_health(Health { up: Some(false), problem: Some(problem) });
    bench.append(&["a"]);
    let mut settings = Bench::settings();
    settings.stuck_after = Duration::from_millis(20);
    let drain = bench.start_with(settings);
    let status =
        drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Backoff { until: None, .. }));
    assert_eq!(status.state.reason(), Some("all brokers are down"));
    let status = drain.wait(Duration::from_millis(60), |status| status.counters.client_restarts > 0);
    assert_eq!(status.counters.client_restarts, 0);

    bench.script.set_health(Health { up: Some(true), problem: None });

    let status = assert_delivered(&drain, 1);
    assert_eq!(status.counters.client_restarts, 1);
    let (error, _) = status.last_error.expect("the watchdog's reason");
    assert!(error.contains("got no report"), "{error}");
}

#[test]
fn a_full_client_is_no_failure_and_loses_nothing() {
    let bench = Bench::new(
        |attempt| if attempt.in_flight >= 2 { Answer::Refuse(Refused::Full) } else { Answer::Hold },
    );
    bench.append(&["k"; 5]);
    let drain = bench.start();

    for _ in 0..5 {
        assert!(bench.script.wait(|script| !script.held().is_empty()));
        bench.script.release(&bench.script.held()[..1], &Outcome::Delivered);
    }

    assert_delivered(&drain, 5);
    assert_eq!(bench.log()["k"], ["0", "1", "2", "3", "4"]);
    assert_eq!(drain.status().counters.retried, 0);
}

#[test]
fn a_record_that_fails_for_no_reason_lets_the_others_through_and_holds_the_queue() {
    let bench =
        Bench::new(|attempt| if attempt.value == b"1" { fail(RetryKind::Unclear) } else { deliver() });
    bench.append(&["a", "b", "c", "d"]);

    let drain = bench.start();

    let status = drain.wait(PATIENCE, |status| status.counters.delivered == 3 && status.counters.retried > 5);
    assert_eq!(status.counters.delivered, 3);
    assert_eq!(bench.cursor(), 2);
}

#[test]
fn a_record_that_fails_for_no_reason_is_a_dead_letter_after_the_attempts_that_the_user_chose() {
    let bench =
        Bench::new(|attempt| if attempt.value == b"1" { fail(RetryKind::Unclear) } else { deliver() });
    bench.append(&["a", "b", "c"]);
    let mut settings = Bench::settings();
    settings.attempts_max = Some(5);

    let drain = bench.start_with(settings);

    let status =
        drain.wait(PATIENCE, |status| status.counters.dead_lettered == 1 && status.counters.delivered == 2);
    assert_eq!((status.counters.dead_lettered, status.counters.delivered), (1, 2));
    assert_eq!(bench.dead_letters(crate::ATTEMPTS_HEADER)[0].0, "1");
}

#[test]
fn messages_carry_the_identity_the_headers_and_the_topic_of_the_record() {
    let bench = Bench::new(|_| deliver());
    let headers = vec![Header { name: "a", value: b"1" }];
    let record = Record { topic: Some("own"), headers, value: b"v", ..Record::default() };
    bench.queue.append(&record, Durability::Synced).expect("room").wait().expect("durable");

    let drain = bench.start();
    assert_delivered(&drain, 1);

    let attempt = &bench.script.attempts()[0];
    let id = format!("{}-1", bench.queue.uuid());
    let expected = [(IDENTITY_HEADER.to_owned(), id.into_bytes()), ("a".to_owned(), b"1".to_vec())];
    assert_eq!((attempt.topic.as_str(), &attempt.key, attempt.timestamp_ms), ("own", &None, None));
    assert_eq!(attempt.headers, expected);
}

#[test]
fn a_bare_message_has_no_headers_and_can_have_the_time_of_the_event() {
    let bench = Bench::new(|_| deliver());
    bench.append(&["a"]);
    let mut settings = Bench::settings();
    settings.identity_header = false;
    settings.timestamp = Timestamp::Event;

    let drain = bench.start_with(settings);
    assert_delivered(&drain, 1);

    let attempt = &bench.script.attempts()[0];
    assert_eq!((attempt.topic.as_str(), attempt.timestamp_ms), ("events", Some(1_700_000_000_000)));
    assert!(attempt.headers.is_empty());
}

#[test]
fn the_identity_of_a_record_is_the_same_in_every_attempt() {
    let bench = Bench::new(|attempt| if attempt.nth < 3 { fail(RetryKind::Unconfirmed) } else { deliver() });
    bench.append(&["a"]);

    let drain = bench.start();
    let status = assert_delivered(&drain, 1);

    let attempts = bench.script.attempts();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|attempt| attempt.headers == attempts[0].headers));
    assert_eq!(status.counters.possible_duplicates, 2);
}

#[test]
fn a_paused_drain_takes_nothing_and_a_resumed_one_goes_on() {
    let bench = Bench::new(|_| deliver());
    let drain = bench.start();
    drain.pause();
    drain.wait(PATIENCE, |status| status.state == TargetState::Paused);

    bench.append(&["a"]);
    assert_eq!(drain.status().state, TargetState::Paused);
    assert!(bench.script.attempts().is_empty());
    drain.resume();

    assert_delivered(&drain, 1);
}

#[test]
fn shutdown_waits_for_what_is_in_flight() {
    let bench = Bench::new(|_| Answer::Hold);
    bench.append(&["a", "b"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 2));
    let script = bench.script.clone();

    let stopping = std::thread::spawn(move || drain.shutdown(PATIENCE));
    script.release(&[Seq::new(1), Seq::new(2)], &Outcome::Delivered);
    let summary = stopping.join().expect("shutting down does not panic");

    assert_eq!((summary.counters.delivered, summary.unacknowledged), (2, 0));
    assert_eq!(bench.cursor(), 3);
}

#[test]
fn shutdown_without_grace_ends_soon_and_leaves_the_rest_in_the_queue() {
    let bench = Bench::new(|_| Answer::Hold);
    bench.append(&["a", "b"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 2));
    let begun = Instant::now();

    let summary = drain.shutdown(Duration::ZERO);

    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(summary.unacknowledged, 2);
    assert_eq!(bench.cursor(), 1);
}

#[test]
fn a_producer_that_panics_is_a_failed_target_and_not_a_silent_one() {
    let bench = Bench::new(|_| panic!("a bug in a client (this panic is part of a test)"));
    bench.append(&["a"]);

    let drain = bench.start();

    let status = drain.wait(PATIENCE, |status| matches!(status.state, TargetState::Failed { .. }));
    assert!(status.state.to_string().contains("panicked"), "{}", status.state);
    assert_eq!(drain.shutdown(Duration::ZERO).counters.delivered, 0);
    assert_eq!(bench.cursor(), 1);
}

#[test]
fn a_closed_queue_is_delivered_to_its_end_after_it_is_opened_again() {
    let bench = Bench::new(|_| Answer::Hold);
    bench.append(&["a"]);
    drop(bench.start());
    bench.queue.close();
    bench.script.replan(|_| deliver());

    let queue = bench.dirs.queue("main", QueueOptions::default()).expect("the queue again");
    let drain = Drain::start(queue.clone(), Bench::settings(), bench.connect(), None).expect("a thread");

    assert_delivered(&drain, 1);
    assert_eq!(queue.status().cursor.get(), 2);
}

#[test]
fn a_payload_that_is_no_record_is_rejected_and_its_dead_letter_keeps_every_byte() {
    let bench = Bench::new(|_| deliver());
    let payload = [0xff; 5];
    let entry = tidegate_store::Entry { seq: Seq::new(1), payload: &payload };
    let mut flight = flight::Flight::new(bench.queue.clone(), Arc::new(Bench::settings()));

    assert_eq!(flight.send(&entry), flight::Sent::Refused);
    flight.collect();

    assert_eq!(flight.window.rejects(), 1);
    let failure = flight.failures.of(entry.seq).expect("a reason").clone();
    let dead = bench.dead.clone();
    let mut letters = crate::dead_letter::DeadLetters::new(Some(Box::new(move || Ok(dead.clone()))));
    letters.bury(&entry, &failure).expect("a dead letter");
    let mut reader = bench.dead.reader();
    let letter = reader.next().expect("readable").expect("a dead letter");
    let letter = letter.record().expect("a record");
    assert_eq!(letter.value, payload);
    assert!(text(letter.headers[0].value).contains("is not a record"));
}

#[test]
fn a_record_that_the_store_no_longer_has_is_counted_and_holds_nobody_up() {
    let bench = Bench::new(|attempt| match (attempt.seq.get(), attempt.nth) {
        (1 | 3, 1) => Answer::Hold,
        _ => deliver(),
    });
    bench.append(&["a", "b", "c"]);
    let drain = bench.start();
    assert!(bench.script.wait(|script| script.held().len() == 2));

    // As if an operator had purged it.
    bench.queue.ack(Seq::new(1)..Seq::new(2));
    bench.script.release(&[Seq::new(1), Seq::new(3)], &Outcome::retry(RetryKind::Transient, "not now"));

    let status = assert_delivered(&drain, 2);
    assert_eq!((status.counters.vanished, status.unacknowledged), (1, 0));
    assert_eq!(bench.cursor(), 4);
}
