//! Publish: an event is matched to its targets and becomes one record in the queue of each. The answer comes when every
//! matched target has it durable or has refused it; one that is full or broken never keeps it from the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_notify::{Arn, Envelope, TargetId};
use tidegate_store::{AppendError, Durability, Queue, Record, Seq, Ticket};

use crate::engine::Engine;
use crate::target::Slot;

/// What became of a publish.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Published {
    /// Events that were published.
    pub events: usize,
    /// Events that no rule matches, or only rules whose target does not exist.
    pub unmatched: usize,
    /// The targets that have events durable.
    pub accepted: Vec<Accepted>,
    /// The targets that refused events. Publishing again repeats what `accepted` has already.
    pub refused: Vec<Refused>,
}

impl Published {
    /// Whether every matched target has every event.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.refused.is_empty()
    }
}

/// Events that a target has durable.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Accepted {
    /// The target.
    pub arn: Arn,
    /// The sequence number of the first.
    pub first: Seq,
    /// The sequence number of the last. Others may have been published in between.
    pub last: Seq,
    /// How many.
    pub events: usize,
}

/// Events that a target refused.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Refused {
    /// The target.
    pub arn: Arn,
    /// How many.
    pub events: usize,
    /// Why the first was.
    pub reason: SendError,
}

/// Why a target refused a record.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No target has this identifier.
    #[error("there is no target {id:?}; there are: {known}")]
    Unknown {
        /// The identifier.
        id: String,
        /// Those that there are.
        known: String,
    },
    /// The target's configuration or its queue_dir does not work.
    #[error("the target does not work: {reason}")]
    Broken {
        /// What is wrong.
        reason: Arc<str>,
    },
    /// The queue refused it.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl Engine {
    /// Publishes an event to every target that a rule names for it.
    ///
    /// When this returns, each target in `accepted` has the event durable, and it reaches Kafka at least once. Events are
    /// queued in the order in which their publish was first polled.
    pub async fn publish<'e>(&self, event: impl Into<Envelope<'e>>) -> Published {
        self.publish_all(&[event.into()]).await
    }

    /// Publishes events, in order, with one answer for all.
    ///
    /// When this returns, each target in `accepted` has so many of them durable. Cancelling the future takes nothing
    /// back: what was queued is delivered.
    pub async fn publish_all(&self, events: &[Envelope<'_>]) -> Published {
        let mut published = Published { events: events.len(), ..Published::default() };
        let mut outcomes = BTreeMap::new();
        for event in events {
            let mut matched = false;
            for id in self.rules().matching(event.bucket(), event.object(), event.event_name()) {
                let Some(slot) = self.slot(id) else { continue };
                matched = true;
                let outcome: &mut Outcome<'_> = outcomes.entry(id).or_default();
                outcome.append(slot, event).await;
            }
            if !matched {
                published.unmatched += 1;
            }
        }
        self.count_unmatched().fetch_add(published.unmatched as u64, Ordering::Relaxed);
        for outcome in outcomes.into_values() {
            outcome.settle(&mut published).await;
        }
        published
    }

    /// Appends a record to one target's queue, whatever the rules say.
    ///
    /// When this returns `Ok`, the record is durable under that sequence number, and reaches Kafka at least once.
    ///
    /// # Errors
    /// [`SendError`]: there is no such target, it does not work, or its queue refused the record.
    pub async fn send(&self, target: &TargetId, record: &Record<'_>) -> Result<Seq, SendError> {
        let target = self.target(target)?;
        Ok(append(target.queue(), record).await?.await?)
    }
}

/// What becomes of the events for one target while they are being published.
#[derive(Default)]
struct Outcome<'e> {
    arn: Option<&'e Arn>,
    tickets: Vec<Ticket>,
    refused: usize,
    reason: Option<SendError>,
}

impl<'e> Outcome<'e> {
    async fn append(&mut self, slot: &'e Slot, event: &Envelope<'_>) {
        match slot {
            Slot::Working(target) => {
                self.arn = Some(target.arn());
                match append(target.queue(), &record(event)).await {
                    Ok(ticket) => self.tickets.push(ticket),
                    Err(error) => self.refuse(error.into()),
                }
            }
            Slot::Broken { arn, reason } => {
                self.arn = Some(arn);
                self.refuse(SendError::Broken { reason: Arc::clone(reason) });
            }
        }
    }

    fn refuse(&mut self, reason: SendError) {
        self.refused += 1;
        self.reason.get_or_insert(reason);
    }

    /// Waits for all tickets and adds what came of them.
    async fn settle(mut self, published: &mut Published) {
        let mut accepted: Option<(Seq, Seq, usize)> = None;
        for ticket in std::mem::take(&mut self.tickets) {
            match ticket.await {
                Ok(seq) => {
                    let (first, _, events) = accepted.unwrap_or((seq, seq, 0));
                    accepted = Some((first, seq, events + 1));
                }
                Err(error) => self.refuse(error.into()),
            }
        }
        let Some(arn) = self.arn else { return };
        if let Some((first, last, events)) = accepted {
            published.accepted.push(Accepted { arn: arn.clone(), first, last, events });
        }
        if let Some(reason) = self.reason {
            published.refused.push(Refused { arn: arn.clone(), events: self.refused, reason });
        }
    }
}

/// What of an event reaches the queue.
fn record<'e>(event: &'e Envelope<'_>) -> Record<'e> {
    Record {
        key: Some(event.key().as_bytes()),
        timestamp_ms: event.event_time_ms().unwrap_or_default(),
        value: event.json().as_bytes(),
        ..Record::default()
    }
}

/// Appends without blocking the task's thread: waits for room where the write buffer is full.
async fn append(queue: &Queue, record: &Record<'_>) -> Result<Ticket, AppendError> {
    loop {
        match queue.try_append(record, Durability::Synced) {
            Err(AppendError::Busy) => queue.room().await,
            result => return result,
        }
    }
}
