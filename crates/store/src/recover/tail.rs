//! The last segment: the only one whose records recovery walks, and the only one that it writes to.
//! Cuts what is torn, covers holes in what was never durable, and leaves what rotted as it is.

use std::io;
use std::ops::Range;
use std::path::Path;

use super::RecoveryReport;
use super::listing::base;
use crate::Seq;
use crate::disk::{Access, Disk, EntryKind, Handle, read_full_at, write_all_at};
use crate::error::{AtPath, IoFailure, patiently};
use crate::frame::{
    self, BATCH_FIRST, BATCH_MORE, FrameHeader, GRID_BYTES, HEADER_BYTES, Kind, Salt, SegStart, Watermark,
};
use crate::index::{Hint, QueueState};
use crate::scan::{Payload, Scanner, Source, Step};
use crate::segment::{self, Home, Outline};

/// The most that is kept of one damaged range.
const QUARANTINE_BYTES_MAX: u64 = 1 << 20;
/// Copies that a queue keeps, so at most 64 MiB: the oldest go first.
const QUARANTINE_FILES_MAX: usize = 64;

/// What the walk through a segment gave.
#[derive(Debug, Default)]
pub(crate) struct ScannedTail {
    /// Behind the last frame that is whole; batches of which a part is missing do not count.
    pub(crate) end: u64,
    /// The sequence number after the last record that is whole or skipped, likewise.
    pub(crate) next: Seq,
    /// As `next`, but with what is there of batches of which a part is missing.
    pub(crate) seen: Seq,
    pub(super) chain: u32,
    pub(super) records: u64,
    pub(crate) watermark: Watermark,
    /// Damage before `end`: where, how many bytes, which sequence numbers.
    pub(crate) holes: Vec<Hole>,
    /// Bytes from `end` on that a crash left of frames, up to the last of them.
    pub(super) torn_bytes: u64,
    /// Bytes that the medium did not give, from the first on that no whole frame follows.
    pub(super) unread_tail_bytes: u64,
    /// Whether the medium did not give some bytes, here or before.
    pub(super) unread: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Hole {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) range: Range<Seq>,
    /// Whether there are whole frames in it: of a batch of which a part is missing.
    pub(super) batch: bool,
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
    let from_start = ScannedTail {
        end: outline.header.bytes() as u64,
        next: base_seq,
        seen: base_seq,
        ..ScannedTail::default()
    };
    let start = match hint {
        Some(hint) => ScannedTail {
            end: hint.position,
            next: Seq::new(hint.next),
            seen: Seq::new(hint.next),
            chain: hint.chain,
            records: hint.records,
            ..ScannedTail::default()
        },
        None => from_start,
    };
    walk(home, outline, &path, start)
}

fn walk(home: &Home, outline: &Outline, path: &Path, tail: ScannedTail) -> Result<ScannedTail, IoFailure> {
    let file = patiently(|| home.disk.open(path, Access::Read).at("open", path))?;
    let source = Source {
        disk: home.disk.as_ref(),
        file: &file,
        path,
        limit: outline.len,
        seq_limit: Seq::new(u64::MAX),
    };
    let mut scanner = Scanner::new(Salt::new(outline.header.salt), tail.end);
    let mut walk = Walk { tail, damage: None, batch: None };
    loop {
        match scanner.step(source)? {
            Step::End => break,
            Step::Damage { position, zeros, .. } => walk.damaged(position).bytes |= !zeros,
            Step::Unreadable { position, .. } | Step::Frame { position, state: Payload::Unreadable, .. } => {
                walk.unread(position);
            }
            Step::Frame { position, state: Payload::Damaged, .. } => {
                walk.damaged(position).own_until = scanner.position();
            }
            Step::Frame { header, position, payload, state: Payload::Whole } => {
                if let Some(watermark) = Watermark::decode(&scanner.bytes()[payload])
                    && header.kind == Kind::Watermark
                {
                    walk.tail.watermark = highest(walk.tail.watermark, watermark);
                }
                walk.frame(&header, position, scanner.position());
            }
        }
    }
    walk.finish(source, outline)
}

/// The walk through a segment: what is whole counts at once, a batch when its last frame was met.
struct Walk {
    tail: ScannedTail,
    /// What is wrong since the last frame that counted.
    damage: Option<Damage>,
    batch: Option<Batch>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Damage {
    from: u64,
    /// The end of the last frame in it that is of this segment, damaged or of a batch of which a part is missing.
    own_until: u64,
    /// Whether there are bytes in it that are no frame.
    bytes: bool,
    batch: bool,
    unread_from: Option<u64>,
}

/// A batch whose last frame was not met yet.
#[derive(Debug, Clone, Copy)]
struct Batch {
    position: u64,
    end: u64,
    next: Seq,
    chain: u32,
    records: u64,
}

impl Walk {
    /// A batch that is open now misses a part: the damage begins with it.
    fn damaged(&mut self, position: u64) -> &mut Damage {
        if let Some(batch) = self.batch.take() {
            let damage = self.damage.get_or_insert(Damage { from: batch.position, ..Damage::default() });
            (damage.batch, damage.own_until) = (true, batch.end);
        }
        self.damage.get_or_insert(Damage { from: position, ..Damage::default() })
    }

    fn unread(&mut self, position: u64) {
        self.tail.unread = true;
        self.damaged(position).unread_from.get_or_insert(position);
    }

    fn frame(&mut self, header: &FrameHeader, position: u64, end: u64) {
        let of_batch = header.kind == Kind::Batch;
        let continues = of_batch && header.flags & BATCH_FIRST == 0;
        if header.kind.is_record() {
            self.tail.seen = self.tail.seen.max(header.seq.next());
        }
        if !self.batch.is_some_and(|batch| continues && batch.next == header.seq) {
            if self.batch.is_some() || continues {
                let damage = self.damaged(position);
                if continues {
                    // The first of its batch is missing.
                    (damage.batch, damage.own_until) = (true, end);
                    return;
                }
            }
            self.close_hole(position, header.seq);
        }
        let batch = self.batch.get_or_insert(Batch {
            position,
            end,
            next: header.seq,
            chain: self.tail.chain,
            records: self.tail.records,
        });
        batch.end = end;
        batch.chain = header.chain(batch.chain);
        batch.next = match header.kind {
            Kind::Skip => header.skipped().end,
            kind if kind.is_record() => header.seq.next(),
            Kind::Seal => header.seq,
            _ => self.tail.next,
        };
        batch.records += u64::from(header.kind.is_record());
        if !of_batch || header.flags & BATCH_MORE == 0 {
            self.count();
        }
    }

    /// A frame of its own, or a whole batch.
    fn count(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        let tail = &mut self.tail;
        (tail.end, tail.chain, tail.records) = (batch.end, batch.chain, batch.records);
        tail.next = tail.next.max(batch.next);
        tail.seen = tail.seen.max(tail.next);
    }

    /// A frame of this segment begins at `position`: what was wrong before ends there.
    fn close_hole(&mut self, position: u64, seq: Seq) {
        let Some(damage) = self.damage.take() else { return };
        let known = self.tail.holes.last().map_or(self.tail.next, |hole| hole.range.end.max(self.tail.next));
        self.tail.holes.push(Hole {
            position: damage.from,
            bytes: position - damage.from,
            range: known..seq.max(known),
            batch: damage.batch,
        });
    }

    fn finish(mut self, source: Source<'_>, outline: &Outline) -> Result<ScannedTail, IoFailure> {
        if self.batch.is_some() {
            self.damaged(outline.len);
        }
        let mut tail = self.tail;
        // What a batch that misses its end made look like one.
        tail.holes.retain(|hole| hole.position < tail.end);
        if let Some(damage) = self.damage {
            tail.unread_tail_bytes = damage.unread_from.map_or(0, |from| outline.len - from);
            let until = if outline.header.recycled || !damage.bytes || tail.unread {
                damage.own_until
            } else {
                end_of_data(source, tail.end)?.max(damage.own_until)
            };
            tail.torn_bytes = until.min(outline.len).saturating_sub(tail.end);
        }
        Ok(tail)
    }
}

/// Behind the last byte from `from` on that is not zero: space that was reserved is no data.
fn end_of_data(source: Source<'_>, from: u64) -> Result<u64, IoFailure> {
    let mut block = vec![0; 64 << 10];
    let mut end = source.limit;
    while end > from {
        let start = end.saturating_sub(block.len() as u64).max(from);
        let piece = &mut block[..usize::try_from(end - start).expect("it lies in the block")];
        let filled = read_full_at(source.disk, source.file, piece, start).at("read", source.path)?;
        if let Some(last) = piece[..filled].iter().rposition(|byte| *byte != 0) {
            return Ok((start + last as u64 + 1).next_multiple_of(GRID_BYTES as u64));
        }
        end = start;
    }
    Ok(from)
}

pub(crate) fn highest(a: Watermark, b: Watermark) -> Watermark {
    Watermark { durable: a.durable.max(b.durable), cursor: a.cursor.max(b.cursor) }
}

pub(crate) fn sealed_watermark(outlines: &[Outline]) -> Watermark {
    outlines.iter().rev().find_map(|outline| outline.seal.map(|(_, seal)| seal.watermark)).unwrap_or_default()
}

/// Records of batches of which a part is missing, in a segment that is not the last and was not sealed: it was left after
/// a failed sync, so none of it need have reached the disk, and a batch is there as a whole or not at all.
pub(super) fn broken_batches(
    outlines: &[Outline],
    scanned: &ScannedTail,
    stated_next: Seq,
) -> Vec<Range<Seq>> {
    let durable = durable_at_least(outlines, None).max(scanned.watermark.durable);
    let holes = scanned.holes.iter().filter(|hole| hole.batch).map(|hole| hole.range.clone());
    let at_the_end = (scanned.next < scanned.seen).then(|| scanned.next..scanned.seen.max(stated_next));
    holes.chain(at_the_end).filter(|range| range.start >= durable && !range.is_empty()).collect()
}

/// Everything below was durable once: the seals say it, the index, and each segment of the one before it.
pub(crate) fn durable_at_least(outlines: &[Outline], remembered: Option<&QueueState>) -> Seq {
    let started = outlines.last().map_or(Seq::FIRST, |outline| base(outline).1.next);
    let indexed = remembered.map_or(Seq::FIRST, |state| Seq::new(state.durable));
    sealed_watermark(outlines).durable.max(started).max(indexed).max(Seq::FIRST)
}

/// A last segment that lost its start frame above D was never durable: a crash tore the write that began it. Its start is
/// written again, and what else the crash took becomes a hole like any other. Below D it is rot, and stays as it is.
pub(super) fn mend_start(home: &Home, outlines: &mut [Outline], remembered: Option<&QueueState>) {
    let Some((last, before)) = outlines.split_last_mut() else { return };
    if !last.start_is_damaged {
        return;
    }
    let path = segment::path(&home.folder, last.header.ordinal);
    let mended = scan_tail(home, last, None).and_then(|scanned| {
        let previous = before.last().map(|previous| left_by(home, previous)).transpose()?;
        let previous = previous.unwrap_or(SegStart { next: Seq::FIRST, ..SegStart::default() });
        let durable = durable_at_least(before, remembered).max(scanned.watermark.durable);
        if durable > previous.next || base(last).0 < previous.next {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        frame::push(&mut bytes, Kind::SegStart, previous.next, &previous.encode());
        frame::stamp(&mut bytes, Salt::new(last.header.salt), 0);
        let file = home.disk.open(&path, Access::ReadWrite).at("open", &path)?;
        write_all_at(home.disk.as_ref(), &file, &bytes, last.header.bytes() as u64).at("write", &path)?;
        Ok(Some(previous))
    });
    match mended {
        Ok(Some(previous)) => {
            last.seg_start = Some((previous.next, previous));
            last.start_is_damaged = false;
        }
        Ok(None) => {}
        Err(failure) => {
            tracing::warn!(queue = %home.name, %failure, "the start of the last segment cannot be written again");
        }
    }
}

/// What a segment leaves to the next: by its seal, else by its frames.
fn left_by(home: &Home, outline: &Outline) -> Result<SegStart, IoFailure> {
    let (next, chain) = match &outline.seal {
        Some((next, seal)) => (*next, seal.chain),
        None => scan_tail(home, outline, None).map(|scanned| (scanned.next, scanned.chain))?,
    };
    Ok(SegStart { ordinal: outline.header.ordinal, next, chain, open_ended: false })
}

/// The last segment, opened for writing, after everything in it was made durable.
pub(super) struct Settled {
    pub(super) file: Handle,
    /// Whether skips were written, so that the walk before no longer describes the file.
    pub(super) covered: bool,
}

/// What may be written to the last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mend {
    /// It ends in what a crash left: holes above D are covered, the torn tail is cut.
    Tail,
    /// It ends in rot: holes above D are covered, nothing is cut.
    Holes,
    /// Some of it, or of what lies behind it, could not be read.
    Nothing,
}

/// Cuts the torn tail and covers the holes above D, then syncs: after a mere crash of the process, what stands in the
/// file need not be on the disk yet. May be interrupted anywhere and done again.
pub(super) fn settle(
    home: &Home,
    outline: &Outline,
    scanned: &ScannedTail,
    durable: Seq,
    mend: Mend,
    report: &mut RecoveryReport,
) -> Result<Settled, IoFailure> {
    let disk = home.disk.as_ref();
    let path = segment::path(&home.folder, outline.header.ordinal);
    let file = patiently(|| disk.open(&path, Access::ReadWrite).at("open", &path))?;
    let mut covered = false;
    let holes = scanned.holes.iter().filter(|hole| hole.range.start >= durable && !hole.range.is_empty());
    for hole in holes.filter(|_| mend != Mend::Nothing) {
        keep_evidence(home, outline, hole.position, hole.bytes);
        cover(home, outline, &file, &path, hole)?;
        report.lost_unsynced.push(hole.range.clone());
        covered = true;
    }
    if mend == Mend::Tail && outline.seal.is_none() && scanned.torn_bytes > 0 {
        keep_evidence(home, outline, scanned.end, scanned.torn_bytes);
        disk.set_len(&file, scanned.end).at("cut the torn tail of", &path)?;
        report.torn_bytes = scanned.torn_bytes;
    }
    disk.sync_data(&file).at("sync", &path)?;
    Ok(Settled { file, covered })
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
        .and_then(|file| write_all_at(disk, &file, &copy, 0))
        .and_then(|()| forget_oldest(disk, &folder, &path));
    if let Err(error) = result
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        tracing::warn!(queue = %home.name, path = %path.display(), %error, "damaged bytes could not be copied to quarantine");
    }
}

/// Keeps `quarantine/` bounded. Names begin with the ordinal, so that the lowest are the oldest; `newest` stays.
fn forget_oldest(disk: &dyn Disk, folder: &Path, newest: &Path) -> io::Result<()> {
    let entries = disk.list(folder)?.into_iter().filter(|(_, kind)| *kind == EntryKind::File);
    let mut copies: Vec<_> =
        entries.map(|(name, _)| folder.join(name)).filter(|path| path != newest).collect();
    copies.sort_unstable();
    let beyond = (copies.len() + 1).saturating_sub(QUARANTINE_FILES_MAX);
    copies.iter().take(beyond).try_for_each(|path| disk.remove_file(path))
}
