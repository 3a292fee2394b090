//! What stands in a queue's folder: its segments in order, and everything that is not one of them.
//! Removes what an interrupted creation left, unless it may only look; touches nothing else.

use std::collections::VecDeque;
use std::path::Path;

use uuid::Uuid;

use super::RecoveryReport;
use crate::Seq;
use crate::disk::{Access, EntryKind, Handle, read_full_at};
use crate::error::{AtPath, IoFailure};
use crate::frame::{Salt, SegStart, frame_bytes};
use crate::index::QueueState;
use crate::scan::{Scanner, Source, Step};
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
            Ok(Ok(outline)) => without_start(home, intent, ordinal, outline, &mut found, report)?,
            Ok(Err(BadHeader::Unreadable)) => without_header(home, intent, ordinal, &path, report)?,
            Ok(Err(BadHeader::Newer { version, features })) => report.ignored.push(format!(
                "{}: format version {version} with features {features:#x} is newer than this program; it is not touched",
                path.display()
            )),
            // Not damage: to go on without it would lose what it holds, and give its numbers out again. Who looks from
            // outside starts again, since a daemon may have truncated meanwhile.
            Err(failure) => return Err(failure),
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
        // A start frame is synced before anything follows it: more than that was more than a creation.
        None if outline.len > (outline.header.bytes() + START_FRAME_BYTES) as u64 => {
            keep_unreadable(ordinal, outline.len, &path, report);
        }
        None if intent == Intent::Recover => remove_interrupted(home, &path, report),
        None => {}
    }
    Ok(())
}

/// No header: removed if there is nothing in it, else kept as evidence.
fn without_header(
    home: &Home,
    intent: Intent,
    ordinal: u64,
    path: &Path,
    report: &mut RecoveryReport,
) -> Result<(), IoFailure> {
    let file = home.disk.open(path, Access::Read).at("open", path)?;
    if holds_data(home, &file, path)? {
        keep_unreadable(ordinal, home.disk.len(&file).at("measure", path)?, path, report);
    } else if intent == Intent::Recover {
        remove_interrupted(home, path, report);
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

/// The queue's identity: what the index says, else what its first segment says, else a new one.
pub(super) fn choose_uuid(home: &Home, remembered: Option<&QueueState>, found: &[Found]) -> Uuid {
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
