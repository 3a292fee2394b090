//! Crash, then crash again at every single step of recovery: whatever state the files were in, the next recovery finds
//! what the first would have found, goes on, and what is appended then survives too.

use std::path::Path;
use std::sync::Arc;

use tidegate_store::QueueDir;
use tidegate_store::sim::{Crash, SimDisk};

use crate::setup::{
    Bed, change_header, dir_options, dir_path, edit, frame_by_hand, options, padded, payload_by_hand,
    salt_of, segments,
};

/// More steps than any recovery here takes: beyond them the power never fails, and the test would prove nothing.
const STEPS_MAX: u64 = 400;

/// A hundred records, some acknowledged, and the process killed; everything that was written is durable.
fn killed() -> SimDisk {
    let bed = Bed::new();
    bed.append_all(0..46);
    bed.ack(3..9);
    bed.queue.truncate().expect("the index takes it");
    bed.append_all(46..50);
    bed.ack(1..20);
    made_durable(&bed.kill())
}

fn closed() -> SimDisk {
    let bed = Bed::new();
    bed.append_all(0..50);
    bed.ack(1..20);
    made_durable(&bed.close())
}

/// Everything that stands in the page cache is on the disk as well.
fn made_durable(disk: &SimDisk) -> SimDisk {
    for path in disk.files(dir_path()) {
        disk.put(&path, disk.bytes(&path).expect("it is there"));
    }
    disk.crash(Crash::Process)
}

/// Frames behind the last of the last segment, stamped for it, from number 51 on.
fn then(disk: SimDisk, frames: impl FnOnce(u64) -> Vec<u8>) -> SimDisk {
    let last = segments(&disk).len() - 1;
    edit(&disk, last, |bytes| {
        let frames = frames(salt_of(bytes));
        bytes.extend_from_slice(&frames);
    });
    disk
}

fn record(salt: u64, kind: u8, flags: u8, seq: u64) -> Vec<u8> {
    frame_by_hand(salt, kind, flags, seq, &payload_by_hand(&padded(seq - 1)))
}

fn beside(disk: &SimDisk, name: &str, bytes: Vec<u8>) {
    disk.put(&segments(disk)[0].with_file_name(name), bytes);
}

/// A file with a whole header that says it is segment 90 and was recycled.
fn spare(disk: &SimDisk, rest: &[u8]) -> Vec<u8> {
    let mut bytes = disk.bytes(&segments(disk)[0]).expect("it is there")[..4096].to_vec();
    change_header(&mut bytes, |header| {
        header[48..56].copy_from_slice(&90u64.to_le_bytes());
        header[56..64].copy_from_slice(&5u64.to_le_bytes());
        header[76] = 1;
    });
    bytes.extend_from_slice(rest);
    bytes
}

fn images() -> Vec<(&'static str, SimDisk)> {
    let mut images = vec![
        ("killed", killed()),
        ("closed", closed()),
        ("torn tail", then(killed(), |salt| record(salt, 2, 0, 51)[..99].to_vec())),
        ("torn tail of garbage and zeros", then(killed(), |_| [vec![7; 777], vec![0; 5000]].concat())),
        ("zeros at the tail", then(killed(), |_| vec![0; 9000])),
        (
            "zero hole",
            then(killed(), |salt| [record(salt, 2, 0, 51), vec![0; 230], record(salt, 2, 0, 53)].concat()),
        ),
        (
            "two holes and a torn tail",
            then(killed(), |salt| {
                let hole = |byte| vec![byte; 232];
                let whole = |seq| record(salt, 2, 0, seq);
                [hole(0), whole(52), hole(9), whole(54), hole(1)].concat()
            }),
        ),
        (
            "broken batch, then a record",
            then(killed(), |salt| {
                let of = |flags, seq| record(salt, 3, flags, seq);
                [of(3, 51), of(2, 52), vec![0; 232], record(salt, 2, 0, 54)].concat()
            }),
        ),
        (
            "broken batch at the tail",
            then(killed(), |salt| [record(salt, 3, 3, 51), record(salt, 3, 2, 52)].concat()),
        ),
        ("whole batch", then(killed(), |salt| [record(salt, 3, 3, 51), record(salt, 3, 0, 52)].concat())),
    ];
    let mut image = |name, disk: SimDisk, change: &dyn Fn(&SimDisk)| {
        change(&disk);
        images.push((name, disk.crash(Crash::Process)));
    };
    image("index lost", killed(), &SimDisk::lose_index);
    image("index broken", killed(), &SimDisk::break_index);
    image("index broken, torn tail", then(closed(), |_| vec![7; 500]), &SimDisk::break_index);
    image("interrupted creation", killed(), &|disk| {
        beside(disk, "00000000000000000090.seg", spare(disk, &[])[..2000].to_vec());
        beside(disk, "00000000000000000091.seg", Vec::new());
        beside(disk, "00000000000000000092.seg", vec![0; 9000]);
    });
    image("spares", killed(), &|disk| {
        let stale = disk.bytes(&segments(disk)[0]).expect("it is there")[4096..].to_vec();
        beside(disk, "00000000000000000090.seg", spare(disk, &[vec![0; 48], stale].concat()));
        beside(disk, "00000000000000000089.spare", vec![1; 100]);
    });
    image("quarantine full", then(killed(), |_| vec![7; 777]), &|disk| {
        for number in 0..64 {
            beside(disk, &format!("quarantine/{number:020}-1.bin"), vec![number; 10]);
        }
    });
    image("middle segment unsealed", closed(), &|disk| {
        edit(disk, 1, |bytes| bytes.truncate(bytes.len() - 72));
    });
    image("rot in a middle segment and at the tail", closed(), &|disk| {
        edit(disk, 1, |bytes| bytes[5000..5300].fill(0xEE));
        edit(disk, segments(disk).len() - 1, |bytes| {
            let from = bytes.len() - 300;
            bytes[from..].fill(0xEE);
        });
    });
    images
}

/// What one recovery, undisturbed, makes of it: what is read, what is lost.
fn outcome(bed: &Bed) -> (Vec<(u64, String)>, u64) {
    let read = bed.read();
    (read, bed.queue.status().counters.lost)
}

#[test]
fn a_crash_at_every_step_of_every_recovery_is_one_more_to_recover_from() {
    for (name, image) in images() {
        let expected = outcome(&Bed::on(image.crash(Crash::Process), options()));
        assert!(expected.0.len() > 20, "{name}");
        let mut step = 0;
        loop {
            let disk = image.crash(Crash::Process);
            disk.power_off_after(step);
            open_as_far_as_it_goes(&disk);
            let complete = disk.steps() <= step;
            for crash in [
                Crash::Process,
                Crash::PowerAllLost,
                Crash::Power { seed: step },
                Crash::Power { seed: 1000 + step },
                Crash::Power { seed: 2000 + step },
            ] {
                let what = format!("{name}: power failed at step {step}, then {crash:?}");
                recovers_and_goes_on(disk.crash(crash), &expected, &what);
            }
            if complete {
                break;
            }
            step += 1;
            assert!(step < STEPS_MAX, "{name}: recovery does not end");
        }
        assert!(step > 2, "{name}: only {step} steps");
    }
}

fn open_as_far_as_it_goes(disk: &SimDisk) {
    if let Ok(dir) = QueueDir::open_on(Arc::new(disk.clone()), Path::new(dir_path()), &dir_options()) {
        drop(dir.queue("q", options()));
    }
}

/// Everything is there and nothing more; what is appended survives the next power failure, and so does the rest.
fn recovers_and_goes_on(disk: SimDisk, expected: &(Vec<(u64, String)>, u64), what: &str) {
    let bed = Bed::on(disk, options());
    assert_eq!(outcome(&bed), *expected, "{what}");
    let next = bed.append("after").get();
    assert!(expected.0.iter().all(|(seq, _)| *seq < next), "{what}: {next} was given out twice");

    let bed = bed.crash(Crash::PowerAllLost);
    let all = [&expected.0[..], &[(next, "after".to_owned())]].concat();
    assert_eq!(bed.read(), all, "{what}, and again after an append");
}
