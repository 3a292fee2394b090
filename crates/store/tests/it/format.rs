//! `docs/format.md`, read by hand: what stands on the disk is what the page says, byte for byte.

use crate::setup::{Bed, append, dir_path, options, segments};
use tidegate_store::sim::{Crash, SimDisk};
use tidegate_store::{Durability, Header, Record, Ticket};

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// CRC-32 of IEEE 802.3, bit by bit: shares nothing with the code under test.
fn crc(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    !bytes.fold(!0u32, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 },
        )
    })
}

struct Frame {
    kind: u8,
    seq: u64,
    payload: Vec<u8>,
    header_crc: u32,
}

/// Checks a frame as the page describes it; returns it and where the next one starts.
fn frame(bytes: &[u8], at: usize, salt: u64) -> (Frame, usize) {
    let len = u32_at(bytes, at + 4) as usize;
    let (seq, kind) = (u64_at(bytes, at + 8), bytes[at + 20]);
    let end = at + 24 + len;
    let next = end.next_multiple_of(8);
    assert_eq!(at % 8, 0);
    assert_eq!(
        u32_at(bytes, at),
        crc(&[&salt.to_le_bytes(), &bytes[at + 4..at + 24]]),
        "header checksum at {at}"
    );
    let mask = salt ^ seq.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (low, high) =
        (u32::try_from(mask & 0xFFFF_FFFF).expect("32 bits"), u32::try_from(mask >> 32).expect("32 bits"));
    assert_eq!(u32_at(bytes, at + 16), crc(&[&bytes[at + 24..end]]) ^ low ^ high, "payload checksum at {at}");
    assert_eq!(bytes[at + 21..at + 24], [0; 3], "flags and reserved");
    assert!(bytes[end..next].iter().all(|byte| *byte == 0), "padding");
    (Frame { kind, seq, payload: bytes[at + 24..end].to_vec(), header_crc: u32_at(bytes, at) }, next)
}

#[test]
fn format_v1_is_as_documented() {
    let bed = Bed::new();
    let record = Record {
        topic: Some("t"),
        key: Some(b"k"),
        headers: vec![Header { name: "h", value: b"v" }],
        timestamp_ms: -2,
        value: b"abc",
    };
    bed.queue.append(&record, Durability::Synced).and_then(Ticket::wait).expect("durable");
    bed.ack(1..2);
    let disk = bed.close();
    let path = segments(&disk)[0].clone();
    let bytes = disk.bytes(&path).expect("bytes");

    assert_eq!(path.file_name().expect("a name"), "00000000000000000001.seg");
    let folder = path.parent().and_then(|p| p.file_name()).expect("a folder").to_string_lossy().into_owned();
    assert_eq!(folder, "q-af63ec4c860207bc", "q and the FNV-1a 64 of q");
    assert_eq!(&bytes[..8], b"TIDEGATE");
    assert_eq!(u32_at(&bytes, 8), crc(&[&bytes[12..4096]]));
    assert_eq!(bytes[12..28], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "version 1, no features");
    assert_eq!((u32_at(&bytes, 28), u64_at(&bytes, 48)), (4096, 1), "header length, ordinal");
    assert_eq!((u64_at(&bytes, 64), u32_at(&bytes, 72)), (8192, 1), "segment size, name length");
    assert!(bytes[80] == b'q' && bytes[81..4096].iter().all(|byte| *byte == 0));

    let salt = u64_at(&bytes, 56);
    let (start, at) = frame(&bytes, 4096, salt);
    assert_eq!((start.kind, start.seq, start.payload), (1, 1, vec![0; 24]), "nothing came before");
    let (first, at) = frame(&bytes, at, salt);
    assert_eq!(
        (first.kind, u64_at(&first.payload, 0), u64_at(&first.payload, 8)),
        (4, 1, 1),
        "watermark 1, cursor 1"
    );
    let (data, at) = frame(&bytes, at, salt);
    assert_eq!((data.kind, data.seq), (2, 1));
    assert_eq!(data.payload, b"\x01\x01t\x01\x01k\x01\x01h\x01v\x03\x03abc");
    let (last, at) = frame(&bytes, at, salt);
    assert_eq!((last.kind, last.seq), (4, 2));
    assert_eq!((u64_at(&last.payload, 0), u64_at(&last.payload, 8)), (2, 2), "all durable, all acknowledged");
    assert_eq!(at, bytes.len());
}

#[test]
fn a_sealed_segment_ends_with_its_seal_and_the_next_one_says_what_it_held() {
    let bed = Bed::new();
    bed.append_all(0..40);
    let disk = bed.close();
    let first = disk.bytes(&segments(&disk)[0]).expect("bytes");
    let second = disk.bytes(&segments(&disk)[1]).expect("bytes");

    let (mut at, mut chain, mut records, mut frames) = (4096, Vec::new(), 0, Vec::new());
    while at < first.len() {
        let (frame, next) = frame(&first, at, u64_at(&first, 56));
        records += u64::from(frame.kind == 2);
        if frame.kind != 5 {
            chain.extend_from_slice(&frame.header_crc.to_le_bytes());
        }
        frames.push((at, frame));
        at = next;
    }
    let (position, seal) = frames.pop().expect("there are frames");
    assert_eq!((seal.kind, seal.seq, first.len() - position), (5, records + 1, 72));
    assert_eq!((u64_at(&seal.payload, 0), u64_at(&seal.payload, 8)), (records, 1));
    assert_eq!((u64_at(&seal.payload, 16), u32_at(&seal.payload, 40)), (position as u64, crc(&[&chain])));

    let (start, _) = frame(&second, 4096, u64_at(&second, 56));
    assert_eq!((start.kind, start.seq), (1, records + 1));
    assert_eq!((u64_at(&start.payload, 0), u64_at(&start.payload, 8)), (1, records + 1));
    let sealed_chain = crc(&[&[chain, seal.header_crc.to_le_bytes().to_vec()].concat()]);
    assert_eq!(u32_at(&start.payload, 16), sealed_chain, "the chain of the whole segment, its seal included");
}

#[test]
fn the_chain_is_the_same_whether_the_next_segment_follows_at_once_or_after_a_restart() {
    let bed = Bed::new();
    bed.append_all(0..14);
    let disk = bed.close();
    // The first segment is sealed by hand-over: what remains is a sealed last segment.
    let bed = Bed::on(disk, options());
    bed.append_all(14..20);
    let disk = bed.close();
    assert_eq!(segments(&disk).len(), 2);
    let stated = |disk: &SimDisk| u32_at(&disk.bytes(&segments(disk)[1]).expect("bytes"), 4096 + 24 + 16);
    let at_once = stated(&disk);
    let second = segments(&disk)[1].clone();
    disk.take(&second);
    disk.lose_index();

    let bed = Bed::on(disk, options());
    bed.append("after the restart");

    assert_eq!(stated(&bed.disk), at_once);
}

#[test]
fn a_frame_from_another_place_never_validates() {
    let bed = Bed::new();
    bed.append_all(0..3);
    append(&bed.queue, "unsynced", Durability::Written);
    let image = bed.disk.crash(Crash::Process);
    drop(bed);
    let path = segments(&image)[0].clone();
    let bytes = image.bytes(&path).expect("bytes");
    let other: SimDisk = {
        let other = Bed::new();
        other.append_all(0..9);
        other.close()
    };
    let foreign = other.bytes(&segments(&other)[0]).expect("bytes");
    // The whole data of another queue's segment behind our own, on the grid: as a recycled file would have it.
    image.put(&path, [&bytes[..], &foreign[4096..]].concat());

    let bed = Bed::on(image, options());

    assert_eq!(bed.seqs(), [1, 2, 3, 4]);
    assert_eq!(bed.queue.recovery().torn_bytes, (foreign.len() - 4096) as u64);
}

#[test]
fn a_payload_whose_stored_checksum_is_zero_is_as_good_as_any() {
    // The mask of sequence number 1 is known once the salt is: a payload is searched that makes the stored sum 0.
    let bed = Bed::new();
    let disk = bed.close();
    assert!(segments(&disk).is_empty(), "a queue without records has no segment");
    let bed = Bed::on(disk, options());
    append(&bed.queue, "first", Durability::Synced);
    let bytes = bed.disk.bytes(&bed.segments()[0]).expect("bytes");
    let salt = u64_at(&bytes, 56);
    let mask = salt ^ 2u64.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let wanted = u32::try_from((mask ^ mask >> 32) & 0xFFFF_FFFF).expect("32 bits");
    let value = value_with_crc(wanted);

    bed.queue
        .append(&Record { value: &value, ..Record::default() }, Durability::Synced)
        .and_then(Ticket::wait)
        .expect("durable");

    let bytes = bed.disk.bytes(&bed.segments()[0]).expect("bytes");
    let mut at = 4096;
    let mut sums = Vec::new();
    while at < bytes.len() {
        let (frame, next) = frame(&bytes, at, salt);
        if frame.kind == 2 {
            sums.push(u32_at(&bytes, at + 16));
        }
        at = next;
    }
    assert_eq!(sums[1], 0, "the stored checksum is 0");
    let bed = bed.crash(Crash::PowerAllLost);
    assert_eq!(bed.seqs(), [1, 2]);
}

/// A value whose record's payload has this checksum: its last four bytes are solved for, a bit at a time.
fn value_with_crc(wanted: u32) -> Vec<u8> {
    let payload = |tail: u32| [&[0, 0, 0, 0, 8, b'v', b'a', b'l', b'u'][..], &tail.to_le_bytes()].concat();
    let base = crc(&[&payload(0)]);
    // CRC is linear: each bit of the tail flips a fixed set of bits of the sum.
    let mut rows: Vec<(u32, u32)> =
        (0..32).map(|bit| (crc(&[&payload(1 << bit)]) ^ base, 1u32 << bit)).collect();
    let (mut target, mut tail) = (wanted ^ base, 0);
    for bit in (0..32).rev() {
        let Some(pivot) = rows.iter().position(|(row, _)| row >> bit & 1 == 1) else { continue };
        let (row, bits) = rows.swap_remove(pivot);
        for other in &mut rows {
            if other.0 >> bit & 1 == 1 {
                *other = (other.0 ^ row, other.1 ^ bits);
            }
        }
        if target >> bit & 1 == 1 {
            (target, tail) = (target ^ row, tail ^ bits);
        }
    }
    assert_eq!(target, 0);
    let value = [b"valu".as_slice(), &tail.to_le_bytes()].concat();
    assert_eq!(crc(&[&payload(tail)]), wanted);
    value
}

/// Every released version has a fixture that must open for ever.
#[test]
fn the_fixture_of_version_1_opens_and_goes_on() {
    let disk = SimDisk::new();
    let bed = Bed::on(disk.clone(), options());
    let folder = dir_path().join("q-af63ec4c860207bc");
    drop(bed);
    disk.put(&folder.join("00000000000000000001.seg"), include_bytes!("../fixtures/v1.seg").to_vec());

    let bed = Bed::on(disk, options());

    let values = bed.read();
    let expected = [(1, "one"), (2, "two"), (3, ""), (4, "four")];
    assert_eq!(values, expected.map(|(seq, value)| (seq, value.to_owned())));
    assert_eq!(bed.append("five").get(), 5);
    assert_eq!(bed.crash(Crash::PowerAllLost).seqs(), [1, 2, 3, 4, 5]);
}
