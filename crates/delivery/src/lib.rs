//! From a durable queue to Kafka: at least once, in the order of each key, through any outage.
//!
//! A [`Drain`] is one thread. It takes records from a [`tidegate_store::Queue`] as its window allows, hands them to a
//! [`Producer`], takes delivery reports in any order, and acknowledges in the queue what the target has. The queue's
//! disk is the only memory that matters: what is not acknowledged is sent again, by this drain or by the next.
//!
//! # What it is not
//!
//! It knows no events and no rules, reads no configuration file and has no async runtime. It keeps no record in memory
//! beyond what the client buffers.
//!
//! # Guarantees
//!
//! - A record is acknowledged only when the target has confirmed it, or when its dead letter is durable.
//! - After any failure, restart or crash, the last write of each record of a key comes after those before it: a record
//!   may arrive twice, but no key ends with an older record than it should.
//! - One bad record never stops the others: what fails a batch as a whole is resent in smaller groups, until the bad
//!   record fails alone and becomes a dead letter.
//! - Nothing is given up for an outage, a missing topic or a missing permission: it is tried again for ever, with a
//!   growing delay, and the [`TargetState`] says why.
//! - At most one window ([`WindowLimits`]) is in flight, so memory does not grow with the backlog.
//! - [`Drain::shutdown`] ends within its grace period and about a second, with all brokers down too.
//!
//! # Example
//!
//! A queue, a Kafka cluster inside this process, and a drain between them:
//!
//! ```
//! use std::time::Duration;
//! use tidegate_delivery::kafka::{KafkaProducer, KafkaSettings, embedded::EmbeddedKafka};
//! use tidegate_delivery::{Drain, DrainSettings};
//! use tidegate_store::{Durability, QueueDir, QueueDirOptions, QueueOptions, Record};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let queues = QueueDir::open(folder.path(), QueueDirOptions::default())?;
//! let queue = queues.queue("primary", QueueOptions::default())?;
//! queue.append(&Record { key: Some(b"images/a.jpg"), value: b"{}", ..Record::default() }, Durability::Synced)?.wait()?;
//!
//! let cluster = EmbeddedKafka::start(1, &[("events", 4)])?;
//! let settings = KafkaSettings::new([cluster.bootstrap_servers()]);
//! let connect = Box::new(move |signal: &_| Ok(Box::new(KafkaProducer::connect(&settings, signal)?) as _));
//! let drain = Drain::start(queue, DrainSettings::new("primary", "events"), connect, None)?;
//!
//! let status = drain.wait(Duration::from_secs(20), |status| status.counters.delivered == 1);
//! assert_eq!(status.counters.delivered, 1);
//! assert_eq!(drain.shutdown(Duration::from_secs(5)).unacknowledged, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | module | what it owns |
//! |---|---|
//! | `drain` | the handle and settings; `drain/cycle` the loop, `drain/flight` what is in flight |
//! | `window` | which records are in flight, what may be acknowledged, what must be resent (pure) |
//! | `backoff` | how long to wait (pure) |
//! | `outcome` | what became of an attempt, by what follows from it |
//! | `produce` | the seam to a client: [`Producer`] |
//! | [`kafka`] | the Kafka client, its settings, the embedded cluster, a reader |
//! | [`scripted`] | a client that does what a test says |
//! | `dead_letter` | where rejected records go |
//! | `state` | what a target is doing, for people |
//! | `signal` | what the drain waits on |

#![forbid(unsafe_code)]

mod backoff;
mod dead_letter;
mod drain;
pub mod kafka;
mod outcome;
mod produce;
pub mod scripted;
mod signal;
mod state;
mod window;

pub use backoff::BackoffLimits;
pub use dead_letter::{
    ATTEMPTS_HEADER, FIRST_FAILURE_HEADER, LAST_FAILURE_HEADER, OpenDeadLetters, REASON_HEADER, SEQ_HEADER,
};
pub use drain::{Connect, Drain, DrainSettings, DrainSummary, Timestamp};
pub use outcome::{Outcome, RetryKind};
pub use produce::{Health, IDENTITY_HEADER, Outgoing, Problem, Producer, Refused, Report};
pub use signal::Signal;
pub use state::{Counters, TargetState, TargetStatus};
pub use window::WindowLimits;
