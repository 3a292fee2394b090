//! What is between the reader and the acknowledgement: the client, the window, and what is known of each failure.
//! It decides nothing about time: the cycle asks it to send, to collect reports, to acknowledge.

use std::fmt::Write;
use std::sync::Arc;

use tidegate_store::{Entry, Queue, Record, Seq};

use crate::dead_letter::Failures;
use crate::drain::{DrainSettings, Timestamp};
use crate::outcome::{Outcome, RetryKind};
use crate::produce::{Health, Outgoing, Producer, Refused, Report};
use crate::state::Counters;
use crate::window::{Failure, Window, key_hash};

/// Attempts after which a record that fails for no stated reason is resent alone, so that its batch gets through.
const ALONE_AFTER_ATTEMPTS: u32 = 3;

/// What became of handing an entry to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is in flight.
    InFlight,
    /// It failed at once; [`Flight::collect`] says how.
    Refused,
    /// The client has no room; nothing happened.
    Full,
}

/// What a round of reports amounts to.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) delivered: usize,
    /// The first retry of the round: whether an operator has to mend it, and why.
    pub(crate) retry: Option<(bool, Arc<str>)>,
    /// Why some record is a suspect.
    pub(crate) suspect: Option<Arc<str>>,
    /// Why the client is of no more use.
    pub(crate) fatal: Option<Arc<str>>,
}

impl Collected {
    pub(crate) fn error(&self) -> Option<&Arc<str>> {
        let retry = self.retry.as_ref().map(|(_, reason)| reason);
        self.fatal.as_ref().or(retry).or(self.suspect.as_ref())
    }
}

pub(crate) struct Flight {
    queue: Queue,
    settings: Arc<DrainSettings>,
    producer: Option<Box<dyn Producer>>,
    pub(crate) window: Window,
    pub(crate) failures: Failures,
    pub(crate) counters: Counters,
    /// The record that was sent with nothing else in flight: its failure is its own.
    alone: Option<Seq>,
    reports: Vec<Report>,
    identity: Identity,
    /// Dead letters since the last acknowledgement.
    buried: u64,
}

impl Flight {
    pub(crate) fn new(queue: Queue, settings: Arc<DrainSettings>) -> Flight {
        let identity = Identity::new(&queue.uuid().to_string());
        let window = Window::new(settings.window);
        Flight {
            queue,
            settings,
            producer: None,
            window,
            failures: Failures::default(),
            counters: Counters::default(),
            alone: None,
            reports: Vec::new(),
            identity,
            buried: 0,
        }
    }

    pub(crate) fn board(&mut self, producer: Box<dyn Producer>) {
        self.producer = Some(producer);
    }

    pub(crate) fn health(&self) -> Health {
        self.producer.as_ref().map_or_else(Health::default, |producer| producer.health())
    }

    /// Sends an entry for the first time. One that is no record is rejected on the spot.
    pub(crate) fn send(&mut self, entry: &Entry<'_>) -> Sent {
        let record = match entry.record() {
            Ok(record) => record,
            Err(error) => {
                self.window.sent(entry.seq, None, entry.payload.len());
                self.reports.push(Report { seq: entry.seq, outcome: Outcome::reject(error.to_string()) });
                return Sent::Refused;
            }
        };
        match self.produce(entry.seq, &record) {
            Err(Refused::Full) => Sent::Full,
            result => {
                let bytes = record.value.len() + record.key.map_or(0, <[u8]>::len);
                self.window.sent(entry.seq, record.key.map(key_hash), bytes);
                self.took(entry.seq, result)
            }
        }
    }

    /// Sends an entry again that the window named.
    pub(crate) fn resend(&mut self, entry: &Entry<'_>) -> Sent {
        let result = match entry.record() {
            Ok(record) => self.produce(entry.seq, &record),
            Err(error) => Err(Refused::Outcome(Outcome::reject(error.to_string()))),
        };
        if result == Err(Refused::Full) {
            return Sent::Full;
        }
        self.counters.retried += 1;
        // Without a failure of its own it was delivered, or was in flight when its client was given up.
        let perhaps_written = self.failures.of(entry.seq).is_none_or(|failure| failure.perhaps_written);
        self.counters.possible_duplicates += u64::from(perhaps_written);
        self.window.resent(entry.seq);
        self.took(entry.seq, result)
    }

    /// From now on until its report, this record is known to be alone.
    pub(crate) fn sent_alone(&mut self, seq: Seq) {
        self.alone = (self.window.in_flight() == 1).then_some(seq);
    }

    /// Takes the reports that have come in.
    pub(crate) fn collect(&mut self) -> Collected {
        let mut collected = Collected::default();
        if let Some(producer) = &mut self.producer {
            producer.take_reports(&mut self.reports);
        }
        let mut reports = std::mem::take(&mut self.reports);
        for report in reports.drain(..) {
            self.account(report, &mut collected);
        }
        self.reports = reports;
        if let Some(reason) = self.producer.as_ref().and_then(|producer| producer.fatal()) {
            collected.fatal = Some(reason);
        }
        collected
    }

    /// Hands what is settled to the store.
    pub(crate) fn acknowledge(&mut self) {
        let mut acked = 0;
        for range in self.window.take_acked() {
            acked += range.end.since(range.start);
            self.failures.forget(range.clone());
            self.queue.ack(range);
        }
        let buried = std::mem::take(&mut self.buried);
        self.counters.dead_lettered += buried;
        self.counters.delivered += acked - buried;
    }

    /// A dead letter is durable.
    pub(crate) fn buried(&mut self, seq: Seq) {
        self.buried += 1;
        self.window.buried(seq);
    }

    /// The store no longer has a record that was to be resent.
    pub(crate) fn vanished(&mut self, seq: Seq) {
        tracing::warn!(%seq, "a record that was to be resent is no longer in the queue");
        self.counters.vanished += 1;
        self.failures.forget(seq..seq.next());
        self.window.vanished(seq);
    }

    /// Asks the client to give up what is in flight.
    pub(crate) fn purge(&mut self) {
        if let Some(producer) = &mut self.producer {
            producer.purge();
        }
    }

    /// Drops the client, and with it what it did not report.
    pub(crate) fn disembark(&mut self) {
        self.producer = None;
        self.alone = None;
        self.window.fail_in_flight();
    }

    fn produce(&mut self, seq: Seq, record: &Record<'_>) -> Result<(), Refused> {
        let Some(producer) = &mut self.producer else { return Err(Refused::Full) };
        let outgoing = Outgoing {
            topic: record.topic.unwrap_or(&self.settings.topic),
            key: record.key,
            value: record.value,
            headers: &record.headers,
            id: self.settings.identity_header.then(|| self.identity.of(seq)),
            timestamp_ms: (self.settings.timestamp == Timestamp::Event).then_some(record.timestamp_ms),
        };
        producer.send(seq, &outgoing)
    }

    fn took(&mut self, seq: Seq, result: Result<(), Refused>) -> Sent {
        match result {
            Err(Refused::Outcome(outcome)) => {
                // No report will come, so it is written here.
                self.reports.push(Report { seq, outcome });
                Sent::Refused
            }
            _ => Sent::InFlight,
        }
    }

    fn account(&mut self, Report { seq, outcome }: Report, collected: &mut Collected) {
        let alone = self.alone.take_if(|alone| *alone == seq).is_some();
        match outcome {
            Outcome::Delivered => collected.delivered += usize::from(self.window.delivered(seq)),
            Outcome::Reject { reason } => self.reject(seq, &reason),
            Outcome::Suspect { reason } if alone => self.reject(seq, &reason),
            Outcome::Suspect { reason } => {
                self.failures.note(seq, &reason, false);
                self.window.failed(seq, Failure::Suspect);
                collected.suspect.get_or_insert(reason);
            }
            Outcome::Retry { kind, reason } => self.retry(seq, kind, reason, alone, collected),
            Outcome::Fatal { reason } => {
                self.failures.note(seq, &reason, true);
                self.window.failed(seq, Failure::Retry);
                collected.fatal.get_or_insert(reason);
            }
        }
    }

    fn retry(&mut self, seq: Seq, kind: RetryKind, reason: Arc<str>, alone: bool, collected: &mut Collected) {
        let attempts = self.failures.note(seq, &reason, kind == RetryKind::Unconfirmed);
        let unclear = kind == RetryKind::Unclear;
        if unclear && alone && self.settings.attempts_max.is_some_and(|most| attempts >= most) {
            return self.reject(seq, &reason);
        }
        let suspect = unclear && attempts >= ALONE_AFTER_ATTEMPTS;
        self.window.failed(seq, if suspect { Failure::Suspect } else { Failure::Retry });
        let blocked = kind == RetryKind::Blocked;
        match &mut collected.retry {
            Some((seen, _)) if *seen || !blocked => {}
            retry => *retry = Some((blocked, reason)),
        }
    }

    fn reject(&mut self, seq: Seq, reason: &Arc<str>) {
        tracing::debug!(%seq, %reason, "record is rejected");
        self.failures.note(seq, reason, false);
        self.window.rejected(seq);
    }
}

/// Writes `<queue uuid>-<sequence number>` without allocating for each record.
struct Identity {
    text: String,
    prefix: usize,
}

impl Identity {
    fn new(uuid: &str) -> Identity {
        let text = format!("{uuid}-");
        Identity { prefix: text.len(), text }
    }

    fn of(&mut self, seq: Seq) -> &str {
        self.text.truncate(self.prefix);
        write!(self.text, "{seq}").expect("writing to a string does not fail");
        &self.text
    }
}
