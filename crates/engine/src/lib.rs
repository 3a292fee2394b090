//! A durable event queue with Kafka delivery, to embed in a Rust service: what [`Engine::publish`] has accepted is on
//! disk and reaches Kafka at least once, whatever crashes, fills up, rots or is unplugged in between.
//!
//! It does the job of an object store's Kafka notification target. It is not a broker, not a stream processor and not
//! exactly-once: a consumer may see an event twice, and can tell by the header `tidegate-id`.
//!
//! # What it guarantees
//!
//! - **At least once**: an event in [`Published::accepted`] was synced to disk before the answer.
//! - **Order**: events of one key (`bucket/object`) reach their partition in the order in which they were accepted.
//! - **Isolation**: a target that is slow, full or broken hinders neither the others nor the caller.
//! - **No silence**: whatever is refused, retried, rejected or lost has a reason, a counter and a `tracing` event.
//!
//! # Example
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate::{Config, Engine, Event, EventName};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::parse(Some(r#"
//!     [notify_kafka.primary]
//!     brokers = "127.0.0.1:9092"
//!     topic = "bucket-events"
//!     queue_dir = "/var/lib/my-service/events"
//!     [[rule]]
//!     bucket = "*"
//!     arn = "arn:minio:sqs::primary:kafka"
//! "#), std::iter::empty())?;
//! let engine = Engine::open(config).await;
//!
//! let event = Event::builder(EventName::ObjectCreatedPut, "images", "cat.jpg", 1_767_225_600_000).build()?;
//! let published = engine.publish(&event).await;
//! assert!(published.is_complete(), "{:?}", published.refused);
//!
//! engine.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | file | what it owns |
//! |---|---|
//! | `engine.rs` | [`Engine`]: opening, status, shutdown |
//! | `publish.rs` | matching, one record a target, the answer |
//! | `target.rs` | one target: its queue, its drain, and what its configuration means to them |
//! | `load.rs` | reading `tidegate.toml`, the environment and secrets |
//!
//! Below it: `tidegate_store` (the queue), `tidegate_delivery` (from the queue to Kafka), `tidegate_notify` (events,
//! rules, configuration).

#![forbid(unsafe_code)]

/// The README's code is compiled with the examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

mod engine;
mod load;
mod publish;
mod target;

pub use engine::{Engine, EngineStatus, ShutdownReport, TargetReport};
pub use load::{LoadError, load_config};
pub use publish::{Accepted, Published, Refused, SendError};
pub use target::Target;

pub use tidegate_delivery as delivery;
pub use tidegate_notify::{self as notify, Arn, Config, Envelope, Event, EventName, TargetId};
pub use tidegate_store::{self as store, Record, Seq};
