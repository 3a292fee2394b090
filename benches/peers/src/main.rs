//! Question: how does the store compare with yaque, the fastest other queue on disk that we measured?
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml` lets both append and drain the same records in turns,
//! in one process on one file system (`PEERS_DIR`, else the folder of the build), and prints the ratios of the medians.
//! Both promise the same here: nothing is synced before an append returns. (yaque syncs nothing at all; the store syncs
//! behind, and what is drained from it was checked against its checksum.)

use std::path::{Path, PathBuf};
use std::time::Instant;

use tidegate_store::{Durability, Queue, QueueDir, QueueDirOptions, QueueOptions, Record, Seq, Ticket};

const ROUNDS: usize = 5;
/// A guest's memory is much slower when it is used for the first time.
const TOUCHED_BYTES: usize = 768 << 20;
/// Records between two acknowledgements of a drain.
const ACK_EACH: u64 = 1000;

fn main() {
    let folder = std::env::var_os("PEERS_DIR").map_or_else(built_in, PathBuf::from);
    println!("| what | against | ratio | goal | met | figures of this machine |");
    println!("|---|---|---|---|---|---|");
    // So few that the system does not have to write dirty pages back meanwhile.
    for (bytes, records, name, goal) in [(100, 1_500_000, "100 B", 8.0), (1024, 300_000, "1 KiB", 4.0)] {
        drop(std::hint::black_box(vec![1_u8; TOUCHED_BYTES]));
        let value = vec![b'v'; bytes];
        let mut rounds: [Vec<Rates>; 2] = Default::default();
        for _ in 0..ROUNDS {
            rounds[0].push(store(&folder, &value, records));
            rounds[1].push(yaque(&folder, &value, records));
        }
        print(
            &format!("`Buffered` append, {name}"),
            goal,
            rounds.each_ref().map(|of| column(of, |rates| rates.append)),
        );
        print(
            &format!("drain, ack each {ACK_EACH}, {name}"),
            2.0,
            rounds.each_ref().map(|of| column(of, |rates| rates.drain)),
        );
    }
}

/// Records a second.
struct Rates {
    append: f64,
    drain: f64,
}

fn store(folder: &Path, value: &[u8], records: u64) -> Rates {
    let folder = tempfile::tempdir_in(folder).expect("a temporary folder");
    let dir = QueueDir::open(folder.path(), QueueDirOptions::default()).expect("the folder opens");
    let queue = dir.queue("bench", QueueOptions::default().queue_limit(u64::MAX)).expect("the queue opens");
    let record = Record { value, ..Record::default() };
    let start = Instant::now();
    for _ in 1..records {
        drop(queue.append(&record, Durability::Buffered).expect("it is taken"));
    }
    let append = per_second(records, start);
    // The last one waits, so that all of them can be read.
    queue.append(&record, Durability::Written).and_then(Ticket::wait).expect("it is written");
    Rates { append, drain: drain(&queue, records) }
}

fn drain(queue: &Queue, records: u64) -> f64 {
    let (start, mut reader, mut acked, mut count) = (Instant::now(), queue.reader(), Seq::FIRST, 0);
    while let Some(entry) = reader.next().expect("the disk answers") {
        std::hint::black_box(entry.payload);
        let next = entry.seq.next();
        count += 1;
        if count % ACK_EACH == 0 {
            queue.ack(acked..next);
            acked = next;
        }
    }
    assert_eq!(count, records, "every record is read");
    per_second(records, start)
}

fn yaque(folder: &Path, value: &[u8], records: u64) -> Rates {
    let folder = tempfile::tempdir_in(folder).expect("a temporary folder");
    let (mut sender, mut receiver) = yaque::channel(folder.path().join("queue")).expect("the queue opens");
    let start = Instant::now();
    for _ in 0..records {
        sender.try_send(value).expect("it is taken");
    }
    let append = per_second(records, start);

    let (start, mut count) = (Instant::now(), 0);
    while count < records {
        let batch = receiver.try_recv_batch_up_to(ACK_EACH as usize).expect("the queue can be read");
        batch.iter().for_each(|value| {
            std::hint::black_box(value);
        });
        count += batch.len() as u64;
        batch.commit().expect("it is acknowledged");
        receiver.save().expect("its place is kept");
    }
    Rates { append, drain: per_second(records, start) }
}

fn column(rounds: &[Rates], of: impl Fn(&Rates) -> f64) -> Vec<f64> {
    rounds.iter().map(of).collect()
}

fn print(what: &str, goal: f64, [ours, theirs]: [Vec<f64>; 2]) {
    let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
    let met = if ratio >= goal { "yes" } else { "**no**" };
    let (ours, theirs) = (median(ours) / 1e6, median(theirs) / 1e6);
    println!("| {what} | yaque | {ratio:.2} | at least {goal} | {met} | {ours:.2} of {theirs:.2} M/s |");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn per_second(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

/// Beside the program: a system's temporary folder may be in memory.
fn built_in() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.parent().expect("it is in a folder").to_owned()
}
