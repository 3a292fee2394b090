//! append -> commit -> read -> ack -> truncate, without trouble.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tidegate_store::{Durability, QueueDir, QueueDirOptions, QueueOptions, Record, Seq};

use crate::setup::{Bed, append, numbers, padded, read};

#[test]
fn records_come_out_in_the_order_in_which_they_went_in() {
    let bed = Bed::new();

    bed.append_all(0..100);

    let expected: Vec<_> = (0..100).map(|number| (number + 1, padded(number))).collect();
    assert_eq!(bed.read(), expected);
    assert!(bed.segments().len() > 2, "the test rolls over");
}

#[test]
fn start_cursor_durable_and_end_move_with_truncate_ack_commit_and_append() {
    let bed = Bed::new();
    let at = |bed: &Bed| {
        let status = bed.queue.status();
        (status.start.get(), status.cursor.get(), status.durable.get(), status.end.get())
    };
    assert_eq!(at(&bed), (1, 1, 1, 1));

    bed.append_all(0..100);
    assert_eq!(at(&bed), (1, 1, 101, 101));

    bed.ack(1..91);
    assert_eq!(at(&bed), (1, 91, 101, 101));

    let bed = bed.reopen();
    let (start, cursor, durable, end) = at(&bed);
    assert!(start > 1 && start <= 91, "acknowledged segments are gone, from {start} on they stay");
    assert_eq!((cursor, durable, end), (91, 101, 101));
    assert_eq!(bed.seqs(), numbers(91..101));
}

#[test]
fn acknowledgements_in_any_order_are_not_returned_again_after_a_restart() {
    let bed = Bed::new();
    bed.append_all(0..20);

    bed.ack(15..18);
    bed.ack(3..5);
    bed.ack(1..2);

    let bed = bed.reopen();
    assert_eq!(bed.queue.status().cursor, Seq::new(2));
    assert_eq!(bed.seqs(), [2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 18, 19, 20]);
    assert_eq!(bed.queue.status().queued, 14);
}

#[test]
fn a_reader_follows_what_is_appended_and_is_woken_for_it() {
    let bed = Bed::new();
    let mut reader = bed.queue.reader();
    let woken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&woken);
    bed.queue.on_readable(Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    }));

    for round in 0..120 {
        assert!(reader.next().expect("the disk answers").is_none());
        let seq = bed.append(&padded(round));
        assert_eq!(reader.next().expect("the disk answers").map(|entry| entry.seq), Some(seq));
        bed.queue.ack(seq..seq.next());
    }

    bed.queue.close();
    assert!(woken.load(Ordering::SeqCst) >= 120);
}

#[test]
fn a_rewound_reader_returns_again_what_is_not_acknowledged() {
    let bed = Bed::new();
    bed.append_all(0..60);
    let mut reader = bed.queue.reader();
    while reader.next().expect("the disk answers").is_some() {}

    bed.ack(5..50);
    reader.rewind(Seq::new(3));

    let mut again = Vec::new();
    while let Some(entry) = reader.next().expect("the disk answers") {
        again.push(entry.seq.get());
    }
    assert_eq!(again, [3, 4, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60]);
}

#[test]
fn a_drained_queue_keeps_one_segment() {
    let bed = Bed::new();
    bed.append_all(0..300);
    bed.ack(1..301);

    let bed = bed.reopen();

    assert_eq!(bed.segments().len(), 1);
    assert_eq!(bed.append("more"), Seq::new(301));
}

#[test]
fn a_thousand_opens_and_closes_change_no_byte() {
    let mut bed = Bed::new();
    bed.append_all(0..50);
    bed.ack(1..11);
    bed = bed.reopen();
    let image = |bed: &Bed| bed.segments().iter().map(|path| bed.disk.bytes(path)).collect::<Vec<_>>();
    let before = image(&bed);

    for _ in 0..1000 {
        bed = bed.reopen();
    }

    assert_eq!(image(&bed), before);
}

#[test]
fn many_producers_share_syncs_and_every_ticket_resolves_in_order() {
    let bed = Bed::new();
    let steps_before = bed.disk.steps();

    thread::scope(|scope| {
        for producer in 0..8 {
            let queue = &bed.queue;
            scope.spawn(move || {
                let mut last = Seq::new(0);
                for number in 0..200 {
                    let seq = append(queue, &format!("{producer}/{number}"), Durability::Synced);
                    assert!(seq > last);
                    last = seq;
                }
            });
        }
    });

    let all = bed.read();
    assert_eq!(all.len(), 1600);
    for producer in 0..8 {
        let prefix = format!("{producer}/");
        let own: Vec<_> = all.iter().filter_map(|(_, value)| value.strip_prefix(&prefix)).collect();
        let expected: Vec<_> = (0..200).map(|number: u32| number.to_string()).collect();
        assert_eq!(own, expected);
    }
    assert!(bed.disk.steps() - steps_before < 3 * 1600, "groups were shared");
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    let bed = Bed::new();
    let large = "x".repeat(100_000);

    bed.append("before");
    bed.append(&large);
    bed.append("after");

    let bed = bed.reopen();
    let values: Vec<_> = bed.read().into_iter().map(|(_, value)| value.len()).collect();
    assert_eq!(values, [6, 100_000, 5]);
}

#[test]
fn an_empty_value_and_every_length_around_the_grid_round_trip() {
    let bed = Bed::new();
    let values: Vec<String> = (0..40).map(|len| "z".repeat(len)).collect();
    for value in &values {
        append(&bed.queue, value, Durability::Buffered);
    }

    let bed = bed.reopen();

    let read: Vec<String> = bed.read().into_iter().map(|(_, value)| value).collect();
    assert_eq!(read, values);
}

#[test]
fn two_queues_of_one_folder_are_independent_and_a_name_may_be_anything() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");
    let names = ["primary", "../primary", "ä/ö", &"n".repeat(4096)];
    for name in names {
        let queue = dir.queue(name, QueueOptions::default()).expect("it opens");
        append(&queue, name, Durability::Synced);
    }

    for name in names {
        let queue = dir.queue(name, QueueOptions::default()).expect("it opens again");
        assert_eq!(read(&queue), [(1, name.to_owned())]);
    }
}

#[test]
fn the_real_disk_keeps_what_the_ticket_promised() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || {
        let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");
        dir.queue("q", QueueOptions::default()).expect("it opens")
    };
    let queue = open();
    let record = Record { value: b"value", ..Record::default() };
    for _ in 0..1000 {
        drop(queue.append(&record, Durability::Written).expect("it is taken"));
    }
    append(&queue, "last", Durability::Synced);
    queue.ack(Seq::new(1)..Seq::new(500));
    drop(queue);

    let queue = open();

    assert_eq!(read(&queue).len(), 502);
    assert_eq!(queue.recovery(), &tidegate_store::RecoveryReport::default());
}

#[test]
fn an_overview_needs_no_lock_and_shows_where_an_open_queue_stands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");
    let queue = dir.queue("primary", QueueOptions::default()).expect("it opens");
    for number in 0..10 {
        append(&queue, &padded(number), Durability::Synced);
    }
    queue.ack(Seq::new(1)..Seq::new(4));

    let open = tidegate_store::inspect::overview(folder.path()).expect("it is read");
    assert_eq!((open.len(), open[0].name.as_str(), open[0].end), (1, "primary", Seq::new(11)));

    queue.close();
    let closed = tidegate_store::inspect::overview(&open[0].folder).expect("a queue's own folder will do");
    let closed = &closed[0];
    assert_eq!((closed.start, closed.cursor, closed.durable), (Seq::new(1), Seq::new(4), Seq::new(11)));
    assert_eq!((closed.segments, closed.damage.len(), closed.uuid), (1, 0, queue.uuid()));
}

#[test]
fn records_acknowledged_before_they_were_durable_are_not_returned_again() {
    let bed = Bed::new();
    for number in 0..10 {
        append(&bed.queue, &padded(number), Durability::Written);
    }
    bed.ack(1..11);
    let status = bed.queue.status();
    assert!(status.cursor <= status.durable, "a cursor never promises more than the log keeps");

    let bed = bed.reopen();

    assert_eq!(bed.queue.status().cursor, Seq::new(11));
    assert_eq!(bed.seqs(), []);
}
