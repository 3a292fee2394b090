//! Every limit: what is refused, how exactly, and that refusing loses nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tidegate_store::sim::SimDisk;
use tidegate_store::{AppendError, Durability, Limit, OpenError, QueueOptions, Record, Seq};

use crate::setup::{Bed, options};

fn try_one(bed: &Bed) -> Result<Seq, AppendError> {
    let record = Record { value: b"v", ..Record::default() };
    bed.queue.append(&record, Durability::Written).and_then(tidegate_store::Ticket::wait)
}

#[test]
fn a_full_queue_refuses_names_the_limit_and_takes_again_after_an_ack() {
    let bed = Bed::on(SimDisk::new(), options().queue_limit(3));
    for _ in 0..3 {
        try_one(&bed).expect("there is room");
    }

    let error = try_one(&bed).expect_err("it is full");
    assert!(matches!(error, AppendError::Full(Limit::QueueLimit { limit: 3, queued: 3 })), "{error:?}");
    assert!(error.to_string().contains("queue_limit is 3 records and 3 wait"), "{error}");

    bed.ack(2..3);
    assert_eq!(try_one(&bed).expect("one was acknowledged"), Seq::new(4));
    assert_eq!(bed.seqs(), [1, 3, 4]);
}

#[test]
fn the_limit_is_never_exceeded_by_one_under_concurrency() {
    let bed = Bed::on(SimDisk::new(), options().queue_limit(500));
    let accepted = AtomicU64::new(0);

    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    match try_one(&bed) {
                        Ok(_) => drop(accepted.fetch_add(1, Ordering::SeqCst)),
                        Err(error) => assert!(error.is_full(), "{error}"),
                    }
                }
            });
        }
    });

    assert_eq!(accepted.load(Ordering::SeqCst), 500);
    assert_eq!(bed.queue.status().queued, 500);
}

#[test]
fn a_limit_lowered_below_the_backlog_deletes_nothing() {
    let bed = Bed::new();
    bed.append_all(0..10);

    let bed = Bed::on(bed.close(), options().queue_limit(5));

    assert_eq!(bed.seqs().len(), 10);
    assert!(try_one(&bed).is_err());
    bed.ack(1..7);
    try_one(&bed).expect("four wait, five are allowed");
}

#[test]
fn a_record_over_record_bytes_max_is_refused_and_one_at_it_is_taken() {
    let bed = Bed::on(SimDisk::new(), options().record_bytes_max(100));
    let value = [b'v'; 94];
    let taken = Record { value: &value, ..Record::default() };
    let longer = [b'v'; 96];
    let refused = Record { value: &longer, ..Record::default() };

    bed.queue.append(&taken, Durability::Synced).expect("it fits").wait().expect("it is durable");
    let error = bed.queue.append(&refused, Durability::Synced).expect_err("it does not fit");

    assert!(matches!(error, AppendError::TooLarge { max: 100, .. }), "{error:?}");
    assert_eq!(bed.seqs(), [1]);
}

#[test]
fn a_closed_queue_refuses_and_the_name_is_free_again() {
    let bed = Bed::new();
    bed.append("one");

    assert!(matches!(bed.dir.queue("q", options()), Err(OpenError::AlreadyOpen { .. })));
    bed.queue.close();

    assert!(matches!(try_one(&bed), Err(AppendError::Closed)));
    let again = bed.dir.queue("q", options()).expect("it opens again");
    assert_eq!(again.status().queued, 1);
}

#[test]
fn options_out_of_range_are_refused_with_the_range() {
    let bed = Bed::new();
    for bad in [
        QueueOptions::default().segment_bytes(1),
        QueueOptions::default().segment_bytes(2 << 30),
        QueueOptions::default().queue_limit(0),
        QueueOptions::default().record_bytes_max(0),
    ] {
        let error = bed.dir.queue("other", bad).expect_err("it is out of range");
        assert!(matches!(error, OpenError::BadOption { .. }), "{error}");
    }
    assert!(matches!(bed.dir.queue("", options()), Err(OpenError::BadName { bytes: 0, .. })));
    let long = "n".repeat(4097);
    assert!(matches!(bed.dir.queue(&long, options()), Err(OpenError::BadName { bytes: 4097, .. })));
}
