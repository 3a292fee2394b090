//! Reading and acknowledging: going back, handing back, persisting now, and what a crash may deliver again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tidegate_store::sim::{Crash, SimDisk, SimOp};
use tidegate_store::{Durability, Queue, QueueDir, QueueDirOptions, Reader, Seq};

use crate::setup::{Bed, append, dir_path, numbers, options, padded, read, segments, within};

/// Longer than a flush that is due, and than the committer idles before it states the cursor.
const PAUSE: Duration = Duration::from_millis(300);

/// A queue on a simulated disk with these bounds for persisting acknowledgements.
fn bounded(interval: Duration, acks: u64) -> Bed {
    let disk = SimDisk::new();
    let mut bounds = QueueDirOptions::default();
    (bounds.index_flush_interval, bounds.index_flush_acks) = (interval, acks);
    let dir = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &bounds).expect("the folder opens");
    let queue = dir.queue("q", options()).expect("the queue opens");
    Bed { disk, queue, dir }
}

const NEVER: Duration = Duration::from_secs(3600);

fn range(range: std::ops::Range<u64>) -> std::ops::Range<Seq> {
    Seq::new(range.start)..Seq::new(range.end)
}

/// At most `count` sequence numbers, and that each has its own value.
fn take(reader: &mut Reader, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        let Some(entry) = reader.next().expect("the disk answers") else { break };
        let value = entry.record().expect("a record").value;
        assert_eq!(value, padded(entry.seq.get() - 1).as_bytes(), "record {}", entry.seq);
        seqs.push(entry.seq.get());
    }
    seqs
}

#[test]
fn what_is_handed_back_is_returned_again_in_order_before_the_reader_goes_on() {
    let bed = Bed::new();
    bed.append_all(0..200);
    let mut reader = bed.queue.reader();
    assert_eq!(take(&mut reader, 100), numbers(1..101));

    reader.nack(range(70..75));
    reader.nack(range(3..5));
    reader.nack(range(72..78));
    reader.nack(range(99..500));
    assert_eq!(reader.position(), Seq::new(101));
    bed.ack(73..75);

    let again = [numbers(3..5), numbers(70..73), numbers(75..78), numbers(99..101)].concat();
    assert_eq!(take(&mut reader, again.len()), again);
    assert_eq!(take(&mut reader, 1000), numbers(101..201));
    assert_eq!(take(&mut reader, 1), [] as [u64; 0]);
}

#[test]
fn what_is_handed_back_while_it_is_returned_again_comes_again() {
    let bed = Bed::new();
    bed.append_all(0..120);
    let mut reader = bed.queue.reader();
    take(&mut reader, 120);

    reader.nack(range(50..60));
    assert_eq!(take(&mut reader, 5), numbers(50..55));
    reader.nack(range(52..53));
    reader.nack(range(10..11));
    assert_eq!(take(&mut reader, 100), [vec![10, 52], numbers(55..60)].concat());
    assert_eq!(reader.position(), Seq::new(121));
}

#[test]
fn what_is_acknowledged_before_its_turn_is_not_returned_again() {
    let bed = Bed::new();
    bed.append_all(0..60);
    let mut reader = bed.queue.reader();
    take(&mut reader, 60);
    reader.nack(range(1..61));
    bed.ack(1..61);

    assert_eq!(take(&mut reader, 100), [] as [u64; 0]);
    assert_eq!(bed.append(&padded(60)), Seq::new(61));
    assert_eq!(take(&mut reader, 100), [61]);
}

#[test]
fn handing_back_in_any_order_returns_exactly_what_was_handed_back() {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..60 {
        let bed = Bed::new();
        bed.append_all(0..90);
        let mut reader = bed.queue.reader();
        let (mut due, mut came) = (std::collections::BTreeSet::new(), 1);
        for _ in 0..60 {
            if rng.bool() {
                let from = rng.u64(1..90);
                let to = from + rng.u64(0..12);
                reader.nack(range(from..to));
                due.extend(from..to.min(came));
            } else {
                for seq in take(&mut reader, rng.usize(1..9)) {
                    let next = due.pop_first().unwrap_or_else(|| {
                        came += 1;
                        came - 1
                    });
                    assert_eq!(seq, next);
                }
            }
        }
    }
}

#[test]
fn when_truncate_returns_the_cursor_survives_power_loss_and_the_space_is_free() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let before = bed.segments().len();
    bed.ack(1..91);

    bed.queue.truncate().expect("the index takes it");

    assert!(bed.segments().len() < before / 2, "{} of {before}", bed.segments().len());
    assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), numbers(91..101));
}

#[test]
fn truncate_says_when_the_index_cannot_be_written_and_frees_the_space_all_the_same() {
    let bed = Bed::new();
    bed.append_all(0..100);
    bed.ack(1..91);
    bed.disk.fail(SimOp::IndexFlush, 0, u64::MAX, ErrorKind::StorageFull, 0);

    let failure = bed.queue.truncate().expect_err("the index is full");

    assert!(failure.is_storage_full() && failure.to_string().contains("index"), "{failure}");
    assert!(bed.segments().len() < 3);
    bed.queue.close();
    assert!(bed.queue.truncate().is_err(), "what a close could not persist is not claimed");
    let seqs = Bed::on(bed.kill(), options()).seqs();
    assert!(seqs.ends_with(&numbers(91..101)) && seqs.len() < 30, "{seqs:?}");
}

#[test]
fn after_a_crash_fewer_than_index_flush_acks_records_are_delivered_again() {
    for crash in [Crash::Process, Crash::PowerAllLost] {
        for acked in [1, 49, 50, 51, 99, 100, 260] {
            let bed = bounded(NEVER, 50);
            bed.append_all(0..300);
            for seq in 1..=acked {
                bed.ack(seq..seq + 1);
            }
            // The flush that the last of them called for ends.
            thread::sleep(PAUSE);

            let seqs = bed.crash(crash).seqs();

            let again = acked + 1 - seqs[0];
            assert!(again < 50, "{crash:?}: {again} of {acked} are delivered again");
            assert_eq!(seqs, numbers(seqs[0]..301));
        }
    }
}

#[test]
fn after_a_crash_only_what_was_acknowledged_within_index_flush_interval_is_delivered_again() {
    for crash in [Crash::Process, Crash::PowerAllLost] {
        let bed = bounded(Duration::from_millis(20), u64::MAX);
        bed.append_all(0..100);
        bed.ack(1..41);
        bed.ack(60..70);
        thread::sleep(PAUSE);
        bed.ack(41..48);

        let seqs = bed.crash(crash).seqs();

        assert!((41..49).contains(&seqs[0]), "{crash:?}: {seqs:?}");
        assert_eq!(seqs, [numbers(seqs[0]..60), numbers(70..101)].concat(), "{crash:?}");
    }
}

#[test]
fn without_an_index_the_watermark_bounds_what_is_delivered_again() {
    for crash in [Crash::Process, Crash::PowerAllLost] {
        let bed = bounded(NEVER, u64::MAX);
        bed.append_all(0..20);
        bed.ack(1..11);
        // The next group states the cursor of the moment.
        bed.append_all(20..22);
        bed.ack(11..15);
        bed.ack(17..19);

        let disk = bed.disk.crash(crash);
        disk.lose_index();
        drop(bed);

        let seqs = Bed::on(disk, options()).seqs();
        assert!(seqs[0] >= 11, "{crash:?}: {seqs:?}");
        assert_eq!(seqs, numbers(seqs[0]..23));
    }
}

/// Rounds of appending and acknowledging while `files` says how many segments there are; a drained queue keeps few.
fn goes_on_and_frees(queue: &Queue, files: &dyn Fn() -> usize) {
    let mut reader = queue.reader();
    for _ in 0..5 {
        for number in 0..100 {
            append(queue, &padded(number), Durability::Synced);
        }
        let mut count = 0;
        while let Some(seq) = reader.next().expect("the disk answers").map(|entry| entry.seq) {
            queue.ack(seq..seq.next());
            count += 1;
        }
        assert_eq!(count, 100);
        // Whether it can be persisted or not.
        let _ = queue.truncate();
        assert!(files() <= 2, "{} segments of a drained queue", files());
    }
    assert_eq!(queue.status().queued, 0);
}

#[test]
fn a_queue_whose_index_cannot_be_written_goes_on_and_frees_its_segments() {
    let bed = bounded(Duration::from_millis(1), 10);
    bed.disk.fail(SimOp::IndexFlush, 0, u64::MAX, ErrorKind::StorageFull, 0);

    goes_on_and_frees(&bed.queue, &|| segments(&bed.disk).len());

    // What was freed is not delivered again, though no acknowledgement was ever persisted.
    assert!(bed.crash(Crash::PowerAllLost).seqs().len() < 30);
}

#[test]
fn a_queue_whose_index_is_gone_goes_on_and_frees_its_segments() {
    let bed = bounded(Duration::from_millis(1), 10);
    bed.disk.lose_index();
    goes_on_and_frees(&bed.queue, &|| segments(&bed.disk).len());

    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");
    let dir = open();
    let queue = dir.queue("q", options()).expect("it opens");
    std::fs::remove_dir_all(folder.path().join("index.sled")).expect("it is there");
    let files = || {
        let entries = std::fs::read_dir(folder.path()).expect("list").filter_map(Result::ok);
        let queue = entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("/q-"));
        std::fs::read_dir(queue.expect("the queue's folder")).expect("list").count()
    };

    goes_on_and_frees(&queue, &files);

    queue.close();
    drop((queue, dir));
    assert!(read(&open().queue("q", options()).expect("it opens")).len() < 30);
}

#[test]
fn acknowledgements_with_more_gaps_than_the_index_keeps_cost_redelivery_and_nothing_else() {
    const RANGES: u64 = 1 << 16;
    let bed = Bed::on(SimDisk::new(), options().queue_limit(1 << 20).segment_bytes(1 << 20));
    let last = 2 * RANGES + 200;
    for _ in 1..last {
        append(&bed.queue, "", Durability::Buffered);
    }
    append(&bed.queue, "", Durability::Synced);
    for seq in (2..=last).step_by(2) {
        bed.ack(seq..seq + 1);
    }
    let bed = within(60, "the close persists them", move || bed.reopen());

    let seqs = bed.seqs();

    let expected: Vec<u64> = (1..=last).filter(|seq| seq % 2 == 1 || *seq > 2 * RANGES).collect();
    assert_eq!(seqs.len(), expected.len());
    assert_eq!(seqs, expected, "the lowest ranges are kept");
}
