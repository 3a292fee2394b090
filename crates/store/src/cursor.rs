//! What is acknowledged: a contiguous prefix and ranges above it, in any order. Pure; `flush.rs` persists it.
//!
//! Invariant: every range in `above` lies strictly above `prefix`, and no two of them touch.

use std::ops::Range;

use crate::Seq;
use crate::ranges::Ranges;

/// The acknowledged sequence numbers of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acks {
    prefix: Seq,
    above: Ranges,
}

impl Acks {
    /// Everything below `prefix` is acknowledged.
    pub(crate) fn new(prefix: Seq) -> Acks {
        Acks { prefix, above: Ranges::default() }
    }

    /// The first sequence number that is not acknowledged.
    pub(crate) fn prefix(&self) -> Seq {
        self.prefix
    }

    /// How many sequence numbers above the prefix are acknowledged.
    pub(crate) fn above_count(&self) -> u64 {
        self.above.count()
    }

    /// The ranges above the prefix, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<Seq>> + '_ {
        self.above.iter()
    }

    /// Adds a range; returns how many of it are new.
    pub(crate) fn insert(&mut self, range: Range<Seq>) -> u64 {
        let before = self.total();
        self.above.insert(range.start.max(self.prefix)..range.end);
        if let Some(first) = self.above.first().filter(|first| first.start == self.prefix) {
            self.prefix = first.end;
            self.above.remove_below(first.end);
        }
        self.total() - before
    }

    fn total(&self) -> u64 {
        self.prefix.get() + self.above_count()
    }

    /// The stretch at or after `seq` that is not acknowledged: its start, and the end of it if a range ends it.
    pub(crate) fn unacknowledged_from(&self, seq: Seq) -> (Seq, Option<Seq>) {
        self.above.gap_from(seq.max(self.prefix))
    }

    /// The parts of `range` that are not acknowledged, ascending.
    pub(crate) fn unacknowledged_in(&self, range: Range<Seq>) -> Vec<Range<Seq>> {
        self.above.gaps_in(range.start.max(self.prefix)..range.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn seqs(range: Range<u64>) -> Range<Seq> {
        Seq::new(range.start)..Seq::new(range.end)
    }

    proptest! {
        #[test]
        fn acks_in_any_order_are_a_set_with_a_contiguous_prefix(ranges in prop::collection::vec((1u64..60, 0u64..9), 0..40)) {
            let (mut acks, mut model) = (Acks::new(Seq::FIRST), BTreeSet::new());
            for (start, len) in ranges {
                let fresh = (start..start + len).filter(|seq| model.insert(*seq)).count() as u64;
                prop_assert_eq!(acks.insert(seqs(start..start + len)), fresh);

                let prefix = (1..100).find(|seq| !model.contains(seq)).expect("the model is finite");
                prop_assert_eq!(acks.prefix(), Seq::new(prefix));
                let above: Vec<u64> = acks.ranges().flat_map(|r| r.start.get()..r.end.get()).collect();
                let expected: Vec<u64> = model.range(prefix..).copied().collect();
                prop_assert_eq!(acks.above_count(), above.len() as u64);
                prop_assert_eq!(above, expected);
                for seq in 1..70 {
                    let (from, to) = acks.unacknowledged_from(Seq::new(seq));
                    let free = (seq..100).find(|s| !model.contains(s)).expect("the model is finite");
                    prop_assert_eq!(from, Seq::new(free));
                    prop_assert_eq!(to, model.range(free..).next().map(|s| Seq::new(*s)));
                }
            }
        }
    }
}
