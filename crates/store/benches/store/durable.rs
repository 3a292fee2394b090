//! Durable appends of 1 KiB: one producer, and tasks that each wait for their own record, against raw writes of groups
//! of the same size with one fdatasync each.

use std::sync::OnceLock;
use std::time::Instant;

use tidegate_store::{Durability, Queue, Record};
use tokio::runtime::Runtime;

use crate::measure::{self, Bench, Latencies, ROUND, per_second, rate};
use crate::raw::Raw;
use crate::store::{self, Bed};
use crate::table::{Goal, Row};

const VALUE_BYTES: usize = 1024;
/// Segments of the queue whose space is recycled: several are used up in a round.
const RECYCLED_SEGMENT_BYTES: u64 = 16 << 20;
const RECYCLED_SEGMENTS: u64 = 4;

/// One producer against a growing and a recycled file.
pub(crate) fn one(bench: &Bench) -> Vec<Row> {
    let (mut raw_recycled, recycled) = (Raw::recycled(), recycled_bed());
    let value = measure::value(VALUE_BYTES);
    let [growing, p50, p99, raw, raw_p50, raw_p99, reused, reused_p99, raw_reused, raw_reused_p99] = bench
        .rounds(|_| {
            let (raw, mut raw_took) = Raw::growing().synced(&value, 1);
            let (growing, mut took) = tasks(&Bed::new().queue, 1);
            let (raw_reused, mut raw_reused_took) = raw_recycled.synced(&value, 1);
            let (reused, mut reused_took) =
                store::while_acknowledged(&recycled.queue, || tasks(&recycled.queue, 1));
            [
                growing,
                took.percentile(50),
                took.percentile(99),
                raw,
                raw_took.percentile(50),
                raw_took.percentile(99),
                reused,
                reused_took.percentile(99),
                raw_reused,
                raw_reused_took.percentile(99),
            ]
        });
    let what = "`Synced`, one producer, 1 KiB";
    let percentiles = |p50: f64, p99: f64| format!("p50 {p50:.0} µs, p99 {p99:.0} µs");
    vec![
        Row::new(what, "raw write + fdatasync, growing file", growing.over(&raw), Goal::AtLeast(0.9)).remark(
            format!(
                "{} of {}; {}",
                rate(growing.median()),
                rate(raw.median()),
                percentiles(p50.median(), p99.median())
            ),
        ),
        Row::new(format!("{what}: p99"), "p99 of the same", p99.over(&raw_p99), Goal::AtMost(1.5))
            .remark(format!("raw {}", percentiles(raw_p50.median(), raw_p99.median()))),
        Row::new(
            format!("{what}, recycled segments"),
            "raw write + fdatasync, recycled file",
            reused.over(&raw_reused),
            Goal::AtLeast(0.95),
        )
        .remark(format!("{} of {}", rate(reused.median()), rate(raw_reused.median()))),
        Row::new(
            format!("{what}, recycled segments: p99"),
            "p99 of the same",
            reused_p99.over(&raw_reused_p99),
            Goal::AtMost(1.5),
        )
        .remark(format!("{:.0} of {:.0} µs", reused_p99.median(), raw_reused_p99.median())),
    ]
}

/// So many tasks that each wait for their own record.
pub(crate) fn waiting(bench: &Bench, group: u64) -> Vec<Row> {
    let value = measure::value(VALUE_BYTES);
    let [many, p99, raw, raw_p99, one] = bench.rounds(|_| {
        let (raw, mut raw_took) = Raw::growing().synced(&value, group);
        let (many, mut took) = tasks(&Bed::new().queue, group);
        let (one, _) = tasks(&Bed::new().queue, 1);
        [many, took.percentile(99), raw, raw_took.percentile(99), one]
    });
    let (rate_goal, p99_goal) = if group < 100 { (0.9, 1.5) } else { (0.7, 2.0) };
    let what = format!("`Synced`, {group} tasks waiting, 1 KiB");
    let against = format!("raw write of {group} records + fdatasync, growing file");
    let mut rows = vec![
        Row::new(&what, against, many.over(&raw), Goal::AtLeast(rate_goal)).remark(format!(
            "{} of {}",
            rate(many.median()),
            rate(raw.median())
        )),
        Row::new(format!("{what}: p99"), "p99 of the same", p99.over(&raw_p99), Goal::AtMost(p99_goal))
            .remark(format!("{:.0} of {:.0} µs", p99.median(), raw_p99.median())),
    ];
    if group >= 100 {
        rows.push(
            Row::new(what, "`Synced`, one producer", many.over(&one), Goal::AtLeast(100.0))
                .remark(rate(one.median())),
        );
    }
    rows
}

/// Recycled segments written past the page cache, against growing ones.
pub(crate) fn direct(_: &Bench) -> Vec<Row> {
    [16, 256]
        .map(|group| {
            let what = format!("`Synced`, {group} tasks waiting, recycled segments with O_DIRECT");
            let why = "the option does not exist yet";
            Row::missing(what, "the same, growing segments", Goal::AtLeast(1.3), why)
        })
        .into()
}

/// A queue that has used and freed segments, so that the next ones are recycled.
fn recycled_bed() -> Bed {
    let bed = Bed::with(store::options().segment_bytes(RECYCLED_SEGMENT_BYTES));
    let records = RECYCLED_SEGMENTS * RECYCLED_SEGMENT_BYTES / VALUE_BYTES as u64;
    store::while_acknowledged(&bed.queue, || {
        store::fill(&bed.queue, &measure::value(VALUE_BYTES), records);
    });
    bed
}

/// Two threads for all tasks: what waits, waits as a task, as in a server.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime")
    })
}

/// Appends a second of so many tasks, each waiting for its own record before the next, and how long each record took.
fn tasks(queue: &Queue, count: u64) -> (f64, Latencies) {
    runtime().block_on(async {
        let start = Instant::now();
        let running: Vec<_> = (0..count).map(|_| tokio::spawn(producer(queue.clone(), start))).collect();
        let mut latencies = Latencies::default();
        for task in running {
            latencies.extend(task.await.expect("the task ends"));
        }
        (per_second(latencies.count() as u64, start), latencies)
    })
}

async fn producer(queue: Queue, start: Instant) -> Latencies {
    let value = measure::value(VALUE_BYTES);
    let record = Record { value: &value, ..Record::default() };
    let mut latencies = Latencies::default();
    let mut began = Instant::now();
    while began.duration_since(start) < ROUND {
        let ticket = queue.append(&record, Durability::Synced).expect("it is taken");
        ticket.await.expect("it is durable");
        let now = Instant::now();
        latencies.push(now.duration_since(began));
        began = now;
    }
    latencies
}
