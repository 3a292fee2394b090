//! What a backlog costs: time to open after a kill, memory, bytes on disk.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

use crate::buffered::size;
use crate::child::{self, Child};
use crate::measure::{self, Bench, GIB, MIB, float};
use crate::store::{self, Bed};
use crate::table::{Goal, Row};

const VALUE_BYTES: u64 = 1024;
/// Payload whose place on the disk is looked at.
const WEIGHED_BYTES: u64 = 192 * MIB;
/// The backlog that memory is compared with.
const SMALL_BACKLOG_BYTES: u64 = 80 * MIB;

impl Bench {
    fn backlogs(&self) -> [u64; 2] {
        if self.full { [4 * GIB, 10 * GIB] } else { [GIB, 5 * GIB / 2] }
    }
}

/// Opening after `kill -9`, with nothing of the queue in the page cache, until the first record is read.
pub(crate) fn open(bench: &Bench) -> Vec<Row> {
    let backlogs = bench.backlogs();
    let folders = backlogs.map(backlog);
    let [small, large] = bench.rounds(|_| [0, 1].map(|at| open_cold(folders[at].path())));
    let [small_name, large_name] = backlogs.map(gib);
    let what = |name| format!("open, {name} backlog, cold, after kill -9");
    vec![
        Row::new(what(&small_name), "-", small.median(), Goal::AtMost(100.0)).unit(" ms"),
        Row::new(what(&large_name), "-", large.median(), Goal::None).unit(" ms"),
        Row::new(what(&large_name), format!("{small_name} backlog"), large.over(&small), Goal::AtMost(1.5)),
    ]
}

/// A queue with so much in it, left by a process that was killed.
fn backlog(bytes: u64) -> TempDir {
    let folder = measure::folder();
    let path = folder.path().to_str().expect("a path of the build");
    drop(Child::start(&[child::FILL, path, &(bytes / VALUE_BYTES).to_string()]));
    folder
}

/// Milliseconds.
fn open_cold(folder: &Path) -> f64 {
    measure::forget(&measure::files(folder));
    let path = folder.to_str().expect("a path of the build");
    float(Child::start(&[child::OPEN, path]).numbers()[0]) / 1e3
}

/// Resident memory of a process with an open and used queue, without what an empty process takes.
pub(crate) fn memory(bench: &Bench) -> Vec<Row> {
    let large_bytes = bench.backlogs()[1];
    let [small, large] = [SMALL_BACKLOG_BYTES, large_bytes].map(backlog);
    let [total, growth] = bench.rounds(|_| {
        let [empty, _] = memory_of(&[child::EMPTY]);
        let [_, small_anonymous] = memory_of(&[child::HOLD, small.path().to_str().expect("a path")]);
        let [held, anonymous] = memory_of(&[child::HOLD, large.path().to_str().expect("a path")]);
        [(held - empty) / 1024.0, anonymous - small_anonymous]
    });
    let name = gib(large_bytes);
    vec![
        Row::new(
            format!("memory of an open queue, {name} backlog"),
            "an empty process",
            total.median(),
            Goal::AtMost(8.0),
        )
        .unit(" MiB more"),
        Row::new(
            format!("memory of an open queue, {name} backlog"),
            "80 MiB backlog",
            growth.median(),
            Goal::AtMost(512.0),
        )
        .unit(" KiB more"),
    ]
}

/// KiB: resident, and resident without a file behind it.
fn memory_of(arguments: &[&str]) -> [f64; 2] {
    let numbers = Child::start(arguments).numbers();
    [float(numbers[0]), float(numbers[1])]
}

fn gib(bytes: u64) -> String {
    format!("{} GiB", float(bytes) / float(GIB))
}

/// Blocks of the whole queue_dir, the index included, for each byte of payload.
pub(crate) fn disk(_: &Bench) -> Vec<Row> {
    let row = |(value_bytes, goal)| {
        let (bed, records) = (Bed::new(), WEIGHED_BYTES / value_bytes);
        let value = measure::value(usize::try_from(value_bytes).expect("small"));
        store::fill(&bed.queue, &value, records);
        bed.queue.close();
        let files = measure::files(bed.folder.path());
        let blocks: u64 = files.iter().map(|path| path.metadata().expect("it is there").blocks()).sum();
        let each = float(blocks * 512) / float(records * value_bytes);
        Row::new(format!("bytes on disk, {}", size(value_bytes)), "payload bytes", each, goal)
    };
    [(100, Goal::AtMost(1.4)), (1024, Goal::AtMost(1.05))].map(row).into()
}
