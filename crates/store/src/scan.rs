//! Walks the frames of one segment from a position on, whatever its bytes are. Recovery and reading share it.
//!
//! Invariant: each step moves on by at least 8 bytes or ends, and nothing is allocated that the file does not hold.

use std::ops::Range;
use std::path::Path;

use crate::Seq;
use crate::disk::{Disk, Handle, read_full_at};
use crate::error::{AtPath, IoFailure};
use crate::frame::{FrameHeader, GRID_BYTES, HEADER_BYTES, Kind, Probe, Salt};

/// Bytes of one read. Larger reads gain nothing, smaller ones pay a system call for few records.
const CHUNK_BYTES: usize = 1 << 20;

/// One step of the walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame whose header is whole. The payload is at this place of [`Scanner::bytes`].
    Frame { header: FrameHeader, position: u64, payload: Range<usize>, whole: bool },
    /// No frame of this segment: zeros or bytes that do not validate. The walk goes on at the next that does.
    Damage { position: u64, bytes: u64, zeros: bool },
    /// Nothing more up to the limit.
    End,
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
        Scanner { salt, buffer: Vec::new(), buffer_at: position, filled: 0, position }
    }

    /// Uses the window of another walk, so that going from segment to segment allocates nothing.
    pub(crate) fn restart(&mut self, salt: Salt, position: u64) {
        (self.salt, self.buffer_at, self.filled, self.position) = (salt, position, 0, position);
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
        let whole =
            payload.len() == covered && header.payload_is_whole(&self.buffer[payload.clone()], self.salt);
        self.position += header.frame_bytes();
        Ok(Step::Frame { header, position, payload, whole })
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
        self.filled = read_full_at(source.disk, source.file, &mut self.buffer[..size], self.position)
            .at("read", source.path)?;
        self.buffer_at = self.position;
        Ok(())
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
