//! Question: how near does the store come to what this disk and this memory can do?
//!
//! `cargo bench -p tidegate-store --bench store` prints one table of ratios, each against a reference that ran in the
//! same rounds on the same file system; the absolute figures in the last column are worth nothing elsewhere.
//! Arguments, after `--`:
//!
//! - names or parts of names (`--list` prints them) choose rows: `cargo bench ... -- synced written`
//! - `--full` takes backlogs of 4 and 10 GiB for what depends on them, instead of 1 and 2.5
//! - `--rounds N` takes so many interleaved rounds, 5 if it is not said
//!
//! The quick form takes about three minutes and 4 GB of disk where the build is. Nothing else may run: a compiler on the
//! other core makes every sync 20 times slower. The row of instructions needs valgrind and is left out without it:
//! it runs `valgrind --tool=callgrind --callgrind-out-file=F THIS_PROGRAM child-append 100000`, again with 300000, and
//! divides the difference of what callgrind_annotate says of F, without sled, by 200 000. `child-replay` is there for
//! profiles alike.
//!
//! Against other queues: `benches/peers`.

mod buffered;
mod child;
mod durable;
mod measure;
mod open;
mod raw;
mod replay;
mod store;
mod table;

use measure::Bench;
use table::Row;

/// More than this in the minute before, and something else runs.
const BUSY_LOAD: f64 = 0.8;

type Measure = fn(&Bench) -> Vec<Row>;

/// What can be measured, by name. One may give several rows, if they share their rounds.
const SUBJECTS: [(&str, Measure); 13] = [
    ("synced-1", durable::one),
    ("synced-16", |bench| durable::waiting(bench, 16)),
    ("synced-256", |bench| durable::waiting(bench, 256)),
    ("direct", durable::direct),
    ("written", buffered::written),
    ("batch", buffered::batch),
    ("buffered", buffered::buffered),
    ("instructions", buffered::instructions),
    ("replay-warm", replay::warm),
    ("replay-cold", replay::cold),
    ("open", open::open),
    ("memory", open::memory),
    ("disk", open::disk),
];

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first.starts_with("child-")) {
        return child::run(&arguments.collect::<Vec<_>>());
    }
    let (mut bench, mut names) = (Bench { rounds: 5, full: false }, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--full" => bench.full = true,
            "--rounds" => {
                let rounds = arguments.next().and_then(|rounds| rounds.parse().ok());
                bench.rounds = rounds.filter(|rounds| *rounds > 0).expect("--rounds takes a number");
            }
            "--list" => return SUBJECTS.iter().for_each(|(name, _)| println!("{name}")),
            // Cargo says so to every bench.
            "--bench" => {}
            name if !name.starts_with('-') => names.push(name.to_owned()),
            other => panic!("{other} is not known; see the head of benches/store/main.rs"),
        }
    }
    warn_if_busy();
    Row::print_head();
    for (name, measure) in SUBJECTS {
        if names.is_empty() || names.iter().any(|wanted| name.contains(wanted.as_str())) {
            measure(&bench).iter().for_each(Row::print);
        }
    }
}

/// Figures of a busy machine mislead, in both directions: each sync then waits for the scheduler.
fn warn_if_busy() {
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = loads.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    if load > BUSY_LOAD {
        eprintln!("warning: the load was {load} in the last minute; these figures are worth nothing");
    }
}
