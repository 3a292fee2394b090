//! The references: what one thread with nobody to wake gets from the same file system.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::Advice;
use tempfile::TempDir;

use crate::measure::{self, Latencies, ROUND, float, per_second};

/// Bytes of the file whose blocks are overwritten.
const RECYCLED_BYTES: u64 = 64 << 20;
/// One read or write of the references for throughput.
const PIECE_BYTES: usize = 1 << 20;

/// A file of one layout.
pub(crate) struct Raw {
    file: File,
    position: u64,
    /// Where the position goes back to the start.
    wrap_at: u64,
    _folder: TempDir,
}

impl Raw {
    /// An empty file that grows with each write.
    pub(crate) fn growing() -> Raw {
        let folder = measure::folder();
        let file = File::create(folder.path().join("growing")).expect("a file");
        Raw { file, position: 0, wrap_at: u64::MAX, _folder: folder }
    }

    /// A file whose blocks are written already.
    pub(crate) fn recycled() -> Raw {
        let mut raw = Raw::growing();
        let piece = measure::value(PIECE_BYTES);
        while raw.position < RECYCLED_BYTES {
            raw.write(&piece);
        }
        raw.file.sync_all().expect("sync");
        Raw { position: 0, wrap_at: RECYCLED_BYTES, ..raw }
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.position + bytes.len() as u64 > self.wrap_at {
            self.position = 0;
        }
        self.file.write_all_at(bytes, self.position).expect("write");
        self.position += bytes.len() as u64;
    }

    /// Writes `group` records at once and syncs them, for the length of a round: records a second, and how long each
    /// of the groups took.
    pub(crate) fn synced(&mut self, value: &[u8], group: u64) -> (f64, Latencies) {
        let bytes = value.repeat(usize::try_from(group).expect("small"));
        let (start, mut latencies, mut count) = (Instant::now(), Latencies::default(), 0);
        while start.elapsed() < ROUND {
            let began = Instant::now();
            self.write(&bytes);
            self.file.sync_data().expect("sync");
            latencies.push(began.elapsed());
            count += group;
        }
        (per_second(count, start), latencies)
    }

    /// Writes so many values, a system call each: values a second.
    pub(crate) fn written(&mut self, value: &[u8], count: u64) -> f64 {
        let start = Instant::now();
        for _ in 0..count {
            self.write(value);
        }
        per_second(count, start)
    }
}

/// Bytes a second of writing so many bytes in pieces of 1 MiB.
pub(crate) fn write_rate(bytes: u64) -> f64 {
    let (mut raw, piece) = (Raw::growing(), measure::value(PIECE_BYTES));
    raw.written(&piece, bytes / PIECE_BYTES as u64) * float(PIECE_BYTES as u64)
}

/// Bytes a second of reading these files from front to back in pieces of 1 MiB, announced to the system.
pub(crate) fn read_rate(files: &[PathBuf]) -> f64 {
    let mut buffer = vec![0; PIECE_BYTES];
    let (start, mut bytes) = (Instant::now(), 0);
    for path in files {
        bytes += read(path, &mut buffer);
    }
    per_second(bytes, start)
}

fn read(path: &Path, buffer: &mut [u8]) -> u64 {
    let file = OpenOptions::new().read(true).open(path).expect("the file opens");
    rustix::fs::fadvise(&file, 0, None, Advice::Sequential).expect("advice is taken");
    let mut position = 0;
    loop {
        let count = file.read_at(buffer, position).expect("read") as u64;
        if count == 0 {
            return position;
        }
        position += count;
    }
}

/// A file of its own with so many bytes, for reading.
pub(crate) fn file_with(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("raw");
    let file = File::create(&path).expect("a file");
    let piece = measure::value(PIECE_BYTES);
    for number in 0..bytes / PIECE_BYTES as u64 {
        file.write_all_at(&piece, number * PIECE_BYTES as u64).expect("write");
    }
    path
}
