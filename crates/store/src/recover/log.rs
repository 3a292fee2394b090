//! The log while it is being recovered: which segment holds which numbers, where the sequence goes on, and what stands
//! where nothing can be read.

use std::collections::VecDeque;
use std::ops::Range;

use super::RecoveryReport;
use super::listing::{base, metas};
use super::tail::{
    Mend, ScannedTail, Settled, broken_batches, durable_at_least, highest, scan_tail, sealed_watermark,
    settle,
};
use crate::Seq;
use crate::commit::Tail;
use crate::cursor::Acks;
use crate::error::IoFailure;
use crate::frame::{self, Salt, SegStart};
use crate::index::QueueState;
use crate::segment::{self, ActiveSegment, Home, Outline, SegmentMeta};

/// The log while it is being recovered.
pub(super) struct Log {
    pub(super) segments: VecDeque<SegmentMeta>,
    /// Whether the first segment has lost its start frame.
    pub(super) first_start_is_damaged: bool,
    /// The sequence number after the last record that stands in it.
    pub(super) next: Seq,
    /// `D`, and after the last segment was synced, what is durable now.
    pub(super) durable: Seq,
    pub(super) tail: Tail,
    /// At most so many numbers may stand where nothing can be read, behind the last record that can: they are not given
    /// out again.
    pub(super) hidden: u64,
    /// Whether some of them only cannot be read now.
    pub(super) open_ended: bool,
}

impl Log {
    /// What the outlines alone say.
    pub(super) fn new(outlines: &[Outline], remembered: Option<&QueueState>, next_ordinal: u64) -> Log {
        let hinted = remembered.and_then(|state| state.hint).map_or(0, |hint| hint.ordinal + 1);
        Log {
            segments: metas(outlines),
            first_start_is_damaged: outlines.first().is_some_and(|first| first.start_is_damaged),
            next: Seq::FIRST,
            durable: durable_at_least(outlines, remembered),
            tail: Tail {
                active: None,
                previous: SegStart::default(),
                next_ordinal: next_ordinal.max(hinted),
                watermark: sealed_watermark(outlines),
            },
            hidden: 0,
            open_ended: false,
        }
    }

    /// Walks the segments that were left unsealed before the last: where they end, if the next one does not say it, and
    /// which batches miss a part. Those are passed: a batch is there as a whole or not at all.
    pub(super) fn walk_unsealed(
        &mut self,
        home: &Home,
        outlines: &[Outline],
    ) -> Result<Vec<Range<Seq>>, IoFailure> {
        let mut broken = Vec::new();
        for (at, pair) in outlines.windows(2).enumerate() {
            let [outline, following] = pair else { continue };
            if outline.seal.is_some() {
                continue;
            }
            let scanned = match scan_tail(home, outline, None) {
                Ok(scanned) => scanned,
                // Whoever reads it meets the same, and says so.
                Err(failure) if failure.is_of_the_medium() => continue,
                Err(failure) => return Err(failure),
            };
            let (_, stated) = base(following);
            let meta = &mut self.segments[at];
            if stated.open_ended || stated.ordinal != outline.header.ordinal {
                meta.next = scanned.seen.max(meta.base);
            }
            broken.extend(broken_batches(&outlines[..=at], &scanned, meta.next));
        }
        Ok(broken)
    }

    /// Segments whose first records stand in the one before as well: those come from there.
    pub(super) fn tell_overlaps(&self, home: &Home, report: &mut RecoveryReport) {
        for (before, meta) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            if meta.base < before.next {
                let path = segment::path(&home.folder, meta.ordinal);
                report.ignored.push(format!(
                    "{}: records {} to {} in it stand in segment {} too, and are read there",
                    path.display(),
                    meta.base,
                    before.next.get() - 1,
                    before.ordinal
                ));
            }
        }
    }

    /// What may stand behind the last record that can be read.
    pub(super) fn look_behind(
        &mut self,
        scanned: Option<&ScannedTail>,
        last: Option<&Outline>,
        report: &RecoveryReport,
    ) {
        let last = last.map_or(0, |outline| outline.header.ordinal);
        let behind = |segments: &[(u64, u64)]| -> u64 {
            segments.iter().filter(|(ordinal, _)| *ordinal > last).map(|(_, bytes)| *bytes).sum()
        };
        let unread = behind(&report.unread) + scanned.map_or(0, |scanned| scanned.unread_tail_bytes);
        self.hidden = (behind(&report.unreadable) + unread) / frame::HEADER_BYTES as u64;
        self.open_ended = unread > 0;
        if self.open_ended {
            self.tail.previous = SegStart { next: self.durable, open_ended: true, ..SegStart::default() };
        }
    }

    /// Makes the last segment one that can be appended to, or leaves it as it is and lets the next append begin a new one.
    pub(super) fn recover_last(
        &mut self,
        home: &Home,
        outline: &Outline,
        mut scanned: ScannedTail,
        report: &mut RecoveryReport,
    ) -> Result<(), IoFailure> {
        self.durable = self.durable.max(scanned.watermark.durable);
        self.tail.watermark = highest(self.tail.watermark, scanned.watermark);
        // Below D the tail was durable: it rotted, so nothing of it is cut, and the reader reports what is missing.
        let rotten = scanned.next < self.durable;
        let mend = match rotten {
            _ if scanned.unread || self.open_ended => Mend::Nothing,
            true => Mend::Holes,
            false => Mend::Tail,
        };
        let settled = match settle(home, outline, &scanned, self.durable, mend, report) {
            Ok(settled) => Some(settled),
            Err(failure) => {
                tracing::warn!(queue = %home.name, %failure, "the last segment cannot be written; the next append begins a new one");
                None
            }
        };
        if settled.as_ref().is_some_and(|settled| settled.covered) {
            scanned = scan_tail(home, outline, None)?;
        }
        let appendable = outline.seal.is_none() && mend == Mend::Tail && settled.is_some();
        // What rot left of a batch is read; what a crash left of one is not there.
        self.next = if rotten { scanned.seen } else { scanned.next };
        self.tail.previous = SegStart {
            ordinal: outline.header.ordinal,
            // Records that were durable and are nowhere: the sequence goes on behind them.
            next: self.next.max(self.durable),
            chain: scanned.chain,
            open_ended: self.open_ended,
        };
        if settled.is_some() {
            self.durable = self.durable.max(self.next);
        }
        if let Some(meta) = self.segments.back_mut() {
            meta.next = self.next;
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
    pub(super) fn beginning_is_damaged(&self, report: &RecoveryReport) -> bool {
        self.first_start_is_damaged
            || self
                .segments
                .front()
                .is_some_and(|first| report.unreadable.iter().any(|(o, _)| *o < first.ordinal))
    }

    /// Numbers between segments that no record ever had.
    pub(super) fn pass_what_was_never_issued(&self, acks: &mut Acks, report: &RecoveryReport) {
        for (before, meta) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            let between = |(ordinal, _): &(u64, u64)| before.ordinal < *ordinal && *ordinal < meta.ordinal;
            if !(meta.seg_start.open_ended && report.unread.iter().any(between)) {
                acks.insert(meta.seg_start.next.max(before.next).min(meta.base)..meta.base);
            }
        }
    }

    /// Whether something stands before the first segment that can be read.
    pub(super) fn begins_unread(&self, report: &RecoveryReport) -> bool {
        let first = self.segments.front().map_or(u64::MAX, |meta| meta.ordinal);
        report.unread.iter().any(|(ordinal, _)| *ordinal < first)
    }

    /// Where the sequence goes on. Numbers that were given out before are not given out again: if they are beyond the
    /// log, the next append begins a segment whose start says so.
    pub(super) fn end(&mut self, issued: Seq) -> Seq {
        let end = self.next.max(self.durable).plus(self.hidden).max(issued);
        if end > self.next
            && self.tail.active.take().is_some()
            && let Some(meta) = self.segments.back_mut()
        {
            meta.sealed = true;
        }
        end
    }
}
