//! The drain of one target: a thread that moves records from a queue to a client and acknowledges them.
//! This file is its handle and settings; `drain/cycle.rs` is the loop, `drain/flight.rs` what is in flight.

mod cycle;
mod flight;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_store::Queue;

use crate::backoff::BackoffLimits;
use crate::dead_letter::OpenDeadLetters;
use crate::produce::Producer;
use crate::signal::Signal;
use crate::state::{Board, Counters, TargetState, TargetStatus};
use crate::window::WindowLimits;

/// The longest grace period that means anything; a larger one is this.
const GRACE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Which time a message carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Timestamp {
    /// The time of sending. An event that waited longer than the topic keeps its messages would be deleted on arrival
    /// if it carried its own time.
    #[default]
    Sending,
    /// The time of the event.
    Event,
}

/// How a drain works. [`DrainSettings::new`] has the defaults.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DrainSettings {
    /// The target's name, for logs.
    pub target: String,
    /// The topic of records that do not name their own.
    pub topic: String,
    /// How much may be in flight.
    pub window: WindowLimits,
    /// How long to wait between attempts.
    pub backoff: BackoffLimits,
    /// How long the oldest record may be in flight while a broker is up before the client is replaced. Default 120 s:
    /// four times the 30 s that a broker has to answer by default.
    pub stuck_after: Duration,
    /// Whether messages carry the identity header. Default true; without it, and without headers of the record,
    /// messages are bare.
    pub identity_header: bool,
    /// Which time messages carry. Default the time of sending.
    pub timestamp: Timestamp,
    /// Attempts after which a record that fails alone, and for no reason that the target states, becomes a dead
    /// letter. Default `None`: it is tried for ever, and holds the queue. Nothing else is ever given up.
    pub attempts_max: Option<u32>,
}

impl DrainSettings {
    /// The defaults, for a target and its topic.
    #[must_use]
    pub fn new(target: impl Into<String>, topic: impl Into<String>) -> DrainSettings {
        DrainSettings {
            target: target.into(),
            topic: topic.into(),
            window: WindowLimits::default(),
            backoff: BackoffLimits::default(),
            stuck_after: Duration::from_secs(120),
            identity_header: true,
            timestamp: Timestamp::default(),
            attempts_max: None,
        }
    }
}

/// Makes a client. Called in the drain's thread: at the start, and again whenever a client is of no more use. The
/// client pokes the signal that it is given.
pub type Connect =
    Box<dyn FnMut(&Arc<Signal>) -> Result<Box<dyn Producer>, Box<dyn Error + Send + Sync>> + Send>;

/// What a drain leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainSummary {
    /// What it did.
    pub counters: Counters,
    /// Records that were in flight or failed at the end. They are in the queue and will be sent again.
    pub unacknowledged: usize,
}

/// What the handle tells the thread.
#[derive(Debug, Default)]
struct Orders {
    /// Set once: until when what is in flight may still be reported.
    stop_by: Mutex<Option<Instant>>,
    paused: AtomicBool,
}

impl Orders {
    fn stop_by(&self) -> Option<Instant> {
        *self.stop_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running drain. Dropping it stops it without a grace period; what is not acknowledged stays in the queue.
#[derive(Debug)]
pub struct Drain {
    board: Arc<Board>,
    signal: Arc<Signal>,
    orders: Arc<Orders>,
    thread: Mutex<Option<JoinHandle<DrainSummary>>>,
}

impl Drain {
    /// Starts to drain `queue`. There must be no other drain of it.
    ///
    /// `connect` makes the client; `dead_letters` opens the queue for records that the target rejects. Without one,
    /// the first rejected record holds the queue.
    ///
    /// # Errors
    /// If the system gives no thread. A client that cannot be made is no error here: it is the target's state, and
    /// tried again.
    pub fn start(
        queue: Queue,
        settings: DrainSettings,
        connect: Connect,
        dead_letters: Option<OpenDeadLetters>,
    ) -> io::Result<Drain> {
        let (board, signal) = (Arc::new(Board::new()), Arc::new(Signal::default()));
        let orders = Arc::new(Orders::default());
        let wake = Arc::clone(&signal);
        queue.on_readable(Arc::new(move || wake.poke()));
        let name = settings.target.clone();
        let cycle = cycle::Cycle::new(cycle::Parts {
            queue,
            settings: Arc::new(settings),
            connect,
            dead_letters,
            board: Arc::clone(&board),
            signal: Arc::clone(&signal),
            orders: Arc::clone(&orders),
        });
        let at_end = EndOfThread(Arc::clone(&board));
        let thread = std::thread::Builder::new().name(format!("drain {name}")).spawn(move || {
            let _span = tracing::info_span!("drain", target_name = %name).entered();
            let _at_end = at_end;
            cycle.run()
        })?;
        Ok(Drain { board, signal, orders, thread: Mutex::new(Some(thread)) })
    }

    /// What the target is doing.
    #[must_use]
    pub fn status(&self) -> TargetStatus {
        self.board.read()
    }

    /// Waits until `condition` holds for the status, for at most `timeout`, and returns the status.
    pub fn wait(&self, timeout: Duration, condition: impl FnMut(&TargetStatus) -> bool) -> TargetStatus {
        self.board.wait(timeout, condition)
    }

    /// Takes nothing more until [`resume`](Drain::resume); what is in flight is still reported.
    pub fn pause(&self) {
        self.orders.paused.store(true, Ordering::Release);
        self.signal.poke();
    }

    /// Ends a [`pause`](Drain::pause).
    pub fn resume(&self) {
        self.orders.paused.store(false, Ordering::Release);
        self.signal.poke();
    }

    /// Takes nothing more, waits at most `grace` for what is in flight, acknowledges what was delivered, and ends.
    /// Blocks for at most `grace` (a day, if it is more) and about a second in which the client gives up the rest. A
    /// second call says what the first left.
    pub fn shutdown(&self, grace: Duration) -> DrainSummary {
        self.stop(grace).unwrap_or_else(|| {
            // It has ended before, or its thread panicked; nothing that was not acknowledged is lost.
            let TargetStatus { counters, unacknowledged, .. } = self.status();
            DrainSummary { counters, unacknowledged }
        })
    }

    fn stop(&self, grace: Duration) -> Option<DrainSummary> {
        let stop_by = Instant::now() + grace.min(GRACE_MAX);
        self.orders.stop_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(stop_by);
        self.signal.poke();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread?.join().ok()
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Sees to it that no drain ends without the state saying so.
struct EndOfThread(Arc<Board>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        let state = if std::thread::panicking() {
            TargetState::Failed { reason: "the drain's thread panicked; restart the target".into() }
        } else {
            TargetState::Stopped
        };
        self.0.publish(state, |_| {});
    }
}
