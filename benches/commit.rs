//! Question: how much of the disk's own rate do durable appends reach, and what does sharing a sync bring?
//!
//! `cargo bench --bench commit` prints, for 1 KiB records: appends a second of one producer, of 64 tasks each waiting for
//! its own ticket, and of a raw loop of write and fdatasync; then their ratios. Rounds are interleaved; medians count.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::Record;
use tidegate::store::{Durability, Queue, QueueDir, QueueDirOptions, QueueOptions};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(800);
const RECORD_BYTES: usize = 1024;

fn main() {
    // Beside the build's own files: a temporary folder may be in memory, where a sync costs nothing.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("the folder opens");
    let queue = dir.queue("bench", QueueOptions::default().queue_limit(u64::MAX)).expect("the queue opens");
    let mut raw_file = File::create(folder.path().join("raw")).expect("a file");

    let (mut raw, mut one, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        raw.push(raw_rate(&mut raw_file));
        one.push(runtime.block_on(rate(&queue, 1)));
        many.push(runtime.block_on(rate(&queue, 64)));
        queue.ack(queue.status().start..queue.status().end);
    }
    let group = group_rate(folder.path());

    let (raw, one, many) = (median(&mut raw), median(&mut one), median(&mut many));
    println!("raw write + fdatasync       {raw:>10.0} /s");
    println!("raw, 64 records a write     {group:>10.0} /s");
    println!("Synced, one producer        {one:>10.0} /s");
    println!("Synced, 64 tasks waiting    {many:>10.0} /s");
    println!("one producer / raw          {:>10.2}", one / raw);
    println!("64 tasks / raw in groups    {:>10.2}", many / group);
    println!("64 tasks / one producer     {:>10.1}", many / one);
}

/// Appends a second, when so many tasks wait each for its own record.
async fn rate(queue: &Queue, tasks: usize) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (queue, done) = (queue.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let value = vec![b'v'; RECORD_BYTES];
                let record = Record { value: &value, ..Record::default() };
                while start.elapsed() < ROUND {
                    let ticket = queue.append(&record, Durability::Synced).expect("it is taken");
                    ticket.await.expect("it is durable");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in running {
        task.await.expect("the task ends");
    }
    per_second(done.load(Ordering::Relaxed), start)
}

/// The limit of one: a growing file, one write and one fdatasync a record.
fn raw_rate(file: &mut File) -> f64 {
    raw_groups(file, 1)
}

/// The limit of many: 64 ready records a write, nobody to wake.
fn group_rate(folder: &Path) -> f64 {
    let mut file =
        OpenOptions::new().create(true).append(true).open(folder.join("raw-group")).expect("a file");
    let mut rates: Vec<_> = (0..ROUNDS).map(|_| raw_groups(&mut file, 64)).collect();
    median(&mut rates)
}

fn raw_groups(file: &mut File, records: u64) -> f64 {
    let value = vec![b'v'; RECORD_BYTES * usize::try_from(records).expect("small")];
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        file.write_all(&value).expect("write");
        file.sync_data().expect("sync");
        count += records;
    }
    per_second(count, start)
}

#[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
fn per_second(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
