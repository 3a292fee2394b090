//! Recovery: from what stands in a queue's folder to a queue that goes on. Never fails for one bad byte or file.
//!
//! `D`, the highest sequence number known to have been durable, tells a torn tail from rot: damage above it was never
//! acknowledged and is cut; damage at or below it is reported and never cut. Every write here is idempotent, so that a
//! crash during recovery is one more crash to recover from.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use uuid::Uuid;

use crate::Seq;
use crate::commit::Tail;
use crate::cursor::Acks;
use crate::disk::{Access, EntryKind, Handle, read_full_at, write_all_at};
use crate::error::{AtPath, IoFailure};
use crate::frame::{self, HEADER_BYTES, Kind, Salt, SegStart, Watermark};
use crate::index::{Hint, QueueState};
use crate::scan::{Scanner, Source, Step};
use crate::segment::{self, ActiveSegment, BadHeader, Home, Outline, SegmentMeta};

/// The most that is kept of one damaged range.
const QUARANTINE_BYTES_MAX: u64 = 1 << 20;

/// What opening a queue found and did. Everything in it was logged as well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Bytes of a torn tail that were cut off: writes that a crash interrupted, never acknowledged.
    pub torn_bytes: u64,
    /// Records that were written, never durable, and lost to a crash although later ones survived.
    pub lost_unsynced: Vec<Range<Seq>>,
    /// Records that were durable and not acknowledged, and whose segments are all gone.
    pub missing: Vec<Range<Seq>>,
    /// The cursor was not in the index: so many records may be delivered again.
    pub redelivered_at_most: Option<u64>,
    /// Why the index was set aside or its entry not used.
    pub index: Option<String>,
    /// Files and folders that are not the queue's, or that must not be touched, each with the reason.
    pub ignored: Vec<String>,
}

/// A queue's state as recovery leaves it.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) uuid: Uuid,
    pub(crate) acks: Acks,
    pub(crate) durable: Seq,
    pub(crate) end: Seq,
    pub(crate) segments: VecDeque<SegmentMeta>,
    pub(crate) hint: Option<Hint>,
    pub(crate) remembered: QueueState,
    pub(crate) active: Tail,
    pub(crate) report: RecoveryReport,
}

/// Recovers the queue in `home.folder`. `remembered` is what the index has of it.
pub(crate) fn recover(
    home: &Home,
    remembered: Result<Option<QueueState>, String>,
) -> Result<Recovered, IoFailure> {
    let mut report = RecoveryReport::default();
    let remembered = remembered.unwrap_or_else(|reason| {
        report.index = Some(reason);
        None
    });
    let (outlines, next_ordinal) = list(home, Intent::Recover, &mut report)?;
    let uuid = choose_uuid(home, remembered.as_ref(), &outlines);
    let remembered = remembered.filter(|state| &state.uuid == uuid.as_bytes());
    let outlines = own(home, uuid, outlines, &mut report);

    let hint = remembered.as_ref().and_then(|state| state.hint);
    let mut log = Log {
        segments: metas(&outlines),
        next: Seq::FIRST,
        durable: durable_at_least(&outlines, remembered.as_ref()),
        tail: Tail {
            active: None,
            previous: SegStart::default(),
            next_ordinal: next_ordinal.max(hint.map_or(0, |hint| hint.ordinal + 1)),
            watermark: sealed_watermark(&outlines),
        },
    };
    if let Some(last) = outlines.into_iter().last() {
        log.recover_last(home, &last, hint, &mut report)?;
    }
    let mut state = remembered.clone().unwrap_or_default();
    let end = log.end(Seq::new(state.issued));
    let acks = acks(home, remembered.as_ref(), &log, end, &mut report);
    for range in &report.missing {
        state.counters.lost += range.end.since(range.start);
        state.losses.push((range.start.get(), range.end.get()));
    }
    tell(home, &report);
    let Log { segments, durable, tail, .. } = log;
    Ok(Recovered { uuid, acks, durable, end, segments, hint, remembered: state, active: tail, report })
}

/// The log while it is being recovered.
struct Log {
    segments: VecDeque<SegmentMeta>,
    /// The sequence number after the last record that stands in it.
    next: Seq,
    /// `D`, and after the last segment was synced, what is durable now.
    durable: Seq,
    tail: Tail,
}

impl Log {
    /// Walks the last segment, and makes it one that can be appended to, or leaves it as it is and lets the next append
    /// begin a new one.
    fn recover_last(
        &mut self,
        home: &Home,
        outline: &Outline,
        hint: Option<Hint>,
        report: &mut RecoveryReport,
    ) -> Result<(), IoFailure> {
        let mut scanned = scan_tail(home, outline, hint)?;
        self.durable = self.durable.max(scanned.watermark.durable);
        self.tail.watermark = highest(self.tail.watermark, scanned.watermark);
        // Below D the tail was durable: it rotted, so nothing of it is cut, and the reader reports what is missing.
        let rotten = scanned.next < self.durable;
        let settled = match settle(home, outline, &scanned, self.durable, rotten, report) {
            Ok(settled) => Some(settled),
            Err(failure) => {
                tracing::warn!(queue = %home.name, %failure, "the last segment cannot be written; the next append begins a new one");
                None
            }
        };
        if settled.as_ref().is_some_and(|settled| settled.covered) {
            scanned = scan_tail(home, outline, None)?;
        }
        let appendable = outline.seal.is_none() && !rotten && settled.is_some();
        self.next = scanned.next;
        self.tail.previous = SegStart {
            ordinal: outline.header.ordinal,
            // Records that were durable and are nowhere: the sequence goes on behind them.
            next: scanned.next.max(self.durable),
            chain: scanned.chain,
        };
        if settled.is_some() {
            self.durable = self.durable.max(scanned.next);
        }
        if let Some(meta) = self.segments.back_mut() {
            meta.next = scanned.next;
            meta.bytes = if appendable { scanned.end } else { outline.len };
            meta.sealed = !appendable;
        }
        if let Some(Settled { file, .. }) = settled.filter(|_| appendable) {
            self.tail.active = Some(ActiveSegment {
                path: segment::path(&home.folder, outline.header.ordinal),
                file,
                ordinal: outline.header.ordinal,
                base: base(outline).0,
                next: scanned.next,
                salt: Salt::new(outline.header.salt),
                position: scanned.end,
                chain: scanned.chain,
                records: scanned.records,
                watermark: self.tail.watermark,
            });
        }
        Ok(())
    }

    /// Where the sequence goes on. Numbers that were given out before are not given out again: if they are beyond the
    /// log, the next append begins a segment whose start says so.
    fn end(&mut self, issued: Seq) -> Seq {
        let end = self.next.max(self.durable).max(issued);
        if end > self.next
            && self.tail.active.take().is_some()
            && let Some(meta) = self.segments.back_mut()
        {
            meta.sealed = true;
        }
        end
    }
}

pub(crate) struct Found {
    ordinal: u64,
    pub(crate) outline: Outline,
}

/// Whether a look at a folder may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Recover,
    LookOnly,
}

/// Lists the folder: segments in order, whatever else there is into the report, interrupted creations removed.
pub(crate) fn list(
    home: &Home,
    intent: Intent,
    report: &mut RecoveryReport,
) -> Result<(Vec<Found>, u64), IoFailure> {
    let disk = home.disk.as_ref();
    let mut ordinals = Vec::new();
    for (name, kind) in disk.list(&home.folder).at("list", &home.folder)? {
        let name = name.to_string_lossy().into_owned();
        match segment::ordinal_of(&name) {
            Some(ordinal) if kind == EntryKind::File => ordinals.push(ordinal),
            Some(_) => report.ignored.push(format!("{name}: a segment has to be an ordinary file")),
            None if kind == EntryKind::Directory && name == "quarantine" => {}
            None => report.ignored.push(format!("{name}: not a file of this queue")),
        }
    }
    ordinals.sort_unstable();
    let next_ordinal = ordinals.last().map_or(1, |last| last + 1);
    let mut found = Vec::new();
    for ordinal in ordinals {
        let path = segment::path(&home.folder, ordinal);
        match Outline::read(disk, &path) {
            Ok(Ok(outline)) if outline.seg_start.is_some() => found.push(Found { ordinal, outline }),
            Ok(Ok(outline)) => without_start(home, intent, ordinal, outline, &mut found, report),
            Ok(Err(BadHeader::Unreadable)) => without_header(home, intent, &path, report),
            Ok(Err(BadHeader::Newer { version, features })) => report.ignored.push(format!(
                "{}: format version {version} with features {features:#x} is newer than this program; it is not touched",
                path.display()
            )),
            Err(failure) => report.ignored.push(failure.to_string()),
        }
    }
    Ok((found, next_ordinal))
}

/// A header and no start frame: a creation that was interrupted, unless frames follow.
fn without_start(
    home: &Home,
    intent: Intent,
    ordinal: u64,
    mut outline: Outline,
    found: &mut Vec<Found>,
    report: &mut RecoveryReport,
) {
    let path = segment::path(&home.folder, ordinal);
    let mut scanner = Scanner::new(Salt::new(outline.header.salt), outline.header.bytes() as u64);
    let source = Source {
        disk: home.disk.as_ref(),
        file: &outline.file,
        path: &path,
        limit: outline.len,
        seq_limit: Seq::new(u64::MAX),
    };
    let first = loop {
        match scanner.step(source) {
            Ok(Step::Frame { header, .. }) if header.kind.is_record() => break Some(header.seq),
            Ok(Step::End) => break None,
            Ok(_) => {}
            Err(failure) => return report.ignored.push(failure.to_string()),
        }
    };
    match first {
        Some(seq) => {
            outline.seg_start = Some((seq, SegStart::default()));
            found.push(Found { ordinal, outline });
        }
        None if intent == Intent::Recover => remove_interrupted(home, &path, report),
        None => {}
    }
}

/// No header: removed if there is nothing in it, else kept as evidence.
fn without_header(home: &Home, intent: Intent, path: &Path, report: &mut RecoveryReport) {
    match holds_data(home, path) {
        Ok(false) if intent == Intent::Recover => remove_interrupted(home, path, report),
        Ok(false) => {}
        Ok(true) => report.ignored.push(format!(
            "{}: the header is unreadable and there is data behind it; kept as evidence, its records count as lost",
            path.display()
        )),
        Err(failure) => report.ignored.push(failure.to_string()),
    }
}

fn holds_data(home: &Home, path: &Path) -> Result<bool, IoFailure> {
    let disk = home.disk.as_ref();
    let file = disk.open(path, Access::Read).at("open", path)?;
    let mut block = vec![0; 64 << 10];
    let mut position = segment::HEADER_BLOCK_BYTES as u64;
    loop {
        let filled = read_full_at(disk, &file, &mut block, position).at("read", path)?;
        if block[..filled].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        if filled < block.len() {
            return Ok(false);
        }
        position += filled as u64;
    }
}

fn remove_interrupted(home: &Home, path: &Path, report: &mut RecoveryReport) {
    tracing::info!(queue = %home.name, path = %path.display(), "the creation of a segment was interrupted; its file holds nothing and is removed");
    if let Err(error) = home.disk.remove_file(path) {
        report.ignored.push(format!("{}: empty, and could not be removed: {error}", path.display()));
    }
}

/// The queue's identity: what the index says, else what its first segment says, else a new one.
fn choose_uuid(home: &Home, remembered: Option<&QueueState>, found: &[Found]) -> Uuid {
    let stated = |uuid: &Uuid| found.iter().any(|f| f.outline.header.uuid == *uuid);
    let remembered = remembered.map(|state| Uuid::from_bytes(state.uuid));
    match (remembered, found.first()) {
        (Some(uuid), None) => uuid,
        (Some(uuid), Some(_)) if stated(&uuid) => uuid,
        (_, Some(first)) => first.outline.header.uuid,
        (None, None) => home.uuid,
    }
}

/// Segments of another queue are not touched; neither are those that say nothing new.
pub(crate) fn own(home: &Home, uuid: Uuid, found: Vec<Found>, report: &mut RecoveryReport) -> Vec<Outline> {
    let mut outlines: Vec<Outline> = Vec::new();
    for Found { ordinal, outline } in found {
        let path = segment::path(&home.folder, ordinal);
        if outline.header.uuid != uuid || outline.header.ordinal != ordinal {
            report.ignored.push(format!(
                "{}: belongs to another queue or was renamed; it is not touched",
                path.display()
            ));
        } else {
            outlines.push(outline);
        }
    }
    outlines
}

pub(crate) fn base(outline: &Outline) -> (Seq, SegStart) {
    outline.seg_start.unwrap_or((Seq::FIRST, SegStart::default()))
}

/// Which sequence numbers each segment holds, from outlines alone: the seal says so, else the next segment's start.
pub(crate) fn metas(outlines: &[Outline]) -> VecDeque<SegmentMeta> {
    let mut metas = VecDeque::with_capacity(outlines.len());
    for (at, outline) in outlines.iter().enumerate() {
        let (base_seq, seg_start) = base(outline);
        let following = outlines.get(at + 1).map(base);
        let next = match (&outline.seal, following) {
            (Some((next, _)), _) => *next,
            (None, Some((next_base, start))) => start.next.clamp(base_seq, next_base.max(base_seq)),
            (None, None) => base_seq,
        };
        metas.push_back(SegmentMeta {
            ordinal: outline.header.ordinal,
            base: base_seq,
            next: next.max(base_seq),
            bytes: outline.len,
            sealed: true,
            seg_start,
        });
    }
    metas
}

/// What the walk through the last segment gave.
#[derive(Debug, Default)]
pub(crate) struct ScannedTail {
    /// Behind the last frame that is whole.
    pub(crate) end: u64,
    /// The sequence number after the last record that is whole or skipped.
    pub(crate) next: Seq,
    chain: u32,
    records: u64,
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

/// Walks the last segment from the hint, or from its start.
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
    if let Some((next, seal)) = outline.seal {
        let end = outline.len;
        let tail = ScannedTail {
            end,
            next,
            chain: seal.chain,
            records: seal.records,
            watermark: seal.watermark,
            ..from_start
        };
        return Ok(tail);
    }
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
    let source = Source {
        disk: home.disk.as_ref(),
        file: &outline.file,
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
            Step::Frame { position, whole: false, .. } => {
                let (from, _) = damage.unwrap_or((position, false));
                damage = Some((from, false));
            }
            Step::Frame { header, position, payload, whole: true } => {
                let seq = header.seq;
                if let Some((from, _)) = damage.take() {
                    let range = tail.next..seq.max(tail.next);
                    tail.holes.push(Hole { position: from, bytes: position - from, range });
                }
                tail.end = scanner.position();
                tail.chain = header.chain(tail.chain);
                match header.kind {
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
struct Settled {
    file: Handle,
    /// Whether skips were written, so that the walk before no longer describes the file.
    covered: bool,
}

/// Cuts the torn tail and covers the holes above D, then syncs: after a mere crash of the process, what stands in the
/// file need not be on the disk yet. May be interrupted anywhere and done again.
fn settle(
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
    let result = read_full_at(disk, &outline.file, &mut copy, position)
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

/// The acknowledgements: the index's, or the last watermark's, or none; never outside of what the log has.
fn acks(
    home: &Home,
    remembered: Option<&QueueState>,
    log: &Log,
    end: Seq,
    report: &mut RecoveryReport,
) -> Acks {
    let indexed = remembered.map_or(Seq::FIRST, |state| Seq::new(state.cursor));
    let stated = indexed.max(log.tail.watermark.cursor).max(Seq::FIRST);
    let start = log.segments.front().map_or(end, |segment| segment.base).min(end);
    let cursor = stated.clamp(start, end);
    if log.segments.is_empty() && stated < log.durable {
        report.missing.push(stated..log.durable);
    } else if cursor > stated && remembered.is_some() {
        tracing::warn!(queue = %home.name, stated = stated.get(), cursor = cursor.get(), "the cursor is below the first segment and moves up to it");
    }
    if cursor < stated {
        tracing::warn!(queue = %home.name, stated = stated.get(), cursor = cursor.get(), "the cursor is above the log and moves down to its end");
    }
    if remembered.is_none() && end > cursor && !log.segments.is_empty() {
        report.redelivered_at_most = Some(end.since(cursor));
    }
    let mut acks = Acks::new(cursor);
    for (from, to) in remembered.map(|state| state.above.as_slice()).unwrap_or_default() {
        acks.insert(Seq::new(*from)..Seq::new(*to).min(end));
    }
    // Numbers between the log and the next append were never a durable record's.
    acks.insert(log.next.max(log.durable)..end);
    acks
}

/// Says what was found, once, here.
fn tell(home: &Home, report: &RecoveryReport) {
    let queue = &home.name;
    if report.torn_bytes > 0 {
        tracing::info!(%queue, bytes = report.torn_bytes, "a torn tail was cut; nothing of it was ever acknowledged");
    }
    for range in &report.lost_unsynced {
        tracing::warn!(%queue, first = range.start.get(), next = range.end.get(), "records that were never durable are lost to a crash");
    }
    for range in &report.missing {
        tracing::error!(%queue, first = range.start.get(), next = range.end.get(), "records are lost: the queue's folder holds no segment");
    }
    if let Some(records) = report.redelivered_at_most {
        let reason = report.index.as_deref().unwrap_or("the index does not know this queue");
        tracing::warn!(%queue, records, reason, "the cursor is lost; at most so many records are delivered again");
    }
    for ignored in &report.ignored {
        tracing::warn!(%queue, %ignored, "ignored");
    }
}
