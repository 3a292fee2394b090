//! The records between the reader and their acknowledgement. Pure: no I/O, no clock, no client.
//! Invariants: never more records than the limit, nor more bytes but for one record; a record is acknowledged only after
//! every earlier one of its key is settled; what must be resent comes out in sequence order, with all that follows it in its key.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use tidegate_store::Seq;

/// How much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// Records that are sent and not settled. Default 16 384: a rate of a million a second times 5 ms of linger and
    /// 11 ms of round trip. It also bounds what a crash delivers twice, and stays below the 100 000 of the client.
    pub records: usize,
    /// Their keys and values, in bytes: beyond it none is added, so that at most one record exceeds it. Default 32 MiB:
    /// half of what the client may buffer, so that the client does not refuse a record for want of room.
    pub bytes: usize,
}

impl Default for WindowLimits {
    fn default() -> WindowLimits {
        WindowLimits { records: 16 * 1024, bytes: 32 << 20 }
    }
}

/// Slots kept for each record allowed: how far the others may run ahead of a partition that has no leader. A slot is
/// 40 bytes, so the default window holds at most 5 MiB of them.
const SPAN_FACTOR: usize = 8;

/// Buckets for each record allowed. Two keys in one bucket cost a later ack or one more resend, never an inversion.
const CHAINS_FACTOR: usize = 2;

/// How an attempt failed, as far as the window cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Resend it with the others.
    Retry,
    /// Resend it in small groups, alone at last.
    Suspect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    /// Delivered, but an earlier record of its key is not settled yet.
    Delivered,
    Failed(Failure),
    /// Delivered before an earlier record of its key was resent: to be resent after it.
    Stale,
    /// Waits for its dead letter.
    Rejected,
    Settled,
}

/// The ordinal of a slot since the window began, from 1; 0 is none.
type Place = u64;

#[derive(Debug)]
struct Slot {
    seq: Seq,
    /// The next slot of the chain.
    next: Place,
    bytes: u32,
    /// `None` for a record without a key: it has no order to keep.
    chain: Option<u32>,
    state: State,
}

/// The slots of one bucket of keys, in sequence order; the first is never settled.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    first: Place,
    last: Place,
}

/// The window. Reports come in any order; acknowledged ranges and what is to be resent come out.
#[derive(Debug)]
pub(crate) struct Window {
    limits: WindowLimits,
    slots: VecDeque<Slot>,
    /// Slots that have left at the front; the first slot has this place plus one.
    passed: Place,
    chains: Box<[Chain]>,
    unsettled: usize,
    bytes: usize,
    in_flight: usize,
    to_resend: usize,
    suspects: usize,
    rejected: usize,
    acked: Vec<Seq>,
}

/// The hash by which the window tells keys apart.
#[must_use]
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

impl Window {
    /// An empty window.
    #[must_use]
    pub(crate) fn new(limits: WindowLimits) -> Window {
        let chains = (limits.records.max(1) * CHAINS_FACTOR).next_power_of_two();
        Window {
            limits,
            slots: VecDeque::new(),
            passed: 0,
            chains: vec![Chain::default(); chains].into_boxed_slice(),
            unsettled: 0,
            bytes: 0,
            in_flight: 0,
            to_resend: 0,
            suspects: 0,
            rejected: 0,
            acked: Vec::new(),
        }
    }

    /// Whether another record may be sent, whatever its size.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.unsettled == 0
            || (self.unsettled < self.limits.records
                && self.bytes < self.limits.bytes
                && self.slots.len() < self.limits.records.saturating_mul(SPAN_FACTOR))
    }

    /// A record was sent for the first time. Sequence numbers rise; gaps are allowed.
    pub(crate) fn sent(&mut self, seq: Seq, key_hash: Option<u64>, bytes: usize) {
        debug_assert!(self.slots.back().is_none_or(|last| last.seq < seq));
        let place = self.passed + self.slots.len() as u64 + 1;
        let chain = key_hash.map(|hash| self.chain_of(hash));
        if let Some(chain) = chain {
            self.link(chain, place);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.slots.push_back(Slot { seq, next: 0, bytes, chain, state: State::InFlight });
        self.unsettled += 1;
        self.in_flight += 1;
        self.bytes += bytes as usize;
    }

    /// A record that [`resend_set`](Window::resend_set) named was sent again.
    pub(crate) fn resent(&mut self, seq: Seq) {
        if let Some(place) = self.find(seq)
            && matches!(self.slot(place).state, State::Failed(_) | State::Stale)
        {
            self.change(place, State::InFlight);
        }
    }

    /// A report: delivered. A report about anything not in flight changes nothing, and says so.
    pub(crate) fn delivered(&mut self, seq: Seq) -> bool {
        let Some(place) = self.find_in_flight(seq) else { return false };
        self.change(place, State::Delivered);
        match self.slot(place).chain {
            None => self.settle(place, true),
            Some(chain) => self.advance(chain),
        }
        self.pass_settled();
        true
    }

    /// A report: failed. A report about anything not in flight changes nothing, and says so.
    pub(crate) fn failed(&mut self, seq: Seq, failure: Failure) -> bool {
        let Some(place) = self.find_in_flight(seq) else { return false };
        self.change(place, State::Failed(failure));
        true
    }

    /// The record will not be taken; it waits for [`buried`](Window::buried).
    pub(crate) fn rejected(&mut self, seq: Seq) {
        if let Some(place) = self.find(seq)
            && !matches!(self.slot(place).state, State::Delivered | State::Settled)
        {
            self.change(place, State::Rejected);
        }
    }

    /// The record's dead letter is durable: it is acknowledged.
    pub(crate) fn buried(&mut self, seq: Seq) {
        self.close(seq, true);
    }

    /// The store no longer has the record: it is neither delivered nor acknowledged.
    pub(crate) fn vanished(&mut self, seq: Seq) {
        self.close(seq, false);
    }

    /// The client is gone, and with it everything in flight.
    pub(crate) fn fail_in_flight(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].state == State::InFlight {
                self.change(self.passed + index as u64 + 1, State::Failed(Failure::Retry));
            }
        }
    }

    /// What to resend now, in sequence order, those after `after` and `most` at most: what failed, and what was
    /// delivered after it with the same key, so that the last write of a key stays the last. Chains with something in
    /// flight behind a failure wait for its report, and chains with a failure up to `after` for their turn.
    pub(crate) fn resend_set(&mut self, after: Seq, most: usize) -> Vec<Seq> {
        let mut busy = self.chains_in_flight_behind_a_failure();
        let mut dirty = HashSet::new();
        let mut resend = Vec::new();
        for index in 0..self.slots.len() {
            let Slot { seq, chain, state, .. } = self.slots[index];
            let failed = matches!(state, State::Failed(_) | State::Stale);
            if seq <= after {
                if failed {
                    busy.extend(chain);
                }
                continue;
            }
            match chain {
                None if failed && resend.len() < most => resend.push(seq),
                Some(chain) if !busy.contains(&chain) => {
                    if failed {
                        dirty.insert(chain);
                    } else if state == State::Delivered && dirty.contains(&chain) {
                        self.change(self.passed + index as u64 + 1, State::Stale);
                    } else {
                        continue;
                    }
                    if resend.len() < most {
                        resend.push(seq);
                    }
                }
                _ => {}
            }
        }
        resend
    }

    /// What waits for a dead letter, in sequence order.
    #[must_use]
    pub(crate) fn to_bury(&self) -> Vec<Seq> {
        self.slots.iter().filter(|slot| slot.state == State::Rejected).map(|slot| slot.seq).collect()
    }

    /// The ranges that may be acknowledged since the last call, in order, joined where they touch.
    pub(crate) fn take_acked(&mut self) -> Vec<Range<Seq>> {
        self.acked.sort_unstable();
        let mut ranges: Vec<Range<Seq>> = Vec::new();
        for seq in self.acked.drain(..) {
            match ranges.last_mut() {
                Some(range) if range.end == seq => range.end = seq.next(),
                _ => ranges.push(seq..seq.next()),
            }
        }
        ranges
    }

    /// The earliest record that is not settled.
    #[must_use]
    pub(crate) fn oldest(&self) -> Option<Seq> {
        self.slots.front().map(|slot| slot.seq)
    }

    /// Records sent without a report yet.
    #[must_use]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Records that failed and were not sent again yet, suspects included.
    #[must_use]
    pub(crate) fn failures(&self) -> usize {
        self.to_resend
    }

    /// Records that have to be resent in small groups.
    #[must_use]
    pub(crate) fn suspects(&self) -> usize {
        self.suspects
    }

    /// Records that wait for a dead letter.
    #[must_use]
    pub(crate) fn rejects(&self) -> usize {
        self.rejected
    }

    /// Records that are not settled: sent, delivered out of order, failed, or waiting for a dead letter.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.unsettled
    }

    /// Whether every record is settled.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.unsettled == 0
    }

    fn close(&mut self, seq: Seq, acked: bool) {
        let Some(place) = self.find(seq) else { return };
        self.settle(place, acked);
        if let Some(chain) = self.slot(place).chain {
            self.advance(chain);
        }
        self.pass_settled();
    }

    fn chains_in_flight_behind_a_failure(&self) -> HashSet<u32> {
        let (mut failed, mut busy) = (HashSet::new(), HashSet::new());
        for slot in &self.slots {
            let Some(chain) = slot.chain else { continue };
            match slot.state {
                State::Failed(_) | State::Stale => drop(failed.insert(chain)),
                State::InFlight if failed.contains(&chain) => drop(busy.insert(chain)),
                _ => {}
            }
        }
        busy
    }

    /// Settles what is delivered at the head of a chain.
    fn advance(&mut self, chain: u32) {
        loop {
            let first = self.chains[chain as usize].first;
            if first == 0 {
                self.chains[chain as usize].last = 0;
                return;
            }
            match self.slot(first).state {
                State::Delivered => self.settle(first, true),
                State::Settled => {}
                _ => return,
            }
            self.chains[chain as usize].first = self.slot(first).next;
        }
    }

    fn settle(&mut self, place: Place, acked: bool) {
        let (seq, bytes, state) = {
            let slot = self.slot(place);
            (slot.seq, slot.bytes, slot.state)
        };
        if state == State::Settled {
            return;
        }
        self.change(place, State::Settled);
        self.unsettled -= 1;
        self.bytes -= bytes as usize;
        if acked {
            self.acked.push(seq);
        }
    }

    /// Drops the settled slots at the front. None of them is in a chain any more: a chain starts with a slot that is
    /// not settled, and that one is still here.
    fn pass_settled(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.state == State::Settled) {
            self.slots.pop_front();
            self.passed += 1;
        }
    }

    /// The only place where a slot changes its state, so that the counts cannot disagree.
    fn change(&mut self, place: Place, to: State) {
        let from = std::mem::replace(&mut self.slot_mut(place).state, to);
        for (state, leaving) in [(from, true), (to, false)] {
            let step = |count: &mut usize| if leaving { *count -= 1 } else { *count += 1 };
            match state {
                State::InFlight => step(&mut self.in_flight),
                State::Failed(Failure::Retry) | State::Stale => step(&mut self.to_resend),
                State::Failed(Failure::Suspect) => {
                    step(&mut self.to_resend);
                    step(&mut self.suspects);
                }
                State::Rejected => step(&mut self.rejected),
                State::Delivered | State::Settled => {}
            }
        }
    }

    fn chain_of(&self, hash: u64) -> u32 {
        let mask = self.chains.len() as u64 - 1;
        u32::try_from(hash & mask).expect("there are far fewer than 4 G chains")
    }

    fn link(&mut self, chain: u32, place: Place) {
        let Chain { first, last } = self.chains[chain as usize];
        if first == 0 {
            self.chains[chain as usize] = Chain { first: place, last: place };
        } else {
            self.slot_mut(last).next = place;
            self.chains[chain as usize].last = place;
        }
    }

    fn find_in_flight(&self, seq: Seq) -> Option<Place> {
        self.find(seq).filter(|&place| self.slot(place).state == State::InFlight)
    }

    /// Without gaps the answer is one subtraction; with gaps the slot lies below that.
    fn find(&self, seq: Seq) -> Option<Place> {
        let guess = usize::try_from(seq.since(self.slots.front()?.seq)).unwrap_or(usize::MAX);
        let index = match self.slots.get(guess) {
            Some(slot) if slot.seq == seq => guess,
            _ => self.slots.binary_search_by_key(&seq, |slot| slot.seq).ok()?,
        };
        Some(self.passed + index as u64 + 1)
    }

    fn slot(&self, place: Place) -> &Slot {
        &self.slots[self.index(place)]
    }

    fn slot_mut(&mut self, place: Place) -> &mut Slot {
        let index = self.index(place);
        &mut self.slots[index]
    }

    fn index(&self, place: Place) -> usize {
        usize::try_from(place - self.passed - 1).expect("a slot that is named has not left")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const LIMITS: WindowLimits = WindowLimits { records: 8, bytes: 100 };

    fn seq(number: u64) -> Seq {
        Seq::new(number)
    }

    fn range(start: u64, end: u64) -> Range<Seq> {
        seq(start)..seq(end)
    }

    /// A window in which records 1 to `keys.len()` with these keys are in flight.
    fn in_flight(keys: &[Option<u64>]) -> Window {
        let mut window = Window::new(LIMITS);
        for (number, key) in (1..).zip(keys) {
            window.sent(seq(number), *key, 1);
        }
        window
    }

    #[test]
    fn reports_in_any_order_become_joined_ranges() {
        let mut window = in_flight(&[None; 5]);

        for number in [4, 1, 2, 5] {
            window.delivered(seq(number));
        }

        assert_eq!(window.take_acked(), [range(1, 3), range(4, 6)]);
        assert_eq!(window.oldest(), Some(seq(3)));
        window.delivered(seq(3));
        assert_eq!(window.take_acked(), [range(3, 4)]);
        assert!(window.is_empty());
    }

    #[test]
    fn a_record_is_not_acknowledged_before_the_earlier_one_of_its_key() {
        let mut window = in_flight(&[Some(1), Some(2), Some(1)]);

        window.delivered(seq(3));
        window.delivered(seq(2));
        assert_eq!(window.take_acked(), [range(2, 3)]);

        window.delivered(seq(1));
        assert_eq!(window.take_acked(), [range(1, 2), range(3, 4)]);
    }

    #[test]
    fn what_was_delivered_after_a_failure_of_its_key_is_resent_behind_it() {
        let mut window = in_flight(&[Some(1), Some(2), Some(1), None, Some(1)]);
        for number in [2, 3, 4] {
            window.delivered(seq(number));
        }
        for number in [1, 5] {
            window.failed(seq(number), Failure::Retry);
        }

        assert_eq!(window.resend_set(Seq::default(), usize::MAX), [seq(1), seq(3), seq(5)]);
    }

    #[test]
    fn a_group_that_is_cut_short_still_resends_the_rest_later() {
        let mut window = in_flight(&[Some(1), Some(1)]);
        window.failed(seq(1), Failure::Suspect);
        window.delivered(seq(2));

        assert_eq!(window.resend_set(Seq::default(), 1), [seq(1)]);
        window.resent(seq(1));
        window.delivered(seq(1));

        assert_eq!(window.take_acked(), [range(1, 2)]);
        assert_eq!(window.resend_set(Seq::default(), usize::MAX), [seq(2)]);
    }

    #[test]
    fn a_chain_with_something_in_flight_behind_a_failure_waits_and_others_do_not() {
        let mut window = in_flight(&[Some(1), Some(1), Some(2)]);
        window.failed(seq(1), Failure::Retry);
        window.failed(seq(3), Failure::Retry);

        assert_eq!(window.resend_set(Seq::default(), usize::MAX), [seq(3)]);
        window.delivered(seq(2));

        assert_eq!(window.resend_set(Seq::default(), usize::MAX), [seq(1), seq(2), seq(3)]);
    }

    #[test]
    fn a_turn_that_starts_later_leaves_the_keys_of_earlier_failures_alone() {
        let mut window = in_flight(&[Some(1), Some(2), Some(1), Some(2)]);
        for number in [1, 2, 3] {
            window.failed(seq(number), Failure::Suspect);
        }
        window.delivered(seq(4));

        assert_eq!(window.resend_set(seq(1), usize::MAX), [seq(2), seq(4)]);
    }

    #[test]
    fn a_rejected_record_is_acknowledged_when_buried_and_holds_nobody_up_after_that() {
        let mut window = in_flight(&[Some(1), Some(1), Some(1)]);
        window.rejected(seq(1));
        window.delivered(seq(2));
        assert_eq!(window.take_acked(), []);

        assert_eq!(window.to_bury(), [seq(1)]);
        window.buried(seq(1));

        assert_eq!(window.take_acked(), [range(1, 3)]);
        assert_eq!((window.rejects(), window.failures(), window.len()), (0, 0, 1));
    }

    #[test]
    fn a_vanished_record_is_settled_but_never_acknowledged() {
        let mut window = in_flight(&[Some(1), Some(1)]);
        window.failed(seq(1), Failure::Retry);
        window.delivered(seq(2));

        window.vanished(seq(1));

        assert_eq!(window.take_acked(), [range(2, 3)]);
        assert!(window.is_empty());
    }

    #[test]
    fn a_record_of_any_size_has_room_and_after_a_large_one_no_other() {
        let mut window = Window::new(LIMITS);
        assert!(window.has_room());

        window.sent(seq(1), None, 1000);

        assert!(!window.has_room());
        window.delivered(seq(1));
        assert!(window.has_room());
    }

    #[test]
    fn others_run_ahead_of_a_stuck_record_only_as_far_as_the_span() {
        let mut window = Window::new(LIMITS);
        window.sent(seq(1), None, 1);

        let mut number = 1;
        while window.has_room() {
            number += 1;
            window.sent(seq(number), None, 1);
            window.delivered(seq(number));
        }

        assert_eq!(number, (LIMITS.records * SPAN_FACTOR) as u64);
        window.delivered(seq(1));
        assert!(window.has_room());
    }

    #[test]
    fn a_report_about_something_unknown_or_settled_changes_nothing() {
        let mut window = in_flight(&[None]);

        assert!(!window.delivered(seq(7)));
        assert!(window.delivered(seq(1)));
        assert!(!window.delivered(seq(1)));
        assert!(!window.failed(seq(1), Failure::Retry));

        assert_eq!(window.take_acked(), [range(1, 2)]);
    }

    /// What happens to a window, in numbers that the test maps to what is possible at that moment.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Send { key: Option<u64>, bytes: usize, gap: u64 },
        Report { pick: usize, verdict: u8 },
        Resend { pick: usize, most: usize, sent: usize },
        Bury,
        ClientGone,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (prop::option::of(0u64..3), 1usize..40, 0u64..2)
                .prop_map(|(key, bytes, gap)| Step::Send { key, bytes, gap }),
            8 => (any::<usize>(), 0u8..8).prop_map(|(pick, verdict)| Step::Report { pick, verdict }),
            3 => (0usize..6, 1usize..6, 0usize..6)
                .prop_map(|(pick, most, sent)| Step::Resend { pick, most, sent }),
            1 => Just(Step::Bury),
            1 => Just(Step::ClientGone),
        ]
    }

    /// The plain model: every record by itself, and what each partition's log holds.
    #[derive(Debug, Default)]
    struct Model {
        next: u64,
        keys: BTreeMap<u64, Option<u64>>,
        bytes: BTreeMap<u64, usize>,
        in_flight: BTreeSet<u64>,
        rejected: BTreeSet<u64>,
        settled: BTreeSet<u64>,
        /// What each key's log holds, in the order of sending: a record that was delivered or may have been.
        log: BTreeMap<u64, Vec<u64>>,
    }

    impl Model {
        /// A client sends a key's records in order, and its log takes them in that order.
        fn write(&mut self, number: u64) {
            if let Some(key) = self.keys[&number] {
                self.log.entry(key).or_default().push(number);
            }
        }

        fn last_writes_rise(&self) -> bool {
            self.log.values().all(|log| {
                let kept = log.iter().enumerate().filter(|(_, number)| !self.rejected.contains(number));
                let last: BTreeMap<u64, usize> = kept.map(|(at, &number)| (number, at)).collect();
                last.values().is_sorted()
            })
        }

        fn acked(&mut self, ranges: Vec<Range<Seq>>) -> Result<(), TestCaseError> {
            for range in ranges {
                for number in range.start.get()..range.end.get() {
                    prop_assert!(self.keys.contains_key(&number), "{number} was never sent");
                    prop_assert!(self.settled.insert(number), "{number} was acknowledged twice");
                }
            }
            // A dead letter is not in its key's log, so it may be acknowledged before what is.
            let delivered = |number: &u64| self.settled.contains(number) && !self.rejected.contains(number);
            for (number, key) in self.keys.iter().filter(|(number, key)| key.is_some() && delivered(number)) {
                let earlier =
                    self.keys.range(..number).filter(|(_, other)| *other == key).map(|(earlier, _)| earlier);
                for earlier in earlier {
                    let settled = self.settled.contains(earlier) || self.rejected.contains(earlier);
                    prop_assert!(settled, "{number} was acknowledged before {earlier} of its key");
                }
            }
            Ok(())
        }
    }

    fn apply(window: &mut Window, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Send { key, bytes, gap } => {
                if window.has_room() {
                    let number = model.next + 1 + gap;
                    model.next = number;
                    model.keys.insert(number, key);
                    model.bytes.insert(number, bytes);
                    model.in_flight.insert(number);
                    window.sent(seq(number), key, bytes);
                }
            }
            Step::Report { pick, verdict } => {
                let Some(&number) = model.in_flight.iter().nth(pick % model.in_flight.len().max(1)) else {
                    return Ok(());
                };
                // Reports of one key come in the order of sending: take the earliest in flight of that key.
                let key = model.keys[&number];
                let earliest = model.in_flight.iter().find(|other| model.keys[other] == key).copied();
                let number = if key.is_some() { earliest.unwrap_or(number) } else { number };
                model.in_flight.remove(&number);
                match verdict {
                    0 => drop(window.failed(seq(number), Failure::Retry)),
                    1 => drop(window.failed(seq(number), Failure::Suspect)),
                    2 => {
                        model.rejected.insert(number);
                        window.rejected(seq(number));
                    }
                    3 => {
                        // Written, and the answer lost.
                        model.write(number);
                        window.failed(seq(number), Failure::Retry);
                    }
                    _ => {
                        model.write(number);
                        window.delivered(seq(number));
                    }
                }
            }
            Step::Resend { pick, most, sent } => {
                let after = model.keys.keys().rev().nth(pick).copied().unwrap_or_default();
                let resend = window.resend_set(seq(after), most);
                prop_assert!(resend.len() <= most && resend.is_sorted());
                for number in resend.into_iter().take(sent) {
                    window.resent(number);
                    prop_assert!(model.in_flight.insert(number.get()), "{number} is in flight already");
                }
            }
            Step::Bury => {
                for number in window.to_bury() {
                    prop_assert!(model.rejected.contains(&number.get()));
                    window.buried(number);
                }
            }
            Step::ClientGone => {
                // Anything from the first in flight on may have been written, in the order of sending.
                for number in std::mem::take(&mut model.in_flight) {
                    model.write(number);
                }
                window.fail_in_flight();
            }
        }
        let acked = window.take_acked();
        model.acked(acked)
    }

    /// Everything is delivered in the end: what is in flight, what is to be resent, what is rejected.
    fn finish(window: &mut Window, model: &mut Model) -> Result<(), TestCaseError> {
        for _ in 0..1000 {
            if window.is_empty() {
                break;
            }
            while let Some(number) = model.in_flight.pop_first() {
                model.write(number);
                window.delivered(seq(number));
            }
            apply(window, model, Step::Bury)?;
            apply(window, model, Step::Resend { pick: usize::MAX, most: usize::MAX, sent: usize::MAX })?;
        }
        prop_assert!(window.is_empty(), "something is stuck: {window:?}");
        Ok(())
    }

    proptest! {
        #[test]
        fn nothing_is_lost_nothing_is_early_and_the_last_writes_of_a_key_keep_their_order(
            steps in prop::collection::vec(step(), 1..120)
        ) {
            let mut window = Window::new(LIMITS);
            let mut model = Model::default();

            for step in steps {
                apply(&mut window, &mut model, step)?;

                let unsettled: Vec<u64> = model.keys.keys().copied().filter(|n| !model.settled.contains(n)).collect();
                let bytes: usize = unsettled.iter().map(|number| model.bytes[number]).sum();
                prop_assert_eq!(window.len(), unsettled.len());
                prop_assert_eq!(window.in_flight(), model.in_flight.len());
                prop_assert_eq!(window.oldest().map(Seq::get), unsettled.first().copied());
                prop_assert!(window.len() <= LIMITS.records && bytes < LIMITS.bytes + 40);
            }
            finish(&mut window, &mut model)?;

            prop_assert!(model.keys.keys().all(|number| model.settled.contains(number)));
            prop_assert!(model.last_writes_rise(), "{:?}", model.log);
        }
    }
}
