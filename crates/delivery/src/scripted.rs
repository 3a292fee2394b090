//! A producer that does what a test says: outcomes by attempt, held reports, poisoned batches, a full client, a fatal
//! one. For tests of this crate and of those that use it; deterministic, no network, no clock but in [`Script::wait`].

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_store::Seq;

use crate::outcome::{Outcome, RetryKind};
use crate::produce::{Health, Outgoing, Producer, Refused, Report};
use crate::signal::Signal;

/// How long [`Script::wait`] waits before it gives up: far more than any test needs.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// One call of [`Producer::send`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The record.
    pub seq: Seq,
    /// Which attempt of this record it is, from 1.
    pub nth: u32,
    /// Which client made it, from 1.
    pub client: u32,
    /// How many others this client has in flight.
    pub in_flight: usize,
    /// The message's topic.
    pub topic: String,
    /// The message's key.
    pub key: Option<Vec<u8>>,
    /// The message's value.
    pub value: Vec<u8>,
    /// The message's headers, the identity first if it is sent.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The message's timestamp, if it is set.
    pub timestamp_ms: Option<i64>,
}

/// What the script does with an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Report this.
    Report(Outcome),
    /// Report nothing until [`Script::release`].
    Hold,
    /// Spoil all attempts that are reported together with this one: each is a suspect.
    Poison,
    /// Refuse it.
    Refuse(Refused),
}

type Plan = Box<dyn FnMut(&Attempt) -> Answer + Send>;

/// The test's side of all scripted producers made from it.
#[derive(Clone)]
pub struct Script {
    inner: Arc<Inner>,
}

struct Inner {
    stage: Mutex<Stage>,
    changed: Condvar,
}

struct Stage {
    plan: Plan,
    attempts: Vec<Attempt>,
    counts: BTreeMap<Seq, u32>,
    clients: u32,
    /// Of the present client: what is reported next, and whether it is poison.
    ready: Vec<(Attempt, Option<Outcome>)>,
    held: Vec<Attempt>,
    delivered: Vec<Attempt>,
    fatal: Option<Arc<str>>,
    health: Health,
    reports_purged: bool,
    signal: Option<Arc<Signal>>,
}

impl Script {
    /// A script that answers each attempt with what `plan` says.
    pub fn new(plan: impl FnMut(&Attempt) -> Answer + Send + 'static) -> Script {
        let stage = Stage {
            plan: Box::new(plan),
            attempts: Vec::new(),
            counts: BTreeMap::new(),
            clients: 0,
            ready: Vec::new(),
            held: Vec::new(),
            delivered: Vec::new(),
            fatal: None,
            health: Health { up: Some(true), problem: None },
            reports_purged: true,
            signal: None,
        };
        Script { inner: Arc::new(Inner { stage: Mutex::new(stage), changed: Condvar::new() }) }
    }

    /// A script that delivers everything.
    #[must_use]
    pub fn delivering() -> Script {
        Script::new(|_| Answer::Report(Outcome::Delivered))
    }

    /// A new client. What the one before had in flight is forgotten with it.
    #[must_use]
    pub fn producer(&self, signal: &Arc<Signal>) -> ScriptedProducer {
        let mut stage = self.stage();
        stage.clients += 1;
        stage.ready.clear();
        stage.held.clear();
        stage.fatal = None;
        stage.signal = Some(Arc::clone(signal));
        ScriptedProducer { script: self.clone(), client: stage.clients }
    }

    /// Every attempt so far, in order.
    #[must_use]
    pub fn attempts(&self) -> Vec<Attempt> {
        self.stage().attempts.clone()
    }

    /// What the target has, in the order of its log.
    #[must_use]
    pub fn delivered(&self) -> Vec<Attempt> {
        self.stage().delivered.clone()
    }

    /// The sequence numbers that are held, in the order of sending.
    #[must_use]
    pub fn held(&self) -> Vec<Seq> {
        self.stage().held.iter().map(|attempt| attempt.seq).collect()
    }

    /// Clients made so far.
    #[must_use]
    pub fn clients(&self) -> u32 {
        self.stage().clients
    }

    /// Reports held attempts, in this order.
    pub fn release(&self, seqs: &[Seq], outcome: &Outcome) {
        let mut stage = self.stage();
        for seq in seqs {
            if let Some(at) = stage.held.iter().position(|attempt| attempt.seq == *seq) {
                let attempt = stage.held.remove(at);
                stage.ready.push((attempt, Some(outcome.clone())));
            }
        }
        stage.poke();
    }

    /// From now on the plan is this one.
    pub fn replan(&self, plan: impl FnMut(&Attempt) -> Answer + Send + 'static) {
        self.stage().plan = Box::new(plan);
    }

    /// Breaks the present client.
    pub fn break_client(&self, reason: &str) {
        let mut stage = self.stage();
        stage.fatal = Some(reason.into());
        stage.poke();
    }

    /// From now on clients do not report what they are told to give up, as one that hangs.
    pub fn ignore_purges(&self) {
        self.stage().reports_purged = false;
    }

    /// Sets what is known about the connection.
    pub fn set_health(&self, health: Health) {
        let mut stage = self.stage();
        stage.health = health;
        stage.poke();
    }

    /// Waits until `condition` holds for the script. Returns whether it came to hold in time.
    #[must_use]
    pub fn wait(&self, condition: impl Fn(&Script) -> bool) -> bool {
        let mut waited = Duration::ZERO;
        while !condition(self) {
            if waited >= WAIT_MAX {
                return false;
            }
            // The condition takes the lock itself, so a change may come before this wait: look again soon.
            let step = Duration::from_millis(10);
            let stage = self.stage();
            drop(self.inner.changed.wait_timeout(stage, step).unwrap_or_else(PoisonError::into_inner));
            waited += step;
        }
        true
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.inner.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    fn poke(&self) {
        if let Some(signal) = &self.signal {
            signal.poke();
        }
    }

    fn report(&mut self, attempt: Attempt, outcome: Outcome) -> Report {
        let seq = attempt.seq;
        if outcome == Outcome::Delivered {
            self.delivered.push(attempt);
        }
        Report { seq, outcome }
    }
}

/// The drain's side of a [`Script`].
pub struct ScriptedProducer {
    script: Script,
    client: u32,
}

impl Producer for ScriptedProducer {
    fn send(&mut self, seq: Seq, outgoing: &Outgoing<'_>) -> Result<(), Refused> {
        let mut stage = self.script.stage();
        let attempt = Attempt {
            seq,
            nth: stage.counts.get(&seq).map_or(1, |count| count + 1),
            client: self.client,
            in_flight: stage.ready.len() + stage.held.len(),
            topic: outgoing.topic.to_owned(),
            key: outgoing.key.map(<[u8]>::to_vec),
            value: outgoing.value.to_vec(),
            headers: headers(outgoing),
            timestamp_ms: outgoing.timestamp_ms,
        };
        let answer = (stage.plan)(&attempt);
        stage.counts.insert(seq, attempt.nth);
        stage.attempts.push(attempt.clone());
        match answer {
            Answer::Report(outcome) => stage.ready.push((attempt, Some(outcome))),
            Answer::Poison => stage.ready.push((attempt, None)),
            Answer::Hold => stage.held.push(attempt),
            Answer::Refuse(refused) => {
                self.script.inner.changed.notify_all();
                return Err(refused);
            }
        }
        stage.poke();
        self.script.inner.changed.notify_all();
        Ok(())
    }

    fn take_reports(&mut self, reports: &mut Vec<Report>) {
        let mut stage = self.script.stage();
        let ready = std::mem::take(&mut stage.ready);
        let poisoned = ready.iter().any(|(_, outcome)| outcome.is_none());
        for (attempt, outcome) in ready {
            let outcome = match outcome {
                Some(outcome) if !poisoned => outcome,
                _ => Outcome::suspect("the batch has a record that is not acceptable"),
            };
            let report = stage.report(attempt, outcome);
            reports.push(report);
        }
        self.script.inner.changed.notify_all();
    }

    fn purge(&mut self) {
        let mut stage = self.script.stage();
        if !stage.reports_purged {
            return;
        }
        let held = std::mem::take(&mut stage.held);
        let purged = Outcome::retry(RetryKind::Unconfirmed, "purged");
        stage.ready.extend(held.into_iter().map(|attempt| (attempt, Some(purged.clone()))));
        stage.poke();
    }

    fn fatal(&self) -> Option<Arc<str>> {
        self.script.stage().fatal.clone()
    }

    fn health(&self) -> Health {
        self.script.stage().health.clone()
    }
}

fn headers(outgoing: &Outgoing<'_>) -> Vec<(String, Vec<u8>)> {
    let id = outgoing.id.map(|id| (crate::IDENTITY_HEADER.to_owned(), id.as_bytes().to_vec()));
    let own = outgoing.headers.iter().map(|header| (header.name.to_owned(), header.value.to_vec()));
    id.into_iter().chain(own).collect()
}
