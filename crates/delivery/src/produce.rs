//! The seam between the drain and a client: records go in, reports come out. Kafka's client and the scripted one for
//! tests implement it; the drain knows no other.

use std::sync::Arc;

use tidegate_store::{Header, Seq};

use crate::outcome::Outcome;

/// The name of the header that says which record a message is; see [`Outgoing::id`].
pub const IDENTITY_HEADER: &str = "tidegate-id";

/// A record as it is sent.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The message key; `None` lets the client choose any partition.
    pub key: Option<&'a [u8]>,
    /// The message value.
    pub value: &'a [u8],
    /// The record's own headers.
    pub headers: &'a [Header<'a>],
    /// The value of the [`IDENTITY_HEADER`], if it is to be sent: the same for every attempt of a record, so that a
    /// consumer can drop duplicates.
    pub id: Option<&'a str>,
    /// The message's timestamp, in milliseconds since the Unix epoch; `None` is the time of sending.
    pub timestamp_ms: Option<i64>,
}

/// What became of a record that [`Producer::send`] took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The record.
    pub seq: Seq,
    /// What became of it.
    pub outcome: Outcome,
}

/// Why [`Producer::send`] did not take a record. No report comes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The client has no room: send again after the next report.
    Full,
    /// As a report would say it.
    Outcome(Outcome),
}

/// What is known about the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether some broker is connected; `None` if nothing is known yet.
    pub up: Option<bool>,
    /// What keeps it from being so.
    pub problem: Option<Problem>,
}

/// A trouble with the connection, for which no record fails: the client tries again for ever by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether an operator has to mend it (authentication, TLS).
    pub blocked: bool,
    /// The client's own words.
    pub reason: Arc<str>,
}

/// A client that sends records. It pokes the drain's [`Signal`](crate::Signal) when there are reports to take or when
/// its health has changed.
///
/// Every record that was taken gets exactly one report, unless the client is dropped first.
pub trait Producer: Send {
    /// Takes a copy of the record, or refuses it. Never blocks. The records of one key must be sent to one partition
    /// in the order of these calls.
    ///
    /// # Errors
    /// [`Refused`]: nothing was taken, and no report will come for it.
    fn send(&mut self, seq: Seq, outgoing: &Outgoing<'_>) -> Result<(), Refused>;

    /// Moves the reports that have come in since the last call to the end of `reports`.
    fn take_reports(&mut self, reports: &mut Vec<Report>);

    /// Gives up all that is in flight: it will be reported soon, as whatever is known about it. Never blocks.
    fn purge(&mut self);

    /// Why the client is of no more use, if it is not. Asked after each report that is not a delivery.
    fn fatal(&self) -> Option<Arc<str>>;

    /// What is known about the connection.
    fn health(&self) -> Health;
}
