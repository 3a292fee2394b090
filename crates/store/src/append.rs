//! Append: the record is encoded, then claims a sequence number and a place in the group that is filling.
//! The lock is held for the claim alone; the ticket resolves when the committer has done its part.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{AppendError, Limit};
use crate::frame::{self, BATCH_FIRST, BATCH_MORE, HEADER_BYTES, Kind, Watermark, frame_bytes};
use crate::queue::{Doing, Durability, Queue, Shared, State, refusal};
use crate::{Record, Seq};

/// A group stops taking records at this size, and appenders wait: the bound on memory. 1 MiB was the best of 64 KiB to
/// 8 MiB.
pub(crate) const GROUP_BYTES_MAX: usize = 1 << 20;
/// Kept free at the front of a group for the watermark and a skip, so that they go out in the same write.
pub(crate) const FRONT_BYTES: usize = frame_bytes(Watermark::BYTES) + HEADER_BYTES;
/// A thread's encoding buffer is given back when a large record has made it larger than this.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

/// The group that is filling.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// [`FRONT_BYTES`] to fill in later, then frames that are not stamped yet.
    pub(crate) frames: Vec<u8>,
    pub(crate) records: u64,
    /// Records whose tickets wait for the outcome; the gather goes by it.
    pub(crate) waiters: u64,
    /// Whether anyone waits for a sync.
    pub(crate) sync: bool,
    pub(crate) outcome: Arc<GroupOutcome>,
    /// Tasks that wait for room in the next group.
    pub(crate) room: Vec<Waker>,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    fn is_full(&self) -> bool {
        self.frames.len() >= GROUP_BYTES_MAX
    }
}

/// What became of a group, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct GroupOutcome {
    state: Mutex<OutcomeState>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct OutcomeState {
    outcome: Option<Outcome>,
    wakers: Vec<Waker>,
}

/// The answer to all tickets of a group. A group that a full segment divides may fail from some record on.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Records below were written.
    pub(crate) written: Seq,
    /// Why the others were not.
    pub(crate) write_error: Option<AppendError>,
    /// Why those that were written may not be durable.
    pub(crate) sync_error: Option<AppendError>,
}

impl Outcome {
    /// Nothing of the group was written, nor will be.
    pub(crate) fn failed(reason: &str) -> Outcome {
        let error = AppendError::Failed { first: reason.into() };
        Outcome { written: Seq::new(0), write_error: Some(error), sync_error: None }
    }
}

impl GroupOutcome {
    fn lock(&self) -> MutexGuard<'_, OutcomeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers every ticket of the group. The first answer stands.
    pub(crate) fn resolve(&self, outcome: Outcome) {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.done.notify_all();
        for waker in wakers {
            waker.wake();
        }
    }
}

/// A record's claim on durability: resolves to its sequence number when the level asked for is reached.
///
/// Wait for it blocking with [`Ticket::wait`], or `.await` it; no runtime is needed. A ticket that is dropped takes
/// nothing back: the record is queued all the same.
#[derive(Debug)]
#[must_use = "the record is durable only when the ticket has resolved"]
pub struct Ticket {
    seq: Seq,
    records: u64,
    durability: Durability,
    /// None if there is nothing to wait for.
    group: Option<Arc<GroupOutcome>>,
    /// Where this ticket's waker stands in the group, once it was polled.
    waker: Option<usize>,
}

impl Ticket {
    /// The sequence number that the record gets if it is accepted; of a batch, its first record's.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The sequence numbers that the records get if they are accepted.
    #[must_use]
    pub fn range(&self) -> Range<Seq> {
        self.seq..Seq::new(self.seq.get() + self.records)
    }

    /// Blocks until the record is as durable as was asked.
    ///
    /// # Errors
    /// [`AppendError`] if it was not accepted, or if it is unknown whether it is durable.
    pub fn wait(self) -> Result<Seq, AppendError> {
        let Some(group) = &self.group else { return Ok(self.seq) };
        let mut state = group.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return self.answer(outcome);
            }
            state = group.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn answer(&self, outcome: &Outcome) -> Result<Seq, AppendError> {
        let sync_error = outcome.sync_error.as_ref().filter(|_| self.durability == Durability::Synced);
        let error = if self.seq >= outcome.written { outcome.write_error.as_ref() } else { sync_error };
        error.map_or(Ok(self.seq), |error| Err(error.clone()))
    }
}

impl Future for Ticket {
    type Output = Result<Seq, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(group) = self.group.clone() else { return Poll::Ready(Ok(self.seq)) };
        let mut state = group.lock();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(self.answer(outcome));
        }
        if let Some(at) = self.waker {
            state.wakers[at].clone_from(context.waker());
        } else {
            self.waker = Some(state.wakers.len());
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Resolves when a full buffer has been taken over by the committer. See [`Queue::room`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Room<'q>(&'q Shared);

impl Future for Room<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if !state.group.is_full() || refusal(&state).is_some() {
            return Poll::Ready(());
        }
        state.group.room.push(context.waker().clone());
        Poll::Pending
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Queue {
    /// Appends a record. Blocks only while the write buffer is full, which lasts as long as one write; async callers
    /// use [`Queue::try_append`].
    ///
    /// When the ticket resolves, the record is as durable as `durability` says. Records are queued in the order in
    /// which appends return.
    ///
    /// # Errors
    /// [`AppendError`]: the record was not taken, and the caller still has it.
    pub fn append(&self, record: &Record<'_>, durability: Durability) -> Result<Ticket, AppendError> {
        let shared = self.shared();
        with_frame(shared, record, |frame| {
            let mut state = shared.lock();
            while state.group.is_full() && refusal(&state).is_none() {
                state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            claim(shared, &mut state, frame, 1, durability)
        })
    }

    /// Appends a record and never blocks.
    ///
    /// # Errors
    /// As [`Queue::append`], and [`AppendError::Busy`] while the write buffer is full: await [`Queue::room`], then try
    /// again.
    pub fn try_append(&self, record: &Record<'_>, durability: Durability) -> Result<Ticket, AppendError> {
        let shared = self.shared();
        with_frame(shared, record, |frame| {
            let mut state = shared.lock();
            if state.group.is_full() && refusal(&state).is_none() {
                return Err(AppendError::Busy);
            }
            claim(shared, &mut state, frame, 1, durability)
        })
    }

    /// Appends records that stand or fall together: after a crash all of them are there, or none. They get consecutive
    /// sequence numbers and one ticket, see [`Ticket::range`]. Blocks as [`Queue::append`] does. A batch of no records is
    /// answered at once, with an empty range.
    ///
    /// When the ticket resolves, all of them are as durable as `durability` says.
    ///
    /// # Errors
    /// [`AppendError`]: none of them was taken. [`AppendError::TooLarge`] if together they are larger than
    /// `record_bytes_max`; [`AppendError::Full`] if not all of them fit below a limit.
    pub fn append_batch(
        &self,
        records: &[Record<'_>],
        durability: Durability,
    ) -> Result<Ticket, AppendError> {
        let shared = self.shared();
        with_scratch(|scratch| {
            encode_batch(scratch, records, shared.options.record_bytes_max)?;
            let mut state = shared.lock();
            while state.group.is_full() && refusal(&state).is_none() {
                state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            claim(shared, &mut state, scratch, records.len() as u64, durability)
        })
    }

    /// Resolves when the write buffer takes records again.
    pub fn room(&self) -> Room<'_> {
        Room(self.shared())
    }
}

/// Encodes the record into this thread's buffer and hands the frame on.
fn with_frame<R>(
    shared: &Shared,
    record: &Record<'_>,
    then: impl FnOnce(&mut [u8]) -> Result<R, AppendError>,
) -> Result<R, AppendError> {
    with_scratch(|scratch| {
        let start = frame::begin(scratch);
        record.encode_into(scratch);
        let (bytes, max) = (scratch.len() - HEADER_BYTES, shared.options.record_bytes_max);
        if bytes > max {
            return Err(AppendError::TooLarge { bytes, max });
        }
        frame::finish(scratch, start, Kind::Data, 0);
        then(scratch)
    })
}

/// Lends this thread's buffer, empty.
fn with_scratch<R>(then: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        let result = then(scratch);
        if scratch.capacity() > SCRATCH_BYTES_KEPT {
            scratch.clear();
            scratch.shrink_to(SCRATCH_BYTES_KEPT);
        }
        result
    })
}

/// Encodes records as the frames of one batch.
fn encode_batch(frames: &mut Vec<u8>, records: &[Record<'_>], max: usize) -> Result<(), AppendError> {
    let mut bytes = 0;
    for (at, record) in records.iter().enumerate() {
        let start = frame::begin(frames);
        record.encode_into(frames);
        bytes += frames.len() - start - HEADER_BYTES;
        if bytes > max {
            return Err(AppendError::TooLarge { bytes, max });
        }
        let first = if at == 0 { BATCH_FIRST } else { 0 };
        let more = if at + 1 < records.len() { BATCH_MORE } else { 0 };
        frame::finish(frames, start, Kind::Batch, first | more);
    }
    Ok(())
}

/// The critical section of every append: limits, sequence number, copy.
fn claim(
    shared: &Shared,
    state: &mut State,
    frames: &mut [u8],
    records: u64,
    durability: Durability,
) -> Result<Ticket, AppendError> {
    if let Some(error) = refusal(state) {
        return Err(error);
    }
    let (limit, queued) = (shared.options.queue_limit, state.queued());
    if records > limit.saturating_sub(queued) {
        return Err(AppendError::Full(Limit::QueueLimit { limit, queued }));
    }
    let seq = state.end;
    if records == 0 {
        return Ok(Ticket { seq, records, durability, group: None, waker: None });
    }
    let mut rest = &mut frames[..];
    while !rest.is_empty() {
        frame::set_seq(rest, state.end);
        state.end = state.end.next();
        let bytes = frame::unstamped(rest).bytes;
        rest = &mut rest[bytes..];
    }
    let group = &mut state.group;
    if group.frames.is_empty() {
        group.frames.resize(FRONT_BYTES, 0);
    }
    group.frames.extend_from_slice(frames);
    group.records += records;
    group.sync |= durability == Durability::Synced;
    let outcome = (durability != Durability::Buffered).then(|| {
        group.waiters += records;
        Arc::clone(&group.outcome)
    });
    if state.committer != Doing::Working {
        state.committer = Doing::Working;
        shared.work.notify_one();
    }
    state.check();
    Ok(Ticket { seq, records, durability, group: outcome, waker: None })
}
