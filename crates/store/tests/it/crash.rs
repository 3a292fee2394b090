//! Crashes at any moment, twice, with every fate of what was not synced.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate_store::sim::{Crash, SimDisk};
use tidegate_store::{Durability, QueueDir, Record, Seq, Ticket};

use crate::setup::{Bed, dir_options, dir_path, options, padded};

/// What the world outside knows: which appends were answered, and what was acknowledged.
#[derive(Default)]
struct Outside {
    /// Sequence number to value, of appends answered `Synced`.
    synced: BTreeMap<u64, String>,
    /// Values of all appends that were tried.
    tried: BTreeMap<u64, String>,
    acked: Vec<u64>,
    numbers: u64,
}

impl Outside {
    fn append(&mut self, bed: &Bed, durability: Durability) {
        let value = padded(self.numbers);
        self.numbers += 1;
        let record = Record { value: value.as_bytes(), ..Record::default() };
        let Ok(ticket) = bed.queue.append(&record, durability) else { return };
        let seq = ticket.seq().get();
        assert!(
            self.tried.insert(seq, value.clone()).is_none() || !self.synced.contains_key(&seq),
            "{seq} twice"
        );
        if ticket.wait().is_ok() && durability == Durability::Synced {
            self.synced.insert(seq, value);
        }
    }

    /// What is read is in order, was appended, and is everything durable that was not acknowledged.
    fn check(&self, bed: &Bed) {
        let read = bed.read();
        assert!(read.is_sorted_by(|a, b| a.0 < b.0));
        for (seq, value) in &read {
            assert_eq!(self.tried.get(seq), Some(value), "{seq} was never appended like this");
        }
        for (seq, value) in &self.synced {
            let there = read.binary_search_by_key(seq, |(seq, _)| *seq).is_ok_and(|at| read[at].1 == *value);
            assert!(there || self.acked.contains(seq), "durable record {seq} is missing");
        }
        assert_eq!(bed.queue.status().counters.lost, 0);
    }
}

#[derive(Debug, Clone)]
enum Action {
    Append(Durability),
    Ack(u64, u64),
    Crash(Crash),
    Reopen,
    LoseIndex,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => Just(Action::Append(Durability::Synced)),
        4 => Just(Action::Append(Durability::Written)),
        2 => Just(Action::Append(Durability::Buffered)),
        3 => (0u64..30, 1u64..20).prop_map(|(skip, count)| Action::Ack(skip, count)),
        1 => Just(Action::Crash(Crash::Process)),
        1 => Just(Action::Crash(Crash::PowerAllLost)),
        2 => any::<u64>().prop_map(|seed| Action::Crash(Crash::Power { seed })),
        1 => Just(Action::Reopen),
        1 => Just(Action::LoseIndex),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn nothing_durable_is_lost_and_nothing_is_invented_whatever_happens(actions in prop::collection::vec(action(), 1..120)) {
        let mut bed = Bed::new();
        let mut outside = Outside::default();
        for action in actions {
            match action {
                Action::Append(durability) => outside.append(&bed, durability),
                Action::Ack(skip, count) => {
                    let from = bed.queue.status().cursor.get() + skip;
                    bed.ack(from..from + count);
                    let end = bed.queue.status().end.get();
                    outside.acked.extend(from..(from + count).min(end));
                }
                Action::Crash(crash) => {
                    bed = bed.crash(crash);
                    outside.check(&bed);
                }
                Action::Reopen => bed = bed.reopen(),
                Action::LoseIndex => bed.disk.lose_index(),
            }
        }
        outside.check(&bed);
        let bed = bed.crash(Crash::PowerAllLost);
        outside.check(&bed);
    }
}

/// The power fails after every single step of a workload, then again during recovery.
#[test]
fn power_may_fail_at_every_step_and_again_while_recovering() {
    let total = {
        let bed = Bed::new();
        workload(&bed, &mut Outside::default());
        let steps = bed.disk.steps();
        drop(bed);
        steps
    };
    assert!(total > 100, "the workload has {total} steps");
    for step in 0..total {
        let disk = SimDisk::new();
        disk.power_off_after(step);
        let mut outside = Outside::default();
        if let Some(bed) = try_open(&disk) {
            workload(&bed, &mut outside);
        }
        let crashed = disk.crash(Crash::Power { seed: step });
        let again = crashed.crash(Crash::Process);
        again.power_off_after(step % 7);
        drop(try_open(&again));
        for disk in [crashed.crash(Crash::Process), again.crash(Crash::Power { seed: !step })] {
            let bed = Bed::on(disk, options());
            outside.check(&bed);
            let seq = bed.append("after");
            let bed = bed.crash(Crash::PowerAllLost);
            assert_eq!(
                bed.read().last(),
                Some(&(seq.get(), "after".to_owned())),
                "power failed at step {step}"
            );
        }
    }
}

fn try_open(disk: &SimDisk) -> Option<Bed> {
    let dir = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &dir_options()).ok()?;
    let queue = dir.queue("q", options()).ok()?;
    Some(Bed { disk: disk.clone(), queue, dir })
}

/// Groups of one and of several, rotation, acknowledgement, truncation.
fn workload(bed: &Bed, outside: &mut Outside) {
    for round in 0..45 {
        outside.append(bed, Durability::Synced);
        if round % 5 == 0 {
            outside.append(bed, Durability::Written);
        }
        if round % 20 == 19 {
            let status = bed.queue.status();
            let upto = status.cursor.get() + 15;
            bed.ack(status.cursor.get()..upto);
            outside.acked.extend(status.cursor.get()..upto.min(status.end.get()));
        }
    }
    bed.queue.close();
}

/// Any bytes in place of a segment: no panic, bounded steps, and the queue takes records.
#[test]
fn any_bytes_in_a_segment_are_survived() {
    let bed = Bed::new();
    bed.append_all(0..60);
    let image = bed.close();
    let paths = crate::setup::segments(&image);
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let disk = image.crash(Crash::Process);
        for path in &paths {
            let mut bytes = disk.bytes(path).expect("bytes");
            for _ in 0..rng.usize(0..4) {
                let at = rng.usize(0..bytes.len());
                let len = rng.usize(1..600).min(bytes.len() - at);
                match rng.u8(0..4) {
                    0 => bytes[at] ^= 1 << rng.u8(0..8),
                    1 => bytes[at..at + len].fill(0),
                    2 => bytes[at..at + len].iter_mut().for_each(|byte| *byte = rng.u8(..)),
                    _ => bytes.truncate(at),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            disk.put(path, bytes);
        }

        let bed = Bed::on(disk, options());
        let before = bed.read();
        assert!(before.is_sorted_by(|a, b| a.0 < b.0));
        for (seq, value) in &before {
            assert_eq!(*value, padded(seq - 1), "nothing is invented");
        }
        let seq = bed.append("after");
        assert!(seq >= Seq::new(61) || before.is_empty());
        bed.ack(1..seq.get());
        assert_eq!(bed.queue.status().cursor, seq, "no gap holds the cursor back");
        assert_eq!(bed.read(), [(seq.get(), "after".to_owned())]);
    }
}

#[test]
fn a_ticket_dropped_takes_nothing_back_and_tickets_resolve_when_awaited() {
    let bed = Bed::new();
    let record = Record { value: b"v", ..Record::default() };
    drop(bed.queue.append(&record, Durability::Synced).expect("taken"));
    let ticket: Ticket = bed.queue.try_append(&record, Durability::Synced).expect("taken");

    let seq = block_on(ticket).expect("durable");

    assert_eq!(seq, Seq::new(2));
    assert_eq!(bed.seqs(), [1, 2]);
}

/// The smallest executor: parks the thread until it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
