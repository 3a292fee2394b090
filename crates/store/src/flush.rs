//! Persists acknowledgements: one thread a queue_dir stores the cursors of all its queues in the index, flushes it
//! once for all of them, and then lets `truncate.rs` free what they have passed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{AtPath, IoFailure};
use crate::index::{ABOVE_RANGES_MAX, Index, QueueState};
use crate::queue::Shared;
use crate::truncate;

/// The persisting side of a queue_dir.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// None when the queue_dir is closed: a reader that lives on must not keep the index open.
    index: Mutex<Option<Arc<Index>>>,
    /// One flush at a time, so that none persists a state that another has passed.
    flushing: Mutex<()>,
    /// Whether the last flush failed.
    failing: AtomicBool,
    interval: Duration,
    acks_max: u64,
    queues: Mutex<Vec<Weak<Shared>>>,
    /// Something is to be persisted.
    pending: AtomicBool,
    /// It must not wait for the interval.
    urgent: AtomicBool,
    stop: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Flusher {
    pub(crate) fn new(index: Index, interval: Duration, acks_max: u64) -> Flusher {
        Flusher {
            index: Mutex::new(Some(Arc::new(index))),
            flushing: Mutex::new(()),
            failing: AtomicBool::new(false),
            interval,
            acks_max,
            queues: Mutex::default(),
            pending: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, IoFailure> {
        let flusher = Arc::clone(self);
        thread::Builder::new()
            .name("tidegate-flush".to_owned())
            .spawn(move || flusher.run())
            .at("start the flushing thread of", std::path::Path::new("index"))
    }

    pub(crate) fn index(&self) -> Option<Arc<Index>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn close_index(&self) {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(crate) fn add(&self, queue: &Arc<Shared>) {
        self.queues().push(Arc::downgrade(queue));
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Shared>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was acknowledged; `unflushed` acknowledgements of that queue wait.
    pub(crate) fn call(&self, unflushed: u64) {
        let begin = !self.pending.swap(true, Ordering::AcqRel);
        let hurry = unflushed >= self.acks_max && !self.urgent.swap(true, Ordering::AcqRel);
        if begin || hurry {
            self.notify();
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.notify();
    }

    fn notify(&self) {
        // Under the lock, so that the thread is either before its check or asleep.
        let _sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }

    fn run(&self) {
        loop {
            self.wait_until(|| self.pending.load(Ordering::Acquire), None);
            self.wait_until(|| self.urgent.load(Ordering::Acquire), Some(self.interval));
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.pending.store(false, Ordering::Release);
            self.urgent.store(false, Ordering::Release);
            self.flush_all();
        }
    }

    /// Sleeps until `ready`, or the time is over, or the thread is to stop.
    fn wait_until(&self, ready: impl Fn() -> bool, timeout: Option<Duration>) {
        let sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |(): &mut ()| !ready() && !self.stop.load(Ordering::Acquire);
        match timeout {
            None => drop(self.wake.wait_while(sleep, waiting).unwrap_or_else(PoisonError::into_inner)),
            Some(timeout) => {
                drop(
                    self.wake
                        .wait_timeout_while(sleep, timeout, waiting)
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
        }
    }

    fn flush_all(&self) {
        let mut queues = Vec::new();
        self.queues().retain(|queue| {
            queues.extend(queue.upgrade());
            queue.strong_count() > 0
        });
        queues.retain(|queue| queue.lock().unflushed > 0);
        // Logged, and tried again after the interval.
        let _ = self.flush(&queues, false);
    }

    /// Persists these queues, and with `release` for the last time: from then on the index belongs to whoever opens them
    /// next. Then frees what they have passed. An index that cannot be written never keeps disk space from being freed:
    /// the cost is redelivery, and the first segment bounds it.
    pub(crate) fn flush(&self, queues: &[Arc<Shared>], release: bool) -> Result<(), IoFailure> {
        let _one_at_a_time = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.index();
        let Some(index) = index.as_ref() else { return Ok(()) };
        let mut taken = Vec::new();
        let mut stored = Ok(());
        for queue in queues {
            let mut state = queue.lock();
            if state.released {
                continue;
            }
            state.released = release;
            drop(state);
            let (state, unflushed) = snapshot(queue);
            stored = stored.and(index.store(&queue.folder_name, &state));
            taken.push((queue, state.cursor, unflushed));
        }
        let flushed = stored.and_then(|()| index.flush());
        self.tell(&flushed);
        for (queue, cursor, unflushed) in taken {
            let mut state = queue.lock();
            if flushed.is_ok() {
                state.unflushed -= unflushed.min(state.unflushed);
            } else {
                // Tried again after the interval.
                self.pending.store(true, Ordering::Release);
            }
            drop(state);
            truncate::truncate(queue, crate::Seq::new(cursor));
        }
        flushed
    }
}

impl Flusher {
    /// Says when flushing begins to fail and when it works again, not each time in between.
    fn tell(&self, flushed: &Result<(), IoFailure>) {
        match (self.failing.swap(flushed.is_err(), Ordering::AcqRel), flushed) {
            (false, Err(error)) => {
                tracing::warn!(%error, "acknowledgements are not persisted; they may be delivered again after a crash");
            }
            (true, Ok(())) => tracing::info!("acknowledgements are persisted again"),
            _ => {}
        }
    }
}

/// What the index is to know of a queue, and how many acknowledgements that covers.
fn snapshot(queue: &Shared) -> (QueueState, u64) {
    let state = queue.lock();
    let range = |range: std::ops::Range<crate::Seq>| (range.start.get(), range.end.get());
    let snapshot = QueueState {
        uuid: *queue.home.uuid.as_bytes(),
        cursor: state.cursor().get(),
        above: state.acks.ranges().take(ABOVE_RANGES_MAX).map(range).collect(),
        durable: state.durable.get(),
        issued: state.end.get(),
        hint: state.hint,
        counters: state.counters,
        losses: state.losses.iter().cloned().map(range).collect(),
    };
    (snapshot, state.unflushed)
}
