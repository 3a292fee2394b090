//! Commit: one thread a queue owns the active segment. It takes the group that has filled, writes it in one piece,
//! syncs once if anyone waits for that, and answers everyone.
//!
//! Invariant: `durable` moves only after a sync that returned `Ok`; after a failed one nothing goes through that file
//! again.

use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Seq;
use crate::append::{FRONT_BYTES, GROUP_BYTES_MAX, Group, GroupOutcome, Outcome};
use crate::error::{AppendError, AtPath, IoFailure, OpenError};
use crate::frame::{self, Kind, SegStart, Watermark};
use crate::index::Hint;
use crate::queue::{Doing, IDLE_WATERMARK, Shared, State};
use crate::segment::{ActiveSegment, FORMAT_VERSION, NewSegment, SegmentHeader, SegmentMeta, fresh_salt};

/// How long the committer waits for the producers that it has just woken, so that they share the next sync instead of
/// taking turns. About a third of a sync; never after a group of one.
const GATHER: Duration = Duration::from_micros(60);
/// What was written without anyone waiting for a sync is synced at the latest after this time, so that `durable`, and
/// with it the cursor, follow also where appends never pause.
const SYNC_BEHIND: Duration = Duration::from_secs(1);
/// The write buffers are given back when a large record has made them larger than this.
const BUFFER_BYTES_KEPT: usize = 2 * GROUP_BYTES_MAX;
/// Ordinals that are tried when files are in the way; more means that something else writes here.
const ORDINALS_TRIED: u64 = 1000;

/// Why a queue has failed whose committing thread is gone.
const PANICKED: &str = "the committing thread panicked";

const _: () = assert!(FORMAT_VERSION == 1);

/// Where writing goes on: what recovery found, and what a segment leaves to the next.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) active: Option<ActiveSegment>,
    pub(crate) previous: SegStart,
    pub(crate) next_ordinal: u64,
    /// The watermark that the log states last.
    pub(crate) watermark: Watermark,
}

/// The committing thread's own state.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    tail: Tail,
    /// Sequence numbers that were given out and whose records failed; the next write states them.
    gap: Option<Range<Seq>>,
    /// Since when something was written that no sync has covered.
    unsynced: Option<Instant>,
    /// Failed syncs since the last that succeeded.
    sync_failures: u32,
    /// The buffer that is not filling.
    frames: Vec<u8>,
}

enum Work {
    Group(Taken),
    Idle,
    Stop,
}

/// A group that was taken over. If the committer dies with it, its waiters are answered all the same.
struct Taken {
    records: u64,
    waiters: u64,
    sync: bool,
    end: Seq,
    outcome: Arc<GroupOutcome>,
    /// Tasks that wait for room: woken outside of the lock, since a waker may do anything.
    room: Vec<Waker>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.outcome.resolve(Outcome::failed(PANICKED));
    }
}

/// Marks the queue as failed if the thread unwinds.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            fail(&self.0, PANICKED);
            // The group that is filling has nobody to write it any more.
            let group = std::mem::take(&mut self.0.lock().group);
            group.outcome.resolve(Outcome::failed(PANICKED));
            group.room.into_iter().for_each(Waker::wake);
        }
    }
}

fn fail(shared: &Shared, reason: &str) {
    let mut state = shared.lock();
    if state.failed.is_none() {
        tracing::error!(queue = %shared.home.name, reason, "queue has stopped writing; reading and acknowledging go on");
        state.failed = Some(reason.into());
    }
    drop(state);
    shared.room.notify_all();
}

impl Committer {
    pub(crate) fn start(shared: Arc<Shared>, tail: Tail) -> Result<JoinHandle<()>, OpenError> {
        let folder = shared.home.folder.clone();
        let committer =
            Committer { shared, tail, gap: None, unsynced: None, sync_failures: 0, frames: Vec::new() };
        thread::Builder::new()
            .name("tidegate-commit".to_owned())
            .spawn(move || {
                let _guard = Guard(Arc::clone(&committer.shared));
                committer.run();
            })
            .at("start the committing thread of", &folder)
            .map_err(OpenError::Io)
    }

    fn run(mut self) {
        let mut gather_for = 0;
        loop {
            match self.wait_for_work(gather_for) {
                Work::Group(mut taken) => {
                    taken.room.drain(..).for_each(Waker::wake);
                    gather_for = if taken.sync { taken.waiters } else { 0 };
                    self.commit(&taken);
                }
                Work::Idle => self.idle(),
                Work::Stop => return self.finish(),
            }
        }
    }

    fn wait_for_work(&mut self, gather_for: u64) -> Work {
        self.gather(gather_for);
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if !state.group.is_empty() {
                state.committer = Doing::Working;
                return Work::Group(self.take(&mut state));
            }
            if state.closed {
                return Work::Stop;
            }
            if self.has_news(&state) {
                state.committer = Doing::Idling;
                let wait = shared.work.wait_timeout(state, IDLE_WATERMARK);
                let (back, timeout) = wait.unwrap_or_else(PoisonError::into_inner);
                state = back;
                if timeout.timed_out() && state.group.is_empty() {
                    state.committer = Doing::Working;
                    return Work::Idle;
                }
            } else {
                state.committer = Doing::Sleeping;
                state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Gives the producers that were just answered a moment to come back.
    fn gather(&self, count: u64) {
        if count < 2 {
            return;
        }
        let start = Instant::now();
        while self.shared.lock().group.waiters < count && start.elapsed() < GATHER {
            thread::yield_now();
        }
    }

    /// Takes the group over: producers fill the other buffer from here on.
    fn take(&mut self, state: &mut State) -> Taken {
        self.frames.clear();
        self.frames.shrink_to(BUFFER_BYTES_KEPT);
        let empty = Group { frames: std::mem::take(&mut self.frames), ..Group::default() };
        let group = std::mem::replace(&mut state.group, empty);
        self.frames = group.frames;
        self.shared.room.notify_all();
        Taken {
            room: group.room,
            records: group.records,
            waiters: group.waiters,
            sync: group.sync,
            end: state.end,
            outcome: group.outcome,
        }
    }

    fn commit(&mut self, taken: &Taken) {
        let first = frame::unstamped(&self.frames[FRONT_BYTES..]).seq;
        let written = self.write(first);
        let write_error = written.as_ref().err().map(|(_, error)| error.clone());
        let written = written.map_or_else(|(written, _)| written, |()| taken.end);
        self.burn(written..taken.end);
        let due = taken.sync || self.unsynced.is_some_and(|since| since.elapsed() > SYNC_BEHIND);
        let sync_error = match &write_error {
            // The sync of a rotation failed: what of this group stands in the segment before is in doubt too.
            Some(error @ AppendError::DurabilityUnknown(_)) => Some(error.clone()),
            _ if due && written > first => self.sync().err(),
            _ => None,
        };
        self.publish(taken.records - taken.end.since(written), taken.end);
        // Who waits is told, and says so; who does not is only told here.
        let unheard = taken.records > taken.waiters;
        if let Some(error) = write_error.as_ref().or(sync_error.as_ref()).filter(|_| unheard) {
            tracing::error!(queue = %self.shared.home.name, first = first.get(), next = taken.end.get(), %error, "append failed");
        }
        taken.outcome.resolve(Outcome { written, write_error, sync_error });
        self.shared.wake_readers();
    }

    /// Writes the frames of the group, in one piece for each segment that they fall into. On failure says from which
    /// sequence number on nothing was kept.
    fn write(&mut self, first: Seq) -> Result<(), (Seq, AppendError)> {
        let mut frames = std::mem::take(&mut self.frames);
        let mut at = FRONT_BYTES;
        let mut seq = first;
        let result = loop {
            if at == frames.len() {
                break Ok(());
            }
            match self.write_piece(&mut frames, at, seq) {
                Ok((end, next)) => (at, seq) = (end, next),
                Err(error) => break Err((seq, error)),
            }
        };
        self.frames = frames;
        result
    }

    /// Writes as many of the frames from `at` on as the segment takes; returns where the next piece starts.
    fn write_piece(&mut self, frames: &mut [u8], at: usize, seq: Seq) -> Result<(usize, Seq), AppendError> {
        let disk = Arc::clone(&self.shared.home.disk);
        self.make_room(frame::unit_bytes(&frames[at..]), seq)?;
        let (front, watermark) = if at == FRONT_BYTES { self.front() } else { (Vec::new(), None) };
        let start = at - front.len();
        frames[start..at].copy_from_slice(&front);

        let segment_bytes = self.shared.options.segment_bytes;
        let Some(segment) = &mut self.tail.active else { unreachable!("make_room leaves an active segment") };
        let (mut end, mut next, mut records, mut chain) = (start, seq, 0, segment.chain);
        // A batch is never divided: a crash would leave a part of it in a segment that is sealed.
        let mut unit_end = at;
        while end < frames.len() {
            if end >= unit_end {
                unit_end = end + frame::unit_bytes(&frames[end..]);
                if records > 0 && !segment.fits(unit_end - start, segment_bytes) {
                    break;
                }
            }
            let frame = frame::unstamped(&frames[end..]);
            chain = frame::stamp(&mut frames[end..], segment.salt, chain);
            end += frame.bytes;
            if frame.kind_is_record {
                records += 1;
                next = frame.seq.next();
            }
        }
        if let Err((failure, usable)) = segment.write(disk.as_ref(), &frames[start..end], chain) {
            if !usable {
                self.abandon();
                // What got through can neither be taken back nor vouched for.
                return Err(AppendError::DurabilityUnknown(failure));
            }
            return Err(failure.into());
        }
        segment.next = next;
        segment.records += records;
        self.unsynced.get_or_insert_with(Instant::now);
        self.gap = None;
        if let Some(watermark) = watermark {
            self.stated(watermark);
        }
        Ok((end, next))
    }

    /// What goes before a group: the watermark if it has moved, and the numbers that failed.
    fn front(&self) -> (Vec<u8>, Option<Watermark>) {
        let mut front = Vec::new();
        let state = self.shared.lock();
        let watermark = Watermark { durable: state.durable, cursor: state.cursor() };
        drop(state);
        let next = self.tail.active.as_ref().map_or(Seq::FIRST, |segment| segment.next);
        let moved = (watermark != self.tail.watermark).then_some(watermark);
        if let Some(watermark) = moved {
            frame::push(&mut front, Kind::Watermark, next, &watermark.encode());
        }
        if let Some(gap) = &self.gap {
            frame::push_skip(&mut front, gap, 0);
        }
        (front, moved)
    }

    fn stated(&mut self, watermark: Watermark) {
        self.tail.watermark = watermark;
        if let Some(segment) = &mut self.tail.active {
            segment.watermark = watermark;
        }
    }

    /// Sees to it that there is an active segment and that it takes a frame of `bytes`.
    fn make_room(&mut self, bytes: usize, seq: Seq) -> Result<(), AppendError> {
        let segment_bytes = self.shared.options.segment_bytes;
        if let Some(segment) = &self.tail.active {
            if segment.has_room(FRONT_BYTES + bytes, segment_bytes) {
                return Ok(());
            }
            self.rotate()?;
        }
        self.create(seq)
    }

    /// Seals the active segment. When this returns, all that it holds is durable.
    fn rotate(&mut self) -> Result<(), AppendError> {
        let Some(segment) = &mut self.tail.active else { return Ok(()) };
        let sealed = segment.seal(self.shared.home.disk.as_ref());
        if let Err(failure) = sealed {
            return Err(self.sync_failed(failure));
        }
        self.synced();
        self.publish(0, Seq::new(0));
        self.abandon();
        Ok(())
    }

    /// Leaves the active segment as it is: nothing goes through its file again.
    fn abandon(&mut self) {
        if let Some(segment) = self.tail.active.take() {
            self.tail.previous = segment.as_previous();
        }
        self.unsynced = None;
    }

    /// Begins a new segment whose first record is `base`.
    fn create(&mut self, base: Seq) -> Result<(), AppendError> {
        let home = &self.shared.home;
        let mut tried = 0;
        let (active, meta) = loop {
            let header = SegmentHeader {
                uuid: home.uuid,
                ordinal: self.tail.next_ordinal,
                salt: fresh_salt(),
                segment_bytes: self.shared.options.segment_bytes,
                recycled: false,
                name: home.name.clone(),
            };
            self.tail.next_ordinal += 1;
            tried += 1;
            let new = NewSegment { folder: &home.folder, header, base, previous: self.tail.previous };
            match ActiveSegment::create(home.disk.as_ref(), &new) {
                Ok(created) => break created,
                Err(failure) if failure.is_in_the_way() && tried < ORDINALS_TRIED => {}
                Err(failure) => return Err(failure.into()),
            }
        };
        tracing::debug!(queue = %home.name, ordinal = active.ordinal, base = base.get(), "segment begun");
        self.tail.active = Some(active);
        self.gap = None;
        self.enlist(meta);
        Ok(())
    }

    fn enlist(&self, meta: SegmentMeta) {
        let mut state = self.shared.lock();
        if let Some(last) = state.segments.back_mut() {
            last.sealed = true;
        }
        state.segments.push_back(meta);
    }

    /// Syncs the active segment and moves `durable`.
    fn sync(&mut self) -> Result<(), AppendError> {
        let Some(segment) = &self.tail.active else { return Ok(()) };
        match segment.sync(self.shared.home.disk.as_ref()) {
            Ok(()) => {
                self.synced();
                Ok(())
            }
            Err(failure) => Err(self.sync_failed(failure)),
        }
    }

    fn synced(&mut self) {
        self.unsynced = None;
        self.sync_failures = 0;
        let Some(segment) = &self.tail.active else { return };
        let mut state = self.shared.lock();
        let cursor = state.cursor();
        state.durable = state.durable.max(segment.next);
        state.hint = Some(Hint {
            ordinal: segment.ordinal,
            position: segment.position,
            next: segment.next.get(),
            chain: segment.chain,
            records: segment.records,
        });
        // What was acknowledged before it was durable moves the cursor only now.
        let moved = state.cursor().since(cursor);
        self.shared.moved(state, moved);
    }

    /// The kernel may have dropped the pages and forgotten: a second sync of this file would say `Ok` and mean
    /// nothing. So the file is left, and a second failure in a row ends writing.
    fn sync_failed(&mut self, failure: IoFailure) -> AppendError {
        self.sync_failures += 1;
        tracing::error!(queue = %self.shared.home.name, path = %failure.path.display(), error = %failure.error, "sync failed");
        if self.sync_failures > 1 {
            fail(&self.shared, &failure.to_string());
        }
        self.publish(0, Seq::new(0));
        self.abandon();
        AppendError::DurabilityUnknown(failure)
    }

    /// Takes numbers out of the sequence whose records were refused.
    fn burn(&mut self, range: Range<Seq>) {
        if range.is_empty() {
            return;
        }
        let start = self.gap.as_ref().map_or(range.start, |gap| gap.start);
        self.gap = Some(start..range.end);
        self.shared.lock().acks.insert(range);
    }

    /// Lets readers see what is complete.
    fn publish(&self, records: u64, end: Seq) {
        let mut state = self.shared.lock();
        state.counters.appended += records;
        if let Some(segment) = &self.tail.active {
            if let Some(meta) = state.segments.back_mut().filter(|meta| meta.ordinal == segment.ordinal) {
                meta.next = segment.next;
                meta.bytes = segment.position;
            }
            state.readable = state.readable.max(segment.next);
        }
        state.readable = state.readable.max(end);
        state.check();
    }

    /// Whether the log should state something that it does not yet.
    fn has_news(&self, state: &State) -> bool {
        let watermark = Watermark { durable: state.durable, cursor: state.cursor() };
        self.tail.active.is_some() && (self.unsynced.is_some() || watermark != self.tail.watermark)
    }

    /// After a pause: what was written is made durable, and a watermark states it.
    fn idle(&mut self) {
        if self.unsynced.is_some() && self.sync().is_err() {
            return;
        }
        self.state_watermark();
        self.publish(0, Seq::new(0));
    }

    fn state_watermark(&mut self) -> bool {
        let disk = Arc::clone(&self.shared.home.disk);
        let state = self.shared.lock();
        let watermark = Watermark { durable: state.durable, cursor: state.cursor() };
        drop(state);
        let Some(segment) = &mut self.tail.active else { return false };
        if watermark == self.tail.watermark {
            return false;
        }
        let mut bytes = Vec::new();
        frame::push(&mut bytes, Kind::Watermark, segment.next, &watermark.encode());
        let chain = frame::stamp(&mut bytes, segment.salt, segment.chain);
        // On a full disk the watermark waits for better times: it is a hint, and the next group carries it.
        if let Err((_, false)) = segment.write(disk.as_ref(), &bytes, chain) {
            self.abandon();
        }
        self.stated(watermark);
        true
    }

    /// On close: everything written is durable, and the log says so.
    fn finish(mut self) {
        if self.unsynced.is_some() && self.sync().is_err() {
            return;
        }
        if self.state_watermark()
            && let Some(segment) = &self.tail.active
            && let Err(error) = segment.sync(self.shared.home.disk.as_ref())
        {
            tracing::warn!(queue = %self.shared.home.name, %error, "the closing watermark may not be durable");
        }
        self.publish(0, Seq::new(0));
    }
}
