//! Seeded faults that no other test noticed: each was put into the store by hand, and all tests passed until one of
//! these was written.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_store::sim::{Crash, SimDisk, SimOp};
use tidegate_store::{AppendError, Durability, QueueDir, Record, Seq, Ticket};

use crate::setup::{
    Bed, append, dir_options, dir_path, edit, numbers, options, padded, segments, submit, within,
};

/// Longer than the queue waits before it writes, syncs or states on its own what nobody asked for.
const PAUSE: Duration = Duration::from_millis(300);

/// Bytes of a segment's header, and of the start frame.
const HEADER: usize = 4096;
const START_FRAME: usize = 48;

#[test]
fn the_idle_watermark_states_the_cursor_without_a_close() {
    let bed = Bed::new();
    bed.append_all(0..10);
    bed.ack(1..6);

    thread::sleep(PAUSE);
    let disk = bed.kill();
    disk.lose_index();

    assert_eq!(Bed::on(disk, options()).seqs(), numbers(6..11));
}

#[test]
fn durable_follows_while_appends_never_pause() {
    let bed = Bed::on(SimDisk::new(), options().segment_bytes(1 << 20));

    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        append(&bed.queue, "w", Durability::Written);
        thread::sleep(Duration::from_millis(5));
    }

    assert!(bed.queue.status().durable > Seq::FIRST);
}

#[test]
fn after_a_pause_what_was_written_is_durable() {
    let bed = Bed::new();
    append(&bed.queue, "w", Durability::Written);

    thread::sleep(PAUSE);

    assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), [1]);
}

#[test]
fn a_last_segment_cut_short_below_the_durable_watermark_is_not_cut_further() {
    let bed = Bed::new();
    bed.append_all(0..10);
    let disk = bed.close();
    let path = segments(&disk)[0].clone();
    edit(&disk, 0, |bytes| bytes.truncate(bytes.len() - 400));
    let cut = disk.bytes(&path).expect("the segment is there");

    let bed = Bed::on(disk.clone(), options());

    assert_eq!(disk.bytes(&path), Some(cut), "rot is evidence");
    assert_eq!(bed.queue.recovery().torn_bytes, 0);
    assert_eq!(bed.append("next"), Seq::new(11));
    assert_eq!(bed.seqs().len() as u64 + bed.queue.status().counters.lost, 11);
}

#[test]
fn a_hole_below_the_durable_watermark_is_never_covered() {
    let bed = Bed::new();
    bed.append_all(0..10);
    let disk = bed.close();
    disk.lose_index();
    let path = segments(&disk)[0].clone();
    let records = HEADER + START_FRAME;
    edit(&disk, 0, |bytes| bytes[records + 600..records + 1000].fill(0));
    let holed = disk.bytes(&path).expect("the segment is there");

    let bed = Bed::on(disk.clone(), options());

    assert_eq!(bed.queue.recovery().lost_unsynced, []);
    assert_eq!(disk.bytes(&path).expect("the segment is there")[..holed.len()], holed[..]);
    assert_eq!(bed.seqs().len() as u64 + bed.queue.status().counters.lost, 10);
    assert!(bed.queue.status().counters.lost > 0);
}

#[test]
fn what_recovery_calls_durable_survives_power_loss() {
    let bed = Bed::new();
    for n in 0..5 {
        append(&bed.queue, &padded(n), Durability::Written);
    }

    let bed = bed.crash(Crash::Process);

    assert_eq!(bed.queue.status().durable, Seq::new(6));
    assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), numbers(1..6));
}

#[test]
fn close_persists_acknowledgements_against_power_loss() {
    let bed = Bed::new();
    bed.append_all(0..10);
    bed.ack(4..8);

    let disk = bed.close().crash(Crash::PowerAllLost);

    assert_eq!(Bed::on(disk, options()).seqs(), [1, 2, 3, 8, 9, 10]);
}

#[test]
fn a_refused_number_is_not_given_out_after_a_restart() {
    let bed = Bed::new();
    bed.append_all(0..3);
    bed.disk.fail(SimOp::Write, 0, 1, ErrorKind::StorageFull, 0);

    let refused = submit(&bed.queue, "v", Durability::Synced).and_then(Ticket::wait);

    assert!(refused.is_err());
    assert_eq!(bed.reopen().append("next"), Seq::new(5));
}

#[test]
fn a_missing_segment_at_the_cursor_is_lost_not_passed() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    disk.take(&segments(&disk)[1].clone());

    let bed = Bed::on(disk, options());
    let mut reader = bed.queue.reader();
    reader.rewind(Seq::new(20));
    let next = reader.next().expect("the disk answers").expect("later segments are there").seq;

    assert_eq!(bed.queue.status().counters.lost, next.get() - 20);
}

#[test]
fn what_is_not_readable_yet_is_not_acknowledged() {
    for round in 0..300 {
        let bed = Bed::new();
        bed.disk.fail(SimOp::Write, 1, u64::MAX, ErrorKind::StorageFull, 0);
        let ticket = submit(&bed.queue, "v", Durability::Written).expect("the queue is open");

        bed.ack(1..1000);

        assert!(ticket.wait().is_err(), "round {round}: the disk is full");
        let counters = bed.queue.status().counters;
        assert!(counters.acknowledged <= counters.appended, "round {round}: {counters:?}");
    }
}

#[test]
fn blocked_appenders_go_on_when_there_is_room() {
    within(30, "appenders hang", || {
        let bed = Bed::new();
        let big = "x".repeat(300_000);

        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..30 {
                        drop(submit(&bed.queue, &big, Durability::Buffered).expect("the queue is open"));
                    }
                });
            }
        });
    });
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_for_room_is_woken() {
    let bed = Bed::new();
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker: Waker = Arc::clone(&flag).into();
    let big = "x".repeat(400_000);
    let record = Record { value: big.as_bytes(), ..Record::default() };

    loop {
        match bed.queue.try_append(&record, Durability::Buffered) {
            Ok(ticket) => drop(ticket),
            Err(AppendError::Busy) => {
                if pin!(bed.queue.room()).poll(&mut Context::from_waker(&waker)).is_pending() {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    thread::sleep(Duration::from_millis(500));

    assert!(flag.0.load(Ordering::SeqCst));
}

#[test]
fn many_acks_are_persisted_before_the_interval() {
    let disk = SimDisk::new();
    let mut after_ten = dir_options();
    after_ten.index_flush_acks = 10;
    let dir = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &after_ten).expect("the folder opens");
    let queue = dir.queue("q", options()).expect("the queue opens");
    for n in 0..40 {
        append(&queue, &padded(n), Durability::Synced);
    }

    // One first, so that the thread is already in its interval.
    queue.ack(Seq::new(30)..Seq::new(31));
    thread::sleep(Duration::from_millis(50));
    queue.ack(Seq::new(5)..Seq::new(20));
    thread::sleep(PAUSE);
    let after = disk.crash(Crash::PowerAllLost);
    drop((queue, dir));

    assert_eq!(Bed::on(after, options()).seqs().len(), 24);
}
