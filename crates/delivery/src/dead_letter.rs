//! Where rejected records go: a second queue, with what happened to them in headers, durable before the record is
//! acknowledged. Also the memory of why and since when each record of the window has failed.

use std::collections::HashMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use tidegate_store::{AppendError, Durability, Entry, Header, Queue, Record, Seq};

/// The header of a dead letter that says why it was rejected, in the client's own words.
pub const REASON_HEADER: &str = "tidegate-reason";
/// The header of a dead letter that counts the attempts, as decimal text.
pub const ATTEMPTS_HEADER: &str = "tidegate-attempts";
/// The header of a dead letter that has its sequence number in the queue it came from, as decimal text.
pub const SEQ_HEADER: &str = "tidegate-seq";
/// The header of a dead letter that has the time of its first failure, in milliseconds since the Unix epoch.
pub const FIRST_FAILURE_HEADER: &str = "tidegate-first-failure";
/// The header of a dead letter that has the time of its last failure, in milliseconds since the Unix epoch.
pub const LAST_FAILURE_HEADER: &str = "tidegate-last-failure";

/// Opens the queue of dead letters when the first one comes.
pub type OpenDeadLetters = Box<dyn FnMut() -> Result<Queue, Box<dyn Error + Send + Sync>> + Send>;

/// Why a record could not be buried. It stays where it is, and holds the queue until it can be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuryError {
    #[error("a record was rejected and there is no dead letter queue")]
    NoQueue,
    #[error("dead letter queue does not open: {0}")]
    Open(Box<dyn Error + Send + Sync>),
    #[error("dead letter queue: {0}")]
    Append(#[from] AppendError),
}

/// The dead letters of a queue.
#[derive(Default)]
pub(crate) struct DeadLetters {
    open: Option<OpenDeadLetters>,
    queue: Option<Queue>,
}

impl DeadLetters {
    pub(crate) fn new(open: Option<OpenDeadLetters>) -> DeadLetters {
        DeadLetters { open, queue: None }
    }

    /// Appends the record with what happened to it. When this returns, the dead letter survives power loss.
    pub(crate) fn bury(&mut self, entry: &Entry<'_>, failure: &FailedAttempts) -> Result<(), BuryError> {
        let queue = self.queue()?;
        let text = failure.text(entry.seq);
        // What does not decode is kept as it is: the bytes are all that there is.
        let mut record = entry.record().unwrap_or_else(|_| Record {
            value: entry.payload,
            timestamp_ms: millis(failure.first),
            ..Record::default()
        });
        record.headers.extend(text.iter().map(|(name, value)| Header { name, value: value.as_bytes() }));
        let buried = queue.append(&record, Durability::Synced).and_then(tidegate_store::Ticket::wait);
        if let Err(AppendError::Closed | AppendError::Failed { .. }) = buried {
            // This handle is of no more use; the next attempt opens another.
            self.queue = None;
        }
        buried?;
        Ok(())
    }

    fn queue(&mut self) -> Result<Queue, BuryError> {
        if let Some(queue) = &self.queue {
            return Ok(queue.clone());
        }
        let open = self.open.as_mut().ok_or(BuryError::NoQueue)?;
        let queue = open().map_err(BuryError::Open)?;
        self.queue = Some(queue.clone());
        Ok(queue)
    }
}

/// What happened to a record that has not been delivered yet.
#[derive(Debug, Clone)]
pub(crate) struct FailedAttempts {
    pub(crate) attempts: u32,
    pub(crate) first: SystemTime,
    pub(crate) last: SystemTime,
    pub(crate) reason: Arc<str>,
    /// Whether the last attempt may have been written all the same.
    pub(crate) perhaps_written: bool,
}

impl FailedAttempts {
    fn text(&self, seq: Seq) -> [(&'static str, String); 5] {
        [
            (REASON_HEADER, self.reason.to_string()),
            (ATTEMPTS_HEADER, self.attempts.to_string()),
            (SEQ_HEADER, seq.to_string()),
            (FIRST_FAILURE_HEADER, millis(self.first).to_string()),
            (LAST_FAILURE_HEADER, millis(self.last).to_string()),
        ]
    }
}

/// The failures of the records in the window; empty in normal running, never larger than the window.
#[derive(Debug, Default)]
pub(crate) struct Failures(HashMap<Seq, FailedAttempts>);

impl Failures {
    /// Counts a failed attempt and returns how many there were.
    pub(crate) fn note(&mut self, seq: Seq, reason: &Arc<str>, perhaps_written: bool) -> u32 {
        let now = SystemTime::now();
        let failure = self.0.entry(seq).or_insert_with(|| FailedAttempts {
            attempts: 0,
            first: now,
            last: now,
            reason: Arc::clone(reason),
            perhaps_written,
        });
        failure.attempts += 1;
        failure.last = now;
        failure.reason = Arc::clone(reason);
        failure.perhaps_written = perhaps_written;
        failure.attempts
    }

    pub(crate) fn of(&self, seq: Seq) -> Option<&FailedAttempts> {
        self.0.get(&seq)
    }

    /// Forgets what is settled.
    pub(crate) fn forget(&mut self, range: Range<Seq>) {
        if !self.0.is_empty() {
            self.0.retain(|seq, _| !range.contains(seq));
        }
    }
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
