//! Recovery: from what stands in a queue's folder to a queue that goes on. Never fails for one bad byte or file.
//!
//! `D`, the highest sequence number known to have been durable, tells a torn tail from rot: damage above it was never
//! acknowledged and is cut; damage at or below it is reported and never cut. Every write here is idempotent, so that a
//! crash during recovery is one more crash to recover from.

mod listing;
mod log;
mod tail;

use std::collections::VecDeque;
use std::ops::Range;

use uuid::Uuid;

use crate::Seq;
use crate::commit::Tail;
use crate::cursor::Acks;
use crate::error::IoFailure;
use crate::index::{Hint, QueueState};
use crate::queue::Unavailable;
use crate::segment::{self, Home, Outline, SegmentMeta};

pub(crate) use listing::{Intent, base, list, metas, own};
pub(crate) use tail::{durable_at_least, highest, scan_tail, sealed_watermark};

use listing::{choose_uuid, remove_spares};
use log::Log;
use tail::{ScannedTail, mend_start};

/// What opening a queue found and did. Everything in it was logged as well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Bytes of a torn tail that were cut off: writes that a crash interrupted, never acknowledged.
    pub torn_bytes: u64,
    /// Records that were written, never durable, and lost to a crash although later ones survived.
    pub lost_unsynced: Vec<Range<Seq>>,
    /// Records that were durable and not acknowledged, and that no segment which can be read holds.
    pub missing: Vec<Range<Seq>>,
    /// The cursor was not in the index: so many records may be delivered again.
    pub redelivered_at_most: Option<u64>,
    /// Why the index was set aside or its entry not used.
    pub index: Option<String>,
    /// Files and folders that are not the queue's, or that must not be touched, each with the reason.
    pub ignored: Vec<String>,
    /// Records that may stand in segments which the disk does not give: neither lost nor acknowledged, and tried again
    /// when the queue is opened the next time. The last range may name more numbers than there are records.
    pub unavailable: Vec<Range<Seq>>,
    /// Segments that hold something and of which nothing can be read: ordinal and bytes.
    pub(crate) unreadable: Vec<(u64, u64)>,
    /// Segments that the medium does not give: ordinal and bytes, ascending.
    pub(crate) unread: Vec<(u64, u64)>,
    /// Ordinals of spares.
    pub(crate) spares: Vec<u64>,
    /// Ordinals of files in which nothing stands.
    pub(crate) interrupted: Vec<u64>,
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
    pub(crate) unavailable: Unavailable,
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
    let (found, next_ordinal) = list(home, Intent::Recover, &mut report)?;
    let uuid = choose_uuid(home, remembered.as_ref(), &found);
    let remembered = remembered.filter(|state| &state.uuid == uuid.as_bytes());
    let hint = remembered.as_ref().and_then(|state| state.hint);
    if let (None, true, Some((ordinal, _))) = (&remembered, found.is_empty(), report.unread.first()) {
        // To begin again would make strangers of them.
        let path = segment::path(&home.folder, *ordinal);
        return Err(IoFailure::new(
            "read",
            &path,
            std::io::Error::other("the disk gives no segment of the queue"),
        ));
    }
    remove_spares(home, hint, &mut report);
    let mut outlines = own(home, uuid, found, &mut report);
    if report.unread.is_empty() {
        mend_start(home, &mut outlines, remembered.as_ref());
    }
    let last = walk_last(home, &mut outlines, hint, &mut report)?;

    let mut log = Log::new(&outlines, remembered.as_ref(), next_ordinal);
    let broken = log.walk_unsealed(home, &outlines)?;
    log.tell_overlaps(home, &mut report);
    log.look_behind(last.as_ref(), outlines.last(), &report);
    if let (Some(scanned), Some(outline)) = (last, outlines.last()) {
        log.recover_last(home, outline, scanned, &mut report)?;
    }
    let mut state = remembered.clone().unwrap_or_default();
    let end = log.end(Seq::new(state.issued));
    let mut acks = acks(home, remembered.as_ref(), &log, end, &mut report);
    report.lost_unsynced.extend(broken.into_iter().filter(|range| acks.insert(range.clone()) > 0));
    log.pass_what_was_never_issued(&mut acks, &report);
    let unavailable = unavailable(&log, &acks, end, &mut report);
    for range in &report.missing {
        state.counters.lost += range.end.since(range.start);
        state.losses.push((range.start.get(), range.end.get()));
    }
    // The index may be behind the log: what is queued was appended, whatever the counter says.
    let queued = end.since(acks.prefix()) - acks.above_count() - unavailable.uncertain;
    let known = state.counters.acknowledged + state.counters.lost + queued;
    state.counters.appended = state.counters.appended.max(known);
    tell(home, &report);
    let Log { segments, durable, tail, .. } = log;
    Ok(Recovered {
        uuid,
        acks,
        durable,
        end,
        segments,
        hint,
        unavailable,
        remembered: state,
        active: tail,
        report,
    })
}

/// Walks the last segment. One that the medium does not give any more is as one that it never gave, and then the one
/// before it is the last that can be read.
fn walk_last(
    home: &Home,
    outlines: &mut Vec<Outline>,
    hint: Option<Hint>,
    report: &mut RecoveryReport,
) -> Result<Option<ScannedTail>, IoFailure> {
    while let Some(last) = outlines.last() {
        match scan_tail(home, last, hint) {
            Ok(scanned) => return Ok(Some(scanned)),
            Err(failure) if failure.is_of_the_medium() => {
                report.unread.push((last.header.ordinal, last.len));
                report.unread.sort_unstable();
                outlines.pop();
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(None)
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
    let unread = log.begins_unread(report);
    let start = log.segments.front().filter(|_| !unread).map_or(end, |segment| segment.base).min(end);
    let start = if unread { Seq::FIRST } else { start };
    let cursor = stated.clamp(start, end);
    if log.segments.is_empty() && stated < log.durable && !unread {
        report.missing.push(stated..log.durable);
    } else if cursor > stated && log.beginning_is_damaged(report) {
        report.missing.push(stated..cursor);
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
    if !log.open_ended {
        // Numbers between the log and the next append were never a durable record's.
        acks.insert(log.next.max(log.durable)..end);
    }
    acks
}

/// What the medium does not give, by the segments around it.
fn unavailable(log: &Log, acks: &Acks, end: Seq, report: &mut RecoveryReport) -> Unavailable {
    let mut unavailable = Unavailable::default();
    // The last segment that can be read may hold more than was seen of it.
    let last = log.segments.back().filter(|_| log.open_ended).map(|meta| meta.ordinal);
    unavailable.keep_from = report.unread.iter().map(|(ordinal, _)| *ordinal).chain(last).min();
    let mut ranges: Vec<(Range<Seq>, Seq)> = Vec::new();
    for (ordinal, _) in &report.unread {
        let after = log.segments.partition_point(|meta| meta.ordinal < *ordinal);
        let from = after.checked_sub(1).map_or(Seq::FIRST, |before| log.segments[before].next);
        // For certain up to here; at most up to there.
        let (certain, to) = log.segments.get(after).map_or((log.durable, end), |meta| match meta.seg_start {
            start if start.open_ended => (start.next, meta.base),
            start => (start.next, start.next.min(meta.base)),
        });
        ranges.push((from..to, certain));
    }
    if log.open_ended {
        ranges.push((log.next..end, log.durable));
    }
    for (range, certain) in ranges {
        for part in acks.unacknowledged_in(range) {
            if unavailable.seqs.insert(part.clone()) > 0 {
                unavailable.uncertain += part.end.since(part.start.max(certain));
            }
        }
    }
    report.unavailable = unavailable.seqs.iter().collect();
    unavailable
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
        tracing::error!(%queue, first = range.start.get(), next = range.end.get(), "records are lost: no segment that can be read holds them");
    }
    for range in &report.unavailable {
        tracing::error!(%queue, first = range.start.get(), next = range.end.get(), "records are unavailable until the queue is opened again: the disk does not give their segments");
    }
    match (report.redelivered_at_most, &report.index) {
        (Some(records), Some(reason)) => {
            tracing::warn!(%queue, records, reason, "the cursor is lost; at most so many records are delivered again");
        }
        // As after a crash before the first acknowledgement was persisted.
        (Some(records), None) => {
            tracing::info!(%queue, records, "the index has no cursor; at most so many records are delivered again");
        }
        (None, _) => {}
    }
    for ignored in &report.ignored {
        tracing::warn!(%queue, %ignored, "ignored");
    }
}
