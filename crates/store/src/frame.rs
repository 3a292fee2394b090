//! Frames: the unit that is written, checked and skipped. A 24-byte header on an 8-byte grid, then the payload.
//! Owns the layout and both checksums; knows no file. `docs/format.md` describes every byte.
//!
//! Invariant: a frame validates only in the segment (salt) and at the sequence number that it was written for.

use std::ops::Range;
use std::sync::LazyLock;

use crate::Seq;

/// Bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = 24;
/// Frames start at multiples of this.
pub(crate) const GRID_BYTES: usize = 8;
/// Flag of a [`Kind::Batch`] frame: the first of its batch.
pub(crate) const BATCH_FIRST: u8 = 1;
/// Flag of a [`Kind::Batch`] frame: another of its batch follows.
pub(crate) const BATCH_MORE: u8 = 2;

/// What a frame is. 0 is never a kind, so that a header of zeros is never a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The first frame of a segment that has data: where it starts, and what came before.
    SegStart = 1,
    /// One record.
    Data = 2,
    /// One record of an atomic batch.
    Batch = 3,
    /// What a completed sync covers, and the cursor.
    Watermark = 4,
    /// The last frame of a full segment.
    Seal = 5,
    /// A range of sequence numbers that is not there, and the bytes that it may cover.
    Skip = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::SegStart,
            2 => Kind::Data,
            3 => Kind::Batch,
            4 => Kind::Watermark,
            5 => Kind::Seal,
            6 => Kind::Skip,
            _ => return None,
        })
    }

    /// Whether a frame of this kind carries a record under its sequence number.
    pub(crate) fn is_record(self) -> bool {
        matches!(self, Kind::Data | Kind::Batch)
    }
}

/// CRC-32 as [`crc32fast::hash`], without its look at what the processor can do each time: a record takes four checksums,
/// most of them of a few bytes, and the look cost as much as one of them.
#[inline]
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    static FRESH: LazyLock<crc32fast::Hasher> = LazyLock::new(crc32fast::Hasher::new);
    let mut hasher = FRESH.clone();
    hasher.update(bytes);
    hasher.finalize()
}

/// What is mixed into the checksums of one segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Salt {
    header_mask: u32,
    payload_seed: u64,
}

impl Salt {
    pub(crate) fn new(salt: u64) -> Salt {
        // A CRC is linear: what the start value contributes depends on the length alone, and all headers have the same.
        let mut seeded = crc32fast::Hasher::new_with_initial(crc(&salt.to_le_bytes()));
        seeded.update(&[0; HEADER_BYTES - 4]);
        Salt { header_mask: seeded.finalize() ^ crc(&[0; HEADER_BYTES - 4]), payload_seed: salt }
    }

    /// The checksum over header bytes 4 to 23 that starts with the checksum of the salt.
    fn header_crc(self, header: &[u8; HEADER_BYTES]) -> u32 {
        crc(&header[4..HEADER_BYTES]) ^ self.header_mask
    }

    /// Turns the plain checksum of a payload into the one that is stored. A mask, not a different start value, so that
    /// a producer can checksum its payload before it knows the segment and the sequence number.
    fn payload_crc(self, plain: u32, seq: Seq) -> u32 {
        let mixed = self.payload_seed ^ seq.get().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = mixed.to_le_bytes();
        plain ^ u32_at(&mixed, 0) ^ u32_at(&mixed, 4)
    }
}

/// A frame's header, decoded and known to be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// Bytes of payload; for [`Kind::Skip`], bytes that the skip covers and that mean nothing.
    pub(crate) len: u32,
    pub(crate) seq: Seq,
    /// The stored payload checksum; for [`Kind::Skip`], how many sequence numbers are skipped.
    payload_crc: u32,
    header_crc: u32,
}

/// What stands at a place of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    Header(FrameHeader),
    /// 24 zero bytes: nothing was written here.
    Nothing,
    /// Bytes that are no header of this segment.
    Damaged,
}

impl FrameHeader {
    /// Looks at the first 24 bytes of `bytes`. Shorter slices count as damaged unless they are all zero.
    pub(crate) fn probe(bytes: &[u8], salt: Salt) -> Probe {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let zeros = bytes.iter().all(|byte| *byte == 0);
            return if zeros { Probe::Nothing } else { Probe::Damaged };
        };
        if *bytes == [0; HEADER_BYTES] {
            return Probe::Nothing;
        }
        if u32_at(bytes, 0) != salt.header_crc(bytes) {
            return Probe::Damaged;
        }
        // The checksum holds, so these fields are as they were written; an unknown kind is from a later version.
        match Kind::from_byte(bytes[20]) {
            None => Probe::Damaged,
            Some(kind) => Probe::Header(FrameHeader {
                kind,
                flags: bytes[21],
                len: u32_at(bytes, 4),
                seq: Seq::new(u64_at(bytes, 8)),
                payload_crc: u32_at(bytes, 16),
                header_crc: u32_at(bytes, 0),
            }),
        }
    }

    /// Bytes from the start of this frame to the start of the next.
    pub(crate) fn frame_bytes(&self) -> u64 {
        frame_bytes(self.len as usize) as u64
    }

    /// Whether `payload` is what was written.
    pub(crate) fn payload_is_whole(&self, payload: &[u8], salt: Salt) -> bool {
        self.kind == Kind::Skip || salt.payload_crc(crc(payload), self.seq) == self.payload_crc
    }

    /// The sequence numbers that a skip stands for.
    pub(crate) fn skipped(&self) -> Range<Seq> {
        debug_assert_eq!(self.kind, Kind::Skip);
        self.seq..self.seq.plus(u64::from(self.payload_crc))
    }

    /// Adds this frame to the running checksum over a segment's frame headers.
    pub(crate) fn chain(&self, chain: u32) -> u32 {
        extend_chain(chain, self.header_crc)
    }
}

/// Adds a frame, by its header checksum, to the running checksum of a segment: the checksum of four bytes that starts
/// with `chain` is the plain one of their exclusive or.
fn extend_chain(chain: u32, header_crc: u32) -> u32 {
    crc(&(chain ^ header_crc).to_le_bytes())
}

/// Bytes of a whole frame with `payload` bytes of payload.
pub(crate) const fn frame_bytes(payload: usize) -> usize {
    HEADER_BYTES + payload.next_multiple_of(GRID_BYTES)
}

/// Begins a frame at the end of `out`; the payload follows, then [`finish`].
pub(crate) fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    start
}

/// Ends the frame that began at `start`: length, kind, plain payload checksum and padding. What depends on the
/// segment and on the sequence number is left to [`set_seq`] and [`stamp`].
pub(crate) fn finish(out: &mut Vec<u8>, start: usize, kind: Kind, flags: u8) {
    let payload = &out[start + HEADER_BYTES..];
    let len = u32::try_from(payload.len()).expect("record_bytes_max is far below 4 GiB");
    let plain = crc(payload);
    // More than the padding and then less: a copy of a length that is known costs nothing.
    out.extend_from_slice(&[0; GRID_BYTES]);
    out.truncate(start + frame_bytes(len as usize));
    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&len.to_le_bytes());
    header[16..20].copy_from_slice(&plain.to_le_bytes());
    header[20] = kind as u8;
    header[21] = flags;
    out[start..start + HEADER_BYTES].copy_from_slice(&header);
}

/// Gives the frame at the start of `frame` its sequence number.
pub(crate) fn set_seq(frame: &mut [u8], seq: Seq) {
    frame[8..16].copy_from_slice(&seq.get().to_le_bytes());
}

/// The facts of a frame that was finished and not yet stamped.
pub(crate) struct Unstamped {
    pub(crate) seq: Seq,
    pub(crate) kind_is_record: bool,
    /// Another frame of its batch follows.
    pub(crate) batch_goes_on: bool,
    pub(crate) bytes: usize,
}

/// Reads what [`finish`] and [`set_seq`] wrote at the start of `frame`.
pub(crate) fn unstamped(frame: &[u8]) -> Unstamped {
    let header = frame.first_chunk::<HEADER_BYTES>().expect("a frame has a header");
    Unstamped {
        seq: Seq::new(u64_at(header, 8)),
        kind_is_record: Kind::from_byte(header[20]).is_some_and(Kind::is_record),
        batch_goes_on: header[20] == Kind::Batch as u8 && header[21] & BATCH_MORE != 0,
        bytes: if header[20] == Kind::Skip as u8 {
            HEADER_BYTES
        } else {
            frame_bytes(u32_at(header, 4) as usize)
        },
    }
}

/// Bytes of the frames at the start of `frames` that stay in one segment: those of a whole batch, else one frame.
pub(crate) fn unit_bytes(frames: &[u8]) -> usize {
    let mut bytes = 0;
    loop {
        let frame = unstamped(&frames[bytes..]);
        bytes += frame.bytes;
        if !frame.batch_goes_on {
            return bytes;
        }
    }
}

/// Binds the frame at the start of `frame` to a segment: salts both checksums. Returns the chain with it.
pub(crate) fn stamp(frame: &mut [u8], salt: Salt, chain: u32) -> u32 {
    let header = frame.first_chunk_mut::<HEADER_BYTES>().expect("a frame has a header");
    if header[20] != Kind::Skip as u8 {
        let stored = salt.payload_crc(u32_at(header, 16), Seq::new(u64_at(header, 8)));
        header[16..20].copy_from_slice(&stored.to_le_bytes());
    }
    let header_crc = salt.header_crc(header);
    header[..4].copy_from_slice(&header_crc.to_le_bytes());
    extend_chain(chain, header_crc)
}

/// Appends a whole frame, not yet stamped.
pub(crate) fn push(out: &mut Vec<u8>, kind: Kind, seq: Seq, payload: &[u8]) {
    let start = begin(out);
    out.extend_from_slice(payload);
    finish(out, start, kind, 0);
    set_seq(&mut out[start..], seq);
}

/// Appends the header of a skip over `range` that covers `covered` bytes after itself, not yet stamped.
pub(crate) fn push_skip(out: &mut Vec<u8>, range: &Range<Seq>, covered: u32) {
    let start = begin(out);
    let count = u32::try_from(range.end.since(range.start)).unwrap_or(u32::MAX);
    let header = &mut out[start..];
    header[4..8].copy_from_slice(&covered.to_le_bytes());
    header[16..20].copy_from_slice(&count.to_le_bytes());
    header[20] = Kind::Skip as u8;
    set_seq(header, range.start);
}

/// The payload of [`Kind::SegStart`], about the segment before; its frame's sequence number is the segment's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SegStart {
    /// The ordinal of the segment before, 0 if there is none.
    pub(crate) ordinal: u64,
    /// The first sequence number that is not in the segments before.
    pub(crate) next: Seq,
    /// The chain checksum of the segment before.
    pub(crate) chain: u32,
    /// Whether not all before could be read when this segment was begun: `next` is then the least that it may be, and
    /// what was before says itself how far it goes, up to this segment's first sequence number.
    pub(crate) open_ended: bool,
}

impl SegStart {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.ordinal.to_le_bytes());
        out[8..16].copy_from_slice(&self.next.get().to_le_bytes());
        out[16..20].copy_from_slice(&self.chain.to_le_bytes());
        out[20] = u8::from(self.open_ended);
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<SegStart> {
        (payload.len() >= Self::BYTES).then(|| SegStart {
            ordinal: u64_at(payload, 0),
            next: Seq::new(u64_at(payload, 8)),
            chain: u32_at(payload, 16),
            open_ended: payload[20] & 1 != 0,
        })
    }
}

/// The payload of [`Kind::Watermark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Watermark {
    /// Every sequence number below this one was covered by a sync that had completed.
    pub(crate) durable: Seq,
    /// Every sequence number below this one was acknowledged.
    pub(crate) cursor: Seq,
}

impl Watermark {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.durable.get().to_le_bytes());
        out[8..].copy_from_slice(&self.cursor.get().to_le_bytes());
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<Watermark> {
        (payload.len() >= Self::BYTES).then(|| Watermark {
            durable: Seq::new(u64_at(payload, 0)),
            cursor: Seq::new(u64_at(payload, 8)),
        })
    }
}

/// The payload of [`Kind::Seal`]; its frame's sequence number is the first that is not in the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seal {
    /// Records in the segment.
    pub(crate) records: u64,
    /// The segment's first sequence number.
    pub(crate) base: Seq,
    /// Where this frame starts, in bytes from the start of the file.
    pub(crate) position: u64,
    /// The highest watermark that the segment's frames state, and the cursor of that moment.
    pub(crate) watermark: Watermark,
    /// The running checksum over the headers of all frames before this one.
    pub(crate) chain: u32,
}

impl Seal {
    pub(crate) const BYTES: usize = 48;
    /// Bytes of the whole frame: a sealed segment's file ends with it.
    pub(crate) const FRAME_BYTES: usize = frame_bytes(Self::BYTES);

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.records.to_le_bytes());
        out[8..16].copy_from_slice(&self.base.get().to_le_bytes());
        out[16..24].copy_from_slice(&self.position.to_le_bytes());
        out[24..40].copy_from_slice(&self.watermark.encode());
        out[40..44].copy_from_slice(&self.chain.to_le_bytes());
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<Seal> {
        (payload.len() >= Self::BYTES).then(|| Seal {
            records: u64_at(payload, 0),
            base: Seq::new(u64_at(payload, 8)),
            position: u64_at(payload, 16),
            watermark: Watermark {
                durable: Seq::new(u64_at(payload, 24)),
                cursor: Seq::new(u64_at(payload, 32)),
            },
            chain: u32_at(payload, 40),
        })
    }
}

/// Little-endian; the caller has checked the length.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has four bytes"))
}

/// Little-endian; the caller has checked the length.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has eight bytes"))
}
