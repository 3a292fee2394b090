//! What a target is doing, for people and metrics: one state, since when, why, and counters.
//! The drain publishes it; everyone else reads copies.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a target is doing. Always one of these; none of them is silent about a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetState {
    /// The first client is being made.
    Starting,
    /// Records are in flight.
    Delivering,
    /// Everything readable is delivered.
    Idle,
    /// Something failed that goes away by itself.
    Backoff {
        /// When the next attempt begins; `None` if the client reconnects by itself.
        until: Option<Instant>,
        /// What failed.
        reason: Arc<str>,
    },
    /// Something an operator has to mend; tried again all the same.
    Blocked {
        /// What is to be mended.
        reason: Arc<str>,
    },
    /// Told to take nothing.
    Paused,
    /// No client can be made; tried again all the same.
    Failed {
        /// Why not.
        reason: Arc<str>,
    },
    /// The drain has ended.
    Stopped,
}

impl TargetState {
    /// The state in one lower-case word, as metrics and listings show it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            TargetState::Starting => "starting",
            TargetState::Delivering => "delivering",
            TargetState::Idle => "idle",
            TargetState::Backoff { .. } => "backoff",
            TargetState::Blocked { .. } => "blocked",
            TargetState::Paused => "paused",
            TargetState::Failed { .. } => "failed",
            TargetState::Stopped => "stopped",
        }
    }

    /// Why, for the states that have a reason.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            TargetState::Backoff { reason, .. }
            | TargetState::Blocked { reason }
            | TargetState::Failed { reason } => Some(reason),
            _ => None,
        }
    }

    /// Whether a change between the two is worth a log line: work coming and going is not.
    fn differs_for_people(&self, other: &TargetState) -> bool {
        let quiet = |state: &TargetState| matches!(state, TargetState::Delivering | TargetState::Idle);
        self.word() != other.word() && !(quiet(self) && quiet(other)) || self.reason() != other.reason()
    }
}

impl fmt::Display for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(reason) => write!(f, "{}: {reason}", self.word()),
            None => f.write_str(self.word()),
        }
    }
}

/// What a drain has done since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Records acknowledged because the target has them.
    pub delivered: u64,
    /// Records acknowledged because their dead letter is durable.
    pub dead_lettered: u64,
    /// Attempts after the first of a record.
    pub retried: u64,
    /// Of these, attempts whose predecessor may have been written, or was.
    pub possible_duplicates: u64,
    /// Records that the store no longer had when they were to be resent; neither delivered nor acknowledged here.
    pub vanished: u64,
    /// Clients made after the first.
    pub client_restarts: u64,
}

/// A copy of all that is known about a target at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStatus {
    /// What it is doing.
    pub state: TargetState,
    /// Since when.
    pub since: Instant,
    /// What failed last, and when; kept after it was mended.
    pub last_error: Option<(Arc<str>, Instant)>,
    /// What it has done.
    pub counters: Counters,
    /// Records sent without a report yet.
    pub in_flight: usize,
    /// Records taken from the queue and not acknowledged yet.
    pub unacknowledged: usize,
    /// Since when the oldest of these is the oldest.
    pub oldest_since: Option<Instant>,
}

/// Where the drain puts its status, and where others find it.
#[derive(Debug)]
pub(crate) struct Board {
    status: Mutex<TargetStatus>,
    changed: Condvar,
}

impl Board {
    pub(crate) fn new() -> Board {
        let status = TargetStatus {
            state: TargetState::Starting,
            since: Instant::now(),
            last_error: None,
            counters: Counters::default(),
            in_flight: 0,
            unacknowledged: 0,
            oldest_since: None,
        };
        Board { status: Mutex::new(status), changed: Condvar::new() }
    }

    pub(crate) fn read(&self) -> TargetStatus {
        self.lock().clone()
    }

    /// Changes the status. A state that people should hear of is logged here, once for each change.
    pub(crate) fn publish(&self, state: TargetState, change: impl FnOnce(&mut TargetStatus)) {
        let mut status = self.lock();
        let before = status.clone();
        if status.state != state {
            if status.state.word() != state.word() {
                status.since = Instant::now();
            }
            status.state = state;
        }
        change(&mut status);
        if *status == before {
            return;
        }
        let told = before.state.differs_for_people(&status.state).then(|| status.state.clone());
        self.changed.notify_all();
        drop(status);
        if let Some(state) = told {
            log_state(&state);
        }
    }

    /// Waits until `condition` holds, for at most `timeout`.
    pub(crate) fn wait(
        &self,
        timeout: Duration,
        mut condition: impl FnMut(&TargetStatus) -> bool,
    ) -> TargetStatus {
        let status = self.lock();
        let waited = self.changed.wait_timeout_while(status, timeout, |status| !condition(status));
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn lock(&self) -> MutexGuard<'_, TargetStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_state(state: &TargetState) {
    let reason = state.reason();
    match state {
        TargetState::Backoff { .. } | TargetState::Blocked { .. } | TargetState::Failed { .. } => {
            tracing::warn!(state = state.word(), reason, "target is not delivering");
        }
        _ => tracing::info!(state = state.word(), "target changed its state"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff(reason: &str) -> TargetState {
        TargetState::Backoff { until: None, reason: reason.into() }
    }

    #[test]
    fn since_moves_with_the_state_and_not_with_its_reason() {
        let board = Board::new();
        board.publish(backoff("one"), |_| {});
        let first = board.read().since;

        board.publish(backoff("two"), |_| {});
        assert_eq!(board.read().since, first);

        board.publish(TargetState::Idle, |_| {});
        assert!(board.read().since >= first);
        assert_eq!(board.read().state, TargetState::Idle);
    }

    #[test]
    fn people_hear_of_trouble_and_of_its_end_but_not_of_work_coming_and_going() {
        assert!(!TargetState::Idle.differs_for_people(&TargetState::Delivering));
        assert!(TargetState::Idle.differs_for_people(&backoff("down")));
        assert!(backoff("down").differs_for_people(&TargetState::Delivering));
        assert!(backoff("down").differs_for_people(&backoff("refused")));
        assert!(!backoff("down").differs_for_people(&backoff("down")));
    }

    #[test]
    fn a_waiter_sees_what_is_published() {
        let board = Arc::new(Board::new());
        let waiter = Arc::clone(&board);
        let waiting = std::thread::spawn(move || {
            waiter.wait(Duration::from_secs(20), |status| status.counters.delivered == 7).counters.delivered
        });

        board.publish(TargetState::Delivering, |status| status.counters.delivered = 7);

        assert_eq!(waiting.join().expect("waiting does not panic"), 7);
    }

    #[test]
    fn a_state_reads_as_a_word_and_a_reason() {
        assert_eq!(backoff("all brokers are down").to_string(), "backoff: all brokers are down");
        assert_eq!(TargetState::Idle.to_string(), "idle");
    }
}
