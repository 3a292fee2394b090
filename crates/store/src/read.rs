//! Drain, the store's side: records in sequence order from the cursor on, borrowed from a window of the file.
//! What is damaged is reported as lost, with its range, and passed over; reading never stops for it.
//!
//! Invariant: a record is returned only if both checksums hold, and no sequence number is passed over in silence.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{Access, Handle};
use crate::error::{IoFailure, ReadError};
use crate::frame::{Kind, Salt};
use crate::queue::{Shared, State};
use crate::record::DecodeError;
use crate::scan::{Scanner, Source, Step};
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
}

/// What a look into the segment gave.
enum Found {
    /// The payload of this sequence number, at this place of the window.
    Record(Seq, std::ops::Range<usize>),
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
        Reader { shared, next: from, stretch_end: from, open: None, scanner }
    }

    /// The next record, or `None` if none is readable now; see [`crate::Queue::on_readable`]. Never waits.
    ///
    /// # Errors
    /// [`ReadError`] if the disk does not answer. Nothing is lost or passed over: call again later.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend from the reader")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        loop {
            if self.open.is_none() && !self.open_segment()? {
                return Ok(None);
            }
            match self.look()? {
                Found::Record(seq, place) => {
                    self.next = seq.next();
                    return Ok(Some(Entry { seq, payload: &self.scanner.bytes()[place] }));
                }
                Found::Nothing => return Ok(None),
                Found::SegmentEnd => self.open = None,
                Found::Again => {}
            }
        }
    }

    /// The lowest sequence number that [`Reader::next`] may return.
    #[must_use]
    pub fn position(&self) -> Seq {
        self.next
    }

    /// Goes back (or on) to `seq`. What is acknowledged is passed over all the same.
    pub fn rewind(&mut self, seq: Seq) {
        self.next = seq;
        self.stretch_end = seq;
        self.open = None;
    }

    /// Opens the segment that holds `next`, or the first after it. False if there is nothing to read.
    fn open_segment(&mut self) -> Result<bool, ReadError> {
        let state = self.shared.lock();
        let (from, _) = state.acks.unacknowledged_from(self.next);
        if from >= state.readable {
            return Ok(false);
        }
        self.next = from;
        let at = state.segments.partition_point(|segment| segment.next <= from);
        let meta = state.segments.get(at).cloned();
        let readable = state.readable;
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
        meta.map_or(Ok(false), |meta| self.open(meta))
    }

    fn open(&mut self, meta: SegmentMeta) -> Result<bool, ReadError> {
        let path = segment::path(&self.shared.home.folder, meta.ordinal);
        let disk = Arc::clone(&self.shared.home.disk);
        let file = match disk.open(&path, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(self.without(&meta, "the segment's file is gone"));
            }
            Err(error) => return Err(IoFailure::new("open", &path, error).into()),
        };
        disk.will_read_sequentially(&file);
        let Ok(header) = SegmentHeader::read(disk.as_ref(), &file, &path)? else {
            return Ok(self.without(&meta, "the segment's header is unreadable"));
        };
        self.scanner.restart(Salt::new(header.salt), header.bytes() as u64);
        self.open = Some(OpenSegment { file, path, expected: meta.base, meta, damage: None });
        Ok(true)
    }

    /// Goes on behind a segment that cannot be read at all.
    fn without(&mut self, meta: &SegmentMeta, cause: &str) -> bool {
        let state = self.shared.lock();
        // A segment that was truncated away meanwhile is acknowledged as a whole, and nothing is missing.
        let known = state.segments.iter().any(|segment| segment.ordinal == meta.ordinal);
        let end = end_of(&state, meta).max(self.next.next());
        drop(state);
        if known {
            let path = segment::path(&self.shared.home.folder, meta.ordinal);
            self.shared.lose(self.next..end, &path.display().to_string(), cause);
            self.next = end;
        }
        true
    }

    /// One step in the open segment.
    fn look(&mut self) -> Result<Found, ReadError> {
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
            Step::Frame { header, .. } if header.kind == Kind::Skip => {
                self.pass(header.skipped());
                Found::Again
            }
            Step::Frame { header, .. } if !header.kind.is_record() => Found::Again,
            Step::Frame { header, payload, position, whole } => {
                self.record(header.seq, payload, position, whole)
            }
        })
    }

    /// A frame of a record: returned if it is whole, is the next, and is not acknowledged.
    fn record(&mut self, seq: Seq, payload: std::ops::Range<usize>, position: u64, whole: bool) -> Found {
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
        open.damage = None;
        if seq < self.next {
            return Found::Again;
        }
        if !whole {
            let at = format!("{} at {position}", open.path.display());
            self.shared.lose(seq..seq.next(), &at, "the payload does not match its checksum");
            self.next = seq.next();
            return Found::Again;
        }
        if seq >= self.stretch_end && !self.is_unacknowledged(seq) {
            return Found::Again;
        }
        Found::Record(seq, payload)
    }

    /// Looks up the stretch around `seq`, so that most records need no lock.
    fn is_unacknowledged(&mut self, seq: Seq) -> bool {
        let state = self.shared.lock();
        let (start, end) = state.acks.unacknowledged_from(seq);
        self.next = start;
        self.stretch_end = end.unwrap_or(state.end);
        start == seq
    }

    /// Numbers that the log itself says are not there: records before them should have been.
    fn pass(&mut self, skipped: std::ops::Range<Seq>) {
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
            open.damage = None;
        }
        self.shared.pass(skipped.start.max(expected)..skipped.end);
        self.next = self.next.max(skipped.end);
    }

    /// The records between what was expected and `seq` are not in the segment.
    fn lose_until(&mut self, seq: Seq) {
        let Some(open) = &self.open else { return };
        self.lose(open.expected..seq);
    }

    fn lose(&mut self, range: std::ops::Range<Seq>) {
        let Some(open) = &self.open else { return };
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
