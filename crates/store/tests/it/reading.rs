//! Reading and acknowledging: going back, handing back, persisting now, and what a crash may deliver again.

use std::io::ErrorKind;

use tidegate_store::sim::{Crash, SimOp};
use tidegate_store::{Reader, Seq};

use crate::setup::{Bed, numbers, options, padded};

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
