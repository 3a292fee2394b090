//! Looking at a queue_dir from outside: read-only, without the lock, while a daemon writes or when none runs.
//! Reads what the log says of itself; the index belongs to whoever has the lock.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use crate::disk::{Access, Disk, EntryKind, RealDisk};
use crate::error::{AtPath, IoFailure};
use crate::recover::{
    Intent, RecoveryReport, base, durable_at_least, highest, list, metas, own, scan_tail, sealed_watermark,
};
use crate::segment::{self, Home, Outline, SegmentHeader, SegmentMeta};
use crate::{OpenError, Seq};

/// How often a look starts again before it gives up: each time a whole truncation happened during it.
const LOOKS_MAX: u32 = 100;

/// A queue as its files show it. All sequence numbers are "next" ones.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QueueOverview {
    /// The queue's full name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its identity.
    pub uuid: Uuid,
    /// The first sequence number that the segments hold.
    pub start: Seq,
    /// Everything below is acknowledged, as the log last stated it: while a daemon drains, up to 50 ms behind.
    pub cursor: Seq,
    /// Everything below survives power loss, as the log last stated it.
    pub durable: Seq,
    /// The sequence number after the last record in the log.
    pub end: Seq,
    /// Segment files.
    pub segments: u64,
    /// Bytes of segment files.
    pub bytes: u64,
    /// What is wrong with it, as far as headers and the last segment show; payloads are verified when they are read.
    pub damage: Vec<Damage>,
    /// Files that are not the queue's.
    pub ignored: Vec<String>,
}

/// One damaged place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Where in the file, in bytes.
    pub position: u64,
    /// The records that are not there.
    pub range: Range<Seq>,
    /// What is wrong.
    pub cause: &'static str,
}

/// Looks at every queue of a queue_dir, or at one queue's own folder. Changes nothing and takes no lock.
///
/// # Errors
/// [`OpenError::Io`] if the directory or a segment cannot be read.
pub fn overview(path: &Path) -> Result<Vec<QueueOverview>, OpenError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut folders = vec![path.to_owned()];
    for (name, kind) in disk.list(path).at("list", path)? {
        if kind == EntryKind::Directory {
            folders.push(path.join(name));
        }
    }
    folders.sort_unstable();
    let mut queues = Vec::new();
    for folder in folders {
        queues.extend(look_until_it_stands_still(&disk, &folder)?);
    }
    Ok(queues)
}

/// A daemon that truncates takes segments away between listing and opening them: then the look starts again.
fn look_until_it_stands_still(
    disk: &Arc<dyn Disk>,
    folder: &Path,
) -> Result<Option<QueueOverview>, OpenError> {
    for _ in 1..LOOKS_MAX {
        match look(disk, folder.to_owned()) {
            Err(OpenError::Io(failure)) if failure.error.kind() == ErrorKind::NotFound => {}
            result => return result,
        }
    }
    look(disk, folder.to_owned())
}

/// A folder without a segment is no queue.
fn look(disk: &Arc<dyn Disk>, folder: PathBuf) -> Result<Option<QueueOverview>, OpenError> {
    let Some(header) = first_header(disk.as_ref(), &folder)? else { return Ok(None) };
    let home = Home { disk: Arc::clone(disk), folder, name: header.name.clone(), uuid: header.uuid };
    let mut report = RecoveryReport::default();
    let (found, _) = list(&home, Intent::LookOnly, &mut report)?;
    let outlines = own(&home, header.uuid, found, &mut report);
    let mut segments: Vec<SegmentMeta> = metas(&outlines).into();
    let mut damage = between(&home, &outlines, &segments);
    let mut watermark = sealed_watermark(&outlines);
    let durable = durable_at_least(&outlines, None);
    let end = match (outlines.last(), segments.last_mut()) {
        (Some(last), Some(meta)) => {
            let tail = scan_tail(&home, last, None)?;
            watermark = highest(watermark, tail.watermark);
            let path = segment::path(&home.folder, meta.ordinal);
            damage.extend(tail.holes.iter().filter(|hole| !hole.range.is_empty()).map(|hole| Damage {
                file: path.clone(),
                position: hole.position,
                range: hole.range.clone(),
                cause: "bytes that are no frame",
            }));
            meta.next = tail.next;
            tail.next
        }
        _ => Seq::FIRST,
    };
    let start = segments.first().map_or(end, |meta| meta.base);
    // Between open and close of a daemon a watermark may be the next group's: the seal of the segment before is one too.
    let durable = durable.max(watermark.durable).min(end);
    Ok(Some(QueueOverview {
        name: header.name,
        uuid: header.uuid,
        start,
        cursor: watermark.cursor.clamp(start.min(end), end),
        durable,
        end,
        segments: outlines.len() as u64,
        bytes: outlines.iter().map(|outline| outline.len).sum(),
        damage,
        ignored: report.ignored,
        folder: home.folder,
    }))
}

/// The header of the first segment that has one.
fn first_header(disk: &dyn Disk, folder: &Path) -> Result<Option<SegmentHeader>, IoFailure> {
    let mut ordinals: Vec<u64> = disk
        .list(folder)
        .at("list", folder)?
        .into_iter()
        .filter(|(_, kind)| *kind == EntryKind::File)
        .filter_map(|(name, _)| segment::ordinal_of(&name.to_string_lossy()))
        .collect();
    ordinals.sort_unstable();
    for ordinal in ordinals {
        let path = segment::path(folder, ordinal);
        let file = disk.open(&path, Access::Read).at("open", &path)?;
        if let Ok(header) = SegmentHeader::read(disk, &file, &path)? {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

/// Records that one segment says were before it, and that no segment before it holds.
fn between(home: &Home, outlines: &[Outline], segments: &[SegmentMeta]) -> Vec<Damage> {
    let pairs = segments.windows(2).zip(outlines.windows(2));
    pairs
        .filter_map(|(pair, outlines)| {
            let stated = base(&outlines[1]).1.next.min(pair[1].base);
            (pair[0].next < stated).then(|| Damage {
                file: segment::path(&home.folder, pair[1].ordinal),
                position: 0,
                range: pair[0].next..stated,
                cause: "the segments before it do not hold these records",
            })
        })
        .collect()
}
