//! Appends that wait for no sync: into the page cache a call each, and into the buffer.

use std::process::Command;
use std::time::Instant;

use tidegate_store::{Durability, Record, Ticket};

use crate::child;
use crate::measure::{self, Bench, MIB, byte_rate, float, per_second, rate};
use crate::raw::{self, Raw};
use crate::store::{self, Bed};
use crate::table::{Goal, Row};

/// Payload of one round: less than what makes the system write dirty pages back meanwhile.
const ROUND_BYTES: u64 = 384 * MIB;
/// Records of one round of system calls.
const CALLS: u64 = 200_000;
/// Lengths of the two runs whose difference is counted.
const COUNTED_RECORDS: [u64; 2] = [100_000, 300_000];

/// `Written`, each append waited for, against one write(2) each.
pub(crate) fn written(bench: &Bench) -> Vec<Row> {
    let value = measure::value(1024);
    let [ours, raw] = bench.rounds(|_| {
        let raw = Raw::growing().written(&value, CALLS);
        [written_rate(&value, CALLS), raw]
    });
    let figures = format!("{} of {}", rate(ours.median()), rate(raw.median()));
    let what = "`Written`, one append a call, 1 KiB";
    vec![Row::new(what, "raw write(2) a call", ours.over(&raw), Goal::AtLeast(0.85)).remark(figures)]
}

fn written_rate(value: &[u8], count: u64) -> f64 {
    let bed = Bed::new();
    let record = Record { value, ..Record::default() };
    let start = Instant::now();
    for _ in 0..count {
        bed.queue.append(&record, Durability::Written).and_then(Ticket::wait).expect("it is written");
    }
    per_second(count, start)
}

/// Batches of `Written` records against single ones.
pub(crate) fn batch(_: &Bench) -> Vec<Row> {
    let why = "not measured yet";
    vec![Row::missing("`Written`, batches of 100, 100 B", "one append a call", Goal::AtLeast(5.0), why)]
}

/// `Buffered` against writes of 1 MiB. What counts more, the comparison with another queue, is in benches/peers.
pub(crate) fn buffered(bench: &Bench) -> Vec<Row> {
    [100, 1024].map(|bytes| buffered_row(bench, bytes)).into()
}

fn buffered_row(bench: &Bench, value_bytes: u64) -> Row {
    let value = measure::value(usize::try_from(value_bytes).expect("small"));
    let records = ROUND_BYTES / value_bytes;
    let [ours, raw] = bench.rounds(|_| {
        let raw = raw::write_rate(ROUND_BYTES);
        let bed = Bed::new();
        let start = Instant::now();
        store::append(&bed.queue, &value, records);
        [per_second(records, start) * float(value_bytes), raw]
    });
    let figures = format!(
        "{}, {} of {}",
        rate(ours.median() / float(value_bytes)),
        byte_rate(ours.median()),
        byte_rate(raw.median())
    );
    let what = format!("`Buffered`, {}, payload bytes", size(value_bytes));
    Row::new(what, "write(2) of 1 MiB pieces, bytes", ours.over(&raw), Goal::None).remark(figures)
}

pub(crate) fn size(bytes: u64) -> &'static str {
    if bytes == 1024 { "1 KiB" } else { "100 B" }
}

/// User instructions of a `Buffered` append of 100 B, the committing thread's part included.
pub(crate) fn instructions(_: &Bench) -> Vec<Row> {
    let (what, goal) = ("user instructions, `Buffered`, 100 B, with encoding", Goal::AtMost(600.0));
    let [Some(few), Some(many)] = COUNTED_RECORDS.map(counted) else {
        return vec![Row::missing(what, "-", goal, "needs valgrind")];
    };
    let each = float(many - few) / float(COUNTED_RECORDS[1] - COUNTED_RECORDS[0]);
    vec![Row::new(what, "-", each, goal)]
}

/// The instructions of a program that appends so many records, without what sled spins for a while when it is opened.
fn counted(records: u64) -> Option<u64> {
    let folder = measure::folder();
    let counts = folder.path().join("callgrind.out");
    let mut program = Command::new("valgrind");
    program.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", counts.display()));
    program.arg(std::env::current_exe().ok()?).args([child::APPEND, &records.to_string()]);
    program.output().ok()?.status.success().then_some(())?;
    let output =
        Command::new("callgrind_annotate").args(["--threshold=100", "--auto=no"]).arg(counts).output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    let functions = text.lines().filter(|line| line.contains("%)  ") && !line.contains("PROGRAM TOTALS"));
    Some(functions.filter(|line| !line.contains("sled")).filter_map(instructions_of).sum())
}

/// `194,098,734 (28.45%)  file:function`
fn instructions_of(line: &str) -> Option<u64> {
    line.split_whitespace().next()?.replace(',', "").parse().ok()
}
