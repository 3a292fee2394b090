//! A set of sequence numbers, kept as ranges: what is acknowledged, what cannot be read, what is to be read again. Pure.
//!
//! Invariant: no range is empty, and no two of them touch.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Seq;

/// Sequence numbers as ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// Start to end of each.
    ranges: BTreeMap<Seq, Seq>,
    count: u64,
}

impl Ranges {
    /// How many sequence numbers are in it.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// How many ranges it takes.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Where the last range ends that begins before `seq`.
    pub(crate) fn end_before(&self, seq: Seq) -> Option<Seq> {
        self.ranges.range(..seq).next_back().map(|(_, end)| *end)
    }

    /// The ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<Seq>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    pub(crate) fn first(&self) -> Option<Range<Seq>> {
        self.iter().next()
    }

    /// Adds a range; returns how many of it are new.
    pub(crate) fn insert(&mut self, range: Range<Seq>) -> u64 {
        let before = self.count;
        let (mut start, mut end) = (range.start, range.end);
        if start >= end {
            return 0;
        }
        // The one range that starts at or below and reaches us, then all that start inside or right behind.
        if let Some((below, below_end)) = self.ranges.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && below_end >= start
        {
            (start, end) = (below, end.max(below_end));
        }
        while let Some((next, next_end)) = self.ranges.range(start..=end).next().map(|(s, e)| (*s, *e)) {
            self.ranges.remove(&next);
            self.count -= next_end.since(next);
            end = end.max(next_end);
        }
        self.ranges.insert(start, end);
        self.count += end.since(start);
        self.count - before
    }

    /// Takes out everything below `seq`.
    pub(crate) fn remove_below(&mut self, seq: Seq) {
        while let Some(range) = self.first().filter(|range| range.start < seq) {
            self.ranges.remove(&range.start);
            self.count -= range.end.since(range.start);
            if seq < range.end {
                self.insert(seq..range.end);
            }
        }
    }

    /// The stretch at or after `seq` that is not in the set: its start, and the end of it if a range ends it.
    pub(crate) fn gap_from(&self, seq: Seq) -> (Seq, Option<Seq>) {
        let mut start = seq;
        if let Some((_, end)) = self.ranges.range(..=start).next_back() {
            start = start.max(*end);
        }
        let end = self.ranges.range(start..).next().map(|(next, _)| *next);
        (start, end)
    }

    /// The parts of `range` that are not in the set, ascending.
    pub(crate) fn gaps_in(&self, range: Range<Seq>) -> Vec<Range<Seq>> {
        let mut gaps = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let (start, end) = self.gap_from(from);
            let end = end.unwrap_or(range.end).min(range.end);
            if start >= end {
                break;
            }
            gaps.push(start..end);
            from = end;
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(ranges: impl IntoIterator<Item = Range<Seq>>) -> Vec<u64> {
        ranges.into_iter().flat_map(|r| r.start.get()..r.end.get()).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(steps in prop::collection::vec((1u64..60, 0u64..9, 0u8..8), 0..40)) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (start, len, what) in steps {
                if what == 0 {
                    ranges.remove_below(Seq::new(start));
                    model.retain(|number| *number >= start);
                } else {
                    let fresh = (start..start + len).filter(|number| model.insert(*number)).count() as u64;
                    prop_assert_eq!(ranges.insert(Seq::new(start)..Seq::new(start + len)), fresh);
                }

                prop_assert_eq!(ranges.count(), model.len() as u64);
                prop_assert_eq!(numbers(ranges.iter()), model.iter().copied().collect::<Vec<_>>());
                let bounds: Vec<_> = ranges.iter().collect();
                prop_assert!(bounds.windows(2).all(|pair| pair[0].end < pair[1].start));
                let gaps = ranges.gaps_in(Seq::new(5)..Seq::new(65));
                prop_assert_eq!(numbers(gaps), (5..65).filter(|n| !model.contains(n)).collect::<Vec<_>>());
            }
        }
    }
}
