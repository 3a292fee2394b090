//! Recovery: from what stands in a queue's folder to a queue that goes on. Never fails for one bad byte or file.
//!
//! `D`, the highest sequence number known to have been durable, tells a torn tail from rot: damage above it was never
//! acknowledged and is cut; damage at or below it is reported and never cut. Every write here is idempotent, so that a
//! crash during recovery is one more crash to recover from.

mod listing;
mod tail;

use std::collections::VecDeque;
use std::ops::Range;

use uuid::Uuid;

use crate::Seq;
use crate::commit::Tail;
use crate::cursor::Acks;
use crate::error::IoFailure;
use crate::frame::{self, Salt, SegStart};
use crate::index::{Hint, QueueState};
use crate::queue::Unavailable;
use crate::segment::{self, ActiveSegment, Home, Outline, SegmentMeta};

pub(crate) use listing::{Intent, base, list, metas, own};
pub(crate) use tail::{durable_at_least, highest, scan_tail, sealed_watermark};

use listing::choose_uuid;
use tail::{Settled, settle};

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
    /// Segments that hold something and of which nothing can be read: ordinal and bytes.
    pub(crate) unreadable: Vec<(u64, u64)>,
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
    let (outlines, next_ordinal) = list(home, Intent::Recover, &mut report)?;
    let uuid = choose_uuid(home, remembered.as_ref(), &outlines);
    let remembered = remembered.filter(|state| &state.uuid == uuid.as_bytes());
    let outlines = own(home, uuid, outlines, &mut report);

    let hint = remembered.as_ref().and_then(|state| state.hint);
    let mut log = Log {
        segments: metas(&outlines),
        first_start_is_damaged: outlines.first().is_some_and(|first| first.start_is_damaged),
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
    let end = log.end(Seq::new(state.issued), hidden_after(&log, &report));
    let acks = acks(home, remembered.as_ref(), &log, end, &mut report);
    for range in &report.missing {
        state.counters.lost += range.end.since(range.start);
        state.losses.push((range.start.get(), range.end.get()));
    }
    // The index may be behind the log: what is queued was appended, whatever the counter says.
    let queued = end.since(acks.prefix()) - acks.above_count();
    let known = state.counters.acknowledged + state.counters.lost + queued;
    state.counters.appended = state.counters.appended.max(known);
    tell(home, &report);
    let Log { segments, durable, tail, .. } = log;
    let unavailable = Unavailable::default();
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

/// At most so many numbers may stand in segments behind the last that can be read: they are not given out again.
fn hidden_after(log: &Log, report: &RecoveryReport) -> u64 {
    let last = log.segments.back().map_or(0, |meta| meta.ordinal);
    let behind = report.unreadable.iter().filter(|(ordinal, _)| *ordinal > last);
    behind.map(|(_, bytes)| bytes / frame::HEADER_BYTES as u64).sum()
}

/// The log while it is being recovered.
struct Log {
    segments: VecDeque<SegmentMeta>,
    /// Whether the first segment has lost its start frame.
    first_start_is_damaged: bool,
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

    /// Whether what lies before the first sequence number was destroyed, rather than acknowledged and deleted.
    fn beginning_is_damaged(&self, report: &RecoveryReport) -> bool {
        self.first_start_is_damaged
            || self
                .segments
                .front()
                .is_some_and(|first| report.unreadable.iter().any(|(o, _)| *o < first.ordinal))
    }

    /// Where the sequence goes on. Numbers that were given out before are not given out again: if they are beyond the
    /// log, the next append begins a segment whose start says so.
    fn end(&mut self, issued: Seq, hidden: u64) -> Seq {
        let end = self.next.max(self.durable).plus(hidden).max(issued);
        if end > self.next
            && self.tail.active.take().is_some()
            && let Some(meta) = self.segments.back_mut()
        {
            meta.sealed = true;
        }
        end
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
        tracing::error!(%queue, first = range.start.get(), next = range.end.get(), "records are lost: no segment that can be read holds them");
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
