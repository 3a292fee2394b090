//! The engine: rules, and one queue and one drain a target. A target that does not work hinders no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_delivery::{Counters, TargetState, TargetStatus};
use tidegate_notify::{Arn, Config, Rules, TargetId};
use tidegate_store::QueueStatus;

use crate::publish::SendError;
use crate::target::{QueueDirs, Slot, Target};

/// A durable event queue with Kafka delivery. Cheap to clone; all clones are one engine.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rules: Rules,
    slots: BTreeMap<TargetId, Slot>,
    /// Broken targets whose identifier is none.
    nameless: Vec<(String, Arc<str>)>,
    unmatched: AtomicU64,
}

/// What an engine is doing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Every target that the configuration names and that is not switched off.
    pub targets: Vec<TargetReport>,
    /// Events that no rule matched since the engine was opened.
    pub unmatched: u64,
}

/// What one target is doing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TargetReport {
    /// Its ARN; its identifier if that makes no ARN.
    pub name: String,
    /// What it is doing, and why.
    pub state: TargetState,
    /// Its queue; none if it could not be opened.
    pub queue: Option<QueueStatus>,
    /// Its delivery; none if there is none.
    pub delivery: Option<TargetStatus>,
}

/// What an engine left behind.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Each target that worked: its ARN, what it delivered since the engine was opened, and how many events wait in
    /// its queue for the next start.
    pub targets: Vec<(Arn, Counters, u64)>,
}

impl Engine {
    /// Opens the queues of all targets, recovers them, and starts delivering. What is wrong with a target is logged, is
    /// in [`Engine::status`], and refuses what is published to it; the others work.
    ///
    /// When this returns, every event that was durable before is on its way to Kafka again.
    pub async fn open(config: Config) -> Engine {
        off_the_runtime(move || Engine::open_blocking(&config)).await
    }

    /// As [`Engine::open`], for callers without a runtime. Blocks on the disk.
    #[must_use]
    pub fn open_blocking(config: &Config) -> Engine {
        let dirs = QueueDirs::default();
        let mut nameless = Vec::new();
        // Side by side, so that a disk that is slow to answer keeps back its own targets only.
        let mut slots: BTreeMap<TargetId, Slot> = std::thread::scope(|scope| {
            let starting: Vec<_> = (config.targets.iter())
                .map(|target| (target, scope.spawn(|| Target::start(target, config.arn(&target.id), &dirs))))
                .collect();
            let started = starting.into_iter().map(|(target, thread)| {
                let started = thread.join().unwrap_or_else(|_| Err("starting it panicked".to_owned()));
                (target.id.clone(), slot(config.arn(&target.id), started))
            });
            started.collect()
        });
        for target in &config.broken {
            let reason = target.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            match target.id.parse::<TargetId>() {
                Ok(id) => drop(slots.insert(id.clone(), broken(config.arn(&id), reason))),
                Err(_) => nameless.push((target.id.clone(), reason.into())),
            }
        }
        Engine(Arc::new(Inner { rules: config.rules.clone(), slots, nameless, unmatched: AtomicU64::new(0) }))
    }

    /// The rules that say where an event goes.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// A target that works.
    ///
    /// # Errors
    /// [`SendError`] if there is none of this identifier, or it does not work.
    pub fn target(&self, id: &TargetId) -> Result<&Arc<Target>, SendError> {
        match self.0.slots.get(id) {
            Some(Slot::Working(target)) => Ok(target),
            Some(Slot::Broken { reason, .. }) => Err(SendError::Broken { reason: Arc::clone(reason) }),
            None => {
                let known = self.0.slots.keys().map(TargetId::as_str).collect::<Vec<_>>().join(", ");
                Err(SendError::Unknown { id: id.to_string(), known })
            }
        }
    }

    /// The targets that work, by identifier.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.0.slots.values().filter_map(|slot| match slot {
            Slot::Working(target) => Some(target),
            Slot::Broken { .. } => None,
        })
    }

    pub(crate) fn slot(&self, id: &TargetId) -> Option<&Slot> {
        self.0.slots.get(id)
    }

    pub(crate) fn count_unmatched(&self) -> &AtomicU64 {
        &self.0.unmatched
    }

    /// What every target is doing.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let failed = |name: String, reason: &Arc<str>| TargetReport {
            name,
            state: TargetState::Failed { reason: Arc::clone(reason) },
            queue: None,
            delivery: None,
        };
        let mut targets: Vec<TargetReport> = (self.0.slots.values())
            .map(|slot| match slot {
                Slot::Working(target) => report(target),
                Slot::Broken { arn, reason } => failed(arn.to_string(), reason),
            })
            .collect();
        targets.extend(self.0.nameless.iter().map(|(id, reason)| failed(id.clone(), reason)));
        EngineStatus { targets, unmatched: self.0.unmatched.load(Ordering::Relaxed) }
    }

    /// Stops delivering, after at most `grace` for what is in flight, and closes the queues, whoever else has a clone:
    /// what is published from then on is refused. What is not delivered stays on disk for the next open.
    ///
    /// When this returns, all that was accepted is durable, and the queue_dirs may be opened again as soon as the last
    /// clone is dropped.
    pub async fn shutdown(self, grace: Duration) -> ShutdownReport {
        off_the_runtime(move || self.shutdown_blocking(grace)).await
    }

    /// As [`Engine::shutdown`], for callers without a runtime.
    #[must_use]
    pub fn shutdown_blocking(self, grace: Duration) -> ShutdownReport {
        // Side by side, so that a target that uses up its grace does not take that of the others.
        std::thread::scope(|scope| {
            for target in self.targets() {
                scope.spawn(move || target.shutdown(grace));
            }
        });
        ShutdownReport { targets: self.targets().map(|target| left_behind(target)).collect() }
    }
}

/// Runs what blocks on a thread for that. A panic in it goes on here.
async fn off_the_runtime<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn left_behind(target: &Target) -> (Arn, Counters, u64) {
    let (arn, counters) = (target.arn().clone(), target.delivery().counters);
    let waiting = target.queue().status().queued;
    tracing::info!(%arn, delivered = counters.delivered, waiting, "target stopped");
    (arn, counters, waiting)
}

fn slot(arn: Arn, started: Result<Target, String>) -> Slot {
    match started {
        Ok(target) => Slot::Working(Arc::new(target)),
        Err(reason) => broken(arn, reason),
    }
}

fn broken(arn: Arn, reason: String) -> Slot {
    tracing::error!(%arn, %reason, "the target does not work; what is published to it is refused");
    Slot::Broken { arn, reason: reason.into() }
}

fn report(target: &Target) -> TargetReport {
    let delivery = target.delivery();
    TargetReport {
        name: target.arn().to_string(),
        state: delivery.state.clone(),
        queue: Some(target.queue().status()),
        delivery: Some(delivery),
    }
}
