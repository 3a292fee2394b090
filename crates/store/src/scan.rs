//! Walks the frames of one segment from a position on, whatever its bytes are. Recovery and reading share it.
//!
//! Invariant: each step moves on by at least 8 bytes or ends, and nothing is allocated that the file does not hold.

use std::ops::Range;
use std::path::Path;

use crate::Seq;
use crate::disk::{Disk, Handle, read_full_at};
use crate::error::{AtPath, IoFailure, patiently};
use crate::frame::{FrameHeader, GRID_BYTES, HEADER_BYTES, Kind, Probe, Salt};

/// Bytes of one read. Larger reads gain nothing, smaller ones pay a system call for few records.
const CHUNK_BYTES: usize = 1 << 20;
/// What the medium does not give is passed over in pieces of this size.
const PAGE_BYTES: u64 = 4096;
/// Unreadable places that are remembered of one segment; more are tried again whenever the walk comes to them.
const UNREADABLE_MAX: usize = 1024;
/// Zeros are passed over in strides of this size: space that was reserved is long.
const ZEROS_STRIDE: usize = 512;

/// One step of the walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame whose header is whole. The payload is at this place of [`Scanner::bytes`].
    Frame { header: FrameHeader, position: u64, payload: Range<usize>, state: Payload },
    /// No frame of this segment: zeros or bytes that do not validate. The walk goes on at the next that does.
    Damage { position: u64, bytes: u64, zeros: bool },
    /// The medium does not give these bytes.
    Unreadable { position: u64, bytes: u64 },
    /// Nothing more up to the limit.
    End,
}

/// What is known of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// It is what was written.
    Whole,
    /// It is not.
    Damaged,
    /// The medium does not give all of it.
    Unreadable,
}

/// Places of a file that the medium did not give: ranges of bytes, ascending, whole pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unreadable(Vec<Range<u64>>);

impl Unreadable {
    /// Where the first unreadable place that `range` touches ends.
    fn end_in(&self, range: Range<u64>) -> Option<u64> {
        let at = self.0.partition_point(|place| place.end <= range.start);
        self.0.get(at).filter(|place| place.start < range.end).map(|place| place.end)
    }

    /// Where the first unreadable place begins that lies at or behind `position`.
    fn start_from(&self, position: u64) -> Option<u64> {
        let at = self.0.partition_point(|place| place.start < position);
        self.0.get(at).map(|place| place.start)
    }

    /// Remembers a page; pages come in ascending order within a window, windows in any.
    fn add(&mut self, page: Range<u64>) {
        let at = self.0.partition_point(|place| place.end < page.start);
        match self.0.get_mut(at) {
            Some(place) if place.start <= page.end => {
                *place = place.start.min(page.start)..place.end.max(page.end);
            }
            _ => self.0.insert(at, page),
        }
    }

    /// The places that may be remembered beyond the walk.
    fn bounded(mut self) -> Unreadable {
        self.0.truncate(UNREADABLE_MAX);
        self
    }
}

/// The walk's state: a window of the file and the place in it.
#[derive(Debug)]
pub(crate) struct Scanner {
    salt: Salt,
    buffer: Vec<u8>,
    /// File position of `buffer[0]`.
    buffer_at: u64,
    filled: usize,
    position: u64,
    unreadable: Unreadable,
}

/// The file to walk, and how far.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) file: &'a Handle,
    pub(crate) path: &'a Path,
    /// The walk ends here; what the file holds beyond is not looked at.
    pub(crate) limit: u64,
    /// Sequence numbers at or above this are not plausible in this segment.
    pub(crate) seq_limit: Seq,
}

impl Scanner {
    pub(crate) fn new(salt: Salt, position: u64) -> Scanner {
        Scanner {
            salt,
            buffer: Vec::new(),
            buffer_at: position,
            filled: 0,
            position,
            unreadable: Unreadable::default(),
        }
    }

    /// Uses the window of another walk, so that going from segment to segment allocates nothing.
    /// `unreadable` is what an earlier walk of the same file could not read; it is not tried again.
    pub(crate) fn restart(&mut self, salt: Salt, position: u64, unreadable: Unreadable) {
        (self.salt, self.buffer_at, self.filled, self.position) = (salt, position, 0, position);
        self.unreadable = unreadable;
    }

    /// Goes to another frame boundary of the same segment.
    pub(crate) fn go_to(&mut self, position: u64) {
        if position < self.buffer_at || position > self.buffer_at + self.filled as u64 {
            (self.buffer_at, self.filled) = (position, 0);
        }
        self.position = position;
    }

    /// What this walk could not read, for the next one of the same file.
    pub(crate) fn unreadable(&self) -> Unreadable {
        self.unreadable.clone().bounded()
    }

    /// Where the next step starts.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The window that [`Step::Frame`] points into; valid until the next step.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Takes the next step.
    pub(crate) fn step(&mut self, source: Source<'_>) -> Result<Step, IoFailure> {
        if self.position >= source.limit {
            return Ok(Step::End);
        }
        self.want(source, HEADER_BYTES)?;
        if let Some(end) = self.unreadable_ahead(HEADER_BYTES) {
            let position = self.position;
            self.position = end.min(source.limit);
            return Ok(Step::Unreadable { position, bytes: self.position - position });
        }
        match FrameHeader::probe(self.ahead(), self.salt) {
            Probe::Header(header) if self.is_plausible(&header, source) => self.frame(source, header),
            Probe::Header(_) | Probe::Damaged => self.resync(source, false),
            Probe::Nothing => self.resync(source, true),
        }
    }

    fn frame(&mut self, source: Source<'_>, header: FrameHeader) -> Result<Step, IoFailure> {
        let position = self.position;
        let covered = if header.kind == Kind::Skip { 0 } else { header.len as usize };
        self.want(source, HEADER_BYTES + covered)?;
        let start = self.window_index() + HEADER_BYTES;
        let payload = start..(start + covered).min(self.filled);
        let state = if self.unreadable_ahead(HEADER_BYTES + covered).is_some() {
            Payload::Unreadable
        } else if payload.len() == covered
            && header.payload_is_whole(&self.buffer[payload.clone()], self.salt)
        {
            Payload::Whole
        } else {
            Payload::Damaged
        };
        self.position += header.frame_bytes();
        Ok(Step::Frame { header, position, payload, state })
    }

    /// Where the unreadable place ends that the next `bytes` touch.
    fn unreadable_ahead(&self, bytes: usize) -> Option<u64> {
        self.unreadable.end_in(self.position..self.position + bytes as u64)
    }

    /// A header is only believed if its frame ends inside what the file may hold, and its number inside the segment.
    fn is_plausible(&self, header: &FrameHeader, source: Source<'_>) -> bool {
        let inside = self.position.checked_add(header.frame_bytes()).is_some_and(|end| end <= source.limit);
        inside
            && (header.seq < source.seq_limit || (!header.kind.is_record() && header.seq <= source.seq_limit))
    }

    /// Moves to the next place of the grid where a header of this segment stands.
    fn resync(&mut self, source: Source<'_>, zeros: bool) -> Result<Step, IoFailure> {
        let from = self.position;
        let mut all_zeros = zeros;
        loop {
            self.position += GRID_BYTES as u64;
            if self.position >= source.limit {
                self.position = source.limit;
                break;
            }
            self.want(source, HEADER_BYTES)?;
            let ahead = self.ahead();
            if ahead.is_empty() {
                self.position = source.limit;
                break;
            }
            if self.unreadable_ahead(HEADER_BYTES).is_some() {
                break;
            }
            let zeros = self.zeros_ahead();
            if zeros > 0 {
                // The next look is at the last 8 of them, so that each place of the grid behind is looked at.
                self.position += (zeros - GRID_BYTES) as u64;
                continue;
            }
            if ahead[..ahead.len().min(GRID_BYTES)].iter().any(|byte| *byte != 0) {
                if let Probe::Header(header) = quick_probe(ahead, self.salt)
                    && self.is_plausible(&header, source)
                {
                    break;
                }
                all_zeros = false;
            }
        }
        Ok(Step::Damage { position: from, bytes: self.position - from, zeros: all_zeros })
    }

    fn window_index(&self) -> usize {
        usize::try_from(self.position - self.buffer_at).expect("the window lies in memory")
    }

    fn ahead(&self) -> &[u8] {
        let at = self.window_index().min(self.filled);
        &self.buffer[at..self.filled]
    }

    /// Zeros from the position on, in whole strides, as far as they were read.
    fn zeros_ahead(&self) -> usize {
        let clear = self.unreadable.start_from(self.position).map_or(u64::MAX, |start| start - self.position);
        let strides = self
            .ahead()
            .chunks_exact(ZEROS_STRIDE)
            .take(usize::try_from(clear).unwrap_or(usize::MAX) / ZEROS_STRIDE);
        strides.take_while(|stride| stride.iter().all(|byte| *byte == 0)).count() * ZEROS_STRIDE
    }

    /// Makes `bytes` from the position on available, or as many as there are before the limit.
    fn want(&mut self, source: Source<'_>, bytes: usize) -> Result<(), IoFailure> {
        let left = usize::try_from(source.limit - self.position).unwrap_or(usize::MAX);
        let bytes = bytes.min(left);
        if self.position >= self.buffer_at
            && self.position - self.buffer_at + bytes as u64 <= self.filled as u64
        {
            return Ok(());
        }
        let size = bytes.max(CHUNK_BYTES).min(left);
        if self.buffer.len() < size || self.buffer.len() > 2 * CHUNK_BYTES.max(size) {
            self.buffer.resize(size, 0);
            self.buffer.shrink_to(size);
        }
        let (window, known) = (self.position..self.position + size as u64, &self.unreadable);
        // Nothing of the old window is there any more, whatever comes next.
        (self.buffer_at, self.filled) = (window.start, 0);
        let read = if known.end_in(window.clone()).is_some() {
            None
        } else {
            let buffer = &mut self.buffer[..size];
            match patiently(|| {
                read_full_at(source.disk, source.file, buffer, window.start).at("read", source.path)
            }) {
                Ok(filled) => Some(filled),
                Err(failure) if failure.is_of_the_medium() => None,
                Err(failure) => return Err(failure),
            }
        };
        self.filled = match read {
            Some(filled) => filled,
            None => self.read_in_pieces(source, window)?,
        };
        Ok(())
    }

    /// Reads a window page by page. What the medium does not give is remembered, and zeros stand in its place.
    fn read_in_pieces(&mut self, source: Source<'_>, window: Range<u64>) -> Result<usize, IoFailure> {
        let index = |position: u64| usize::try_from(position - window.start).expect("it lies in memory");
        let mut at = window.start;
        while at < window.end {
            let page = at - at % PAGE_BYTES..at - at % PAGE_BYTES + PAGE_BYTES;
            let end = page.end.min(window.end);
            let piece = &mut self.buffer[index(at)..index(end)];
            let read = if self.unreadable.end_in(page.clone()).is_some() {
                None
            } else {
                match patiently(|| read_full_at(source.disk, source.file, piece, at).at("read", source.path))
                {
                    Ok(filled) if filled < piece.len() => return Ok(index(at) + filled),
                    Ok(filled) => Some(filled),
                    Err(failure) if failure.is_of_the_medium() => None,
                    Err(failure) => return Err(failure),
                }
            };
            if read.is_none() {
                piece.fill(0);
                self.unreadable.add(page);
            }
            at = end;
        }
        Ok(index(window.end))
    }
}

/// As [`FrameHeader::probe`], but turns most bytes away without a checksum: resynchronising looks at every 8 bytes.
fn quick_probe(bytes: &[u8], salt: Salt) -> Probe {
    if bytes.len() < HEADER_BYTES
        || bytes[20] == 0
        || bytes[20] > Kind::Skip as u8
        || bytes[22] != 0
        || bytes[23] != 0
    {
        return Probe::Damaged;
    }
    FrameHeader::probe(bytes, salt)
}
