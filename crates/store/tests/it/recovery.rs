//! The recovery table of the design, a test a rule.

use std::io::ErrorKind;
use std::process::Command;
use std::sync::Arc;

use tidegate_store::sim::{Crash, SimDisk, SimOp};
use tidegate_store::{Durability, OpenError, QueueDir, QueueDirOptions, QueueOptions, RecoveryReport, Seq};

use crate::setup::{
    Bed, append, change_header, dir_options, dir_path, edit, frame_by_hand, numbers, options, padded,
    payload_by_hand, salt_of, segments,
};

/// Bytes of a segment's header.
const HEADER: usize = 4096;
/// Bytes of a frame's header, and of the start frame.
const FRAME_HEADER: usize = 24;
const START_FRAME: usize = 48;
/// Bytes of a watermark.
const WATERMARK_FRAME: usize = 40;

/// Where each whole frame of a segment starts, with its kind: the format's own arithmetic.
fn frames(bytes: &[u8]) -> Vec<(usize, u8)> {
    let mut at = HEADER;
    let mut frames = Vec::new();
    while at + FRAME_HEADER <= bytes.len() && bytes[at + 20] != 0 {
        let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four bytes")) as usize;
        frames.push((at, bytes[at + 20]));
        at += FRAME_HEADER + len.next_multiple_of(8);
    }
    frames
}

/// The place of the `index`-th record of a segment.
fn record_at(bytes: &[u8], index: usize) -> usize {
    frames(bytes).into_iter().filter(|(_, kind)| *kind == 2).nth(index).expect("the record is there").0
}

#[test]
fn r1_a_second_open_is_refused_with_the_holder_in_this_process_and_in_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");

    let second = QueueDir::open(folder.path(), QueueDirOptions::default()).expect_err("it is locked");
    let text = second.to_string();
    let OpenError::Locked { pid, host, .. } = second else { panic!("{text}") };
    assert_eq!(pid, Some(std::process::id()), "{text}");
    assert!(host.is_some_and(|host| text.contains(&host)), "{text}");
    let other = Command::new("flock")
        .args(["--nonblock", "--conflict-exit-code", "9"])
        .arg(folder.path().join("LOCK"))
        .arg("true")
        .status()
        .expect("util-linux is there");
    assert_eq!(other.code(), Some(9), "the kernel's lock is held");

    drop(first);
    QueueDir::open(folder.path(), QueueDirOptions::default()).expect("the lock was released");
}

#[test]
fn r1_a_lock_file_without_a_holder_means_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("LOCK"), "process 1 on elsewhere").expect("write");

    QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");
}

#[test]
fn r2_a_newer_version_and_a_foreign_segment_are_refused_and_not_touched() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    let foreign = {
        let other = Bed::new();
        other.append_all(0..100);
        let disk = other.close();
        disk.bytes(&segments(&disk)[1]).expect("the segment is there")
    };
    let last = segments(&disk).len() - 1;
    edit(&disk, last, |bytes| {
        bytes[12] = 9;
        let crc = crc32fast::hash(&bytes[12..HEADER]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    });
    let newer = disk.bytes(&segments(&disk)[last]);
    disk.put(&segments(&disk)[1].clone(), foreign.clone());

    let bed = Bed::on(disk.clone(), options());

    assert_eq!(bed.queue.recovery().ignored.len(), 2, "{:?}", bed.queue.recovery());
    assert_eq!(disk.bytes(&segments(&disk)[last]), newer);
    assert_eq!(disk.bytes(&segments(&disk)[1]), Some(foreign));
    assert_eq!(bed.append("goes on"), Seq::new(101));
    let seqs = bed.seqs();
    assert!(seqs.starts_with(&numbers(1..14)) && seqs.ends_with(&[101]), "{seqs:?}");
    assert_eq!(seqs.len() as u64 + bed.queue.status().counters.lost, 101, "what is not there is reported");
}

#[test]
fn r3_a_lost_index_costs_redelivery_from_the_last_watermark_and_nothing_else() {
    let bed = Bed::new();
    bed.append_all(0..100);
    bed.ack(1..71);
    let disk = bed.close();
    disk.lose_index();

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), numbers(71..101), "the closing watermark states the cursor");
    assert_eq!(bed.queue.recovery().redelivered_at_most, Some(30));
    assert_eq!(bed.append("next"), Seq::new(101));
}

#[test]
fn r3_a_broken_index_is_set_aside_and_rebuilt() {
    let bed = Bed::new();
    bed.append_all(0..30);
    bed.ack(1..11);
    let disk = bed.close();
    disk.break_index();

    let bed = Bed::on(disk, options());
    assert!(bed.dir.index_note().expect("it says so").contains("set aside"));
    assert_eq!(bed.seqs(), numbers(11..31));
    bed.ack(11..21);

    let bed = bed.reopen();
    assert_eq!(bed.dir.index_note(), None);
    assert_eq!(bed.seqs(), numbers(21..31));
    assert_eq!(bed.queue.recovery().redelivered_at_most, None);
}

#[test]
fn r3_without_index_and_watermark_the_oldest_segment_is_the_cursor() {
    let bed = Bed::new();
    bed.append_all(0..10);
    bed.ack(1..6);
    let disk = bed.disk.crash(Crash::Process);
    drop(bed);
    disk.lose_index();

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), numbers(1..11));
    assert_eq!(bed.queue.recovery().redelivered_at_most, Some(10));
}

#[test]
fn r4_a_cursor_below_the_first_segment_moves_up() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    let first = segments(&disk)[0].clone();
    disk.take(&first);

    let bed = Bed::on(disk, options());

    let status = bed.queue.status();
    assert!(status.cursor > Seq::FIRST && status.cursor == status.start);
    assert_eq!(bed.seqs(), numbers(status.start.get()..101));
}

#[test]
fn r4_a_log_behind_the_index_goes_on_above_every_number_that_was_issued() {
    let bed = Bed::new();
    bed.append_all(0..100);
    bed.ack(1..51);
    let disk = bed.close();
    for segment in segments(&disk) {
        disk.take(&segment);
    }

    let bed = Bed::on(disk, options());

    assert_eq!(bed.queue.recovery().missing, [Seq::new(51)..Seq::new(101)]);
    assert_eq!(bed.queue.status().counters.lost, 50);
    assert_eq!(bed.append("next"), Seq::new(101));
    assert_eq!(bed.seqs(), [101]);
}

#[test]
fn r5_a_sealed_segment_is_trusted_by_its_seal_and_its_records_are_verified_when_read() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    let records =
        frames(&disk.bytes(&segments(&disk)[0]).expect("bytes")).iter().filter(|f| f.1 == 2).count();
    edit(&disk, 0, |bytes| {
        let at = record_at(bytes, 4) + FRAME_HEADER + 50;
        bytes[at] ^= 1;
    });

    let bed = Bed::on(disk, options());

    assert!(records > 5 && bed.segments().len() > 2);
    assert_eq!(
        bed.queue.recovery(),
        &RecoveryReport::default(),
        "opening reads no payload of a sealed segment"
    );
    assert_eq!(bed.seqs(), [numbers(1..5), numbers(6..101)].concat());
    assert_eq!(bed.queue.status().losses, [Seq::new(5)..Seq::new(6)]);
}

#[test]
fn r6_the_last_segment_is_scanned_and_goes_on_where_it_ends() {
    let bed = Bed::new();
    bed.append_all(0..10);

    let bed = bed.crash(Crash::PowerAllLost);

    assert_eq!(bed.seqs(), numbers(1..11));
    assert_eq!(bed.append("next"), Seq::new(11));
    assert_eq!(bed.segments().len(), 1);
}

#[test]
fn r7_a_torn_tail_is_cut_at_the_last_whole_frame_wherever_the_tear_is() {
    let bed = Bed::new();
    bed.append_all(0..3);
    // Written, not synced: the last record is above D, and a crash may tear it anywhere.
    append(&bed.queue, &padded(3), Durability::Written);
    let image = bed.disk.crash(Crash::Process);
    drop(bed);
    let path = segments(&image)[0].clone();
    let whole = image.bytes(&path).expect("bytes");
    let torn_from = record_at(&whole, 3);

    for cut in torn_from + 1..whole.len() {
        let disk = image.crash(Crash::Process);
        disk.put(&path, whole[..cut].to_vec());
        let bed = Bed::on(disk, options());
        let durable_records = 3;
        assert_eq!(bed.seqs().len(), durable_records, "cut at {cut}");
        assert_eq!(bed.queue.status().counters.lost, 0, "cut at {cut}");
        let next = bed.append("after");
        let bed = bed.crash(Crash::PowerAllLost);
        assert_eq!(bed.read().last(), Some(&(next.get(), "after".to_owned())), "cut at {cut}");
    }
}

#[test]
fn r7_a_tail_of_zeros_of_any_length_is_nothing() {
    let bed = Bed::new();
    bed.append_all(0..3);
    let image = bed.disk.crash(Crash::Process);
    drop(bed);

    for zeros in [1, 7, 8, 23, 24, 100, 4096, 70_000] {
        let disk = image.crash(Crash::Process);
        edit(&disk, 0, |bytes| bytes.resize(bytes.len() + zeros, 0));
        let bed = Bed::on(disk, options());
        assert_eq!(bed.seqs(), numbers(1..4));
        assert_eq!(bed.append("next"), Seq::new(4));
        assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), numbers(1..5));
    }
}

#[test]
fn r7_what_was_cut_is_kept_in_quarantine_and_counted() {
    let bed = Bed::new();
    bed.append_all(0..3);
    let disk = bed.disk.crash(Crash::Process);
    drop(bed);
    edit(&disk, 0, |bytes| bytes.extend_from_slice(&[0xAB; 100]));

    let bed = Bed::on(disk, options());

    assert_eq!(bed.queue.recovery().torn_bytes, 100);
    let kept: Vec<_> = bed
        .disk
        .files(dir_path())
        .into_iter()
        .filter(|p| p.to_string_lossy().contains("quarantine"))
        .collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(bed.disk.bytes(&kept[0]), Some(vec![0xAB; 100]));
}

#[test]
fn r7b_a_hole_above_d_with_whole_frames_after_it_keeps_the_later_ones() {
    for damage in [0u8, 0xFF] {
        let bed = Bed::new();
        bed.append_all(0..2);
        for number in 2..6 {
            append(&bed.queue, &padded(number), Durability::Written);
        }
        let disk = bed.disk.crash(Crash::Process);
        drop(bed);
        edit(&disk, 0, |bytes| {
            let (from, to) = (record_at(bytes, 3), record_at(bytes, 4));
            bytes[from..to].fill(damage);
        });

        let bed = Bed::on(disk, options());
        assert_eq!(bed.seqs(), [1, 2, 3, 5, 6]);
        assert_eq!(bed.queue.recovery().lost_unsynced, [Seq::new(4)..Seq::new(5)]);
        assert_eq!(bed.queue.status().counters.lost, 0, "it was never durable");

        let bed = bed.reopen();
        assert_eq!(bed.seqs(), [1, 2, 3, 5, 6]);
        assert_eq!(bed.queue.recovery().lost_unsynced, [], "it is reported once");
    }
}

#[test]
fn r8_rot_in_a_payload_loses_exactly_that_record_and_is_reported_once() {
    let bed = Bed::new();
    bed.append_all(0..10);
    let disk = bed.close();
    edit(&disk, 0, |bytes| {
        let at = record_at(bytes, 6) + FRAME_HEADER;
        bytes[at] ^= 0x80;
    });

    let bed = Bed::on(disk, options());
    assert_eq!(bed.seqs(), [1, 2, 3, 4, 5, 6, 8, 9, 10]);
    assert_eq!(bed.queue.status().losses, [Seq::new(7)..Seq::new(8)]);

    let bed = bed.reopen();
    assert_eq!(bed.seqs(), [1, 2, 3, 4, 5, 6, 8, 9, 10]);
    assert_eq!(bed.queue.status().counters.lost, 1);
}

#[test]
fn r8_rot_in_a_header_resynchronises_at_the_next_frame() {
    let bed = Bed::new();
    bed.append_all(0..10);
    let disk = bed.close();
    edit(&disk, 0, |bytes| {
        let at = record_at(bytes, 6);
        bytes[at + 5] ^= 1;
    });

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), [1, 2, 3, 4, 5, 6, 8, 9, 10]);
    assert_eq!(bed.queue.status().losses, [Seq::new(7)..Seq::new(8)]);
}

#[test]
fn r8_rot_at_the_very_end_is_reported_and_not_taken_for_a_torn_tail() {
    let bed = Bed::new();
    bed.append_all(0..10);
    let disk = bed.close();
    let len = disk.bytes(&segments(&disk)[0]).expect("bytes").len();
    edit(&disk, 0, |bytes| {
        let at = record_at(bytes, 8);
        bytes[at..].fill(0xEE);
    });

    let bed = Bed::on(disk.clone(), options());

    let left = disk.bytes(&segments(&disk)[0]).expect("bytes").len();
    assert_eq!(left, len - WATERMARK_FRAME, "only the closing watermark, which was above D, was cut");
    assert_eq!(bed.append("next"), Seq::new(11));
    assert_eq!(bed.seqs(), [1, 2, 3, 4, 5, 6, 7, 8, 11]);
    assert_eq!(bed.queue.status().losses, [Seq::new(9)..Seq::new(11)]);
    let bed = bed.reopen();
    assert_eq!(bed.seqs(), [1, 2, 3, 4, 5, 6, 7, 8, 11]);
    assert_eq!(bed.queue.status().counters.lost, 2);
}

#[test]
fn r9_a_missing_segment_is_reported_as_lost_with_its_range_and_the_rest_is_read() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    let second = segments(&disk)[1].clone();
    let range = {
        let bytes = disk.bytes(&second).expect("bytes");
        let seq = |at: usize| u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("eight bytes"));
        let records: Vec<_> = frames(&bytes).into_iter().filter(|f| f.1 == 2).collect();
        seq(records[0].0)..seq(records[records.len() - 1].0) + 1
    };
    disk.take(&second);

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), [numbers(1..range.start), numbers(range.end..101)].concat());
    assert_eq!(bed.queue.status().losses, [Seq::new(range.start)..Seq::new(range.end)]);
    bed.ack(1..101);
    assert_eq!(bed.queue.status().cursor, Seq::new(101), "the gap does not hold the cursor back");
}

#[test]
fn r9_a_segment_removed_while_the_queue_is_open_is_reported_and_passed_over() {
    let bed = Bed::new();
    bed.append_all(0..100);
    bed.disk.take(&bed.segments()[1].clone());

    let seqs = bed.seqs();

    let status = bed.queue.status();
    assert_eq!(status.losses.len(), 1);
    assert_eq!(seqs.len() as u64 + status.counters.lost, 100);
}

#[test]
fn r12_a_segment_with_an_unreadable_header_is_kept_as_evidence_and_its_records_reported() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = bed.close();
    edit(&disk, 1, |bytes| bytes[40] ^= 1);

    let bed = Bed::on(disk, options());

    assert_eq!(bed.queue.recovery().ignored.len(), 1);
    let seqs = bed.seqs();
    let status = bed.queue.status();
    assert_eq!(status.losses.len(), 1);
    assert_eq!(seqs.len() as u64 + status.counters.lost, 100);
    assert_eq!(bed.append("next"), Seq::new(101));
}

#[test]
fn r13_an_interrupted_creation_is_removed_and_its_ordinal_taken_again_or_passed() {
    let header_only = {
        let bed = Bed::new();
        bed.append("one");
        let disk = bed.close();
        disk.bytes(&segments(&disk)[0]).expect("bytes")[..HEADER].to_vec()
    };
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("short", b"TIDEGATE".to_vec()),
        ("zeros", vec![0; 10_000]),
        ("half a header", header_only[..2000].to_vec()),
        ("header only", header_only.clone()),
        ("header and zeros", [header_only.clone(), vec![0; START_FRAME]].concat()),
    ] {
        let bed = Bed::new();
        bed.append_all(0..5);
        let disk = bed.close();
        let next = segments(&disk)[0].with_file_name(format!("{:020}.seg", 2));
        disk.put(&next, bytes);

        let bed = Bed::on(disk, options());

        assert_eq!(bed.segments().len(), 1, "{what}");
        assert_eq!(bed.append("next"), Seq::new(6), "{what}");
        assert_eq!(bed.reopen().seqs(), numbers(1..7), "{what}");
    }
}

#[test]
fn r13_an_empty_file_that_a_later_segment_names_was_no_interrupted_creation() {
    let (disk, paths, _) = hundred(Bed::close);
    let header = disk.bytes(&paths[0]).expect("bytes")[..HEADER].to_vec();
    let emptied = [
        ("cut to nothing", vec![]),
        ("header only", header.clone()),
        ("zeros", [header, vec![0; 9000]].concat()),
    ];
    for (what, bytes) in emptied {
        for segment in [0, 1] {
            let whole = Bed::on(disk.crash(Crash::Process), options()).seqs();
            let disk = disk.crash(Crash::Process);
            disk.put(&paths[segment], bytes.clone());

            let bed = Bed::on(disk, options());

            let read = bed.seqs();
            let lost = bed.queue.status().counters.lost;
            assert!(lost > 0 && read.len() < whole.len(), "{what}, segment {segment}: {lost} lost");
            assert_eq!(lost + read.len() as u64, whole.len() as u64, "{what}, segment {segment}");
            assert!(bed.segments().contains(&paths[segment]), "{what}, segment {segment}: kept as evidence");
            assert_eq!(bed.append("next"), Seq::new(101), "{what}, segment {segment}");
            let again = bed.reopen();
            assert_eq!(again.queue.status().counters.lost, lost, "{what}, segment {segment}: counted once");
        }
    }
}

#[test]
fn r13_an_empty_file_that_no_segment_names_is_removed_wherever_it_stands() {
    let (disk, paths, _) = hundred(Bed::close);
    // The ordinals begin above it: as if a creation had failed before the first that succeeded.
    let stray = paths[0].with_file_name(format!("{:020}.seg", 0));
    disk.put(&stray, Vec::new());

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), numbers(1..101));
    assert!(!bed.segments().contains(&stray));
    assert_eq!(bed.queue.status().counters.lost, 0);
}

#[test]
fn r14_unknown_files_are_ignored_and_listed() {
    let bed = Bed::new();
    bed.append_all(0..5);
    let disk = bed.close();
    let folder = segments(&disk)[0].parent().expect("a folder").to_owned();
    disk.put(&folder.join(".DS_Store"), b"text".to_vec());
    disk.put(&folder.join("1.seg"), b"text".to_vec());

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), numbers(1..6));
    assert_eq!(bed.queue.recovery().ignored.len(), 2);
}

#[test]
fn r14_a_symlinked_segment_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || {
        let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("it opens");
        dir.queue("q", QueueOptions::default()).expect("it opens")
    };
    append(&open(), "one", Durability::Synced);
    let queue_folder = std::fs::read_dir(folder.path())
        .expect("list")
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with("q-"))
        .expect("the queue's folder")
        .path();
    let link = queue_folder.join(format!("{:020}.seg", 7));
    std::os::unix::fs::symlink(queue_folder.join(format!("{:020}.seg", 1)), &link).expect("link");

    let queue = open();

    assert_eq!(queue.status().queued, 1);
    assert_eq!(queue.recovery().ignored.len(), 1);
    assert!(link.symlink_metadata().expect("it stays").is_symlink());
}

#[test]
fn r17_a_crash_at_every_step_of_recovery_is_one_more_crash_to_recover_from() {
    let bed = Bed::new();
    bed.append_all(0..46);
    bed.ack(1..30);
    for number in 46..50 {
        append(&bed.queue, &padded(number), Durability::Written);
    }
    let image = bed.disk.crash(Crash::Process);
    drop(bed);
    let last = segments(&image).len() - 1;
    edit(&image, last, |bytes| {
        let records = frames(bytes).iter().filter(|f| f.1 == 2).count();
        let hole = record_at(bytes, records - 3);
        bytes[hole..hole + 100].fill(0);
        bytes.extend_from_slice(&[7; 333]);
    });
    let expected = {
        let bed = Bed::on(image.crash(Crash::Process), options());
        bed.seqs()
    };

    for step in 0..60 {
        let disk = image.crash(Crash::Process);
        disk.power_off_after(step);
        if let Ok(dir) = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &dir_options()) {
            drop(dir.queue("q", options()));
        }
        for seed in 0..4 {
            let bed = Bed::on(disk.crash(Crash::Power { seed }), options());
            assert_eq!(bed.seqs(), expected, "power failed at step {step}, seed {seed}");
            let next = bed.append("after");
            let bed = bed.crash(Crash::PowerAllLost);
            assert_eq!(bed.seqs(), [expected.clone(), vec![next.get()]].concat());
        }
    }
}

#[test]
fn r5_a_seal_that_reached_the_disk_without_the_records_before_it_is_not_believed() {
    let bed = Bed::new();
    bed.append_all(0..40);
    let disk = bed.close();
    // The power failed in the rotation: seal and first group are there, what lay between is zeros, no segment follows.
    for segment in &segments(&disk)[1..] {
        disk.take(segment);
    }
    disk.lose_index();
    let mut lost = 0;
    edit(&disk, 0, |bytes| {
        let records = frames(bytes).iter().filter(|f| f.1 == 2).count();
        let (from, to) = (record_at(bytes, records - 2), bytes.len() - 72);
        // The watermarks state what was durable: all but the last group is; the last record alone was not.
        let last = record_at(bytes, records - 1);
        assert!(from < last && last < to);
        bytes[last..to].fill(0);
        lost = records as u64;
    });

    let bed = Bed::on(disk, options());

    assert_eq!(bed.queue.recovery().lost_unsynced, [Seq::new(lost)..Seq::new(lost + 1)]);
    assert_eq!(bed.seqs(), numbers(1..lost));
    assert_eq!(bed.queue.status().counters.lost, 0, "it was never acknowledged as durable");
    assert_eq!(bed.append("next"), Seq::new(lost + 1));
    assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), [numbers(1..lost), vec![lost + 1]].concat());
}

/// The pages that hold some bytes of the `index`-th record of a segment, and the records that they touch.
fn page_of_record(bytes: &[u8], index: usize) -> (std::ops::Range<u64>, Vec<u64>) {
    let at = record_at(bytes, index);
    let page = at / 4096 * 4096..at / 4096 * 4096 + 4096;
    let touched = frames(bytes)
        .into_iter()
        .filter(|(_, kind)| *kind == 2)
        .filter(|(at, _)| {
            let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four bytes")) as usize;
            *at < page.end && page.start < at + FRAME_HEADER + len
        })
        .map(|(at, _)| u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("eight bytes")))
        .collect();
    (page.start as u64..page.end as u64, touched)
}

#[test]
fn r16_records_on_a_page_that_the_disk_does_not_give_are_unavailable_until_reopen_and_nothing_else() {
    let large = || options().segment_bytes(64 << 10);
    let disk = {
        let bed = Bed::on(SimDisk::new(), large());
        bed.append_all(0..600);
        bed.close()
    };
    let path = segments(&disk)[1].clone();
    let (page, touched) = page_of_record(&disk.bytes(&path).expect("bytes"), 100);
    let files = segments(&disk).len();
    let bed = Bed::on(disk.clone(), large());
    disk.spoil(&path, page.start + 100..page.start + 200);

    let seqs = bed.seqs();

    let status = bed.queue.status();
    let expected: Vec<u64> = numbers(1..601).into_iter().filter(|seq| !touched.contains(seq)).collect();
    assert!(touched.len() > 15);
    assert_eq!(seqs, expected, "records wholly outside of the page are delivered");
    let range = Seq::new(touched[0])..Seq::new(touched[touched.len() - 1] + 1);
    assert_eq!(status.unavailable, std::slice::from_ref(&range));
    assert_eq!((status.counters.lost, status.queued), (0, 600));

    // What could not be read cannot be acknowledged, nor deleted with what was.
    bed.ack(1..601);
    assert_eq!(bed.seqs(), [] as [u64; 0]);
    assert_eq!(bed.queue.status().cursor, range.start);
    bed.queue.truncate().expect("the index takes it");
    assert_eq!(bed.segments().len(), files - 1, "only the segment before it is gone");
    assert_eq!(bed.append("goes on"), Seq::new(601));

    let disk = bed.close();
    disk.mend();
    let bed = Bed::on(disk, large());
    assert_eq!(bed.seqs(), [touched, vec![601]].concat());
    assert_eq!(bed.queue.status().unavailable, []);
}

#[test]
fn r16_a_page_that_the_disk_gives_at_the_third_try_costs_nothing() {
    let bed = Bed::new();
    bed.append_all(0..50);
    bed.disk.fail(SimOp::Read, 1, 2, ErrorKind::Other, 0);

    assert_eq!(bed.seqs(), numbers(1..51));
    assert_eq!(bed.queue.status().unavailable, []);
}

#[test]
fn r16_a_segment_that_cannot_be_opened_when_reading_is_unavailable_as_a_whole() {
    let bed = Bed::new();
    bed.append_all(0..100);
    let second = bed.segments()[1].clone();
    bed.disk.spoil(&second, 0..1);

    let seqs = bed.seqs();

    let status = bed.queue.status();
    assert_eq!(status.unavailable.len(), 1);
    let range = status.unavailable[0].clone();
    assert_eq!(seqs, [numbers(1..range.start.get()), numbers(range.end.get()..101)].concat());
    assert_eq!(status.counters.lost, 0);
    bed.disk.mend();
    assert_eq!(bed.seqs(), seqs, "until the queue is opened again");
    assert_eq!(bed.reopen().seqs(), numbers(1..101));
}

#[test]
fn r16_a_disk_that_gives_nothing_makes_everything_unavailable_and_loses_nothing() {
    let bed = Bed::new();
    bed.append_all(0..60);
    bed.disk.fail(SimOp::Read, 0, u64::MAX, ErrorKind::Other, 0);

    assert_eq!(bed.seqs(), [] as [u64; 0]);
    assert_eq!(bed.queue.status().unavailable, [Seq::new(1)..Seq::new(61)]);
    assert_eq!(bed.append("goes on"), Seq::new(61));

    let disk = bed.close();
    disk.mend();
    assert_eq!(Bed::on(disk, options()).seqs(), numbers(1..62));
}

/// A closed queue of a hundred records, its segments, and the first number in each.
fn hundred(end: fn(Bed) -> SimDisk) -> (SimDisk, Vec<std::path::PathBuf>, Vec<u64>) {
    let bed = Bed::new();
    bed.append_all(0..100);
    let disk = end(bed);
    let paths = segments(&disk);
    let first = |path: &std::path::PathBuf| {
        let bytes = disk.bytes(path).expect("bytes");
        u64::from_le_bytes(bytes[HEADER + 8..HEADER + 16].try_into().expect("eight bytes"))
    };
    let firsts = paths.iter().map(first).collect();
    (disk, paths, firsts)
}

#[test]
fn r16_a_segment_that_cannot_be_read_at_open_is_unavailable_and_nothing_that_hangs_on_it_is_deleted() {
    for (end, lose_index) in
        [(Bed::close as fn(Bed) -> SimDisk, false), (Bed::close, true), (Bed::kill, false), (Bed::kill, true)]
    {
        for sick in 0..hundred(end).1.len() {
            let what = format!("segment {sick}, index lost: {lose_index}");
            let (disk, paths, mut firsts) = hundred(end);
            firsts.push(101);
            let whole = disk.bytes(&paths[sick]);
            if lose_index {
                disk.lose_index();
            }
            disk.spoil(&paths[sick], 0..10);

            let bed = Bed::on(disk.clone(), options());

            let range = firsts[sick]..firsts[sick + 1];
            let last = sick + 1 == paths.len();
            let unavailable = bed.queue.recovery().unavailable.clone();
            assert_eq!(bed.queue.status().unavailable, unavailable, "{what}");
            assert_eq!(unavailable.len(), 1, "{what}");
            assert!(unavailable[0].start == Seq::new(range.start), "{what}: {unavailable:?}");
            assert!(last || unavailable[0].end == Seq::new(range.end), "{what}: {unavailable:?}");
            let others = [numbers(1..range.start), numbers(range.end..101)].concat();
            assert_eq!(bed.seqs(), others, "{what}");
            let next = bed.append(&padded(999)).get();
            assert!(next > 100, "{what}: {next} was given out twice");
            bed.ack(1..next + 1);
            bed.queue.truncate().expect("the index takes it");
            let kept = &paths[sick..];
            assert!(kept.iter().all(|path| bed.segments().contains(path)), "{what}");
            assert_eq!(bed.queue.status().counters.lost, 0, "{what}");
            assert_eq!(disk.bytes(&paths[sick]), whole, "{what}");

            // Once more sick, then well again, whatever becomes of the index.
            let disk = bed.close();
            let bed = Bed::on(disk, options());
            assert_eq!(bed.seqs(), [] as [u64; 0], "{what}");
            let disk = bed.close();
            disk.mend();
            let bed = Bed::on(disk, options());
            assert_eq!(bed.seqs(), numbers(range), "{what}");
            assert_eq!(bed.queue.status().counters.lost, 0, "{what}");
            assert!(bed.append("goes on").get() > next, "{what}");
        }
    }
}

#[test]
fn r16_pages_of_the_last_segment_that_cannot_be_read_at_open_keep_it_as_it_is() {
    for end in [Bed::close as fn(Bed) -> SimDisk, Bed::kill] {
        let disk = {
            let bed = Bed::on(SimDisk::new(), options().segment_bytes(64 << 10));
            bed.append_all(0..150);
            end(bed)
        };
        disk.lose_index();
        let path = segments(&disk)[0].clone();
        let whole = disk.bytes(&path).expect("bytes");
        for page in 2..=whole.len() / 4096 {
            let disk = disk.crash(Crash::Process);
            disk.spoil(&path, page as u64 * 4096 + 5..page as u64 * 4096 + 6);

            let bed = Bed::on(disk, options());
            let seqs = bed.seqs();
            let next = bed.append("goes on").get();

            assert!(next > 150, "page {page}: {next} was given out twice");
            assert_eq!(bed.queue.status().counters.lost, 0, "page {page}");
            assert!(!bed.queue.status().unavailable.is_empty(), "page {page}");
            assert_eq!(bed.disk.bytes(&path).as_ref(), Some(&whole), "page {page}");
            bed.ack(1..next + 1);
            let disk = bed.close();
            disk.mend();
            let bed = Bed::on(disk, options());
            let missing: Vec<u64> = numbers(1..151).into_iter().filter(|seq| !seqs.contains(seq)).collect();
            assert_eq!(bed.seqs(), missing, "page {page}");
            assert_eq!(bed.queue.status().counters.lost, 0, "page {page}");
        }
    }
}

#[test]
fn r16_a_system_that_refuses_to_open_a_segment_is_an_error_with_path_and_operation() {
    let (disk, paths, _) = hundred(Bed::close);
    disk.fail(SimOp::Open, 1, u64::MAX, ErrorKind::PermissionDenied, 0);

    let dir = QueueDir::open_on(Arc::new(disk), dir_path(), &dir_options()).expect("it opens");
    let error = dir.queue("q", options()).expect_err("the system refuses");

    let OpenError::Io(failure) = error else { panic!("{error}") };
    assert_eq!((failure.operation, failure.path), ("open", paths[1].clone()));
}

/// A file of the queue with a header of its own and these bytes behind it.
fn another(header_of: &[u8], ordinal: u64, salt: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = header_of[..HEADER].to_vec();
    change_header(&mut bytes, |header| {
        header[48..56].copy_from_slice(&ordinal.to_le_bytes());
        header[56..64].copy_from_slice(&salt.to_le_bytes());
    });
    bytes.extend_from_slice(rest);
    bytes
}

#[test]
fn r13_spares_are_removed_whatever_is_in_them_and_reported_nowhere() {
    let (disk, paths, _) = hundred(Bed::close);
    let first = disk.bytes(&paths[0]).expect("bytes");
    let stale = [vec![0; START_FRAME], first[HEADER..].to_vec()].concat();
    let name = |name: String| paths[0].with_file_name(name);
    disk.put(&name(format!("{:020}.seg", 90)), another(&first, 90, 5, &stale));
    disk.put(&name(format!("{:020}.seg", 91)), another(&first, 91, 6, &vec![0; 100_000]));
    disk.put(&name(format!("{:020}.seg", 92)), another(&first, 92, 7, &[]));
    disk.put(&name(format!("{:020}.spare", 93)), first.clone());
    disk.put(&name(format!("{:020}.spare", 94)), b"anything".to_vec());

    let bed = Bed::on(disk.clone(), options());

    assert_eq!(bed.queue.recovery(), &RecoveryReport::default());
    assert_eq!(disk.files(dir_path()).len(), paths.len());
    assert_eq!(bed.seqs(), numbers(1..101));
    assert_eq!(bed.append("next"), Seq::new(101));
}

#[test]
fn r7_what_an_earlier_life_left_in_a_recycled_file_is_no_torn_tail_and_a_torn_frame_in_it_is() {
    let stale = {
        let (disk, paths, _) = hundred(Bed::close);
        disk.bytes(&paths[1]).expect("bytes")[HEADER..].to_vec()
    };
    let torn_frame = |salt| {
        let mut frame = frame_by_hand(salt, 2, 0, 4, &[9; 100]);
        frame[60] ^= 1;
        frame
    };
    for (torn, recycled) in [(false, true), (true, true), (false, false)] {
        let bed = Bed::new();
        bed.append_all(0..3);
        let disk = bed.kill();
        let mut own = 0;
        edit(&disk, 0, |bytes| {
            let salt = salt_of(bytes);
            change_header(bytes, |header| header[76] = u8::from(recycled));
            if torn {
                bytes.extend(torn_frame(salt));
                own = torn_frame(salt).len() as u64;
            }
            bytes.extend_from_slice(&stale);
            bytes.extend_from_slice(&[0; 5000]);
        });

        let bed = Bed::on(disk, options());

        let expected = if recycled { own } else { stale.len() as u64 };
        assert_eq!(bed.queue.recovery().torn_bytes, expected, "torn {torn}, recycled {recycled}");
        let copies: Vec<_> = bed
            .disk
            .files(dir_path())
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "bin"))
            .collect();
        assert_eq!(copies.len(), usize::from(expected > 0));
        if let Some(copy) = copies.first() {
            assert_eq!(bed.disk.bytes(copy).expect("bytes").len() as u64, expected);
        }
        assert_eq!(bed.seqs(), numbers(1..4));
        assert_eq!(bed.append("short"), Seq::new(4));
        assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), numbers(1..5));
    }
}

#[test]
fn r7_copies_in_quarantine_are_bounded_and_the_oldest_go() {
    let bed = Bed::new();
    bed.append("one");
    let mut disk = bed.kill();
    let copies = |disk: &SimDisk| -> Vec<_> {
        disk.files(dir_path())
            .into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "bin"))
            .collect()
    };
    let mut made = std::collections::BTreeSet::new();
    for round in 0..80u64 {
        let last = segments(&disk).len() - 1;
        edit(&disk, last, |bytes| bytes.extend_from_slice(&[0xAB; 64]));
        let bed = Bed::on(disk, options());
        assert_eq!(bed.queue.recovery().torn_bytes, 64, "round {round}");
        made.extend(copies(&bed.disk));
        bed.append(&padded(round));
        disk = bed.kill();
    }

    let kept = copies(&disk);
    assert_eq!((made.len(), kept.len()), (80, 64));
    assert_eq!(kept, made.into_iter().skip(16).collect::<Vec<_>>(), "the newest are kept");
}

#[test]
fn r10_an_ordinal_that_is_missing_an_unsealed_segment_before_it_and_a_gap_lose_what_they_held_and_no_more() {
    for end in [Bed::close as fn(Bed) -> SimDisk, Bed::kill] {
        for gone in 1..4 {
            let (disk, paths, firsts) = hundred(end);
            // The one before loses its seal, and with it its word on where it ends.
            edit(&disk, gone - 1, |bytes| bytes.truncate(bytes.len() - 72));
            disk.take(&paths[gone]);

            let bed = Bed::on(disk, options());

            assert_eq!(
                bed.seqs(),
                [numbers(1..firsts[gone]), numbers(firsts[gone + 1]..101)].concat(),
                "segment {gone}"
            );
            assert_eq!(bed.queue.status().losses, [Seq::new(firsts[gone])..Seq::new(firsts[gone + 1])]);
            assert_eq!(bed.append("next"), Seq::new(101));
        }
    }
}

#[test]
fn r10_an_unsealed_middle_segment_is_read_to_where_the_next_begins() {
    let (disk, _, _) = hundred(Bed::close);
    for segment in 0..segments(&disk).len() - 1 {
        edit(&disk, segment, |bytes| bytes.truncate(bytes.len() - 72));
    }

    let bed = Bed::on(disk, options());

    assert_eq!(bed.queue.recovery(), &RecoveryReport::default());
    assert_eq!(bed.seqs(), numbers(1..101));
    assert_eq!(bed.queue.status().counters.lost, 0);
}

#[test]
fn r11_a_copied_segment_is_ignored_and_reported_and_every_record_comes_once() {
    for end in [Bed::close as fn(Bed) -> SimDisk, Bed::kill] {
        for (copied, to, patched) in (0..hundred(end).1.len()).flat_map(|copied| {
            [(copied, 0, true), (copied, 50, true), (copied, 0, false), (copied, 50, false)]
        }) {
            let what = format!("segment {copied} copied to {to}, header patched: {patched}");
            let (disk, paths, _) = hundred(end);
            let mut copy = disk.bytes(&paths[copied]).expect("bytes");
            if patched {
                change_header(&mut copy, |header| header[48..56].copy_from_slice(&u64::to_le_bytes(to)));
            }
            let path = paths[0].with_file_name(format!("{to:020}.seg"));
            disk.put(&path, copy.clone());

            let bed = Bed::on(disk.clone(), options());

            assert_eq!(bed.seqs(), numbers(1..101), "{what}: {:?}", bed.queue.recovery());
            assert_eq!(bed.queue.status().counters.lost, 0, "{what}");
            assert_eq!(bed.queue.recovery().ignored.len(), 1, "{what}");
            assert_eq!(disk.bytes(&path), Some(copy), "{what}: it is not touched");
            assert_eq!(bed.append("next"), Seq::new(101), "{what}");
            assert_eq!(bed.reopen().seqs(), numbers(1..102), "{what}");
        }
    }
}

#[test]
fn r11_where_two_segments_overlap_each_number_comes_once_from_the_first_that_has_it() {
    let (disk, paths, firsts) = hundred(Bed::kill);
    let header = disk.bytes(&paths[0]).expect("bytes");
    let base = firsts[firsts.len() - 1] + 1;
    let ordinal = 60u64;
    let salt = 4321;
    let seg_start = [55, base, 0].map(u64::to_le_bytes).concat();
    let mut rest = frame_by_hand(salt, 1, 0, base, &seg_start);
    for seq in base..106 {
        rest.extend(frame_by_hand(salt, 2, 0, seq, &payload_by_hand("second")));
    }
    disk.put(&paths[0].with_file_name(format!("{ordinal:020}.seg")), another(&header, ordinal, salt, &rest));

    let bed = Bed::on(disk, options());

    assert!(base <= 100);
    assert_eq!(bed.queue.recovery().ignored.len(), 1, "the overlap is reported");
    let read = bed.read();
    assert_eq!(read.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), numbers(1..106));
    assert!(read.iter().all(|(seq, value)| (value == "second") == (*seq > 100)), "{:?}", &read[94..]);
    assert_eq!(bed.append("next"), Seq::new(106));
}

#[test]
fn r11_a_renamed_last_segment_keeps_its_numbers_used() {
    let (disk, paths, firsts) = hundred(Bed::kill);
    let last = &paths[paths.len() - 1];
    let bytes = disk.bytes(last).expect("bytes");
    disk.take(last);
    disk.put(&last.with_file_name(format!("{:020}.seg", 70)), bytes);

    let bed = Bed::on(disk, options());

    assert_eq!(bed.seqs(), numbers(1..firsts[firsts.len() - 1]));
    assert_eq!(bed.queue.recovery().ignored.len(), 1);
    assert!(bed.append("next") > Seq::new(100), "no number is given out twice");
}

#[test]
fn r15_a_payload_that_is_no_record_stays_until_it_is_acknowledged_and_its_neighbours_are_fine() {
    let bed = Bed::new();
    bed.append_all(0..3);
    let disk = bed.kill();
    edit(&disk, 0, |bytes| {
        let salt = salt_of(bytes);
        bytes.extend(frame_by_hand(salt, 2, 0, 4, &[0xFF; 40]));
        bytes.extend(frame_by_hand(salt, 2, 0, 5, &payload_by_hand("fine")));
    });
    let mut bed = Bed::on(disk, options());

    for _ in 0..2 {
        let mut reader = bed.queue.reader();
        let mut records = Vec::new();
        while let Some(entry) = reader.next().expect("the disk answers") {
            records.push((entry.seq.get(), entry.record().is_ok()));
        }
        assert_eq!(records, [(1, true), (2, true), (3, true), (4, false), (5, true)]);
        bed = bed.reopen();
    }
    assert_eq!(bed.queue.status().counters.lost, 0);
    bed.ack(4..5);
    assert_eq!(bed.reopen().seqs(), [1, 2, 3, 5]);
}

#[test]
fn r3_without_an_index_the_majority_of_segments_says_which_queue_it_is() {
    let foreign = {
        let (disk, paths, _) = hundred(Bed::close);
        disk.bytes(&paths[0]).expect("bytes")
    };
    for at in [0usize, 1, 60] {
        let (disk, paths, _) = hundred(Bed::close);
        disk.lose_index();
        let mut foreign = foreign.clone();
        change_header(&mut foreign, |header| header[48..56].copy_from_slice(&(at as u64).to_le_bytes()));
        // In front of the others, in the place of the first, and behind them.
        let lost = if at == 1 { segment_end(&disk, &paths) } else { 1 };
        disk.put(&paths[0].with_file_name(format!("{at:020}.seg")), foreign.clone());

        let bed = Bed::on(disk.clone(), options());

        assert_eq!(bed.queue.recovery().ignored.len(), 1, "foreign file {at}");
        assert_eq!(bed.seqs(), numbers(lost..101), "foreign file {at}");
        assert_eq!(bed.append("next"), Seq::new(101));
    }
}

/// The first number of the second segment.
fn segment_end(disk: &SimDisk, paths: &[std::path::PathBuf]) -> u64 {
    let bytes = disk.bytes(&paths[1]).expect("bytes");
    u64::from_le_bytes(bytes[HEADER + 8..HEADER + 16].try_into().expect("eight bytes"))
}

#[test]
fn r7b_a_start_frame_that_a_crash_tore_with_the_first_group_is_written_again() {
    for garbage in [0u8, 0xEE] {
        for first_survives in [true, false] {
            let (disk, paths, firsts) = hundred(Bed::kill);
            disk.lose_index();
            // The segment before the last, sealed, is followed by one whose only group was torn.
            let begin = firsts[firsts.len() - 1];
            let record = |seq| frame_by_hand(9, 2, 0, seq, &payload_by_hand("torn"));
            let mut rest = vec![garbage; START_FRAME];
            rest.extend(if first_survives { record(begin) } else { vec![garbage; record(begin).len()] });
            rest.extend(record(begin + 1));
            let last = &paths[paths.len() - 1];
            let header = disk.bytes(last).expect("bytes");
            disk.put(last, another(&header, paths.len() as u64, 9, &rest));

            let bed = Bed::on(disk, options());
            let lost = if first_survives { vec![] } else { vec![Seq::new(begin)..Seq::new(begin + 1)] };
            assert_eq!(bed.queue.recovery().lost_unsynced, lost);
            let there = if first_survives { begin } else { begin + 1 };
            assert_eq!(bed.seqs(), [numbers(1..begin), numbers(there..begin + 2)].concat());
            assert_eq!(bed.append("next"), Seq::new(begin + 2));

            let bed = bed.crash(Crash::PowerAllLost);
            assert_eq!(bed.queue.recovery().lost_unsynced, [], "it is reported once");
            assert_eq!(bed.seqs(), [numbers(1..begin), numbers(there..begin + 3)].concat());
            assert_eq!(bed.queue.status().counters.lost, 0);
        }
    }
}

#[test]
fn r2_unknown_features_are_refused_and_compatible_ones_are_not() {
    for (at, refused) in [(16, false), (20, true), (24, true)] {
        let (disk, paths, firsts) = hundred(Bed::close);
        edit(&disk, 1, |bytes| change_header(bytes, |header| header[at] = 4));
        let file = disk.bytes(&paths[1]);

        let bed = Bed::on(disk.clone(), options());

        let expected =
            if refused { [numbers(1..firsts[1]), numbers(firsts[2]..101)].concat() } else { numbers(1..101) };
        assert_eq!(bed.seqs(), expected, "feature bits at {at}");
        assert_eq!(bed.queue.recovery().ignored.len(), usize::from(refused));
        assert_eq!(disk.bytes(&paths[1]), file);
    }
}
