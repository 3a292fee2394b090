//! The drain's loop: take, produce, collect reports, acknowledge, wait. One thread, one state machine.
//! It never polls: it waits on the signal, bounded by the one timer of its phase.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidegate_store::{Queue, ReadError, Reader, Seq};

use super::flight::{Collected, Flight, Sent};
use super::{Connect, DrainSettings, DrainSummary, Orders};
use crate::backoff::Backoff;
use crate::dead_letter::{DeadLetters, OpenDeadLetters};
use crate::signal::Signal;
use crate::state::{Board, TargetState};

/// Records taken between two looks at reports and orders: few enough that none of these waits for long.
const TAKE_MAX: usize = 256;

/// How long the first records after a failure are given to prove that the target takes records again, before more is
/// taken all the same. Longer than a leader election; all that is at stake is one window.
const PROVE_MAX: Duration = Duration::from_secs(5);

/// How long a client may take to report what it gives up. After that it is dropped, reports or not.
const PURGE_MAX: Duration = Duration::from_millis(500);

/// When to look again at failures that wait for reports of what was sent behind them.
const RECHECK: Duration = Duration::from_millis(500);

/// The watchdog's patience doubles with each client that it replaced in vain, up to this factor.
const STUCK_FACTOR_MAX: u32 = 32;

/// What the loop is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no client; one is made at this time.
    Connecting { at: Instant },
    /// Records are taken as the window allows.
    Flowing,
    /// Something failed: nothing is taken until this time, then the failed ones are resent.
    Holding { until: Instant },
    /// The failed ones are in flight again: nothing is taken until one is delivered, or until this time.
    Proving { until: Instant },
    /// A batch was spoiled: its records are resent in groups, one group at a time.
    Sifting,
}

/// How far sifting has come. A group that fails is halved, so that a bad record is found in a logarithm of steps; one
/// that goes through lets the next be larger.
#[derive(Debug, Clone, Copy, Default)]
struct Sift {
    /// Records in the last group; 0 before the first.
    size: usize,
    /// The first and the last record of it.
    first: Seq,
    last: Seq,
    spoiled: bool,
}

impl Sift {
    /// After which record the next group starts, and how large it is at most.
    fn next(self, failures: usize) -> (Seq, usize) {
        match self {
            Sift { size: 0, .. } => (Seq::default(), failures.div_ceil(2)),
            Sift { size, spoiled: true, first, .. } => (Seq::new(first.get() - 1), size.div_ceil(2)),
            Sift { size, last, .. } => (last, size.saturating_mul(2)),
        }
    }
}

/// Why the target is not delivering, for people.
#[derive(Debug, Clone)]
enum Trouble {
    Backoff(Arc<str>),
    Blocked(Arc<str>),
    Failed(Arc<str>),
}

/// What a cycle is made of.
pub(super) struct Parts {
    pub(super) queue: Queue,
    pub(super) settings: Arc<DrainSettings>,
    pub(super) connect: Connect,
    pub(super) dead_letters: Option<OpenDeadLetters>,
    pub(super) board: Arc<Board>,
    pub(super) signal: Arc<Signal>,
    pub(super) orders: Arc<Orders>,
}

pub(super) struct Cycle {
    settings: Arc<DrainSettings>,
    connect: Connect,
    board: Arc<Board>,
    signal: Arc<Signal>,
    orders: Arc<Orders>,
    reader: Reader,
    /// The first sequence number that was never taken.
    taken: Seq,
    flight: Flight,
    dead_letters: DeadLetters,
    phase: Phase,
    backoff: Backoff,
    /// Set while the phase is `Connecting` or `Holding`.
    trouble: Option<Trouble>,
    last_error: Option<(Arc<str>, Instant)>,
    /// Kept through backoffs until no suspect is left.
    sift: Sift,
    watchdog: Watchdog,
    clients: u64,
}

impl Cycle {
    pub(super) fn new(parts: Parts) -> Cycle {
        let Parts { queue, settings, connect, dead_letters, board, signal, orders } = parts;
        let reader = queue.reader();
        Cycle {
            taken: reader.position(),
            reader,
            flight: Flight::new(queue, Arc::clone(&settings)),
            dead_letters: DeadLetters::new(dead_letters),
            phase: Phase::Connecting { at: Instant::now() },
            backoff: Backoff::new(settings.backoff),
            trouble: None,
            last_error: None,
            sift: Sift::default(),
            watchdog: Watchdog::new(settings.stuck_after),
            clients: 0,
            settings,
            connect,
            board,
            signal,
            orders,
        }
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) -> DrainSummary {
        tracing::info!(from = %self.taken, topic = %self.settings.topic, "drain starts");
        loop {
            if let Some(stop_by) = self.orders.stop_by() {
                return self.stop(stop_by);
            }
            let collected = self.flight.collect();
            self.react(&collected);
            self.watch();
            let more = self.step();
            self.flight.acknowledge();
            self.publish();
            if !more {
                self.signal.wait(self.deadline());
            }
        }
    }

    /// Reports decide about the phase.
    fn react(&mut self, collected: &Collected) {
        if let Some(reason) = collected.error() {
            self.last_error = Some((Arc::clone(reason), Instant::now()));
        }
        if let Some(reason) = &collected.fatal {
            return self.renew(reason);
        }
        if matches!(self.phase, Phase::Connecting { .. }) {
            return;
        }
        // Alone it spoils nobody but itself: the others go on behind it.
        self.sift.spoiled |= collected.suspect.is_some() || (collected.retry.is_some() && self.sift.size > 1);
        if let Some((blocked, reason)) = &collected.retry {
            return self.hold(*blocked, reason);
        }
        if collected.suspect.is_some() && !matches!(self.phase, Phase::Holding { .. }) {
            self.phase = Phase::Sifting;
        }
        if collected.delivered > 0 {
            self.watchdog.progress();
            self.relax();
        }
    }

    /// One step of the present phase. True if there may be more to do at once.
    fn step(&mut self) -> bool {
        if self.orders.paused.load(Ordering::Acquire) {
            return false;
        }
        match self.phase {
            Phase::Connecting { at } => Instant::now() >= at && self.connect(),
            Phase::Holding { until } => Instant::now() >= until && self.go_on(),
            _ if self.flight.window.rejects() > 0 => self.bury_all(),
            Phase::Flowing => self.take(),
            Phase::Proving { until } => Instant::now() >= until && self.go_on(),
            Phase::Sifting => self.flight.window.in_flight() == 0 && self.send_group(),
        }
    }

    fn connect(&mut self) -> bool {
        match (self.connect)(&self.signal) {
            Ok(producer) => {
                self.clients += 1;
                self.flight.counters.client_restarts = self.clients - 1;
                self.flight.board(producer);
                self.phase = Phase::Holding { until: Instant::now() };
                true
            }
            Err(error) => {
                let reason: Arc<str> = format!("no client: {error}").into();
                self.last_error = Some((Arc::clone(&reason), Instant::now()));
                let delay = self.backoff.blocked(fastrand::f64());
                self.trouble = Some(Trouble::Failed(reason));
                self.phase = Phase::Connecting { at: Instant::now() + delay };
                false
            }
        }
    }

    /// The time of the phase is over: first what was rejected, then what failed, then more. True if the phase is one
    /// that does something at once.
    fn go_on(&mut self) -> bool {
        self.trouble = None;
        self.phase = Phase::Flowing;
        if self.flight.window.rejects() > 0 && !self.bury_all() {
            return false;
        }
        if self.flight.window.suspects() > 0 {
            self.phase = Phase::Sifting;
            return true;
        }
        self.sift = Sift::default();
        self.flight.window.failures() == 0 || self.resend_all()
    }

    /// Takes what the window allows.
    fn take(&mut self) -> bool {
        for _ in 0..TAKE_MAX {
            if !self.flight.window.has_room() {
                return false;
            }
            match self.reader.next() {
                Ok(Some(entry)) => {
                    let seq = entry.seq;
                    match self.flight.send(&entry) {
                        Sent::InFlight => self.taken = seq.next(),
                        Sent::Refused => {
                            self.taken = seq.next();
                            return true;
                        }
                        Sent::Full => {
                            self.reader.rewind(seq);
                            return self.client_is_full();
                        }
                    }
                }
                Ok(None) => return false,
                Err(error) => return self.unreadable(&error),
            }
        }
        true
    }

    fn resend_all(&mut self) -> bool {
        let wanted = self.flight.window.resend_set(Seq::default(), usize::MAX);
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
            self.phase = Phase::Holding { until: Instant::now() + RECHECK };
            return false;
        };
        tracing::debug!(%first, %last, records = wanted.len(), "resending");
        if self.send_again(wanted).is_continue() {
            self.phase = Phase::Proving { until: Instant::now() + PROVE_MAX };
        }
        // A record that the client refuses has its report already.
        true
    }

    fn send_group(&mut self) -> bool {
        if self.flight.window.suspects() == 0 {
            return self.go_on();
        }
        let (after, size) = self.sift.next(self.flight.window.failures());
        let mut wanted = self.flight.window.resend_set(after, size);
        if wanted.is_empty() {
            wanted = self.flight.window.resend_set(Seq::default(), size);
        }
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else {
            unreachable!("a suspect is left and nothing is in flight");
        };
        tracing::debug!(%first, %last, records = wanted.len(), "resending a part of a spoiled batch");
        self.sift = Sift { size: wanted.len(), first, last, spoiled: false };
        if self.send_again(wanted).is_continue() && self.sift.size == 1 {
            self.flight.sent_alone(first);
        }
        true
    }

    /// Reads and sends again what the window named. Breaks if the phase has changed instead.
    fn send_again(&mut self, wanted: Vec<Seq>) -> ControlFlow<()> {
        let mut wanted = wanted.into_iter().peekable();
        if let Some(&first) = wanted.peek() {
            self.reader.rewind(first);
            self.watchdog.restart();
        }
        let mut result = ControlFlow::Continue(());
        while let Some(&next) = wanted.peek() {
            match self.reader.next() {
                Ok(Some(entry)) => {
                    while let Some(gone) = wanted.next_if(|&next| next < entry.seq) {
                        self.flight.vanished(gone);
                    }
                    if wanted.next_if_eq(&entry.seq).is_some() && self.flight.resend(&entry) == Sent::Full {
                        self.client_is_full();
                        result = ControlFlow::Break(());
                        break;
                    }
                }
                Ok(None) => {
                    self.flight.vanished(next);
                    wanted.next();
                }
                Err(error) => {
                    self.unreadable(&error);
                    result = ControlFlow::Break(());
                    break;
                }
            }
        }
        self.reader.rewind(self.taken);
        result
    }

    /// Buries what was rejected. False, and holding, if it cannot be.
    fn bury_all(&mut self) -> bool {
        for seq in self.flight.window.to_bury() {
            if let Err(reason) = self.bury(seq) {
                self.reader.rewind(self.taken);
                self.hold(true, &reason.into());
                return false;
            }
        }
        self.reader.rewind(self.taken);
        true
    }

    fn bury(&mut self, seq: Seq) -> Result<(), String> {
        self.reader.rewind(seq);
        match self.reader.next() {
            Ok(Some(entry)) if entry.seq == seq => {
                let failure = self.flight.failures.of(seq).expect("what is rejected has failed").clone();
                self.dead_letters.bury(&entry, &failure).map_err(|error| error.to_string())?;
                tracing::warn!(%seq, reason = %failure.reason, attempts = failure.attempts, "record is a dead letter");
                self.flight.buried(seq);
            }
            Ok(_) => self.flight.vanished(seq),
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Nothing is taken for a while. What fails during a backoff does not make it longer.
    fn hold(&mut self, blocked: bool, reason: &Arc<str>) {
        self.last_error = Some((Arc::clone(reason), Instant::now()));
        let reason = Arc::clone(reason);
        self.trouble = Some(if blocked { Trouble::Blocked(reason) } else { Trouble::Backoff(reason) });
        if !matches!(self.phase, Phase::Holding { .. }) {
            let random = fastrand::f64();
            let delay = if blocked { self.backoff.blocked(random) } else { self.backoff.failed(random) };
            self.phase = Phase::Holding { until: Instant::now() + delay };
        }
    }

    /// Something was delivered: if nothing failed is left, the next failure is the first again.
    fn relax(&mut self) {
        match self.phase {
            Phase::Proving { .. } => self.phase = Phase::Proving { until: Instant::now() },
            Phase::Holding { .. } => return,
            _ => {}
        }
        if self.flight.window.failures() == 0 {
            self.backoff.reset();
        }
    }

    /// The client is of no more use: what it has in flight is given up, and another is made.
    fn renew(&mut self, reason: &Arc<str>) {
        let (in_flight, oldest) = (self.flight.window.in_flight(), self.flight.window.oldest());
        tracing::error!(%reason, in_flight, oldest = oldest.map(Seq::get), "client is given up");
        self.last_error = Some((Arc::clone(reason), Instant::now()));
        self.flight.purge();
        self.settle(Instant::now() + PURGE_MAX);
        self.flight.disembark();
        self.watchdog.restart();
        self.trouble = Some(Trouble::Backoff(Arc::clone(reason)));
        self.phase = Phase::Connecting { at: Instant::now() + self.backoff.failed(fastrand::f64()) };
    }

    /// Collects reports until nothing is in flight, or until `deadline`.
    fn settle(&mut self, deadline: Instant) {
        loop {
            self.flight.collect();
            self.flight.acknowledge();
            self.publish();
            if self.flight.window.in_flight() == 0 || Instant::now() >= deadline {
                return;
            }
            self.signal.wait(Some(deadline));
        }
    }

    fn stop(mut self, stop_by: Instant) -> DrainSummary {
        self.settle(stop_by);
        self.flight.purge();
        self.settle(Instant::now() + PURGE_MAX);
        self.flight.disembark();
        let summary =
            DrainSummary { counters: self.flight.counters, unacknowledged: self.flight.window.len() };
        tracing::info!(?summary, "drain has ended");
        summary
    }

    /// Reports make room; if none can come, time has to.
    fn client_is_full(&mut self) -> bool {
        if self.flight.window.in_flight() == 0 {
            self.hold(false, &"the client has no room".into());
        } else if self.flight.window.failures() > 0 {
            self.phase = Phase::Holding { until: Instant::now() + RECHECK };
        }
        false
    }

    fn unreadable(&mut self, error: &ReadError) -> bool {
        self.hold(false, &format!("queue does not read: {error}").into());
        false
    }

    fn watch(&mut self) {
        let flowing = matches!(self.phase, Phase::Flowing | Phase::Proving { .. } | Phase::Sifting);
        let up = self.flight.health().up == Some(true);
        let waiting = flowing && up && self.flight.window.in_flight() > 0;
        if self.watchdog.barks(self.flight.window.oldest(), waiting) {
            let oldest = self.flight.window.oldest().map_or(0, Seq::get);
            self.renew(&format!("record {oldest} got no report for too long while a broker was up").into());
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if self.orders.paused.load(Ordering::Acquire) {
            return None;
        }
        match self.phase {
            Phase::Connecting { at: timer } | Phase::Holding { until: timer } => Some(timer),
            Phase::Proving { until } => {
                Some(self.watchdog.deadline().map_or(until, |other| other.min(until)))
            }
            Phase::Flowing | Phase::Sifting => self.watchdog.deadline(),
        }
    }

    fn publish(&self) {
        let window = &self.flight.window;
        self.board.publish(self.state(), |status| {
            status.counters = self.flight.counters;
            status.in_flight = window.in_flight();
            status.unacknowledged = window.len();
            status.oldest_since = window.oldest().and(self.watchdog.oldest_since);
            status.last_error.clone_from(&self.last_error);
        });
    }

    fn state(&self) -> TargetState {
        if self.orders.paused.load(Ordering::Acquire) {
            return TargetState::Paused;
        }
        let until = match self.phase {
            Phase::Connecting { at } => Some(at),
            Phase::Holding { until } => Some(until),
            _ => None,
        };
        match &self.trouble {
            Some(Trouble::Backoff(reason)) => {
                return TargetState::Backoff { until, reason: Arc::clone(reason) };
            }
            Some(Trouble::Blocked(reason)) => return TargetState::Blocked { reason: Arc::clone(reason) },
            Some(Trouble::Failed(reason)) => return TargetState::Failed { reason: Arc::clone(reason) },
            None if self.clients == 0 => return TargetState::Starting,
            None => {}
        }
        // An idle connection that all brokers have closed is no trouble; a wrong password is, with nothing to send too.
        match self.flight.health().problem {
            Some(problem) if problem.blocked => TargetState::Blocked { reason: problem.reason },
            _ if self.flight.window.is_empty() => TargetState::Idle,
            Some(problem) => TargetState::Backoff { until: None, reason: problem.reason },
            None => TargetState::Delivering,
        }
    }
}

/// Notices that the oldest record gets no report although a broker is up.
#[derive(Debug)]
struct Watchdog {
    stuck_after: Duration,
    factor: u32,
    oldest: Option<Seq>,
    /// Since when `oldest` is the oldest.
    oldest_since: Option<Instant>,
    /// Since when it has been in flight while a broker was up.
    waiting_since: Option<Instant>,
}

impl Watchdog {
    fn new(stuck_after: Duration) -> Watchdog {
        Watchdog { stuck_after, factor: 1, oldest: None, oldest_since: None, waiting_since: None }
    }

    /// Looks at the oldest record. True once for each time that it has waited too long.
    fn barks(&mut self, oldest: Option<Seq>, waiting: bool) -> bool {
        let now = Instant::now();
        if oldest != self.oldest {
            self.oldest = oldest;
            self.oldest_since = oldest.map(|_| now);
            self.waiting_since = None;
        }
        if !waiting {
            self.waiting_since = None;
            return false;
        }
        let since = *self.waiting_since.get_or_insert(now);
        let barks = now.duration_since(since) >= self.patience();
        if barks {
            self.factor = (self.factor * 2).min(STUCK_FACTOR_MAX);
        }
        barks
    }

    fn patience(&self) -> Duration {
        self.stuck_after.saturating_mul(self.factor)
    }

    fn deadline(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + self.patience())
    }

    /// What waited was sent again.
    fn restart(&mut self) {
        self.waiting_since = None;
    }

    /// The client delivers.
    fn progress(&mut self) {
        self.factor = 1;
    }
}
