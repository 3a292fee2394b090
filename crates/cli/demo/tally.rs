//! What was on the topic, compared with what was accepted.

use std::collections::HashMap;

/// What a run comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
    pub(crate) distinct: u64,
    pub(crate) duplicates: u64,
    pub(crate) missing: u64,
    pub(crate) out_of_order: u64,
}

impl Verdicts {
    pub(crate) fn holds(&self) -> bool {
        self.missing == 0 && self.out_of_order == 0
    }
}

/// Counts messages; knows an event by its number, which is its sequencer.
pub(crate) struct Tally {
    seen: Vec<bool>,
    delivered: u64,
    distinct: u64,
    out_of_order: u64,
    /// The highest number seen of each key.
    highest: HashMap<Vec<u8>, u64>,
}

impl Tally {
    pub(crate) fn new(events: u64) -> Tally {
        let seen = vec![false; usize::try_from(events).expect("the argument's range fits")];
        Tally { seen, delivered: 0, distinct: 0, out_of_order: 0, highest: HashMap::new() }
    }

    /// An event that comes for the first time after a later one of its key is out of order; one that comes again is a
    /// duplicate, wherever it stands.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        self.delivered += 1;
        let Some((number, seen)) =
            number_of(value).and_then(|n| Some((n, self.seen.get_mut(usize::try_from(n).ok()?)?)))
        else {
            return;
        };
        if std::mem::replace(seen, true) {
            return;
        }
        self.distinct += 1;
        if let Some(highest) = self.highest.get_mut(key) {
            self.out_of_order += u64::from(number < *highest);
            *highest = number.max(*highest);
        } else {
            self.highest.insert(key.to_owned(), number);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.distinct == self.seen.len() as u64
    }

    pub(crate) fn verdicts(&self, accepted: u64) -> Verdicts {
        Verdicts {
            accepted,
            delivered: self.delivered,
            distinct: self.distinct,
            duplicates: self.delivered - self.distinct,
            missing: accepted - self.distinct,
            out_of_order: self.out_of_order,
        }
    }
}

const SEQUENCER: &[u8] = br#""sequencer":""#;

/// The number of a demo event, from its record.
fn number_of(value: &[u8]) -> Option<u64> {
    let at = value.windows(SEQUENCER.len()).position(|window| window == SEQUENCER)? + SEQUENCER.len();
    let digits = value.get(at..at + 16)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u64) -> Vec<u8> {
        format!(r#"{{"sequencer":"{number:016X}"}}"#).into_bytes()
    }

    #[test]
    fn duplicates_gaps_and_inversions_are_told_apart() {
        let mut tally = Tally::new(5);
        for (key, number) in [("a", 0), ("a", 2), ("a", 0), ("b", 3), ("a", 1), ("a", 2)] {
            tally.add(key.as_bytes(), &value(number));
        }

        let verdicts = tally.verdicts(5);

        let expected =
            Verdicts { accepted: 5, delivered: 6, distinct: 4, duplicates: 2, missing: 1, out_of_order: 1 };
        assert_eq!(verdicts, expected);
        assert!(!verdicts.holds() && !tally.is_complete());
    }

    #[test]
    fn what_is_no_demo_event_counts_as_delivered_alone() {
        let mut tally = Tally::new(1);
        tally.add(b"a", b"nonsense");
        tally.add(b"a", &value(7));

        assert_eq!((tally.delivered, tally.distinct), (2, 0));
    }
}
