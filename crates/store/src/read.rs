//! Drain, the store's side: records in sequence order from the cursor on, borrowed from a window of the file.
//! What is damaged is reported as lost, with its range, and passed over; what the medium does not give is passed over
//! until the queue is opened again, and is not lost. Reading stops for neither.
//!
//! Invariant: a record is returned only if both checksums hold, and no sequence number is passed over in silence.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{Access, Handle};
use crate::error::{AtPath, ReadError, patiently};
use crate::frame::{Kind, Salt};
use crate::queue::{Shared, State};
use crate::ranges::Ranges;
use crate::record::DecodeError;
use crate::scan::{Payload, Scanner, Source, Step, Unreadable};
use crate::segment::{self, SegmentHeader, SegmentMeta};
use crate::{Record, Seq};

/// One record as it leaves the store.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its sequence number: what is to be acknowledged.
    pub seq: Seq,
    /// The bytes that were appended, checksums verified.
    pub payload: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Decodes the record.
    ///
    /// # Errors
    /// [`DecodeError`] if the payload is whole and is no record. It stays in the queue until it is acknowledged.
    pub fn record(&self) -> Result<Record<'a>, DecodeError> {
        Record::decode(self.payload)
    }
}

/// So far before a segment's end the kernel is told that the next one is coming, and about so much of it: on a cold disk
/// the switch then costs no wait for its first bytes.
const READ_AHEAD_BYTES: u64 = 4 << 20;
/// A reader remembers a place of the open segment each so many bytes, so that going back in it is not going to its start.
const MARK_BYTES: u64 = 256 << 10;

/// Reads a queue from the cursor on. Any number of readers may exist; each has a place of its own.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    /// The lowest sequence number that may be returned next.
    next: Seq,
    /// The end of the stretch from `next` on that is not acknowledged, as far as it is known.
    stretch_end: Seq,
    open: Option<OpenSegment>,
    scanner: Scanner,
    /// What was handed back, in whole or in part not yet returned again.
    again: Ranges,
    /// Where reading goes on when all of `again` was returned.
    resume: Option<Seq>,
}

#[derive(Debug)]
struct OpenSegment {
    file: Handle,
    path: PathBuf,
    meta: SegmentMeta,
    /// The sequence number that the next frame of a record should have.
    expected: Seq,
    /// Where damage began since the last whole frame.
    damage: Option<u64>,
    /// Where, since then, the medium did not give bytes.
    unreadable: Option<u64>,
    /// Whether the kernel knows that the next segment is coming.
    told_next: bool,
    /// Records and where their frames start, ascending, one for each [`MARK_BYTES`] walked.
    marks: Vec<(Seq, u64)>,
}

/// What a look into the segment gave.
enum Found {
    /// The payload of this sequence number, at this place of the window.
    Record(Seq, Range<usize>),
    /// Nothing that can be read now.
    Nothing,
    /// The segment is at its end, and there is another.
    SegmentEnd,
    /// Look again.
    Again,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, from: Seq) -> Reader {
        let scanner = Scanner::new(Salt::new(0), 0);
        Reader {
            shared,
            next: from,
            stretch_end: from,
            open: None,
            scanner,
            again: Ranges::default(),
            resume: None,
        }
    }

    /// The next record, or `None` if none is readable now; see [`crate::Queue::on_readable`]. Never waits.
    ///
    /// The record is borrowed from the reader's window of the file: nothing is copied.
    ///
    /// # Errors
    /// [`ReadError`] if the system refuses (no descriptors, no permission). Nothing is lost or passed over: call again
    /// later. A disk that does not give some bytes is no error: see [`crate::QueueStatus::unavailable`].
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend from the reader")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        loop {
            self.take_turns();
            let found =
                if self.open.is_none() && !self.open_segment()? { Found::Nothing } else { self.look()? };
            match found {
                Found::Record(seq, place) => {
                    self.next = seq;
                    self.take_turns();
                    // Elsewhere, if what was handed back ended before this record.
                    if self.next == seq {
                        self.next = seq.next();
                        return Ok(Some(Entry { seq, payload: &self.scanner.bytes()[place] }));
                    }
                }
                // What is left of the range that was handed back is acknowledged, lost or unavailable.
                Found::Nothing if self.resume.is_some() => {
                    let end = self.again.first().map_or(self.next, |range| range.end);
                    self.again.remove_below(end);
                }
                Found::Nothing => return Ok(None),
                Found::SegmentEnd => self.open = None,
                Found::Again => {}
            }
        }
    }

    /// The lowest sequence number that [`Reader::next`] may return, once everything handed back was returned again.
    #[must_use]
    pub fn position(&self) -> Seq {
        self.resume.unwrap_or(self.next)
    }

    /// Goes back (or on) to `seq`. What is acknowledged is passed over all the same, and what was handed back with
    /// [`Reader::nack`] is forgotten.
    pub fn rewind(&mut self, seq: Seq) {
        (self.again, self.resume) = (Ranges::default(), None);
        self.go_to(seq);
    }

    /// Hands `range` back: this reader returns its records again, in sequence order, before it goes on where it was. Other
    /// readers do not notice. Records that are acknowledged, now or before their turn comes, are not returned; numbers
    /// that this reader has not come to yet are ignored. Ranges may be handed back in any order and any number of times.
    ///
    /// Takes no lock and does no I/O. Memory: 48 bytes for each range that touches no other one that waits.
    pub fn nack(&mut self, range: Range<Seq>) {
        if self.resume.is_some() {
            self.again.remove_below(self.next);
        }
        let position = self.position();
        let range = range.start..range.end.min(position);
        if range.is_empty() {
            return;
        }
        self.again.insert(range);
        self.resume = Some(position);
        if let Some(first) = self.again.first() {
            self.go_to(first.start);
        }
    }

    /// Sees to it that the place is in the first range that was handed back, or where reading goes on.
    fn take_turns(&mut self) {
        let Some(resume) = self.resume else { return };
        self.again.remove_below(self.next);
        match self.again.first() {
            Some(first) if first.start > self.next => self.go_to(first.start),
            Some(_) => {}
            None => {
                self.resume = None;
                if self.next < resume {
                    self.go_to(resume);
                }
            }
        }
    }

    /// Moves to `seq`, inside the open segment if it is there.
    fn go_to(&mut self, seq: Seq) {
        (self.next, self.stretch_end) = (seq, seq);
        let Some(open) = &mut self.open else { return };
        let mark = open.marks.partition_point(|(mark, _)| *mark <= seq).checked_sub(1);
        match mark.map(|at| open.marks[at]) {
            Some((mark, position)) if seq <= open.meta.next.max(open.expected) => {
                // Between the mark and here nothing is nearer, unless the walk is there already.
                if seq < open.expected || open.expected < mark {
                    self.scanner.go_to(position);
                    (open.expected, open.damage, open.unreadable) = (mark, None, None);
                }
            }
            _ => self.open = None,
        }
    }

    /// Opens the segment that holds `next`, or the first after it. False if there is nothing to read.
    fn open_segment(&mut self) -> Result<bool, ReadError> {
        let state = self.shared.lock();
        let (from, _) = state.to_read_from(self.next);
        if from >= state.readable {
            return Ok(false);
        }
        self.next = from;
        let at = state.segments.partition_point(|segment| segment.next <= from);
        let meta = state.segments.get(at).cloned();
        let readable = state.readable;
        let known = meta.as_ref().and_then(|meta| state.unavailable.places.get(&meta.ordinal));
        let unreadable = known.cloned().unwrap_or_default();
        drop(state);
        let (lost_until, never_issued_until) = match &meta {
            Some(meta) => (meta.seg_start.next.min(meta.base), meta.base),
            None => (readable, readable),
        };
        if from < lost_until {
            self.shared.lose(
                from..lost_until,
                &self.shared.home.folder.display().to_string(),
                "no segment holds them",
            );
        }
        if from < never_issued_until {
            self.shared.pass(from.max(lost_until)..never_issued_until);
            self.next = never_issued_until;
        }
        meta.map_or(Ok(false), |meta| self.open(meta, unreadable))
    }

    fn open(&mut self, meta: SegmentMeta, unreadable: Unreadable) -> Result<bool, ReadError> {
        let path = segment::path(&self.shared.home.folder, meta.ordinal);
        let disk = Arc::clone(&self.shared.home.disk);
        let opened = patiently(|| {
            let file = disk.open(&path, Access::Read).at("open", &path)?;
            disk.will_read_sequentially(&file);
            let header = SegmentHeader::read(disk.as_ref(), &file, &path)?;
            Ok((file, header))
        });
        let (file, header) = match opened {
            Ok((file, Ok(header))) => (file, header),
            Ok((_, Err(_))) => return Ok(self.without(&meta, Some("the segment's header is unreadable"))),
            Err(failure) if failure.error.kind() == ErrorKind::NotFound => {
                return Ok(self.without(&meta, Some("the segment's file is gone")));
            }
            Err(failure) if failure.is_of_the_medium() => return Ok(self.without(&meta, None)),
            Err(failure) => return Err(failure.into()),
        };
        let start = header.bytes() as u64;
        self.scanner.restart(Salt::new(header.salt), start, unreadable);
        let marks = vec![(meta.base, start)];
        let expected = meta.base;
        self.open = Some(OpenSegment {
            file,
            path,
            expected,
            meta,
            damage: None,
            unreadable: None,
            told_next: false,
            marks,
        });
        Ok(true)
    }

    /// Goes on behind a segment that cannot be read at all: lost for this cause, or without one, unavailable.
    fn without(&mut self, meta: &SegmentMeta, lost: Option<&str>) -> bool {
        let state = self.shared.lock();
        // A segment that was truncated away meanwhile is acknowledged as a whole, and nothing is missing.
        let known = state.segments.iter().any(|segment| segment.ordinal == meta.ordinal);
        let end = end_of(&state, meta).max(self.next.next());
        drop(state);
        if known {
            let path = segment::path(&self.shared.home.folder, meta.ordinal);
            let path = path.display().to_string();
            match lost {
                Some(cause) => self.shared.lose(self.next..end, &path, cause),
                None => self.shared.put_off(self.next..end, &path),
            }
            self.next = end;
        }
        true
    }

    /// Near the end of a segment that is complete, tells the kernel which one comes next.
    fn look_ahead(&mut self) {
        let Some(open) = &mut self.open else { return };
        let left = open.meta.bytes.saturating_sub(self.scanner.position());
        if open.told_next || !open.meta.sealed || left > READ_AHEAD_BYTES {
            return;
        }
        open.told_next = true;
        let state = self.shared.lock();
        let at = state.segments.partition_point(|segment| segment.ordinal <= open.meta.ordinal);
        let next = state.segments.get(at).map(|meta| meta.ordinal);
        drop(state);
        if let Some(next) = next {
            let home = &self.shared.home;
            home.disk.will_read_soon(&segment::path(&home.folder, next), READ_AHEAD_BYTES);
        }
    }

    /// One step in the open segment.
    fn look(&mut self) -> Result<Found, ReadError> {
        self.look_ahead();
        let Some(open) = &mut self.open else { return Ok(Found::SegmentEnd) };
        if self.scanner.position() >= open.meta.bytes {
            return Ok(self.at_the_end());
        }
        let disk = Arc::clone(&self.shared.home.disk);
        let source = Source {
            disk: disk.as_ref(),
            file: &open.file,
            path: &open.path,
            limit: open.meta.bytes,
            seq_limit: open.meta.next,
        };
        Ok(match self.scanner.step(source)? {
            Step::End => Found::Again,
            Step::Damage { position, .. } => {
                open.damage.get_or_insert(position);
                Found::Again
            }
            Step::Unreadable { position, .. } => {
                open.unreadable.get_or_insert(position);
                self.remember_unreadable();
                Found::Again
            }
            Step::Frame { header, .. } if header.kind == Kind::Skip => {
                self.pass(header.skipped());
                Found::Again
            }
            Step::Frame { header, .. } if !header.kind.is_record() => Found::Again,
            Step::Frame { header, payload, position, state } => {
                self.record(header.seq, payload, position, state)
            }
        })
    }

    /// What was not given is not asked for again until the queue is opened again.
    fn remember_unreadable(&self) {
        let Some(open) = &self.open else { return };
        let places = self.scanner.unreadable();
        self.shared.lock().unavailable.places.insert(open.meta.ordinal, places);
    }

    /// A frame of a record: returned if it is whole, is the next, and is not acknowledged.
    fn record(&mut self, seq: Seq, payload: Range<usize>, position: u64, state: Payload) -> Found {
        let Some(open) = &self.open else { return Found::Again };
        if seq < open.expected {
            tracing::warn!(queue = %self.shared.home.name, path = %open.path.display(), seq = seq.get(), "a sequence number stands twice in a segment; the second is ignored");
            return Found::Again;
        }
        if seq > open.expected {
            self.lose_until(seq);
        }
        let Some(open) = &mut self.open else { return Found::Again };
        open.expected = seq.next();
        (open.damage, open.unreadable) = (None, None);
        if open.marks.last().is_none_or(|(last, at)| *last < seq && at + MARK_BYTES <= position) {
            open.marks.push((seq, position));
        }
        if seq < self.next {
            return Found::Again;
        }
        let at = || format!("{} at {position}", open.path.display());
        match state {
            Payload::Whole => {}
            Payload::Damaged => {
                self.shared.lose(seq..seq.next(), &at(), "the payload does not match its checksum");
                self.next = seq.next();
                return Found::Again;
            }
            Payload::Unreadable => {
                self.shared.put_off(seq..seq.next(), &at());
                self.remember_unreadable();
                self.next = seq.next();
                return Found::Again;
            }
        }
        if seq >= self.stretch_end && !self.is_to_be_read(seq) {
            return Found::Again;
        }
        Found::Record(seq, payload)
    }

    /// Looks up the stretch around `seq`, so that most records need no lock.
    fn is_to_be_read(&mut self, seq: Seq) -> bool {
        let state = self.shared.lock();
        let (start, end) = state.to_read_from(seq);
        self.next = start;
        self.stretch_end = end.unwrap_or(state.end);
        start == seq
    }

    /// Numbers that the log itself says are not there: records before them should have been.
    fn pass(&mut self, skipped: Range<Seq>) {
        let Some(open) = &mut self.open else { return };
        let expected = open.expected;
        if skipped.end <= expected {
            return;
        }
        open.expected = skipped.end;
        if expected < skipped.start {
            self.lose(expected..skipped.start);
        }
        if let Some(open) = &mut self.open {
            (open.damage, open.unreadable) = (None, None);
        }
        self.shared.pass(skipped.start.max(expected)..skipped.end);
        self.next = self.next.max(skipped.end);
    }

    /// The records between what was expected and `seq` are not in the segment.
    fn lose_until(&mut self, seq: Seq) {
        let Some(open) = &self.open else { return };
        self.lose(open.expected..seq);
    }

    /// Lost, unless some of where they may stand could not be read.
    fn lose(&mut self, range: Range<Seq>) {
        let Some(open) = &self.open else { return };
        if let Some(position) = open.unreadable {
            let at = format!("{} at {position}", open.path.display());
            self.shared.put_off(range.start.max(self.next)..range.end, &at);
            self.next = self.next.max(range.end);
            return;
        }
        let (at, cause) = match open.damage {
            Some(position) => (format!("{} at {position}", open.path.display()), "bytes that are no frame"),
            None => (open.path.display().to_string(), "frames are missing"),
        };
        self.shared.lose(range.start.max(self.next)..range.end, &at, cause);
        self.next = self.next.max(range.end);
    }

    /// All that the segment was known to hold is read: it may have grown, or be followed by another.
    fn at_the_end(&mut self) -> Found {
        let Some(open) = &mut self.open else { return Found::SegmentEnd };
        let state = self.shared.lock();
        let meta = state.segments.iter().find(|segment| segment.ordinal == open.meta.ordinal);
        // A segment that was truncated away under us is acknowledged as a whole.
        let Some(meta) = meta.cloned() else { return Found::SegmentEnd };
        let grown = meta.bytes > open.meta.bytes;
        open.meta = meta;
        if grown {
            return Found::Again;
        }
        let followed = state.segments.back().is_some_and(|last| last.ordinal > open.meta.ordinal);
        let (expected, end) = (open.expected, end_of(&state, &open.meta));
        drop(state);
        open.expected = expected.max(end);
        if expected < end {
            self.lose(expected..end);
        }
        if !followed {
            return Found::Nothing;
        }
        self.next = self.next.max(end);
        Found::SegmentEnd
    }
}

/// The first sequence number that is in the segments after this one, or that is not yet readable.
fn end_of(state: &State, meta: &SegmentMeta) -> Seq {
    let after = state.segments.iter().find(|segment| segment.ordinal > meta.ordinal);
    after.map_or(state.readable, |segment| segment.seg_start.next.max(meta.next).min(segment.base))
}
