//! What stands in a queue's folder: its segments in order, and everything that is not one of them.
//! Removes what an interrupted creation left, unless it may only look; touches nothing else.
//!
//! Bytes that are wrong are damage; bytes that the medium does not give are not: their segment is unavailable, and kept.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

use uuid::Uuid;

use super::RecoveryReport;
use crate::Seq;
use crate::disk::{Access, EntryKind, Handle, read_full_at};
use crate::error::{AtPath, IoFailure, patiently};
use crate::frame::{Salt, SegStart, frame_bytes};
use crate::index::{Hint, QueueState};
use crate::queue::QueueOptions;
use crate::scan::{Payload, Scanner, Source, Step};
use crate::segment::{self, BadHeader, Home, Outline, SegmentMeta};

/// Bytes of a start frame.
const START_FRAME_BYTES: usize = frame_bytes(SegStart::BYTES);

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
            // A file that was being made a spare: nothing hangs on it.
            None if kind == EntryKind::File && is_half_made_spare(&name) => {
                if intent == Intent::Recover {
                    let _ = disk.remove_file(&home.folder.join(&name));
                }
            }
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
        match patiently(|| one(home, ordinal, &path, &mut found, report)) {
            Ok(()) => {}
            Err(failure) if failure.is_of_the_medium() && intent == Intent::Recover => {
                // Without the length, as long as a segment can be.
                let bytes = disk.open(&path, Access::Read).and_then(|file| disk.len(&file));
                report.unread.push((ordinal, bytes.unwrap_or(QueueOptions::SEGMENT_BYTES_MAX)));
            }
            // The system does not answer. Who looks from outside starts again, since a daemon may have truncated
            // meanwhile.
            Err(failure) => return Err(failure),
        }
    }
    settle_empty(home, intent, &found, report);
    Ok((found, next_ordinal))
}

/// Files in which nothing stands: interrupted creations, which are removed, and spares. But for those that a later
/// segment's start frame names as the one before it: such a file had records, whatever became of them.
fn settle_empty(home: &Home, intent: Intent, found: &[Found], report: &mut RecoveryReport) {
    let before = found.iter().map(|found| base(&found.outline).1.ordinal);
    // The first segment names 0: none.
    let named: HashSet<u64> = before.filter(|ordinal| *ordinal > 0).collect();
    let empty = |ordinals: &mut Vec<u64>| {
        std::mem::take(ordinals).into_iter().partition::<Vec<_>, _>(|ordinal| named.contains(ordinal))
    };
    let (mut emptied, interrupted) = empty(&mut report.interrupted);
    let (zeroed, spares) = empty(&mut report.spares);
    report.spares = spares;
    emptied.extend(zeroed);
    for ordinal in emptied {
        keep_unreadable(ordinal, 0, &segment::path(&home.folder, ordinal), report);
    }
    if intent == Intent::Recover {
        for ordinal in interrupted {
            remove_interrupted(home, &segment::path(&home.folder, ordinal), report);
        }
    }
}

fn is_half_made_spare(name: &str) -> bool {
    name.strip_suffix(".spare")
        .is_some_and(|ordinal| segment::ordinal_of(&format!("{ordinal}.seg")).is_some())
}

fn one(
    home: &Home,
    ordinal: u64,
    path: &Path,
    found: &mut Vec<Found>,
    report: &mut RecoveryReport,
) -> Result<(), IoFailure> {
    match Outline::read(home.disk.as_ref(), path)? {
        Ok(outline) if outline.seg_start.is_some() => found.push(Found { ordinal, outline }),
        Ok(outline) => without_start(home, ordinal, outline, found, report)?,
        Err(BadHeader::Unreadable) => without_header(home, ordinal, path, report)?,
        Err(BadHeader::Newer { version, features }) => report.ignored.push(format!(
            "{}: format version {version} with features {features:#x} is newer than this program; it is not touched",
            path.display()
        )),
    }
    Ok(())
}

/// A header and no start frame: a creation that was interrupted, unless frames follow.
fn without_start(
    home: &Home,
    ordinal: u64,
    mut outline: Outline,
    found: &mut Vec<Found>,
    report: &mut RecoveryReport,
) -> Result<(), IoFailure> {
    let path = segment::path(&home.folder, ordinal);
    let mut scanner = Scanner::new(Salt::new(outline.header.salt), outline.header.bytes() as u64);
    let file = home.disk.open(&path, Access::Read).at("open", &path)?;
    let source = Source {
        disk: home.disk.as_ref(),
        file: &file,
        path: &path,
        limit: outline.len,
        seq_limit: Seq::new(u64::MAX),
    };
    let first = loop {
        match scanner.step(source)? {
            Step::Frame { header, .. } if header.kind.is_record() => break Some(header.seq),
            // What it is cannot be told.
            Step::Unreadable { .. } | Step::Frame { state: Payload::Unreadable, .. } => {
                return Err(IoFailure::new("read", &path, std::io::ErrorKind::Other.into()));
            }
            Step::End => break None,
            _ => {}
        }
    };
    match first {
        Some(seq) => {
            // What came before is not known: what is missing counts as lost, not as never issued.
            outline.seg_start = Some((seq, SegStart { next: seq, ..SegStart::default() }));
            outline.start_is_damaged = true;
            found.push(Found { ordinal, outline });
        }
        None if starts_with_zeros(home, &file, &path, &outline)? => {
            report.spares.push(ordinal);
        }
        // A start frame is synced before anything follows it: more than that was more than a creation.
        None if outline.len > (outline.header.bytes() + START_FRAME_BYTES) as u64 => {
            keep_unreadable(ordinal, outline.len, &path, report);
        }
        None => report.interrupted.push(ordinal),
    }
    Ok(())
}

/// Whether zeros stand where a start frame would: nothing was ever appended, whatever an earlier life left behind them.
fn starts_with_zeros(home: &Home, file: &Handle, path: &Path, outline: &Outline) -> Result<bool, IoFailure> {
    let mut bytes = [0; START_FRAME_BYTES];
    let at = outline.header.bytes() as u64;
    let filled = read_full_at(home.disk.as_ref(), file, &mut bytes, at).at("read", path)?;
    Ok(bytes[..filled].iter().all(|byte| *byte == 0))
}

/// Spares are removed: making one again is cheap, and which are whole need not be known. But for one that the index
/// knows as a segment that had records: all that it held rotted to zeros.
pub(super) fn remove_spares(home: &Home, hint: Option<Hint>, report: &mut RecoveryReport) {
    for ordinal in std::mem::take(&mut report.spares) {
        let path = segment::path(&home.folder, ordinal);
        if hint.is_some_and(|hint| hint.ordinal == ordinal) {
            keep_unreadable(ordinal, 0, &path, report);
        } else {
            tracing::debug!(queue = %home.name, path = %path.display(), "a spare is removed");
            let _ = home.disk.remove_file(&path);
        }
    }
}

/// No header: an interrupted creation if there is nothing in it, else kept as evidence.
fn without_header(
    home: &Home,
    ordinal: u64,
    path: &Path,
    report: &mut RecoveryReport,
) -> Result<(), IoFailure> {
    let file = home.disk.open(path, Access::Read).at("open", path)?;
    if holds_data(home, &file, path)? {
        keep_unreadable(ordinal, home.disk.len(&file).at("measure", path)?, path, report);
    } else {
        report.interrupted.push(ordinal);
    }
    Ok(())
}

fn keep_unreadable(ordinal: u64, bytes: u64, path: &Path, report: &mut RecoveryReport) {
    let path = path.display();
    report.unreadable.push((ordinal, bytes));
    report.ignored.push(format!("{path}: nothing in it can be read; kept as evidence, what it held is lost"));
}

fn holds_data(home: &Home, file: &Handle, path: &Path) -> Result<bool, IoFailure> {
    let mut block = vec![0; 64 << 10];
    let mut position = segment::HEADER_BLOCK_BYTES as u64;
    loop {
        let filled = read_full_at(home.disk.as_ref(), file, &mut block, position).at("read", path)?;
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

/// The queue's identity: what the index says, else what most of its segments say, else a new one.
pub(super) fn choose_uuid(home: &Home, remembered: Option<&QueueState>, found: &[Found]) -> Uuid {
    let stated = |uuid: &Uuid| found.iter().filter(|f| f.outline.header.uuid == *uuid).count();
    let remembered = remembered.map(|state| Uuid::from_bytes(state.uuid));
    match remembered {
        Some(uuid) if found.is_empty() || stated(&uuid) > 0 => uuid,
        _ => {
            let named = |f: &Found| f.outline.header.name == home.name;
            // The first of those that most say: a foreign file is one among many, whatever its ordinal.
            let most = found.iter().rev().max_by_key(|f| (named(f), stated(&f.outline.header.uuid)));
            most.map_or(home.uuid, |found| found.outline.header.uuid)
        }
    }
}

/// Segments of another queue are not touched; neither are those that say nothing new.
pub(crate) fn own(home: &Home, uuid: Uuid, found: Vec<Found>, report: &mut RecoveryReport) -> Vec<Outline> {
    let mut outlines: Vec<Outline> = Vec::new();
    let salts: HashSet<(u64, u64)> = found.iter().map(|f| (f.ordinal, f.outline.header.salt)).collect();
    for Found { ordinal, outline } in found {
        let path = segment::path(&home.folder, ordinal);
        if outline.header.uuid != uuid || outline.header.ordinal != ordinal {
            report.ignored.push(format!(
                "{}: belongs to another queue or was renamed; it is not touched",
                path.display()
            ));
            // Its numbers were given out, unless it is a copy of a file that is here under its own name.
            let header = &outline.header;
            if header.uuid == uuid && !salts.contains(&(header.ordinal, header.salt)) {
                report.unreadable.push((ordinal, outline.len));
            }
        } else {
            outlines.push(outline);
        }
    }
    without_copies(home, outlines, report)
}

/// Of files with the same frames one counts, and none that begins below what those before it hold for certain.
fn without_copies(home: &Home, outlines: Vec<Outline>, report: &mut RecoveryReport) -> Vec<Outline> {
    let before = |outline: &Outline| base(outline).1.ordinal;
    let named: HashSet<u64> = outlines.iter().map(before).filter(|ordinal| *ordinal > 0).collect();
    // The salt is random: who has the same is a copy. The original is named by the segment after it, and stands behind
    // the one that it names.
    let rank = |outline: &Outline| {
        let ordinal = outline.header.ordinal;
        (named.contains(&ordinal), before(outline) < ordinal, outline.len, Reverse(ordinal))
    };
    let mut originals: HashMap<u64, _> = HashMap::new();
    for outline in &outlines {
        let best = originals.entry(outline.header.salt).or_insert_with(|| rank(outline));
        *best = (*best).max(rank(outline));
    }
    let (mut served, mut kept) = (Seq::new(0), Vec::new());
    for outline in outlines {
        let (first, _) = base(&outline);
        let ends = outline.seal.map(|(next, _)| next);
        let copied = originals.get(&outline.header.salt) != Some(&rank(&outline));
        if copied || (first < served && ends.is_none_or(|next| next <= served)) {
            let path = segment::path(&home.folder, outline.header.ordinal);
            report.ignored.push(format!(
                "{}: what it holds stands in other segments too; it is not read, and not touched",
                path.display()
            ));
            if !copied && ends.is_none() {
                report.unreadable.push((outline.header.ordinal, outline.len));
            }
            continue;
        }
        served = served.max(ends.unwrap_or(first));
        kept.push(outline);
    }
    kept
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
