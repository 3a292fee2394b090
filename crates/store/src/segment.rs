//! Segments: the append-only files of a queue. Owns their names, their header and the writing end of the active one.
//!
//! Invariant: `position` of the active segment is a frame boundary, and no byte at or after it was ever acknowledged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use crate::Seq;
use crate::disk::{Access, Disk, Handle, read_full_at, write_all_at};
use crate::error::{AtPath, IoFailure};
use crate::frame::{self, Kind, Salt, Seal, SegStart, Watermark, u32_at, u64_at};

/// The first eight bytes of every segment.
pub(crate) const MAGIC: [u8; 8] = *b"TIDEGATE";
/// The version of the format that this code writes.
pub(crate) const FORMAT_VERSION: u16 = 1;
/// Headers are a multiple of this.
pub(crate) const HEADER_BLOCK_BYTES: usize = 4096;
/// Where the queue's name starts in the header.
const NAME_AT: usize = 80;
/// Where the flags of a header start.
const FLAGS_AT: usize = 76;
/// The file had an earlier life.
const RECYCLED: u32 = 1;
/// The longest name of a queue, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 4096;
/// The longest header: the fixed fields, the longest name, rounded up.
pub(crate) const HEADER_BYTES_MAX: usize = (NAME_AT + NAME_BYTES_MAX).next_multiple_of(HEADER_BLOCK_BYTES);

/// What stands at the start of a segment's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) uuid: Uuid,
    pub(crate) ordinal: u64,
    pub(crate) salt: u64,
    /// The size at which the segment was to be sealed; for people, nothing depends on it.
    pub(crate) segment_bytes: u64,
    /// Whether the file had an earlier life: behind its frames there may be bytes of it, which validate nowhere here.
    pub(crate) recycled: bool,
    pub(crate) name: String,
}

/// Why a header was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// Not a segment's header, or not a whole one.
    Unreadable,
    /// Whole, and of a version or with features that this code must not touch.
    Newer { version: u16, features: u32 },
}

impl SegmentHeader {
    pub(crate) fn bytes(&self) -> usize {
        (NAME_AT + self.name.len()).next_multiple_of(HEADER_BLOCK_BYTES)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; self.bytes()];
        let len = u32::try_from(out.len()).expect("a header has at most HEADER_BYTES_MAX bytes");
        let name_len = u32::try_from(self.name.len()).expect("a name has at most NAME_BYTES_MAX bytes");
        out[..8].copy_from_slice(&MAGIC);
        out[12..14].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[28..32].copy_from_slice(&len.to_le_bytes());
        out[32..48].copy_from_slice(self.uuid.as_bytes());
        out[48..56].copy_from_slice(&self.ordinal.to_le_bytes());
        out[56..64].copy_from_slice(&self.salt.to_le_bytes());
        out[64..72].copy_from_slice(&self.segment_bytes.to_le_bytes());
        out[72..76].copy_from_slice(&name_len.to_le_bytes());
        out[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&(RECYCLED * u32::from(self.recycled)).to_le_bytes());
        out[NAME_AT..NAME_AT + self.name.len()].copy_from_slice(self.name.as_bytes());
        let crc = crc32fast::hash(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header from the first [`HEADER_BYTES_MAX`] bytes of a file, or as many as it has.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, BadHeader> {
        if bytes.len() < HEADER_BLOCK_BYTES || bytes[..8] != MAGIC {
            return Err(BadHeader::Unreadable);
        }
        let len = u32_at(bytes, 28) as usize;
        if !len.is_multiple_of(HEADER_BLOCK_BYTES) || len == 0 || len > bytes.len() {
            return Err(BadHeader::Unreadable);
        }
        if crc32fast::hash(&bytes[12..len]) != u32_at(bytes, 8) {
            return Err(BadHeader::Unreadable);
        }
        let version = u16::from_le_bytes([bytes[12], bytes[13]]);
        // Bits that this code does not know: compatible ones may be ignored, the others forbid writing, or reading.
        let features = u32_at(bytes, 20) | u32_at(bytes, 24);
        if version != FORMAT_VERSION || features != 0 {
            return Err(BadHeader::Newer { version, features });
        }
        let name_len = u32_at(bytes, 72) as usize;
        let name =
            bytes[..len].get(NAME_AT..NAME_AT.saturating_add(name_len)).ok_or(BadHeader::Unreadable)?;
        Ok(SegmentHeader {
            uuid: Uuid::from_slice(&bytes[32..48]).map_err(|_| BadHeader::Unreadable)?,
            ordinal: u64_at(bytes, 48),
            salt: u64_at(bytes, 56),
            segment_bytes: u64_at(bytes, 64),
            recycled: u32_at(bytes, FLAGS_AT) & RECYCLED != 0,
            name: String::from_utf8(name.to_vec()).map_err(|_| BadHeader::Unreadable)?,
        })
    }

    /// Reads the header of an open file. The inner error is what the bytes say, the outer one what the disk says.
    pub(crate) fn read(
        disk: &dyn Disk,
        file: &Handle,
        path: &Path,
    ) -> Result<Result<SegmentHeader, BadHeader>, IoFailure> {
        let mut bytes = vec![0; HEADER_BYTES_MAX];
        let filled = read_full_at(disk, file, &mut bytes, 0).at("read the header of", path)?;
        Ok(SegmentHeader::decode(&bytes[..filled]))
    }
}

/// The file of segment `ordinal`.
pub(crate) fn path(folder: &Path, ordinal: u64) -> PathBuf {
    folder.join(format!("{ordinal:020}.seg"))
}

/// The ordinal that a file name states.
pub(crate) fn ordinal_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|ordinal| *ordinal < u64::MAX)
}

/// A segment as the queue knows it: where which sequence numbers are.
#[derive(Debug, Clone)]
pub(crate) struct SegmentMeta {
    pub(crate) ordinal: u64,
    /// The first sequence number that it may hold.
    pub(crate) base: Seq,
    /// The first that it does not hold.
    pub(crate) next: Seq,
    /// Bytes of the file that may be read: up to the last group that is complete.
    pub(crate) bytes: u64,
    /// Whether nothing will be added any more.
    pub(crate) sealed: bool,
    /// What its start frame says of the segment before.
    pub(crate) seg_start: SegStart,
}

/// The segment that is being written. Owned by the committer alone.
#[derive(Debug)]
pub(crate) struct ActiveSegment {
    pub(crate) path: PathBuf,
    pub(crate) file: Handle,
    pub(crate) ordinal: u64,
    pub(crate) base: Seq,
    pub(crate) next: Seq,
    pub(crate) salt: Salt,
    /// Where the next frame goes.
    pub(crate) position: u64,
    pub(crate) chain: u32,
    pub(crate) records: u64,
    pub(crate) watermark: Watermark,
}

/// What a new segment is made from.
pub(crate) struct NewSegment<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) header: SegmentHeader,
    pub(crate) base: Seq,
    pub(crate) previous: SegStart,
}

impl ActiveSegment {
    /// Makes a segment. When this returns, header, start frame and name are durable.
    pub(crate) fn create(
        disk: &dyn Disk,
        new: &NewSegment<'_>,
    ) -> Result<(ActiveSegment, SegmentMeta), IoFailure> {
        let path = path(new.folder, new.header.ordinal);
        let file = disk.open(&path, Access::CreateNew).at("create", &path)?;
        let salt = Salt::new(new.header.salt);
        let seg_start = new.previous;
        let mut bytes = new.header.encode();
        let at = bytes.len();
        frame::push(&mut bytes, Kind::SegStart, new.base, &seg_start.encode());
        let chain = frame::stamp(&mut bytes[at..], salt, 0);

        let written = write_all_at(disk, &file, &bytes, 0)
            .at("write", &path)
            .and_then(|()| disk.sync_data(&file).at("sync", &path))
            .and_then(|()| disk.sync_dir(new.folder).at("sync", new.folder));
        if let Err(failure) = written {
            // Best effort: a file that stays has no record in it, and the next open removes it.
            let _ = disk.remove_file(&path);
            return Err(failure);
        }
        let ordinal = new.header.ordinal;
        let position = bytes.len() as u64;
        let meta = SegmentMeta {
            ordinal,
            base: new.base,
            next: new.base,
            bytes: position,
            sealed: false,
            seg_start,
        };
        let active = ActiveSegment {
            path,
            file,
            ordinal,
            base: new.base,
            next: new.base,
            salt,
            position,
            chain,
            records: 0,
            watermark: Watermark::default(),
        };
        Ok((active, meta))
    }

    /// Whether `bytes` more and the seal fit under `segment_bytes`. A segment without records takes any frame, so
    /// that a record larger than a segment gets one of its own.
    pub(crate) fn has_room(&self, bytes: usize, segment_bytes: u64) -> bool {
        self.records == 0 || self.fits(bytes, segment_bytes)
    }

    /// Whether `bytes` more and the seal fit, whatever the segment holds.
    pub(crate) fn fits(&self, bytes: usize, segment_bytes: u64) -> bool {
        self.position + bytes as u64 + Seal::FRAME_BYTES as u64 <= segment_bytes
    }

    /// Writes frames that are stamped already, in one piece. On failure nothing of them can be read back, or the
    /// segment must not be used any more: `Err((failure, usable))`.
    pub(crate) fn write(
        &mut self,
        disk: &dyn Disk,
        frames: &[u8],
        chain: u32,
    ) -> Result<(), (IoFailure, bool)> {
        match write_all_at(disk, &self.file, frames, self.position) {
            Ok(()) => {
                self.position += frames.len() as u64;
                self.chain = chain;
                Ok(())
            }
            Err(error) => {
                // Both, so that neither power loss nor a later claim of durability is mistaken about this file.
                let cut = disk.set_len(&self.file, self.position).is_ok();
                let usable = disk.sync_data(&self.file).is_ok() && cut;
                Err((IoFailure::new("write", &self.path, error), usable))
            }
        }
    }

    /// When this returns, all that was written is durable.
    pub(crate) fn sync(&self, disk: &dyn Disk) -> Result<(), IoFailure> {
        disk.sync_data(&self.file).at("sync", &self.path)
    }

    /// Writes the seal and syncs; then cuts what a recycled file had beyond it. The seal itself is a convenience: if
    /// there is no room for it, the next segment's start frame says the same.
    pub(crate) fn seal(&mut self, disk: &dyn Disk) -> Result<(), IoFailure> {
        let seal = Seal {
            records: self.records,
            base: self.base,
            position: self.position,
            watermark: self.watermark,
            chain: self.chain,
        };
        let mut bytes = Vec::with_capacity(Seal::FRAME_BYTES);
        frame::push(&mut bytes, Kind::Seal, self.next, &seal.encode());
        let chain = frame::stamp(&mut bytes, self.salt, self.chain);
        let unsealed = match self.write(disk, &bytes, chain) {
            Ok(()) => false,
            Err((_, true)) => true,
            // What its sync should have covered may be forgotten: another that succeeds would prove nothing.
            Err((failure, false)) => return Err(failure),
        };
        self.sync(disk)?;
        if !unsealed {
            let _ = disk.set_len(&self.file, self.position);
        }
        Ok(())
    }

    /// What the next segment is to say of this one.
    pub(crate) fn as_previous(&self) -> SegStart {
        SegStart { ordinal: self.ordinal, next: self.next, chain: self.chain, open_ended: false }
    }
}

/// A fresh salt: random, so that no frame of another segment validates.
pub(crate) fn fresh_salt() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    // The version bits of the one half are covered by random bits of the other.
    high ^ low.rotate_left(32)
}

/// The folder of a queue: its name, made safe, and a hash that tells apart names that look alike once they are safe.
pub(crate) fn folder_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let short: String = name.chars().map(safe).take(64).collect();
    let short = short.trim_start_matches('.');
    format!("{short}-{:016x}", fnv1a(name.as_bytes()))
}

/// FNV-1a, 64 bit: stable for ever, which the standard library's hashers do not promise.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Reads what describes a segment without reading its records: header, start frame, and the seal if there is one.
pub(crate) struct Outline {
    pub(crate) header: SegmentHeader,
    pub(crate) len: u64,
    /// Whether there was a start frame and it cannot be read; `seg_start` is then a guess.
    pub(crate) start_is_damaged: bool,
    pub(crate) seg_start: Option<(Seq, SegStart)>,
    /// The seal, with the chain of the whole segment: what the next one states.
    pub(crate) seal: Option<(Seq, Seal)>,
}

impl Outline {
    pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<Result<Outline, BadHeader>, IoFailure> {
        let file = disk.open(path, Access::Read).at("open", path)?;
        let len = disk.len(&file).at("measure", path)?;
        let header = match SegmentHeader::read(disk, &file, path)? {
            Ok(header) => header,
            Err(bad) => return Ok(Err(bad)),
        };
        let salt = Salt::new(header.salt);
        let mut bytes = [0; frame::frame_bytes(SegStart::BYTES)];
        let filled = read_full_at(disk, &file, &mut bytes, header.bytes() as u64).at("read", path)?;
        let seg_start = whole(&bytes[..filled], salt, Kind::SegStart)
            .and_then(|(header, payload)| Some((header.seq, SegStart::decode(payload)?)));
        let mut bytes = [0; Seal::FRAME_BYTES];
        let at = len.saturating_sub(Seal::FRAME_BYTES as u64);
        let filled = read_full_at(disk, &file, &mut bytes, at).at("read", path)?;
        let seal = whole(&bytes[..filled], salt, Kind::Seal)
            .and_then(|(header, payload)| {
                let seal = Seal::decode(payload)?;
                Some((header.seq, Seal { chain: header.chain(seal.chain), ..seal }))
            })
            .filter(|(_, seal)| seal.position == at);
        Ok(Ok(Outline { header, len, start_is_damaged: false, seg_start, seal }))
    }
}

/// Header and payload of the frame at the start of `bytes`, if it is whole and of this kind.
fn whole(bytes: &[u8], salt: Salt, kind: Kind) -> Option<(frame::FrameHeader, &[u8])> {
    let frame::Probe::Header(header) = frame::FrameHeader::probe(bytes, salt) else { return None };
    let payload = bytes.get(frame::HEADER_BYTES..frame::HEADER_BYTES + header.len as usize)?;
    (header.kind == kind && header.payload_is_whole(payload, salt)).then_some((header, payload))
}

/// What every room of the store needs to reach the files of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
}
