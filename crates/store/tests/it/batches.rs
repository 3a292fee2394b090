//! Batches after a crash: all of one, or nothing; and after rot, what is left.

use tidegate_store::sim::{Crash, SimDisk};
use tidegate_store::{AppendError, Durability, Queue, Record, RecoveryReport, Seq, Ticket};

use crate::setup::{
    Bed, change_header, edit, frame_by_hand, numbers, options, padded, payload_by_hand, salt_of, segments,
};

/// Appends a batch of so many records; each value is its number in the sequence, from 0 on.
fn append_batch(queue: &Queue, records: u64, durability: Durability) -> Result<Ticket, AppendError> {
    let first = queue.status().end.get() - 1;
    let values: Vec<String> = (first..first + records).map(padded).collect();
    let records: Vec<Record<'_>> =
        values.iter().map(|value| Record { value: value.as_bytes(), ..Record::default() }).collect();
    queue.append_batch(&records, durability)
}

#[test]
fn a_batch_is_all_there_or_not_at_all_whenever_the_power_fails() {
    // Batches that share groups and segments with others, and one that is larger than a segment.
    let sizes = [3, 10, 1, 25, 60, 2, 30];
    let steps = {
        let bed = Bed::new();
        let before = bed.disk.steps();
        for size in sizes {
            append_batch(&bed.queue, size, Durability::Synced).and_then(Ticket::wait).expect("durable");
        }
        bed.disk.steps() - before
    };
    let (mut whole, mut absent) = (0, 0);
    for (step, seed) in (0..steps).flat_map(|step| (0..4).map(move |seed| (step, seed))) {
        let bed = Bed::new();
        bed.disk.power_off_after(step);
        let mut batches = Vec::new();
        for size in sizes {
            let Ok(ticket) = append_batch(&bed.queue, size, Durability::Synced) else { break };
            let range = ticket.range();
            batches.push((range, ticket.wait().is_ok()));
        }

        let bed = bed.crash(Crash::Power { seed });

        let read = bed.read();
        for (range, durable) in batches {
            let there = read.iter().filter(|(seq, _)| range.contains(&Seq::new(*seq))).count() as u64;
            let size = range.end.since(range.start);
            assert!(
                there == size || (there == 0 && !durable),
                "step {step}, seed {seed}: {there} of {range:?}"
            );
            *(if there == 0 { &mut absent } else { &mut whole }) += 1;
        }
        assert!(read.iter().all(|(seq, value)| *value == padded(seq - 1)), "step {step}, seed {seed}");
    }
    assert!(whole > 0 && absent > 0, "{whole} whole, {absent} absent");
}

#[test]
fn a_batch_that_does_not_fit_is_refused_as_a_whole() {
    let bed = Bed::on(SimDisk::new(), options().queue_limit(10).record_bytes_max(1000));

    let four = append_batch(&bed.queue, 4, Durability::Synced).expect("taken");
    assert_eq!(four.range(), Seq::new(1)..Seq::new(5));
    let too_large = append_batch(&bed.queue, 5, Durability::Synced).map(|ticket| ticket.seq());
    assert!(matches!(too_large, Err(AppendError::TooLarge { max: 1000, .. })), "{too_large:?}");
    append_batch(&bed.queue, 4, Durability::Synced).and_then(Ticket::wait).expect("taken");
    let full = append_batch(&bed.queue, 3, Durability::Synced).map(|ticket| ticket.seq());
    assert!(matches!(full, Err(AppendError::Full(_))), "{full:?}");
    append_batch(&bed.queue, 2, Durability::Synced).and_then(Ticket::wait).expect("exactly full");
    let nothing = append_batch(&bed.queue, 0, Durability::Synced).expect("nothing to refuse");

    assert!(nothing.range().is_empty());
    assert_eq!(bed.seqs(), numbers(1..11));
    assert_eq!(bed.queue.status().counters.appended, 10);
}

const DATA: u8 = 2;
const BATCH: u8 = 3;
const WATERMARK: u8 = 4;

/// Flags of the frames of a batch: the first of its batch, another follows.
const FIRST: u8 = 1;
const MORE: u8 = 2;

fn record(salt: u64, kind: u8, flags: u8, seq: u64) -> Vec<u8> {
    frame_by_hand(salt, kind, flags, seq, &payload_by_hand(&padded(seq - 1)))
}

/// The frames of a batch with these numbers.
fn batch(salt: u64, seqs: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    let (first, last) = (seqs.start, seqs.end - 1);
    let flags = |seq| u8::from(seq == first) * FIRST + u8::from(seq != last) * MORE;
    seqs.map(|seq| record(salt, BATCH, flags(seq), seq)).collect()
}

/// A queue of three durable records whose process was killed, and whose index is gone; then these frames in its file.
fn three_records_then(frames: impl FnOnce(u64) -> Vec<u8>) -> SimDisk {
    let bed = Bed::new();
    bed.append_all(0..3);
    let disk = bed.kill();
    disk.lose_index();
    edit(&disk, 0, |bytes| {
        let frames = frames(salt_of(bytes));
        bytes.extend_from_slice(&frames);
    });
    disk.crash(Crash::Process)
}

/// Twice the same, and what follows is durable.
fn opens_with(disk: SimDisk, seqs: &[u64], unsynced: &[(u64, u64)], what: &str) {
    let bed = Bed::on(disk, options());
    let reported: Vec<_> = unsynced.iter().map(|(first, next)| Seq::new(*first)..Seq::new(*next)).collect();
    assert_eq!(bed.queue.recovery().lost_unsynced, reported, "{what}");
    assert_eq!(bed.seqs(), seqs, "{what}");
    for (seq, value) in bed.read() {
        assert_eq!(value, padded(seq - 1), "{what}");
    }
    let next = bed.append("after").get();
    let bed = bed.crash(Crash::PowerAllLost);
    assert_eq!(bed.queue.recovery().lost_unsynced, [], "{what}: it is reported once");
    assert_eq!(bed.seqs(), [seqs, &[next]].concat(), "{what}");
    assert_eq!(bed.queue.status().counters.lost, 0, "{what}");
}

#[test]
fn a_whole_batch_is_there_after_a_crash() {
    opens_with(three_records_then(|salt| batch(salt, 4..9).concat()), &numbers(1..9), &[], "five");
    opens_with(three_records_then(|salt| batch(salt, 4..5).concat()), &numbers(1..5), &[], "one");
    let two = |salt| [batch(salt, 4..6), batch(salt, 6..9)].concat().concat();
    opens_with(three_records_then(two), &numbers(1..9), &[], "two batches");
}

#[test]
fn a_batch_that_is_torn_anywhere_at_the_tail_is_cut_as_a_whole() {
    let len = batch(1, 4..8).concat().len();
    for cut in 1..len {
        let torn = |salt| batch(salt, 4..8).concat()[..cut].to_vec();
        opens_with(three_records_then(torn), &numbers(1..4), &[], &format!("cut at {cut}"));
    }
}

#[test]
fn no_record_of_a_cut_batch_comes_back_behind_a_shorter_record_in_its_place() {
    let disk = three_records_then(|salt| batch(salt, 4..8)[..3].concat());
    let bed = Bed::on(disk, options());
    assert_eq!(bed.append("x"), Seq::new(4));

    assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), numbers(1..5));
}

#[test]
fn a_batch_above_d_of_which_a_part_is_missing_is_covered_as_a_whole_if_frames_follow() {
    for broken in 0..4 {
        for damage in [0u8, 0xEE] {
            for at in [0, 30] {
                for (kind, next) in [(DATA, vec![8]), (BATCH, vec![8]), (WATERMARK, vec![])] {
                    let disk = three_records_then(|salt| {
                        let mut frames = batch(salt, 4..8);
                        let len = frames[broken].len();
                        frames[broken][at..len].fill(damage);
                        frames.push(match kind {
                            WATERMARK => frame_by_hand(salt, WATERMARK, 0, 8, &[0; 16]),
                            BATCH => batch(salt, 8..9).concat(),
                            _ => record(salt, DATA, 0, 8),
                        });
                        frames.concat()
                    });
                    let what = format!("record {broken} from {at} on is {damage:#x}, then kind {kind}");
                    opens_with(disk, &[numbers(1..4), next].concat(), &[(4, 8)], &what);
                }
            }
        }
    }
}

#[test]
fn two_broken_batches_and_a_whole_one_between_are_told_apart() {
    let disk = three_records_then(|salt| {
        let (mut first, mut last) = (batch(salt, 4..6), batch(salt, 8..10));
        first[1].fill(0);
        last[0].fill(0xEE);
        [first, batch(salt, 6..8), last, batch(salt, 10..11)].concat().concat()
    });

    opens_with(disk, &[1, 2, 3, 6, 7, 10], &[(4, 6), (8, 10)], "two of four");
}

#[test]
fn a_batch_that_another_record_interrupts_is_not_there() {
    let disk =
        three_records_then(|salt| [batch(salt, 4..7)[..2].concat(), record(salt, DATA, 0, 7)].concat());

    opens_with(disk, &[1, 2, 3, 7], &[(4, 7)], "its last is missing");
}

#[test]
fn at_or_below_d_what_rot_leaves_of_a_batch_is_delivered_and_the_rest_is_lost() {
    for broken in 0..4 {
        for follows in [true, false] {
            let disk = three_records_then(|salt| batch(salt, 4..8).concat());
            // Opened and closed: the index knows that all of it was durable.
            let disk = Bed::on(disk, options()).close();
            edit(&disk, 0, |bytes| {
                let salt = salt_of(bytes);
                let frame = record(salt, BATCH, 0, 7).len();
                let at = bytes.len() - 40 - (4 - broken) * frame;
                bytes[at..at + frame].fill(0xEE);
                if !follows {
                    bytes.truncate(at + frame);
                }
            });

            let bed = Bed::on(disk, options());

            let seqs = bed.seqs();
            let status = bed.queue.status();
            let there = if follows { 4..8 } else { 4..4 + broken as u64 };
            let expected = numbers(there).into_iter().filter(|seq| *seq != 4 + broken as u64);
            let expected: Vec<u64> = numbers(1..4).into_iter().chain(expected).collect();
            assert_eq!(seqs, expected, "record {broken}, followed: {follows}");
            assert_eq!(seqs.len() as u64 + status.counters.lost, 7, "record {broken}, followed: {follows}");
            assert_eq!(bed.queue.recovery().lost_unsynced, []);
            assert_eq!(bed.append("goes on"), Seq::new(8));
        }
    }
}

#[test]
fn a_broken_batch_in_a_segment_left_after_a_failed_sync_is_passed_and_its_file_left_as_it_is() {
    for broken in 0..3 {
        let disk = three_records_then(|salt| {
            let mut frames = batch(salt, 4..7);
            frames[broken].fill(0);
            frames.concat()
        });
        let path = segments(&disk)[0].clone();
        let first = disk.bytes(&path).expect("bytes");
        let mut next = first[..4096].to_vec();
        let salt = 77u64;
        change_header(&mut next, |header| {
            header[48..56].copy_from_slice(&2u64.to_le_bytes());
            header[56..64].copy_from_slice(&salt.to_le_bytes());
        });
        let seg_start = [1u64.to_le_bytes(), 7u64.to_le_bytes(), [0; 8]].concat();
        next.extend(frame_by_hand(salt, 1, 0, 7, &seg_start));
        next.extend(record(salt, DATA, 0, 7));
        disk.put(&path.with_file_name(format!("{:020}.seg", 2)), next);

        let bed = Bed::on(disk.clone(), options());
        assert_eq!(bed.queue.recovery().lost_unsynced, [Seq::new(4)..Seq::new(7)], "record {broken}");
        assert_eq!(bed.seqs(), [1, 2, 3, 7], "record {broken}");
        assert_eq!(bed.append("after"), Seq::new(8));
        assert_eq!(disk.bytes(&path), Some(first));

        let bed = bed.reopen();
        assert_eq!(bed.queue.recovery(), &RecoveryReport::default(), "it is reported once");
        assert_eq!(bed.seqs(), [1, 2, 3, 7, 8]);
        assert_eq!(bed.queue.status().counters.lost, 0);
    }
}
