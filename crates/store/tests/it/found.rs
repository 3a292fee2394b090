//! Faults that were found, each by its symptom: what the store once did wrong, said as what it does now.

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::Path;
use std::pin::{Pin, pin};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_store::sim::{Crash, SimDisk, SimOp};
use tidegate_store::{
    AppendError, Durability, Queue, QueueDir, QueueDirOptions, QueueOptions, Reader, Record, Seq, Ticket,
};

use crate::setup::{
    Bed, Seed, append, dir_options, dir_path, edit, numbers, options, padded, read, segments, submit, within,
};

/// Bytes of a segment's header.
const HEADER: usize = 4096;

type End = fn(Bed) -> SimDisk;

/// The two ways a queue ends before its files are damaged by hand.
const ENDS: [(&str, End); 2] = [("closed", Bed::close), ("killed", Bed::kill)];

type Outcome = Result<Seq, AppendError>;

/// Records handed over at once, so that they share a group; then every answer.
fn submit_group(bed: &Bed, values: std::ops::Range<u64>) -> Vec<Outcome> {
    let tickets: Vec<_> = values.map(|n| submit(&bed.queue, &padded(n), Durability::Synced)).collect();
    tickets.into_iter().map(|ticket| ticket.and_then(Ticket::wait)).collect()
}

fn open_on(disk: &SimDisk, options: &QueueDirOptions) -> QueueDir {
    QueueDir::open_on(Arc::new(disk.clone()), dir_path(), options).expect("the folder opens")
}

fn open_real(folder: &Path) -> QueueDir {
    QueueDir::open(folder, QueueDirOptions::default()).expect("the folder opens")
}

fn open_queue(dir: &QueueDir) -> Queue {
    dir.queue("q", options()).expect("the queue opens")
}

#[test]
fn a_group_divided_by_a_rotation_whose_sync_fails_is_not_answered_synced() {
    for round in 0..200 {
        let bed = Bed::new();
        bed.append_all(0..5);
        bed.disk.fail(SimOp::SyncData, 0, 1, ErrorKind::Other, 0);

        let synced: Vec<u64> =
            submit_group(&bed, 0..200).into_iter().filter_map(Result::ok).map(Seq::get).collect();
        bed.disk.mend();
        let there = bed.crash(Crash::PowerAllLost).seqs();

        for seq in synced {
            assert!(there.contains(&seq), "round {round}: {seq} was answered Synced and is gone");
        }
    }
}

#[test]
fn a_segment_that_cannot_be_opened_once_is_not_lost() {
    let mut bad = Vec::new();
    // Once, as often as it is tried, and more often; the medium's own error, and one of the system.
    for (op, times, error) in [SimOp::Open, SimOp::Read].into_iter().flat_map(|op| {
        [1, 3, 7, 1000].into_iter().flat_map(move |times| {
            [ErrorKind::Other, ErrorKind::PermissionDenied].map(|error| (op, times, error))
        })
    }) {
        for after in 0..40 {
            let bed = Bed::new();
            bed.append_all(0..100);
            let disk = bed.kill();
            disk.fail(op, after, times, error, 0);

            // An opening that is refused loses nothing; one that succeeds takes the next record.
            let first = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &dir_options())
                .and_then(|dir| dir.queue("q", options()))
                .ok()
                .map(|queue| append(&queue, "after", Durability::Synced));
            disk.mend();
            let bed = Bed::on(disk, options());

            let seqs = bed.seqs();
            let lost = bed.queue.status().counters.lost;
            let expected = numbers(1..101).into_iter().chain(first.map(Seq::get)).collect::<Vec<_>>();
            if seqs != expected || first.is_some_and(|first| first <= Seq::new(100)) {
                let (read, all) = (seqs.len(), expected.len());
                bad.push(format!("{op:?} {after} {times} {error:?}: new record {first:?}; read {read} of {all}, lost {lost}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_middle_segment_unreadable_at_one_open_is_not_acknowledged_as_lost() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let closed = bed.close();
    let mut bad = Vec::new();

    for after in 0..8 {
        let disk = closed.crash(Crash::Process);
        disk.fail(SimOp::Open, after, 1, ErrorKind::Other, 0);
        if let Ok(dir) = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &dir_options())
            && let Ok(queue) = dir.queue("q", options())
        {
            read(&queue);
            queue.close();
        }
        disk.mend();
        let bed = Bed::on(disk, options());
        let got = bed.seqs().len();
        if got != 100 {
            bad.push(format!("open {after} failed once: {got} of 100, files {}", bed.segments().len()));
        }
    }

    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn rot_over_the_start_frame_and_the_first_records_is_reported() {
    for segment in [0, 1, 2] {
        for (ended, end) in ENDS {
            let bed = Bed::new();
            bed.append_all(0..100);
            let disk = end(bed);
            edit(&disk, segment, |bytes| bytes[HEADER..HEADER + 1000].fill(0xEE));

            let bed = Bed::on(disk, options());

            let seqs = bed.seqs();
            let status = bed.queue.status();
            assert_eq!(
                seqs.len() as u64 + status.counters.lost,
                100,
                "segment {segment}, {ended}: {status:?}"
            );
        }
    }
}

#[test]
fn any_rot_anywhere_is_reported_and_no_number_is_given_out_twice() {
    let mut bad = Vec::new();
    for segment in 0..8 {
        for (ended, end) in ENDS {
            for len in [48, 300, 1000, 2000, 4000] {
                let bed = Bed::new();
                bed.append_all(0..110);
                let disk = end(bed);
                let path = segments(&disk)[segment].clone();
                edit(&disk, segment, |bytes| {
                    let to = (HEADER + len).min(bytes.len());
                    bytes[HEADER..to].fill(0xEE);
                });

                let bed = Bed::on(disk, options());

                let read = bed.seqs().len() as u64;
                let lost = bed.queue.status().counters.lost;
                let next = bed.queue.status().end;
                let kept = bed.segments().contains(&path);
                // Frames state which records a segment held, and a close states the end in the index. Here no frame
                // of the last segment is left and no close came, so nothing on the disk says how many are gone.
                let unknowable = segment == 7 && ended == "killed" && len == 4000;
                let counted = if unknowable { kept && read + lost <= 110 } else { read + lost == 110 };
                if !counted || next < Seq::new(111) {
                    bad.push(format!(
                        "segment {segment} {ended}, {len} bytes: read {read} lost {lost} next {next} kept {kept}"
                    ));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn the_records_behind_a_damaged_header_of_the_first_segment_are_counted_as_lost() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    edit(&disk, 0, |bytes| bytes[40] ^= 1);

    let bed = Bed::on(disk, options());

    let seqs = bed.seqs();
    assert_eq!(seqs.len() as u64 + bed.queue.status().counters.lost, 100, "{:?}", bed.queue.recovery());
}

#[test]
fn no_number_is_given_out_twice_when_the_header_of_the_last_segment_is_damaged_after_a_kill() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.kill();
    let last = segments(&disk).len() - 1;
    edit(&disk, last, |bytes| bytes[40] ^= 1);

    let bed = Bed::on(disk, options());

    let seq = bed.append("after");
    assert!(seq > Seq::new(100), "number {seq} was given out twice: {:?}", bed.queue.recovery());
}

#[test]
fn a_small_segment_whose_frames_all_rotted_is_kept_and_its_numbers_stay_used() {
    let bed = Bed::new();
    bed.append_all(0..5);
    let disk = bed.kill();
    let path = segments(&disk)[0].clone();
    // Zeros alone would be a spare.
    edit(&disk, 0, |bytes| bytes[HEADER..].fill(0xEE));

    let bed = Bed::on(disk, options());

    let there = bed.segments().contains(&path);
    let seq = bed.append("after");
    assert!(there && seq > Seq::new(5), "evidence kept: {there}, next number {seq}");
}

#[test]
fn a_segment_that_the_index_knows_and_that_rotted_to_zeros_is_no_spare() {
    let bed = Bed::new();
    bed.append_all(0..5);
    let disk = bed.close();
    let path = segments(&disk)[0].clone();
    edit(&disk, 0, |bytes| bytes[HEADER..].fill(0));

    let bed = Bed::on(disk, options());

    assert!(bed.segments().contains(&path));
    assert_eq!(bed.queue.status().counters.lost, 5);
    assert_eq!(bed.append("after"), Seq::new(6));
}

/// Closes with 3000 answers due, opens from another thread as soon as the name is free, and appends.
fn reopen_while_another_thread_closes(dir: &QueueDir, options: &QueueOptions, what: &str) {
    let queue = dir.queue("q", options.clone()).expect("the queue opens");
    let tickets: Vec<_> = (0..3000)
        .map(|n| submit(&queue, &padded(n), Durability::Synced).expect("the queue is open"))
        .collect();

    let closer = thread::spawn(move || queue.close());
    let begun = Instant::now();
    let again = loop {
        match dir.queue("q", options.clone()) {
            Ok(queue) => break queue,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "never free: {error}"),
        }
    };
    let early = !closer.is_finished();
    let first = append(&again, "one", Durability::Synced);
    closer.join().expect("close does not panic");
    let synced: Vec<_> = tickets.into_iter().filter_map(|ticket| ticket.wait().ok()).collect();

    let there = read(&again).len();
    let twice = synced.iter().filter(|seq| **seq >= first).count();
    let answered = synced.len() + 1;
    assert!(
        twice == 0 && there == answered,
        "{what}, opened before close returned: {early}: {answered} answered Synced, {there} read, \
         {twice} numbers given out twice (the new one is {first})"
    );
}

#[test]
fn a_queue_opened_while_another_thread_closes_it_goes_on_above_every_number_that_was_answered() {
    for round in 0..70 {
        let dir = open_on(&SimDisk::new(), &dir_options());
        reopen_while_another_thread_closes(&dir, &options(), &format!("round {round}"));
    }
}

#[test]
fn a_queue_on_a_real_disk_opened_while_another_thread_closes_it_goes_on_above_every_number() {
    for round in 0..20 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = open_real(folder.path());
        let options = options().segment_bytes(1 << 20);
        reopen_while_another_thread_closes(&dir, &options, &format!("round {round}"));
    }
}

#[test]
fn a_reader_that_outlives_its_queue_does_not_cost_the_index() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = open_real(folder.path());
    let queue = open_queue(&dir);
    for n in 0..10 {
        append(&queue, &padded(n), Durability::Synced);
    }
    queue.ack(Seq::new(5)..Seq::new(8));
    let reader = queue.reader();
    queue.close();
    drop((queue, dir));

    let dir = open_real(folder.path());
    let note = dir.index_note().map(str::to_owned);
    let queue = open_queue(&dir);
    drop(reader);

    assert_eq!(note, None, "{:?}", queue.recovery());
    assert_eq!(read(&queue).len(), 7);
}

#[test]
fn an_ack_on_a_closed_handle_does_not_overwrite_the_reopened_queue() {
    let disk = SimDisk::new();
    let mut often = QueueDirOptions::default();
    often.index_flush_interval = Duration::from_millis(1);
    let dir = open_on(&disk, &often);
    let old = open_queue(&dir);
    for n in 0..100 {
        append(&old, &padded(n), Durability::Synced);
    }
    old.close();

    let new = open_queue(&dir);
    new.ack(Seq::new(50)..Seq::new(90));
    // Many intervals each, so that the flusher has seen the one and then could see the other.
    thread::sleep(Duration::from_millis(50));
    old.ack(Seq::new(1)..Seq::new(40));
    thread::sleep(Duration::from_millis(100));
    read(&new);
    let status = new.status();
    let after = disk.crash(Crash::Process);
    drop((old, new, dir));
    let bed = Bed::on(after, options());

    assert_eq!(status.counters.lost, 0);
    assert!(
        !bed.seqs().contains(&60),
        "what the new handle acknowledged and persisted is delivered again: {:?}",
        bed.queue.status()
    );
}

#[test]
fn acknowledgements_that_a_close_persisted_are_there_after_any_race_with_the_flusher() {
    let seed = Seed::new();
    let mut rng = fastrand::Rng::with_seed(seed.0);
    let mut eager = QueueDirOptions::default();
    eager.index_flush_interval = Duration::ZERO;
    eager.index_flush_acks = 1;

    for life in 0..2 {
        let dir = open_on(&SimDisk::new(), &eager);
        let mut queue = open_queue(&dir);
        for n in 0..2000 {
            append(&queue, &padded(n), Durability::Buffered);
        }
        // Each round acknowledges what none before it did, so that an older snapshot always shows.
        let mut seqs = numbers(1..2001);
        rng.shuffle(&mut seqs);

        for (round, acked) in seqs.chunks(3).enumerate() {
            for seq in acked {
                queue.ack(Seq::new(*seq)..Seq::new(seq + 1));
            }
            let before = queue.status().queued;
            queue.close();
            queue = open_queue(&dir);
            let after = queue.status().queued;
            assert_eq!(before, after, "life {life}, round {round}: acknowledgements that a close persisted");
        }
    }
}

#[test]
fn a_seal_that_survives_a_crash_without_its_data_is_no_loss() {
    let mut bad = 0;
    let mut first = None;
    for step in 10..60 {
        for seed in 0..25 {
            let disk = SimDisk::new();
            let bed = Bed::on(disk.clone(), options());
            disk.power_off_after(step);
            for n in 0..40 {
                if submit(&bed.queue, &padded(n), Durability::Written).and_then(Ticket::wait).is_err() {
                    break;
                }
            }
            let after = disk.crash(Crash::Power { seed });
            drop(bed);

            let bed = Bed::on(after, options());

            bed.read();
            let status = bed.queue.status();
            if status.counters.lost > 0 {
                bad += 1;
                first.get_or_insert((step, seed, status.losses));
            }
        }
    }
    assert_eq!(bad, 0, "never-durable records are reported as lost: {first:?}");
}

#[test]
fn a_failed_append_stays_away_when_set_len_fails_too() {
    let mut checked = 0;
    for crash in [Crash::Process, Crash::PowerAllLost] {
        for partial in [260, 300, 400, 500, 600, 700] {
            let bed = Bed::new();
            bed.append_all(0..2);
            bed.disk.fail(SimOp::Write, 0, 1, ErrorKind::StorageFull, partial);
            bed.disk.fail(SimOp::SetLen, 0, 1, ErrorKind::Other, 0);

            let outcomes = submit_group(&bed, 1000..1008);
            // Only when one group took them all does nothing that follows it cut the segment.
            if outcomes.iter().any(Result::is_ok) {
                continue;
            }
            let failed: Vec<String> = (1000..1008)
                .zip(&outcomes)
                .filter(|(_, outcome)| matches!(outcome, Err(AppendError::StorageFull(_))))
                .map(|(n, _)| padded(n))
                .collect();
            let bed = bed.crash(crash);

            for (seq, value) in bed.read() {
                assert!(!failed.contains(&value), "{seq}: a refused append is there ({partial}, {crash:?})");
            }
            checked += 1;
        }
    }
    assert!(checked > 0, "in no round did one group take them all");
}

#[test]
fn a_failed_append_stays_away_when_the_power_fails_before_the_cut_is_durable() {
    let mut back = 0;
    let mut checked = 0;
    for seed in 0..400 {
        let bed = Bed::new();
        bed.append_all(0..2);
        // The committing thread is asleep again, so that one group takes them all.
        thread::sleep(Duration::from_millis(1));
        bed.disk.fail(SimOp::Write, 0, 1, ErrorKind::StorageFull, 700);

        if submit_group(&bed, 1000..1006).iter().any(Result::is_ok) {
            continue;
        }
        let bed = bed.crash(Crash::Power { seed });

        back += usize::from(bed.read().iter().any(|(_, value)| value.contains("100")));
        checked += 1;
    }
    assert!(checked > 0, "in no round did one group take them all");
    assert_eq!(back, 0, "refused appends came back");
}

/// Takes the queue's lock when it is woken.
struct Asks(Queue, AtomicBool);

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        let _ = self.0.status();
        self.1.store(true, Ordering::SeqCst);
    }
}

/// Appends until the buffer is full and the waker waits for room.
fn fill_until_pending(queue: &Queue, waker: &Waker) {
    let big = "x".repeat(400_000);
    let record = Record { value: big.as_bytes(), ..Record::default() };
    loop {
        match queue.try_append(&record, Durability::Synced) {
            Ok(ticket) => drop(ticket),
            Err(AppendError::Busy) => {
                if pin!(queue.room()).poll(&mut Context::from_waker(waker)) == Poll::Pending {
                    return;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_room_waker_may_use_the_queue() {
    within(20, "a deadlock between the waker and the queue", || {
        let bed = Bed::new();
        let asks = Arc::new(Asks(bed.queue.clone(), AtomicBool::new(false)));
        fill_until_pending(&bed.queue, &Waker::from(Arc::clone(&asks)));

        thread::sleep(Duration::from_millis(300));

        let _ = bed.queue.status();
        assert!(asks.1.load(Ordering::SeqCst), "there is room and nobody was told");
    });
}

#[test]
fn a_panicking_callback_does_not_leave_tickets_hanging() {
    // Answered is enough: whether the second record was taken is for the panic's moment to say.
    let _: Outcome = within(10, "the second ticket never resolves", || {
        let bed = Bed::new();
        let (go, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        bed.queue.on_readable(Arc::new(move || {
            let _ = gone.lock().expect("the callback runs once").recv_timeout(Duration::from_secs(2));
            panic!("a callback of the user panics");
        }));
        append(&bed.queue, "one", Durability::Synced);
        let second = submit(&bed.queue, "two", Durability::Synced).expect("the queue is open");

        go.send(()).expect("the callback waits");
        let answer = second.wait();
        // Closing calls the callback on this thread, and its panic would hide the answer.
        std::mem::forget(bed);
        answer
    });
}

/// Drops the last handle when it is woken, on the committing thread.
struct Holds(Mutex<Option<Queue>>);

impl Wake for Holds {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().expect("no panic under it").take());
    }
}

fn is_pending(ticket: &mut Ticket, waker: &Waker) -> bool {
    Pin::new(ticket).poll(&mut Context::from_waker(waker)).is_pending()
}

#[test]
fn the_last_handle_may_be_dropped_by_a_waker_and_what_waits_in_the_buffer_is_written() {
    for _ in 0..50 {
        let dir = open_on(&SimDisk::new(), &dir_options());
        let queue = open_queue(&dir);
        append(&queue, "warm", Durability::Synced);
        let mut ticket = submit(&queue, "x", Durability::Synced).expect("the queue is open");
        let waker: Waker = Arc::new(Holds(Mutex::new(Some(queue.clone())))).into();
        let pending = is_pending(&mut ticket, &waker);
        let later = submit(&queue, "later", Durability::Synced).expect("the queue is open");
        drop(queue);
        if !pending {
            continue;
        }

        let answer = within(10, "the ticket never resolves", move || later.wait());
        thread::sleep(Duration::from_millis(200));

        let again = dir.queue("q", options()).expect("the name is free again");
        assert_eq!(again.status().queued, 3, "{answer:?}");
        answer.expect("it is durable");
        return;
    }
    panic!("every ticket was answered before it was polled");
}

/// Appends once more and drops the last handle when it is woken, on the committing thread.
struct AppendsAndGoes {
    queue: Mutex<Option<Queue>>,
    ticket: Mutex<Option<Ticket>>,
}

impl Wake for AppendsAndGoes {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.queue.lock().expect("no panic under it").take() {
            let ticket = submit(&queue, "later", Durability::Synced).expect("the queue is open");
            *self.ticket.lock().expect("no panic under it") = Some(ticket);
            drop(queue);
        }
    }
}

#[test]
fn what_a_waker_appends_before_it_drops_the_last_handle_is_answered() {
    for _ in 0..50 {
        let dir = open_on(&SimDisk::new(), &dir_options());
        let queue = open_queue(&dir);
        append(&queue, "warm", Durability::Synced);
        let mut ticket = submit(&queue, "x", Durability::Synced).expect("the queue is open");
        let state =
            Arc::new(AppendsAndGoes { queue: Mutex::new(Some(queue.clone())), ticket: Mutex::default() });
        let pending = is_pending(&mut ticket, &Arc::clone(&state).into());
        drop(queue);
        if !pending {
            continue;
        }

        thread::sleep(Duration::from_millis(200));
        let Some(later) = state.ticket.lock().expect("no panic under it").take() else { continue };

        let answer = within(5, "the ticket never resolves", move || later.wait());
        answer.expect("it is durable");
        return;
    }
    panic!("no waker was called");
}

#[test]
fn counters_balance_after_a_kill() {
    let bed = Bed::new();
    bed.append_all(0..100);

    let bed = bed.crash(Crash::Process);

    let status = bed.queue.status();
    let counters = status.counters;
    assert_eq!(counters.appended, counters.acknowledged + counters.lost + status.queued, "{status:?}");
}

#[test]
fn a_file_with_the_largest_ordinal_does_not_keep_the_queue_from_opening() {
    let bed = Bed::new();
    bed.append_all(0..5);
    let disk = bed.close();
    let path = segments(&disk)[0].with_file_name(format!("{:020}.seg", u64::MAX));
    disk.put(&path, vec![1; 5000]);

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), numbers(1..6));
}

#[test]
fn a_segment_is_no_larger_than_segment_bytes() {
    let bed = Bed::new();

    for n in 0..3000 {
        append(&bed.queue, &padded(n), Durability::Buffered);
    }
    append(&bed.queue, "end", Durability::Synced);

    for path in bed.segments() {
        let len = bed.disk.bytes(&path).expect("the segment is there").len();
        assert!(len as u64 <= options().segment_bytes, "{} has {len} bytes", path.display());
    }
}

#[test]
fn a_segment_abandoned_after_a_failed_write_and_a_failed_cut_is_not_claimed_durable() {
    let bed = Bed::new();
    bed.append_all(0..2);
    append(&bed.queue, "written", Durability::Written);
    bed.disk.fail(SimOp::Write, 0, 1, ErrorKind::StorageFull, 0);
    bed.disk.fail(SimOp::SetLen, 0, 1, ErrorKind::Other, 0);

    let refused = submit(&bed.queue, "refused", Durability::Synced).and_then(Ticket::wait);
    bed.append("synced");
    let bed = bed.crash(Crash::PowerAllLost);

    assert!(refused.is_err());
    bed.read();
    assert_eq!(bed.queue.status().counters.lost, 0, "it was never durable");
}

#[test]
fn a_failed_index_flush_is_tried_again() {
    let disk = SimDisk::new();
    let mut often = QueueDirOptions::default();
    often.index_flush_interval = Duration::from_millis(5);
    let dir = open_on(&disk, &often);
    let queue = open_queue(&dir);
    for n in 0..20 {
        append(&queue, &padded(n), Durability::Synced);
    }
    disk.fail(SimOp::IndexFlush, 0, 1, ErrorKind::StorageFull, 0);

    queue.ack(Seq::new(5)..Seq::new(15));
    thread::sleep(Duration::from_millis(500));
    let after = disk.crash(Crash::PowerAllLost);
    drop((queue, dir));

    assert_eq!(Bed::on(after, options()).seqs().len(), 10);
}

/// The folder that the child with few file descriptors opens; set only in that child.
const CHILD_FOLDER: &str = "TIDEGATE_TEST_CHILD_FOLDER";

/// The child's half: what it finds wrong is its exit status, what it read is on its standard output.
fn read_and_append_as_the_child(folder: &Path) {
    let dir = open_real(folder);
    let queue = open_queue(&dir);

    let read = read(&queue).len();
    println!("the child read {read} records");
    let ignored = &queue.recovery().ignored;
    assert!(ignored.is_empty(), "segments were passed over: {ignored:?}");
    assert_eq!(queue.status().counters.lost, 0);
    assert_eq!(read, 2000);
    append(&queue, "after", Durability::Synced);
    queue.close();
}

fn run_the_child(folder: &Path) -> Output {
    let test = "found::a_queue_with_more_segments_than_file_descriptors_is_opened_read_and_appended_to";
    Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().expect("a test has a path"))
        .arg(test)
        .env(CHILD_FOLDER, folder)
        .output()
        .expect("a shell is there")
}

#[test]
fn a_queue_with_more_segments_than_file_descriptors_is_opened_read_and_appended_to() {
    if let Some(folder) = std::env::var_os(CHILD_FOLDER) {
        return read_and_append_as_the_child(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    {
        let dir = open_real(folder.path());
        let queue = open_queue(&dir);
        for n in 0..2000 {
            append(&queue, &padded(n), Durability::Written);
        }
        assert!(queue.status().segments > 64, "more than the child may open");
    }

    let child = run_the_child(folder.path());

    let (out, err) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{}: {out}\n{err}", child.status);
    assert!(out.contains("the child read 2000 records"), "{out}\n{err}");
    let dir = open_real(folder.path());
    let queue = open_queue(&dir);
    assert_eq!(read(&queue).len(), 2001, "{:?}", queue.status());
}

#[test]
fn when_close_returns_everything_is_durable_also_when_another_thread_closes_too() {
    for round in 0..200 {
        let bed = Bed::new();
        for n in 0..2000 {
            append(&bed.queue, &padded(n), Durability::Buffered);
        }
        let other = bed.queue.clone();

        let closer = thread::spawn(move || other.close());
        thread::yield_now();
        bed.queue.close();
        let status = bed.queue.status();
        closer.join().expect("close does not panic");

        assert_eq!(
            status.durable, status.end,
            "round {round}: close returned before what was appended is durable"
        );
    }
}

/// What one append of the random test asked for, and the answer.
struct Answered {
    value: String,
    durability: Durability,
    outcome: Outcome,
}

/// Up to three faults, each a few calls ahead and once or twice.
fn script_faults(disk: &SimDisk, rng: &mut fastrand::Rng) {
    const OPS: [SimOp; 6] =
        [SimOp::Write, SimOp::SetLen, SimOp::SyncData, SimOp::Create, SimOp::SyncDir, SimOp::Names];
    for _ in 0..rng.usize(1..4) {
        let op = OPS[rng.usize(0..OPS.len())];
        let error = if rng.bool() { ErrorKind::StorageFull } else { ErrorKind::Other };
        let partial = if op == SimOp::Write { rng.usize(0..1500) } else { 0 };
        disk.fail(op, rng.u64(0..6), rng.u64(1..3), error, partial);
    }
}

/// Thirty appends, waited for in batches of random length.
fn append_in_batches(queue: &Queue, values_from: u64, seed: u64) -> Vec<Answered> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut answered = Vec::new();
    let mut pending = Vec::new();
    for n in 0..30 {
        let value = padded(values_from + n);
        let durability = if rng.u8(0..3) == 0 { Durability::Written } else { Durability::Synced };
        pending.push((submit(queue, &value, durability), value, durability));
        if n == 29 || rng.u8(0..4) == 0 {
            answered.extend(pending.drain(..).map(|(ticket, value, durability)| Answered {
                value,
                durability,
                outcome: ticket.and_then(Ticket::wait),
            }));
        }
    }
    answered
}

fn append_from_three_threads(queue: &Queue, rng: &mut fastrand::Rng) -> Vec<Answered> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let seed = rng.u64(..);
                scope.spawn(move || append_in_batches(queue, 1_000_000 + thread * 1000, seed))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("appending does not panic")).collect()
    })
}

/// What is wrong with an open queue that gave these answers.
fn broken_while_open(answered: &[Answered], live: &BTreeMap<u64, String>) -> Vec<String> {
    let mut bad = Vec::new();
    let mut seen = HashSet::new();
    for Answered { value, outcome, .. } in answered {
        let Ok(seq) = outcome else { continue };
        if !seen.insert(*seq) {
            bad.push(format!("{seq} was given out twice"));
        }
        if live.get(&seq.get()) != Some(value) {
            bad.push(format!("{seq} was accepted and is not readable"));
        }
    }
    bad
}

/// What is wrong with a queue that gave these answers, was read as `live`, crashed, and is read as `after`.
fn broken_by_the_crash(
    answered: &[Answered],
    crash: Crash,
    live: &BTreeMap<u64, String>,
    after: &BTreeMap<u64, String>,
) -> Option<String> {
    let is_there = |value: &String| live.values().chain(after.values()).any(|there| there == value);
    answered.iter().find_map(|Answered { value, durability, outcome }| match outcome {
        Ok(seq) if *durability == Durability::Synced || crash == Crash::Process => {
            (after.get(&seq.get()) != Some(value)).then(|| format!("{seq} {durability:?} accepted and gone"))
        }
        Err(AppendError::StorageFull(_) | AppendError::Io(_) | AppendError::Failed { .. }) => {
            is_there(value).then(|| format!("a refused append is there: {outcome:?}"))
        }
        // Written and the power failed, or durability unknown: either is right.
        _ => None,
    })
}

#[test]
fn after_random_faults_and_a_crash_what_was_accepted_is_there_and_what_was_refused_is_not() {
    let seed = Seed::new();
    for round in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed.0.wrapping_add(round));
        let bed = Bed::new();
        bed.append_all(0..rng.u64(0..20));
        script_faults(&bed.disk, &mut rng);

        let answered = append_from_three_threads(&bed.queue, &mut rng);
        let live: BTreeMap<u64, String> = bed.read().into_iter().collect();
        let lost = bed.queue.status().counters.lost;
        let crash = match rng.u8(0..3) {
            0 => Crash::Process,
            1 => Crash::PowerAllLost,
            _ => Crash::Power { seed: rng.u64(..) },
        };
        let after: BTreeMap<u64, String> = bed.crash(crash).read().into_iter().collect();

        assert_eq!(lost, 0, "round {round}: lost while open");
        let mut bad = broken_while_open(&answered, &live);
        bad.extend(broken_by_the_crash(&answered, crash, &live, &after));
        assert!(bad.is_empty(), "round {round}, {crash:?}: {bad:#?}");
    }
}

/// Reopenings of the queue under load, and the appends between two of them.
const REOPENINGS: usize = 14;
const APPENDS_BETWEEN: usize = 60;

/// A queue on a real disk that four producers and a consumer use while it is closed and opened again.
struct Load {
    queue: RwLock<Queue>,
    stop: AtomicBool,
    accepted: Mutex<BTreeMap<Seq, String>>,
    delivered: Mutex<BTreeMap<Seq, String>>,
}

impl Load {
    /// Small enough that producers meet a full queue when the consumer pauses.
    fn options() -> QueueOptions {
        options().queue_limit(3000)
    }

    fn on(dir: &QueueDir) -> Load {
        Load {
            queue: RwLock::new(dir.queue("q", Load::options()).expect("the queue opens")),
            stop: AtomicBool::new(false),
            accepted: Mutex::default(),
            delivered: Mutex::default(),
        }
    }

    fn queue(&self) -> Queue {
        self.queue.read().expect("no panic under it").clone()
    }

    fn reopen(&self, dir: &QueueDir) {
        let mut queue = self.queue.write().expect("no panic under it");
        queue.close();
        *queue = dir.queue("q", Load::options()).expect("the queue opens again");
    }

    fn produce(&self, producer: u64, seed: u64, progress: &mpsc::Sender<()>) {
        const DURABILITIES: [Durability; 3] = [Durability::Synced, Durability::Written, Durability::Buffered];
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut n = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let value = format!("{producer}/{n}{}", "x".repeat(rng.usize(0..3000)));
            let durability = DURABILITIES[rng.usize(0..3)];
            match submit(&self.queue(), &value, durability).and_then(Ticket::wait) {
                Ok(seq) => {
                    let before =
                        self.accepted.lock().expect("no panic under it").insert(seq, unpadded(&value));
                    assert_eq!(before, None, "{seq} was given out twice");
                    n += 1;
                    let _ = progress.send(());
                }
                Err(AppendError::Full(_)) => thread::sleep(Duration::from_micros(200)),
                Err(AppendError::Closed) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads on, rewinds at times, and acknowledges in any order, until it finds nothing twice after the stop.
    fn consume(&self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut nothing_before = false;
        loop {
            let queue = self.queue();
            let mut batch = read_batch(&mut queue.reader(), &mut rng);
            assert!(batch.is_sorted_by(|a, b| a.0 < b.0), "a reader goes up");
            let nothing = batch.is_empty();
            rng.shuffle(&mut batch);
            self.acknowledge(&queue, batch);
            if self.stop.load(Ordering::Relaxed) {
                if nothing && nothing_before {
                    return;
                }
                nothing_before = nothing;
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn acknowledge(&self, queue: &Queue, batch: Vec<(Seq, String)>) {
        for (seq, value) in batch {
            self.delivered
                .lock()
                .expect("no panic under it")
                .entry(seq)
                .and_modify(|before| assert_eq!(*before, value, "{seq} is delivered again as it was"))
                .or_insert(value);
            queue.ack(seq..seq.next());
        }
    }
}

fn unpadded(value: &str) -> String {
    value.trim_end_matches('x').to_owned()
}

fn read_one(reader: &mut Reader) -> Option<(Seq, String)> {
    let entry = reader.next().expect("the disk answers")?;
    let record = entry.record().expect("the payload is a record");
    Some((entry.seq, unpadded(&String::from_utf8_lossy(record.value))))
}

fn read_batch(reader: &mut Reader, rng: &mut fastrand::Rng) -> Vec<(Seq, String)> {
    let mut batch = Vec::new();
    for _ in 0..rng.usize(50..1500) {
        match read_one(reader) {
            Some(one) => batch.push(one),
            None if rng.bool() => break,
            None => thread::sleep(Duration::from_micros(300)),
        }
        if rng.u8(0..200) == 0
            && let Some((first, _)) = batch.first()
        {
            reader.rewind(*first);
            batch.clear();
        }
    }
    batch
}

/// Reopens after each so many appends; the error says that they stopped coming.
fn reopen_under(
    load: &Load,
    dir: &QueueDir,
    progress: &mpsc::Receiver<()>,
) -> Result<(), mpsc::RecvTimeoutError> {
    for _ in 0..REOPENINGS {
        for _ in 0..APPENDS_BETWEEN {
            progress.recv_timeout(Duration::from_secs(20))?;
        }
        load.reopen(dir);
    }
    Ok(())
}

#[test]
fn every_record_accepted_while_the_queue_is_reopened_under_load_is_delivered_as_it_was() {
    let seed = Seed::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = open_real(folder.path());
    let load = Load::on(&dir);
    let (sender, progress) = mpsc::channel();

    let reopened = thread::scope(|scope| {
        for producer in 0..4 {
            let (load, sender, seed) = (&load, sender.clone(), seed.0.wrapping_add(producer));
            scope.spawn(move || load.produce(producer, seed, &sender));
        }
        scope.spawn(|| load.consume(seed.0.wrapping_add(99)));
        let reopened = reopen_under(&load, &dir, &progress);
        load.stop.store(true, Ordering::Relaxed);
        reopened
    });
    // What was appended after the consumer's last look.
    let queue = load.queue();
    let mut reader = queue.reader();
    load.acknowledge(&queue, std::iter::from_fn(|| read_one(&mut reader)).collect());

    reopened.expect("appends go on");
    let accepted = load.accepted.into_inner().expect("no panic under it");
    let delivered = load.delivered.into_inner().expect("no panic under it");
    assert_eq!(accepted, delivered);
    let status = queue.status();
    let counters = status.counters;
    assert_eq!(counters.lost, 0);
    assert_eq!(counters.appended, counters.acknowledged + counters.lost + status.queued);
}
