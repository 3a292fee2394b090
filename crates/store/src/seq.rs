//! Sequence numbers: the one name that a record has for its whole life.
//! They start at 1, rise by 1, and are never used twice, across restarts too.

use std::fmt;

/// The sequence number of a record in its queue.
///
/// Ranges are half-open, and a watermark names the *next* sequence number: `durable = Seq(5)` says that records
/// 1 to 4 are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(u64);

impl Seq {
    /// The sequence number of the first record of every queue.
    pub const FIRST: Seq = Seq(1);

    /// Names sequence number `number`.
    #[must_use]
    pub const fn new(number: u64) -> Seq {
        Seq(number)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sequence number `count` further on. Stops at the largest: a queue that issues a million records a second
    /// reaches it after half a million years.
    #[must_use]
    pub const fn plus(self, count: u64) -> Seq {
        Seq(self.0.saturating_add(count))
    }

    /// The next sequence number.
    #[must_use]
    pub const fn next(self) -> Seq {
        self.plus(1)
    }

    /// How many sequence numbers lie in `earlier..self`; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Seq) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
