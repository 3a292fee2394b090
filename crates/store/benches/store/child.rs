//! What runs in a process of its own: to be killed, to be weighed, or to have its instructions counted. The bench starts
//! itself with one of these commands; the child says one line and stays until it is killed or its input ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::measure;
use crate::replay;
use crate::store::{self, Bed};

/// Appends so many records of 100 B and ends.
pub(crate) const APPEND: &str = "child-append";
/// As [`APPEND`], then reads, decodes and acknowledges them.
pub(crate) const REPLAY: &str = "child-replay";
/// Fills the queue in this folder with so many records of 1 KiB, durably.
pub(crate) const FILL: &str = "child-fill";
/// Opens the queue in this folder and says how many microseconds it took until the first record was read.
pub(crate) const OPEN: &str = "child-open";
/// Opens the queue in this folder, uses it a little, and says how much memory this took.
pub(crate) const HOLD: &str = "child-hold";
/// Says how much memory a process takes that does nothing.
pub(crate) const EMPTY: &str = "child-empty";

/// Records that a held queue appends and reads.
const USED_RECORDS: u64 = 10_000;
/// Until the index has persisted what was acknowledged.
const SETTLE: Duration = Duration::from_millis(500);

/// A child that is running.
pub(crate) struct Child {
    process: std::process::Child,
    line: String,
}

impl Child {
    /// Starts this program with these arguments, and waits for what it says.
    pub(crate) fn start(arguments: &[&str]) -> Child {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("its output is ours");
        BufReader::new(output).read_line(&mut line).expect("it says something");
        Child { process, line }
    }

    /// The numbers that it said.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }
}

impl Drop for Child {
    /// `kill -9`: it closes nothing.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The child's side.
pub(crate) fn run(arguments: &[String]) {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [APPEND, records] => {
            store::append(&Bed::new().queue, &measure::value(100), records.parse().expect("a number"));
        }
        [REPLAY, records] => {
            let (bed, records) = (Bed::new(), records.parse().expect("a number"));
            store::fill(&bed.queue, &measure::value(100), records);
            replay::replay(&bed.queue, records);
        }
        [FILL, folder, records] => fill(Path::new(folder), records.parse().expect("a number")),
        [OPEN, folder] => open(Path::new(folder)),
        [HOLD, folder] => hold(Path::new(folder)),
        [EMPTY] => say_memory(),
        _ => panic!("{arguments:?} is not known"),
    }
}

/// Says a line, and waits for the end.
fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("somebody listens");
    let _ = std::io::stdin().read(&mut [0]);
}

fn fill(folder: &Path, records: u64) {
    let (_dir, queue) = store::open(folder, store::options());
    store::fill(&queue, &measure::value(1024), records);
    say("0");
}

fn open(folder: &Path) {
    let start = Instant::now();
    let (_dir, queue) = store::open(folder, store::options());
    let mut reader = queue.reader();
    assert!(reader.next().expect("the disk answers").is_some(), "there is a backlog");
    say(&start.elapsed().as_micros().to_string());
}

fn hold(folder: &Path) {
    let (_dir, queue) = store::open(folder, store::options());
    store::fill(&queue, &measure::value(1024), USED_RECORDS);
    let mut reader = queue.reader();
    for _ in 0..USED_RECORDS {
        let seq = reader.next().expect("the disk answers").expect("there are as many").seq;
        queue.ack(seq..seq.next());
    }
    std::thread::sleep(SETTLE);
    say_memory();
}

/// In KiB: all that is resident, and the part of it that no file backs.
fn say_memory() {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says so");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("it is there");
        line.split_whitespace().nth(1).expect("a number").to_owned()
    };
    say(&format!("{} {}", field("VmRSS:"), field("RssAnon:")));
}
