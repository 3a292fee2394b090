//! Persists acknowledgements: one thread a queue_dir stores the cursors of all its queues in the index, flushes it
//! once for all of them, and then lets `truncate.rs` free what they have passed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{AtPath, IoFailure};
use crate::index::{Index, QueueState};
use crate::queue::Shared;
use crate::truncate;

/// The persisting side of a queue_dir.
#[derive(Debug)]
pub(crate) struct Flusher {
    index: Index,
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
            index,
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

    pub(crate) fn index(&self) -> &Index {
        &self.index
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
        self.flush(&queues);
    }

    /// Persists these queues, then frees what they have passed. An index that cannot be written never keeps disk space
    /// from being freed: the cost is redelivery, and the first segment bounds it.
    pub(crate) fn flush(&self, queues: &[Arc<Shared>]) {
        let mut taken = Vec::new();
        let mut stored = Ok(());
        for queue in queues {
            let (state, unflushed) = snapshot(queue);
            stored = stored.and(self.index.store(&queue.folder_name, &state));
            taken.push((queue, state.cursor, unflushed));
        }
        let flushed = stored.and_then(|()| self.index.flush());
        if let Err(error) = &flushed {
            tracing::warn!(%error, queues = queues.len(), "acknowledgements are not persisted; they may be delivered again after a crash");
        }
        for (queue, cursor, unflushed) in taken {
            let mut state = queue.lock();
            state.unflushed -= unflushed.min(state.unflushed);
            drop(state);
            truncate::truncate(queue, crate::Seq::new(cursor));
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
        above: state.acks.ranges().map(range).collect(),
        durable: state.durable.get(),
        issued: state.end.get(),
        hint: state.hint,
        counters: state.counters,
        losses: state.losses.iter().cloned().map(range).collect(),
    };
    (snapshot, state.unflushed)
}
