//! Disks that refuse: full, failing syncs, failing creations, failing reads, an index that cannot be written.

use std::io::ErrorKind;

use tidegate_store::sim::{Crash, SimOp};
use tidegate_store::{AppendError, Durability, Record, Seq, Ticket};

use crate::setup::{Bed, numbers, padded};

fn try_append(bed: &Bed, value: &str, durability: Durability) -> Result<Seq, AppendError> {
    let record = Record { value: value.as_bytes(), ..Record::default() };
    bed.queue.append(&record, durability).and_then(Ticket::wait)
}

#[test]
fn a_full_disk_refuses_the_append_keeps_no_byte_of_it_and_takes_the_next() {
    for partial in [0, 1, 23, 24, 64, 150, 240] {
        let bed = Bed::new();
        bed.append_all(0..3);
        bed.disk.fail(SimOp::Write, 0, 1, ErrorKind::StorageFull, partial);

        let error = try_append(&bed, &padded(99), Durability::Synced).expect_err("the disk is full");
        assert!(matches!(&error, AppendError::StorageFull(_)), "{error:?}");
        assert!(error.to_string().contains(".seg"), "the path is named: {error}");
        assert_eq!(bed.seqs(), numbers(1..4));

        bed.disk.mend();
        assert_eq!(bed.append("after"), Seq::new(5), "numbers are never used twice");
        assert_eq!(bed.seqs(), [1, 2, 3, 5]);
        let bed = bed.crash(Crash::PowerAllLost);
        assert_eq!(bed.seqs(), [1, 2, 3, 5], "{partial} bytes got through");
        assert_eq!(bed.queue.status().counters.lost, 0);
        bed.ack(1..6);
        assert_eq!(
            bed.queue.status().cursor,
            Seq::new(6),
            "the refused number does not hold the cursor back"
        );
    }
}

#[test]
fn a_short_write_goes_on_where_it_stopped() {
    let bed = Bed::new();
    bed.append_all(0..3);
    bed.disk.fail(SimOp::Write, 0, 1, ErrorKind::Interrupted, 10);

    assert_eq!(bed.append("whole"), Seq::new(4));
    bed.disk.mend();

    assert_eq!(bed.crash(Crash::PowerAllLost).read().last(), Some(&(4, "whole".to_owned())));
}

#[test]
fn a_failed_sync_answers_unknown_and_leaves_that_file_for_a_new_one() {
    let bed = Bed::new();
    bed.append_all(0..3);
    let before = bed.segments().len();
    bed.disk.fail(SimOp::SyncData, 0, 1, ErrorKind::Other, 0);

    let error = try_append(&bed, "in doubt", Durability::Synced).expect_err("the sync failed");
    assert!(matches!(error, AppendError::DurabilityUnknown(_)), "{error:?}");
    assert_eq!(bed.queue.status().durable, Seq::new(4), "durable never moves for a failed sync");

    let after = bed.append("after");
    assert_eq!(bed.segments().len(), before + 1, "the poisoned file is not written again");
    let bed = bed.crash(Crash::PowerAllLost);
    let seqs = bed.seqs();
    assert!(seqs.starts_with(&numbers(1..4)) && seqs.ends_with(&[after.get()]), "{seqs:?}");
}

#[test]
fn a_second_failed_sync_ends_writing_with_the_first_reason_and_reading_goes_on() {
    let bed = Bed::new();
    bed.append_all(0..3);
    bed.disk.fail(SimOp::SyncData, 0, 1, ErrorKind::Other, 0);
    drop(try_append(&bed, "in doubt", Durability::Synced));
    // The new segment is made with a sync of its own, so the failing one is the group's.
    bed.disk.fail(SimOp::SyncData, 1, 1, ErrorKind::Other, 0);
    drop(try_append(&bed, "in doubt too", Durability::Synced));
    bed.disk.mend();

    let error = try_append(&bed, "refused", Durability::Synced).expect_err("the queue has failed");
    assert!(matches!(&error, AppendError::Failed { first } if first.contains("sync")), "{error:?}");
    assert!(bed.queue.status().failed.is_some());
    assert!(bed.seqs().len() >= 3);
    bed.ack(1..4);
    assert_eq!(bed.queue.status().cursor, Seq::new(4));

    let bed = bed.reopen();
    assert!(bed.append("mended") > Seq::new(5));
}

#[test]
fn a_segment_that_cannot_be_made_refuses_the_append_and_the_next_tries_again() {
    for error in [ErrorKind::StorageFull, ErrorKind::PermissionDenied, ErrorKind::Other] {
        let bed = Bed::new();
        bed.append("first");
        bed.disk.fail(SimOp::Create, 0, 1, error, 0);
        let mut refused = 0;
        for number in 0..100 {
            if let Err(error) = try_append(&bed, &padded(number), Durability::Synced) {
                assert!(error.to_string().contains("create"), "{error}");
                refused += 1;
            }
        }

        assert_eq!(refused, 1);
        assert_eq!(bed.read().len(), 100);
        assert_eq!(bed.reopen().read().len(), 100);
    }
}

#[test]
fn a_system_that_refuses_to_read_loses_nothing_and_reading_again_goes_on() {
    for error in [ErrorKind::PermissionDenied, ErrorKind::OutOfMemory] {
        let bed = Bed::new();
        bed.append_all(0..50);
        let mut reader = bed.queue.reader();
        bed.disk.fail(SimOp::Read, 1, 2, error, 0);

        let (mut seqs, mut errors) = (Vec::new(), 0);
        loop {
            match reader.next() {
                Ok(Some(entry)) => seqs.push(entry.seq.get()),
                Ok(None) => break,
                Err(_) => errors += 1,
            }
        }

        assert_eq!((seqs, errors), (numbers(1..51), 2));
        assert_eq!(bed.queue.status().counters.lost, 0);
        assert_eq!(bed.queue.status().unavailable, []);
    }
}

#[test]
fn an_index_that_cannot_be_written_never_keeps_space_from_being_freed() {
    let bed = Bed::new();
    bed.append_all(0..200);
    let before = bed.segments().len();
    bed.disk.fail(SimOp::IndexFlush, 0, u64::MAX, ErrorKind::StorageFull, 0);
    bed.disk.fail(SimOp::Write, 0, u64::MAX, ErrorKind::StorageFull, 0);

    bed.ack(1..201);
    let disk = bed.close();

    let bed = {
        disk.mend();
        Bed::on(disk, crate::setup::options())
    };
    assert!(before > 5);
    assert_eq!(bed.segments().len(), 1);
    assert_eq!(bed.queue.status().counters.lost, 0);
}

#[test]
fn every_single_failing_operation_leaves_a_queue_that_goes_on() {
    for op in [
        SimOp::Create,
        SimOp::Write,
        SimOp::SetLen,
        SimOp::SyncData,
        SimOp::SyncDir,
        SimOp::Names,
        SimOp::IndexFlush,
    ] {
        for after in 0..25 {
            for error in [ErrorKind::Other, ErrorKind::StorageFull] {
                let bed = Bed::new();
                bed.disk.fail(op, after, 1, error, usize::from(op == SimOp::Write) * 77);
                let mut accepted = Vec::new();
                for number in 0..60 {
                    if let Ok(seq) = try_append(&bed, &padded(number), Durability::Synced) {
                        accepted.push((seq.get(), padded(number)));
                    }
                }
                assert!(accepted.len() >= 58, "{op:?} after {after}: {} of 60", accepted.len());
                bed.disk.mend();

                let bed = bed.crash(Crash::PowerAllLost);
                let read = bed.read();
                for record in &accepted {
                    assert!(read.contains(record), "{op:?} after {after}: {} is missing", record.0);
                }
                assert!(read.is_sorted_by_key(|(seq, _)| *seq));
                bed.append("goes on");
            }
        }
    }
}

#[test]
fn a_committing_thread_that_panics_leaves_nobody_waiting() {
    for after in 0..12 {
        let bed = Bed::new();
        bed.disk.panic_in(SimOp::Write, after);

        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| while try_append(&bed, &padded(1), Durability::Synced).is_ok() {});
            }
        });

        bed.queue.close();
        let failed = bed.queue.status().failed.expect("the queue has failed");
        assert!(failed.contains("panicked"), "{failed}");
        let durable = bed.queue.status().durable;
        let bed = bed.crash(Crash::PowerAllLost);
        assert!(bed.seqs().len() as u64 >= durable.since(Seq::FIRST), "what was answered is there");
    }
}
