//! Reading a backlog from front to back and acknowledging it, each record decoded, against reading the bytes.

use std::path::Path;
use std::time::Instant;

use tidegate_store::{Queue, Seq};

use crate::buffered::size;
use crate::measure::{self, Bench, MIB, byte_rate, float, per_second, rate};
use crate::raw;
use crate::store::{self, Bed};
use crate::table::{Goal, Row};

/// Payload of the backlog.
const BACKLOG_BYTES: u64 = 256 * MIB;
/// Records between two calls of `ack`.
const ACK_EACH: u64 = 10_000;

/// A backlog that is in the page cache.
pub(crate) fn warm(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for (value_bytes, goal) in [(100, Goal::None), (1024, Goal::AtLeast(0.5))] {
        let [ours, raw] = bench.rounds(|_| {
            let (bed, records) = filled(value_bytes);
            let raw = raw::read_rate(&measure::segments(bed.folder.path()));
            [replay(&bed.queue, records) * float(value_bytes), raw]
        });
        let records = ours.median() / float(value_bytes);
        let what = format!("replay + ack, warm, {}", size(value_bytes));
        let figures = format!("{} of {}", byte_rate(ours.median()), byte_rate(raw.median()));
        rows.push(
            Row::new(format!("{what}, payload bytes"), "warm pread of 1 MiB, bytes", ours.over(&raw), goal)
                .remark(figures),
        );
        let goal = if value_bytes == 100 { Goal::AtLeast(10.0) } else { Goal::None };
        rows.push(Row::new(what, "-", records / 1e6, goal).unit(" M/s").remark(rate(records)));
    }
    rows
}

/// A backlog that the page cache has let go of.
pub(crate) fn cold(bench: &Bench) -> Vec<Row> {
    let row = |value_bytes| {
        let [ours, raw] = bench.rounds(|number| cold_round(value_bytes, number % 2 == 0));
        let figures = format!("{} of {}", byte_rate(ours.median()), byte_rate(raw.median()));
        let what = format!("replay + ack, cold, {}, segment bytes", size(value_bytes));
        Row::new(what, "cold pread of 1 MiB with fadvise, bytes", ours.over(&raw), Goal::AtLeast(0.6))
            .remark(figures)
    };
    [100, 1024].map(row).into()
}

/// The queue's files and another of the same size are read once each; which goes first, changes from round to round.
fn cold_round(value_bytes: u64, ours_first: bool) -> [f64; 2] {
    let (bed, records) = filled(value_bytes);
    let bytes = total_bytes(bed.folder.path());
    let other = measure::folder();
    let file = [raw::file_with(other.path(), bytes)];
    measure::forget(&file);
    measure::forget(&measure::segments(bed.folder.path()));

    let ours = || replay(&bed.queue, records) / float(records) * float(bytes);
    if ours_first {
        let ours = ours();
        [ours, raw::read_rate(&file)]
    } else {
        let raw = raw::read_rate(&file);
        [ours(), raw]
    }
}

fn total_bytes(folder: &Path) -> u64 {
    measure::segments(folder).iter().map(|path| path.metadata().expect("it is there").len()).sum()
}

fn filled(value_bytes: u64) -> (Bed, u64) {
    let (bed, records) = (Bed::new(), BACKLOG_BYTES / value_bytes);
    store::fill(&bed.queue, &measure::value(usize::try_from(value_bytes).expect("small")), records);
    (bed, records)
}

/// Records a second until all are read, decoded and acknowledged.
pub(crate) fn replay(queue: &Queue, records: u64) -> f64 {
    let (start, mut reader, mut count, mut acked) = (Instant::now(), queue.reader(), 0, Seq::FIRST);
    while let Some(entry) = reader.next().expect("the disk answers") {
        std::hint::black_box(entry.record().expect("it is a record").value);
        let next = entry.seq.next();
        count += 1;
        if count % ACK_EACH == 0 {
            queue.ack(acked..next);
            acked = next;
        }
    }
    queue.ack(acked..queue.status().end);
    assert_eq!(count, records, "every record is read");
    per_second(count, start)
}
