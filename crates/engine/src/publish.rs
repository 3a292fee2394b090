//! Publish: an event is matched to its targets and becomes one record in the queue of each. The answer comes when every
//! matched target has it durable or has refused it; one that is full or broken never keeps it from the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
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
    /// When this returns, each target in `accepted` has the event durable, and it reaches Kafka at least once. A caller
    /// that awaits each publish before the next has its events queued in that order.
    pub async fn publish<'e>(&self, event: impl Into<Envelope<'e>>) -> Published {
        self.publish_all(&[event.into()]).await
    }

    /// Publishes events, in order, with one answer for all. A target that refuses one is offered none of those after it,
    /// so that a full queue has the beginning of them and no holes.
    ///
    /// When this returns, each target in `accepted` has so many of them durable. Cancelling the future takes nothing
    /// back: what was queued is delivered.
    pub async fn publish_all(&self, events: &[Envelope<'_>]) -> Published {
        let mut matched: BTreeMap<&TargetId, (&Slot, Vec<&Envelope<'_>>)> = BTreeMap::new();
        let mut published = Published { events: events.len(), ..Published::default() };
        for event in events {
            let targets = self.rules().matching(event.bucket(), event.object(), event.event_name());
            let slots: Vec<_> = targets.into_iter().filter_map(|id| Some((id, self.slot(id)?))).collect();
            published.unmatched += usize::from(slots.is_empty());
            for (id, slot) in slots {
                matched.entry(id).or_insert_with(|| (slot, Vec::new())).1.push(event);
            }
        }
        self.count_unmatched().fetch_add(published.unmatched as u64, Ordering::Relaxed);
        // Side by side: a target whose disk is slow keeps no event from the others.
        let outcomes = join_all(matched.into_values().map(|(slot, events)| offer(slot, events))).await;
        for (accepted, refused) in outcomes {
            published.accepted.extend(accepted);
            published.refused.extend(refused);
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

/// Offers events to one target, in order, and waits until they are durable.
async fn offer(slot: &Slot, events: Vec<&Envelope<'_>>) -> (Option<Accepted>, Option<Refused>) {
    let target = match slot {
        Slot::Working(target) => target,
        Slot::Broken { arn, reason } => {
            let reason = SendError::Broken { reason: Arc::clone(reason) };
            return (None, Some(Refused { arn: arn.clone(), events: events.len(), reason }));
        }
    };
    let (mut tickets, mut error) = (Vec::with_capacity(events.len()), None);
    for event in &events {
        match append(target.queue(), &record(event)).await {
            Ok(ticket) => tickets.push(ticket),
            Err(refusal) => {
                error = Some(refusal);
                break;
            }
        }
    }
    let mut durable: Vec<Seq> = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        match ticket.await {
            Ok(seq) => durable.push(seq),
            Err(failure) => error = error.or(Some(failure)),
        }
    }
    let arn = target.arn();
    let ends = durable.first().copied().zip(durable.last().copied());
    let accepted =
        ends.map(|(first, last)| Accepted { arn: arn.clone(), first, last, events: durable.len() });
    let missing = events.len() - durable.len();
    let refused = error.map(|error| Refused { arn: arn.clone(), events: missing, reason: error.into() });
    (accepted, refused)
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
