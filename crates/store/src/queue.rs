//! A queue as its users hold it, and the one place of its moving state.
//!
//! Invariant, asserted after every move in debug builds: `start <= cursor <= durable <= end`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use uuid::Uuid;

use crate::Seq;
use crate::append::Group;
use crate::commit::Committer;
use crate::cursor::Acks;
use crate::error::{AppendError, IoFailure, OpenError};
use crate::flush::Flusher;
use crate::index::{Counters, Hint};
use crate::queue_dir::DirInner;
use crate::ranges::Ranges;
use crate::read::Reader;
use crate::recover::{Recovered, RecoveryReport};
use crate::scan::Unreadable;
use crate::segment::{Home, SegmentMeta};

/// The losses that are remembered for people; the counter has them all.
const LOSSES_MAX: usize = 256;

/// Ranges of unavailable records that are told apart; beyond it a new one takes in what lies between it and the one before
/// it, which is then read again after the next open.
const UNAVAILABLE_MAX: usize = 4096;

/// What an append survives when it has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// Answered at once, written within about a millisecond: survives neither a crash of the process nor power loss.
    Buffered,
    /// Answered after write(2): survives `kill -9` of the process, not power loss.
    Written,
    /// Answered after fdatasync(2): survives power loss.
    #[default]
    Synced,
}

/// How a queue behaves. Every field has a safe default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Records that may wait unacknowledged; an append beyond it is refused with `Full`. Default 100 000, as the
    /// reference. Lowering it below what waits deletes nothing.
    pub queue_limit: u64,
    /// Bytes of a segment before the next begins. Default 64 MiB; 1 MiB to 1 GiB.
    pub segment_bytes: u64,
    /// The largest encoded record, in bytes. Default 16 MiB; at most 512 MiB.
    pub record_bytes_max: usize,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { queue_limit: 100_000, segment_bytes: 64 << 20, record_bytes_max: 16 << 20 }
    }
}

impl QueueOptions {
    /// The smallest segment. With the simulated disk smaller ones are taken, so that tests roll over often.
    pub const SEGMENT_BYTES_MIN: u64 = if cfg!(feature = "sim") { 8 << 10 } else { 1 << 20 };
    /// The largest segment.
    pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
    /// The largest `record_bytes_max`.
    pub const RECORD_BYTES_MAX: usize = 512 << 20;

    /// Sets [`queue_limit`](QueueOptions::queue_limit).
    #[must_use]
    pub fn queue_limit(mut self, records: u64) -> QueueOptions {
        self.queue_limit = records;
        self
    }

    /// Sets [`segment_bytes`](QueueOptions::segment_bytes).
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> QueueOptions {
        self.segment_bytes = bytes;
        self
    }

    /// Sets [`record_bytes_max`](QueueOptions::record_bytes_max).
    #[must_use]
    pub fn record_bytes_max(mut self, bytes: usize) -> QueueOptions {
        self.record_bytes_max = bytes;
        self
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let bad = |option, value, expected: String| Err(OpenError::BadOption { option, value, expected });
        let segments = Self::SEGMENT_BYTES_MIN..=Self::SEGMENT_BYTES_MAX;
        if !segments.contains(&self.segment_bytes) {
            return bad("segment_bytes", self.segment_bytes, format!("{segments:?} bytes are taken"));
        }
        if self.queue_limit == 0 {
            return bad("queue_limit", 0, "at least 1 record".to_owned());
        }
        if !(1..=Self::RECORD_BYTES_MAX).contains(&self.record_bytes_max) {
            let expected = format!("1 to {} bytes are taken", Self::RECORD_BYTES_MAX);
            return bad("record_bytes_max", self.record_bytes_max as u64, expected);
        }
        Ok(())
    }
}

/// Where a queue stands. All sequence numbers are "next" ones: `durable = 5` says that 1 to 4 are durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// The first sequence number that the segments still hold.
    pub start: Seq,
    /// Everything below is acknowledged.
    pub cursor: Seq,
    /// Everything below survives power loss.
    pub durable: Seq,
    /// The sequence number that the next append gets.
    pub end: Seq,
    /// Records that are not acknowledged.
    pub queued: u64,
    /// Segment files.
    pub segments: u64,
    /// Bytes of segment files that hold frames.
    pub bytes: u64,
    /// Lifetime counters.
    pub counters: Counters,
    /// The newest ranges that damage destroyed.
    pub losses: Vec<Range<Seq>>,
    /// Records that the disk does not give (an I/O error that several tries did not mend). They are neither lost nor
    /// acknowledged, and their files stay: opening the queue again tries again.
    pub unavailable: Vec<Range<Seq>>,
    /// Why writing has stopped, if it has.
    pub failed: Option<Arc<str>>,
}

/// The moving state of a queue. Held for lines, never during I/O.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) acks: Acks,
    pub(crate) durable: Seq,
    /// Everything below was given to the system, or failed for good: a reader may look.
    pub(crate) readable: Seq,
    pub(crate) end: Seq,
    pub(crate) segments: VecDeque<SegmentMeta>,
    pub(crate) counters: Counters,
    pub(crate) losses: VecDeque<Range<Seq>>,
    pub(crate) hint: Option<Hint>,
    pub(crate) unavailable: Unavailable,

    pub(crate) group: Group,
    pub(crate) committer: Doing,
    pub(crate) failed: Option<Arc<str>>,
    pub(crate) closed: bool,
    /// Acknowledgements, losses or hints that the index does not have yet.
    pub(crate) unflushed: u64,
    /// Closed and persisted: the index belongs to whoever opens the queue next.
    pub(crate) released: bool,
}

/// What the medium did not give, until the queue is opened again. Nothing of it is acknowledged, lost or deleted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unavailable {
    pub(crate) seqs: Ranges,
    /// How many of them need not be records: how far a segment goes that cannot be read is not always known.
    pub(crate) uncertain: u64,
    /// Segments from this ordinal on stay, whatever is acknowledged: what is in them hangs on one that cannot be read.
    pub(crate) keep_from: Option<u64>,
    /// What of which segment a reader has tried to read.
    pub(crate) places: BTreeMap<u64, Unreadable>,
}

/// What the committer is doing, so that it is woken only when it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Working,
    /// Sleeping until the idle watermark is due.
    Idling,
    /// Sleeping until somebody calls.
    Sleeping,
}

impl State {
    /// The first sequence number that the segments hold.
    pub(crate) fn start(&self) -> Seq {
        self.segments.front().map_or(self.readable, |segment| segment.base).min(self.cursor())
    }

    /// Never above `durable`, so that a cursor never promises more than the log keeps.
    pub(crate) fn cursor(&self) -> Seq {
        self.acks.prefix().min(self.durable)
    }

    /// The stretch at or after `seq` that is neither acknowledged nor unavailable: its start, and its end if one is known.
    pub(crate) fn to_read_from(&self, seq: Seq) -> (Seq, Option<Seq>) {
        let mut from = seq;
        loop {
            let (start, end) = self.acks.unacknowledged_from(from);
            let (readable, readable_end) = self.unavailable.seqs.gap_from(start);
            if readable == start {
                return (start, end.into_iter().chain(readable_end).min());
            }
            from = readable;
        }
    }

    /// Acknowledges what of the range can be read, or is known to be gone; returns how many numbers are new.
    fn settle(&mut self, range: Range<Seq>) -> u64 {
        let parts = self.unavailable.seqs.gaps_in(range);
        parts.into_iter().map(|part| self.acks.insert(part)).sum()
    }

    pub(crate) fn queued(&self) -> u64 {
        self.end.since(self.acks.prefix()) - self.acks.above_count() - self.unavailable.uncertain
    }

    /// The line that the whole store keeps.
    pub(crate) fn check(&self) {
        debug_assert!(
            self.start() <= self.cursor() && self.cursor() <= self.durable && self.durable <= self.end,
            "start {} <= cursor {} <= durable {} <= end {}",
            self.start(),
            self.cursor(),
            self.durable,
            self.end,
        );
        debug_assert!(self.readable <= self.end && self.acks.prefix() <= self.end);
    }
}

type Wake = Arc<dyn Fn() + Send + Sync>;

/// What the threads of a queue share.
pub(crate) struct Shared {
    pub(crate) home: Home,
    pub(crate) options: QueueOptions,
    pub(crate) state: Mutex<State>,
    /// The committer sleeps here.
    pub(crate) work: Condvar,
    /// Appenders sleep here while the buffer is full.
    pub(crate) room: Condvar,
    pub(crate) readers: Mutex<Vec<Wake>>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) folder_name: String,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Shared {
    /// A thread that panicked while it held the lock left a state that is still one: every move is a few lines.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever reads that there is more, or that the queue was closed.
    pub(crate) fn wake_readers(&self) {
        let wakes = self.readers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for wake in wakes {
            wake();
        }
    }

    /// Acknowledges a range. See [`Queue::ack`].
    pub(crate) fn ack(&self, range: Range<Seq>) {
        let mut state = self.lock();
        let until = range.end.min(state.readable);
        let fresh = state.settle(range.start..until);
        state.counters.acknowledged += fresh;
        self.moved(state, fresh);
    }

    /// Passes over numbers that no record has: a failed append's, or such as were never given out.
    pub(crate) fn pass(&self, range: Range<Seq>) {
        let mut state = self.lock();
        let until = range.end.min(state.readable);
        let fresh = state.settle(range.start..until);
        self.moved(state, fresh);
    }

    /// Records that a range is gone, with the reason: counted, logged, remembered, never silent.
    pub(crate) fn lose(&self, range: Range<Seq>, at: &str, cause: &str) {
        let mut state = self.lock();
        let fresh = state.settle(range.clone());
        state.counters.lost += fresh;
        if fresh > 0 {
            let (first, next) = (range.start.get(), range.end.get());
            tracing::error!(queue = %self.home.name, first, next, records = fresh, at, cause, "records are lost");
            state.losses.push_back(range);
            if state.losses.len() > LOSSES_MAX {
                state.losses.pop_front();
            }
        }
        self.moved(state, fresh);
    }

    /// The medium does not give a range: it is passed over until the queue is opened again, and nothing else becomes of it.
    pub(crate) fn put_off(&self, range: Range<Seq>, at: &str) {
        let mut state = self.lock();
        let from = if state.unavailable.seqs.len() < UNAVAILABLE_MAX {
            range.start
        } else {
            state.unavailable.seqs.end_before(range.start).unwrap_or(range.start)
        };
        let parts = state.acks.unacknowledged_in(from..range.end);
        let fresh: u64 = parts.into_iter().map(|part| state.unavailable.seqs.insert(part)).sum();
        drop(state);
        if fresh > 0 {
            let (first, next) = (range.start.get(), range.end.get());
            tracing::error!(queue = %self.home.name, first, next, records = fresh, at, "records are unavailable until the queue is opened again: the disk does not give them");
        }
    }

    /// After the cursor may have moved: it is to be persisted, and stated in a watermark.
    pub(crate) fn moved(&self, mut state: MutexGuard<'_, State>, fresh: u64) {
        if fresh == 0 {
            return;
        }
        state.check();
        state.unflushed += fresh;
        if state.committer == Doing::Sleeping {
            state.committer = Doing::Idling;
            self.work.notify_one();
        }
        let unflushed = state.unflushed;
        drop(state);
        self.flusher.call(unflushed);
    }
}

/// A durable queue. Cheap to clone; the last handle closes it.
#[derive(Debug, Clone)]
pub struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    report: RecoveryReport,
    committer: Mutex<Option<JoinHandle<()>>>,
    /// Keeps lock, index and flusher of the queue_dir alive.
    dir: Arc<DirInner>,
}

impl Queue {
    pub(crate) fn start(
        shared: Arc<Shared>,
        recovered: Recovered,
        dir: Arc<DirInner>,
    ) -> Result<Queue, OpenError> {
        let committer = Committer::start(Arc::clone(&shared), recovered.active)?;
        let committer = Mutex::new(Some(committer));
        Ok(Queue(Arc::new(Inner { shared, report: recovered.report, committer, dir })))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The queue's name, as it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.shared.home.name
    }

    /// The queue's identity: made once, the same for as long as its files exist.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0.shared.home.uuid
    }

    /// What opening found and did.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.0.report
    }

    /// A reader that starts at the cursor. Records that are acknowledged already are passed over.
    #[must_use]
    pub fn reader(&self) -> Reader {
        let from = self.shared().lock().cursor();
        Reader::new(Arc::clone(self.shared()), from)
    }

    /// Acknowledges `range`: its records are not returned again, also after a restart. Any order; what is acknowledged
    /// already, or was never readable, is ignored. Never blocks on I/O.
    ///
    /// When this returns, the acknowledgement is in memory; it is persisted in the background within
    /// `index_flush_interval` or `index_flush_acks`, and what was not is delivered again after a crash: see
    /// [`crate::QueueDirOptions`] for the bound, and [`Queue::truncate`] to persist it now.
    ///
    /// A record that is [unavailable](QueueStatus::unavailable) is not acknowledged, whatever the range says.
    pub fn ack(&self, range: Range<Seq>) {
        self.shared().ack(range);
    }

    /// Persists the acknowledgements so far and frees the segments that lie wholly below the cursor. Blocks on the disk;
    /// happens in the background as well, see [`crate::QueueDirOptions`].
    ///
    /// When this returns `Ok`, what was acknowledged before the call stays acknowledged, also after power loss.
    ///
    /// # Errors
    /// [`IoFailure`] if the index cannot be written: segments were freed all the same, what was acknowledged in those
    /// that stay may be delivered again after a crash, and the background tries again.
    pub fn truncate(&self) -> Result<(), IoFailure> {
        let shared = self.shared();
        let state = shared.lock();
        if state.released && state.unflushed > 0 {
            let error = std::io::Error::other("the queue is closed");
            return Err(IoFailure::new("persist acknowledgements of", &shared.home.folder, error));
        }
        drop(state);
        shared.flusher.flush(std::slice::from_ref(shared), false)
    }

    /// Calls `wake` whenever more has become readable, and when the queue is closed. It is called from the committing
    /// thread: it must be short and must not block.
    pub fn on_readable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.shared().readers.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    /// Where the queue stands.
    #[must_use]
    pub fn status(&self) -> QueueStatus {
        let state = self.shared().lock();
        QueueStatus {
            start: state.start(),
            cursor: state.cursor(),
            durable: state.durable,
            end: state.end,
            queued: state.queued(),
            segments: state.segments.len() as u64,
            bytes: state.segments.iter().map(|segment| segment.bytes).sum(),
            counters: state.counters,
            losses: state.losses.iter().cloned().collect(),
            unavailable: state.unavailable.seqs.iter().collect(),
            failed: state.failed.clone(),
        }
    }

    /// Ends the queue: appends are refused, what was appended is written and synced, the cursor is persisted. Never
    /// waits for delivery. When this returns, the same name may be opened again.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Inner {
    fn close(&self) {
        let mut slot = self.committer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(committer) = slot.take() else { return };
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        if committer.thread().id() == std::thread::current().id() {
            // The last handle went away in a waker, on the committing thread itself: it releases when it ends.
            let (dir, shared) = (Arc::clone(&self.dir), Arc::clone(&self.shared));
            std::thread::spawn(move || {
                let _ = committer.join();
                dir.release(&shared);
                shared.wake_readers();
            });
            return;
        }
        // A committer that panicked has failed its waiters; there is nothing more to do here.
        let _ = committer.join();
        self.dir.release(&self.shared);
        self.shared.wake_readers();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// How long the committer idles before it states in a watermark what the last sync covered, and the cursor.
pub(crate) const IDLE_WATERMARK: Duration = Duration::from_millis(50);

/// The refusal for a queue that does not write any more.
pub(crate) fn refusal(state: &State) -> Option<AppendError> {
    match &state.failed {
        Some(first) => Some(AppendError::Failed { first: Arc::clone(first) }),
        None => state.closed.then_some(AppendError::Closed),
    }
}
