//! The store as the bench uses it: a queue in a folder of its own, filled, read, acknowledged.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_store::{Durability, Queue, QueueDir, QueueDirOptions, QueueOptions, Record, Ticket};

use crate::measure;

/// How long the acknowledging thread rests; what piles up meanwhile fits in a segment.
const ACK_PAUSE: Duration = Duration::from_millis(5);

/// A queue with its folder; both go when it is dropped.
pub(crate) struct Bed {
    pub(crate) queue: Queue,
    _dir: QueueDir,
    pub(crate) folder: TempDir,
}

impl Bed {
    /// A fresh queue with the options that a user has, but without a limit.
    pub(crate) fn new() -> Bed {
        Bed::with(options())
    }

    pub(crate) fn with(options: QueueOptions) -> Bed {
        let folder = measure::folder();
        let (dir, queue) = open(folder.path(), options);
        Bed { queue, _dir: dir, folder }
    }
}

pub(crate) fn options() -> QueueOptions {
    QueueOptions::default().queue_limit(u64::MAX)
}

pub(crate) fn open(folder: &Path, options: QueueOptions) -> (QueueDir, Queue) {
    let dir = QueueDir::open(folder, QueueDirOptions::default()).expect("the folder opens");
    let queue = dir.queue("bench", options).expect("the queue opens");
    (dir, queue)
}

/// Appends so many records of `value` that nobody waits for.
pub(crate) fn append(queue: &Queue, value: &[u8], records: u64) {
    let record = Record { value, ..Record::default() };
    for _ in 0..records {
        drop(queue.append(&record, Durability::Buffered).expect("it is taken"));
    }
}

/// As [`append`], and when this returns, all of it is durable.
pub(crate) fn fill(queue: &Queue, value: &[u8], records: u64) {
    append(queue, value, records - 1);
    let last = Record { value, ..Record::default() };
    queue.append(&last, Durability::Synced).and_then(Ticket::wait).expect("it is durable");
}

/// Acknowledges all that is durable, again and again, while `measured` runs: segments become free and can be recycled.
pub(crate) fn while_acknowledged<T>(queue: &Queue, measured: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(ACK_PAUSE);
                let status = queue.status();
                queue.ack(status.cursor..status.durable);
            }
        });
        let result = measured();
        over.store(true, Ordering::Relaxed);
        result
    })
}
