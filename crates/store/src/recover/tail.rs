//! The last segment: the only one whose records recovery walks, and the only one that it writes to.
//! Cuts what is torn, covers holes in what was never durable, and leaves what rotted as it is.

use std::ops::Range;
use std::path::Path;

use super::RecoveryReport;
use super::listing::base;
use crate::Seq;
use crate::disk::{Access, Handle, read_full_at, write_all_at};
use crate::error::{AtPath, IoFailure};
use crate::frame::{self, HEADER_BYTES, Kind, Salt, Watermark};
use crate::index::{Hint, QueueState};
use crate::scan::{Payload, Scanner, Source, Step};
use crate::segment::{self, Home, Outline};

/// The most that is kept of one damaged range.
const QUARANTINE_BYTES_MAX: u64 = 1 << 20;

/// What the walk through the last segment gave.
#[derive(Debug, Default)]
pub(crate) struct ScannedTail {
    /// Behind the last frame that is whole.
    pub(crate) end: u64,
    /// The sequence number after the last record that is whole or skipped.
    pub(crate) next: Seq,
    pub(super) chain: u32,
    pub(super) records: u64,
    pub(crate) watermark: Watermark,
    /// Damage before `end`: where, how many bytes, which sequence numbers.
    pub(crate) holes: Vec<Hole>,
    /// Bytes from `end` on that are not zeros.
    torn_bytes: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Hole {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) range: Range<Seq>,
}

/// Walks the last segment from the hint, or from its start. Its seal is one frame more: only a segment after it says that
/// the sync behind the seal had completed.
pub(crate) fn scan_tail(
    home: &Home,
    outline: &Outline,
    hint: Option<Hint>,
) -> Result<ScannedTail, IoFailure> {
    let path = segment::path(&home.folder, outline.header.ordinal);
    let hint = hint.filter(|hint| hint.ordinal == outline.header.ordinal && hint.position <= outline.len);
    let (base_seq, _) = base(outline);
    let from_start =
        ScannedTail { end: outline.header.bytes() as u64, next: base_seq, ..ScannedTail::default() };
    let start = match hint {
        Some(hint) => ScannedTail {
            end: hint.position,
            next: Seq::new(hint.next),
            chain: hint.chain,
            records: hint.records,
            ..ScannedTail::default()
        },
        None => from_start,
    };
    walk(home, outline, &path, start)
}

fn walk(
    home: &Home,
    outline: &Outline,
    path: &Path,
    mut tail: ScannedTail,
) -> Result<ScannedTail, IoFailure> {
    let file = home.disk.open(path, Access::Read).at("open", path)?;
    let source = Source {
        disk: home.disk.as_ref(),
        file: &file,
        path,
        limit: outline.len,
        seq_limit: Seq::new(u64::MAX),
    };
    let mut scanner = Scanner::new(Salt::new(outline.header.salt), tail.end);
    let mut damage: Option<(u64, bool)> = None;
    loop {
        match scanner.step(source)? {
            Step::End => break,
            Step::Damage { position, zeros, .. } => {
                let (from, all_zeros) = damage.unwrap_or((position, true));
                damage = Some((from, all_zeros && zeros));
            }
            Step::Unreadable { position, .. }
            | Step::Frame { position, state: Payload::Damaged | Payload::Unreadable, .. } => {
                let (from, _) = damage.unwrap_or((position, false));
                damage = Some((from, false));
            }
            Step::Frame { header, position, payload, state: Payload::Whole } => {
                let seq = header.seq;
                if let Some((from, _)) = damage.take() {
                    let range = tail.next..seq.max(tail.next);
                    tail.holes.push(Hole { position: from, bytes: position - from, range });
                }
                tail.end = scanner.position();
                tail.chain = header.chain(tail.chain);
                match header.kind {
                    Kind::Seal => tail.next = tail.next.max(seq),
                    Kind::Skip => tail.next = tail.next.max(header.skipped().end),
                    Kind::Watermark => {
                        if let Some(watermark) = Watermark::decode(&scanner.bytes()[payload]) {
                            tail.watermark = highest(tail.watermark, watermark);
                        }
                    }
                    kind if kind.is_record() => {
                        tail.next = tail.next.max(seq.next());
                        tail.records += 1;
                    }
                    _ => {}
                }
            }
        }
    }
    if let Some((from, false)) = damage {
        tail.torn_bytes = outline.len - from;
    }
    Ok(tail)
}

pub(crate) fn highest(a: Watermark, b: Watermark) -> Watermark {
    Watermark { durable: a.durable.max(b.durable), cursor: a.cursor.max(b.cursor) }
}

pub(crate) fn sealed_watermark(outlines: &[Outline]) -> Watermark {
    outlines.iter().rev().find_map(|outline| outline.seal.map(|(_, seal)| seal.watermark)).unwrap_or_default()
}

/// Everything below was durable once: the seals say it, the index, and each segment of the one before it.
pub(crate) fn durable_at_least(outlines: &[Outline], remembered: Option<&QueueState>) -> Seq {
    let started = outlines.last().map_or(Seq::FIRST, |outline| base(outline).1.next);
    let indexed = remembered.map_or(Seq::FIRST, |state| Seq::new(state.durable));
    sealed_watermark(outlines).durable.max(started).max(indexed).max(Seq::FIRST)
}

/// The last segment, opened for writing, after everything in it was made durable.
pub(super) struct Settled {
    pub(super) file: Handle,
    /// Whether skips were written, so that the walk before no longer describes the file.
    pub(super) covered: bool,
}

/// Cuts the torn tail and covers the holes above D, then syncs: after a mere crash of the process, what stands in the
/// file need not be on the disk yet. May be interrupted anywhere and done again.
pub(super) fn settle(
    home: &Home,
    outline: &Outline,
    scanned: &ScannedTail,
    durable: Seq,
    rotten: bool,
    report: &mut RecoveryReport,
) -> Result<Settled, IoFailure> {
    let disk = home.disk.as_ref();
    let path = segment::path(&home.folder, outline.header.ordinal);
    let file = disk.open(&path, Access::ReadWrite).at("open", &path)?;
    let holes = scanned.holes.iter().filter(|hole| hole.range.start >= durable && !hole.range.is_empty());
    for hole in holes {
        keep_evidence(home, outline, hole.position, hole.bytes);
        cover(home, outline, &file, &path, hole)?;
        report.lost_unsynced.push(hole.range.clone());
    }
    if !rotten && outline.seal.is_none() && outline.len > scanned.end {
        keep_evidence(home, outline, scanned.end, scanned.torn_bytes);
        disk.set_len(&file, scanned.end).at("cut the torn tail of", &path)?;
        report.torn_bytes = scanned.torn_bytes;
    }
    disk.sync_data(&file).at("sync", &path)?;
    Ok(Settled { file, covered: !report.lost_unsynced.is_empty() })
}

/// Writes a skip over bytes that are no frame.
fn cover(home: &Home, outline: &Outline, file: &Handle, path: &Path, hole: &Hole) -> Result<(), IoFailure> {
    let covered = u32::try_from(hole.bytes.saturating_sub(HEADER_BYTES as u64)).unwrap_or(u32::MAX);
    let mut skip = Vec::new();
    frame::push_skip(&mut skip, &hole.range, covered);
    frame::stamp(&mut skip, Salt::new(outline.header.salt), 0);
    write_all_at(home.disk.as_ref(), file, &skip, hole.position).at("cover a hole in", path)
}

/// Copies damaged bytes to `quarantine/`, for people. Best effort: a full disk must not keep the queue from opening.
fn keep_evidence(home: &Home, outline: &Outline, position: u64, bytes: u64) {
    if bytes == 0 {
        return;
    }
    let ordinal = outline.header.ordinal;
    let folder = home.folder.join("quarantine");
    let path = folder.join(format!("{ordinal:020}-{position}.bin"));
    let kept = usize::try_from(bytes.min(QUARANTINE_BYTES_MAX)).expect("bounded by QUARANTINE_BYTES_MAX");
    let mut copy = vec![0; kept];
    let disk = home.disk.as_ref();
    let segment = segment::path(&home.folder, ordinal);
    let result = disk
        .open(&segment, Access::Read)
        .and_then(|file| read_full_at(disk, &file, &mut copy, position))
        .and_then(|filled| {
            copy.truncate(filled);
            disk.create_dir_all(&folder)
        })
        .and_then(|()| disk.open(&path, Access::CreateNew))
        .and_then(|file| write_all_at(disk, &file, &copy, 0));
    if let Err(error) = result
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        tracing::warn!(queue = %home.name, path = %path.display(), %error, "damaged bytes could not be copied to quarantine");
    }
}
