//! The one helper module: a queue on the simulated disk, and what a consumer would see of it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tidegate_store::sim::{Crash, SimDisk};
use tidegate_store::{
    AppendError, Durability, Queue, QueueDir, QueueDirOptions, QueueOptions, Record, Seq, Ticket,
};

/// Small enough that every test rolls over several segments.
pub(crate) const SEGMENT_BYTES: u64 = 8 << 10;

pub(crate) struct Bed {
    pub(crate) disk: SimDisk,
    /// Dropped before the directory: fields drop in order.
    pub(crate) queue: Queue,
    pub(crate) dir: QueueDir,
}

pub(crate) fn options() -> QueueOptions {
    QueueOptions::default().segment_bytes(SEGMENT_BYTES)
}

pub(crate) fn dir_path() -> &'static Path {
    Path::new("/q")
}

/// Acknowledgements are persisted when a test says so (by closing), not by time.
pub(crate) fn dir_options() -> QueueDirOptions {
    let mut options = QueueDirOptions::default();
    options.index_flush_interval = Duration::from_secs(3600);
    options
}

impl Bed {
    pub(crate) fn new() -> Bed {
        Bed::on(SimDisk::new(), options())
    }

    pub(crate) fn on(disk: SimDisk, options: QueueOptions) -> Bed {
        let dir =
            QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &dir_options()).expect("the folder opens");
        let queue = dir.queue("q", options).expect("the queue opens");
        Bed { disk, queue, dir }
    }

    /// Crashes and opens what is left.
    pub(crate) fn crash(self, crash: Crash) -> Bed {
        let disk = self.disk.crash(crash);
        drop(self);
        Bed::on(disk, options())
    }

    /// Closes in order and opens again.
    pub(crate) fn reopen(self) -> Bed {
        let Bed { disk, queue, dir } = self;
        queue.close();
        drop((queue, dir));
        Bed::on(disk, options())
    }

    /// Closes in order; what is on the disk may then be damaged by hand.
    pub(crate) fn close(self) -> SimDisk {
        let Bed { disk, queue, dir } = self;
        queue.close();
        drop((queue, dir));
        disk
    }

    /// The process dies; what is on the disk may then be damaged by hand.
    pub(crate) fn kill(self) -> SimDisk {
        let disk = self.disk.crash(Crash::Process);
        drop(self);
        disk
    }

    pub(crate) fn append(&self, value: &str) -> Seq {
        append(&self.queue, value, Durability::Synced)
    }

    pub(crate) fn append_all(&self, values: std::ops::Range<u64>) {
        for value in values {
            self.append(&padded(value));
        }
    }

    pub(crate) fn ack(&self, range: std::ops::Range<u64>) {
        self.queue.ack(Seq::new(range.start)..Seq::new(range.end));
    }

    /// Everything that a reader gets now: sequence numbers and values.
    pub(crate) fn read(&self) -> Vec<(u64, String)> {
        read(&self.queue)
    }

    pub(crate) fn seqs(&self) -> Vec<u64> {
        self.read().into_iter().map(|(seq, _)| seq).collect()
    }

    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        segments(&self.disk)
    }
}

/// A value long enough that a few dozen fill a segment.
pub(crate) fn padded(number: u64) -> String {
    format!("{number:0>200}")
}

pub(crate) fn append(queue: &Queue, value: &str, durability: Durability) -> Seq {
    let record = Record { key: Some(b"key"), value: value.as_bytes(), ..Record::default() };
    queue.append(&record, durability).and_then(tidegate_store::Ticket::wait).expect("the append succeeds")
}

/// Hands a record over and does not wait for the answer.
pub(crate) fn submit(queue: &Queue, value: &str, durability: Durability) -> Result<Ticket, AppendError> {
    queue.append(&Record { value: value.as_bytes(), ..Record::default() }, durability)
}

pub(crate) fn read(queue: &Queue) -> Vec<(u64, String)> {
    let mut reader = queue.reader();
    let mut all = Vec::new();
    while let Some(entry) = reader.next().expect("the disk answers") {
        let record = entry.record().expect("the payload is a record");
        all.push((entry.seq.get(), String::from_utf8_lossy(record.value).into_owned()));
    }
    all
}

pub(crate) fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    disk.files(dir_path()).into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).collect()
}

/// Damages a segment by hand; segments are counted from the oldest.
pub(crate) fn edit(disk: &SimDisk, segment: usize, change: impl FnOnce(&mut Vec<u8>)) {
    let path = &segments(disk)[segment];
    let mut bytes = disk.bytes(path).expect("the segment is there");
    change(&mut bytes);
    disk.put(path, bytes);
}

pub(crate) fn numbers(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

/// Bounds a wait: what would hang fails instead, and says what it waited for.
pub(crate) fn within<T: Send + 'static>(
    seconds: u64,
    what: &str,
    wait: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || drop(answer.send(wait())));
    answered.recv_timeout(Duration::from_secs(seconds)).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// The seed of a random test: fixed, or as `TIDEGATE_TEST_SEED` says; a test that fails prints it.
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    pub(crate) fn new() -> Seed {
        let given = std::env::var("TIDEGATE_TEST_SEED").ok();
        Seed(given.map_or(0, |seed| seed.parse().expect("TIDEGATE_TEST_SEED is a number")))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("to run it again: TIDEGATE_TEST_SEED={}", self.0);
        }
    }
}

/// The salt that a segment's header states.
pub(crate) fn salt_of(segment: &[u8]) -> u64 {
    u64::from_le_bytes(segment[56..64].try_into().expect("eight bytes"))
}

/// Changes a segment's header and mends its checksum.
pub(crate) fn change_header(segment: &mut [u8], change: impl FnOnce(&mut [u8])) {
    change(&mut segment[..4096]);
    let crc = crc32fast::hash(&segment[12..4096]);
    segment[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// A whole frame by hand, as `docs/format.md` has it.
pub(crate) fn frame_by_hand(salt: u64, kind: u8, flags: u8, seq: u64, payload: &[u8]) -> Vec<u8> {
    let mask = (salt ^ seq.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
    let half = |at: usize| u32::from_le_bytes(mask[at..at + 4].try_into().expect("four bytes"));
    let payload_crc = crc32fast::hash(payload) ^ half(0) ^ half(4);
    let len = u32::try_from(payload.len()).expect("small");
    let mut frame = vec![0; 4];
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(&seq.to_le_bytes());
    frame.extend_from_slice(&payload_crc.to_le_bytes());
    frame.extend_from_slice(&[kind, flags, 0, 0]);
    let crc = crc32fast::hash(&[&salt.to_le_bytes()[..], &frame[4..]].concat());
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    frame.extend_from_slice(payload);
    frame.resize(frame.len().next_multiple_of(8), 0);
    frame
}

/// The payload of a record that has only a value, shorter than 251 bytes.
pub(crate) fn payload_by_hand(value: &str) -> Vec<u8> {
    let len = u8::try_from(value.len()).expect("short");
    [&[0, 0, 0, 0, len], value.as_bytes()].concat()
}
