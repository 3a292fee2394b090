//! What a bucket notification is, and where it goes: events and their JSON, rules, targets' names, and configuration.
//!
//! This crate is pure. It reads no file, no clock and no environment, opens no socket and starts no thread: callers hand
//! texts in and take values out. It knows nothing of queues and Kafka clients; those are other crates' work.
//!
//! # Guarantees
//!
//! - An [`Envelope`] keeps the sender's JSON byte for byte, but for insignificant white space.
//! - An [`Event`] is written as the reference writes it, byte for byte; its recorded messages are tests.
//! - No input makes it panic or take more than time and memory in proportion: bodies are scanned without recursion, and
//!   patterns match in at most the product of the lengths.
//! - One wrong target or rule never hides another, and every mistake names key, source, value and what to do. Secrets
//!   are masked in errors and in `Debug`.
//!
//! # From a body to its targets
//!
//! ```
//! use tidegate_notify::{Config, Envelope};
//!
//! let file = r#"
//!     [notify_kafka.primary]
//!     brokers = "10.0.0.1:9092"
//!     topic = "bucket-events"
//!     queue_dir = "/var/lib/tidegate"
//!
//!     [[rule]]
//!     bucket = "images"
//!     arn = "arn:minio:sqs::primary:kafka"
//!     events = ["put"]
//! "#;
//! let config = Config::parse(Some(file), std::iter::empty())?;
//! let body = br#"{"EventName":"s3:ObjectCreated:Put","Key":"images/a.jpg","Records":[{"eventVersion":"2.0"}]}"#;
//!
//! let event = Envelope::parse(body)?;
//! let targets = config.rules.matching(event.bucket(), event.object(), event.event_name());
//! assert_eq!(targets[0].as_str(), "primary");
//! assert_eq!(config.target(targets[0]).map(|target| target.topic.as_str()), Some("bucket-events"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Map
//!
//! | file | what is in it |
//! |---|---|
//! | `event.rs` | [`Event`]: what a Rust service publishes, and the record that it becomes |
//! | `envelope.rs` | [`Envelope`]: one event as it travels, from either side |
//! | `scan.rs`, `json.rs`, `time.rs` | checking and minifying JSON; writing it as Go does; the event time's text |
//! | `event_name.rs` | [`EventName`], [`EventSet`]: the names, compounds and aliases |
//! | `pattern.rs`, `rules.rs` | [`KeyPattern`], [`BucketPattern`]; [`Rule`], [`Rules`] and their matching |
//! | `arn.rs` | [`TargetId`] and [`Arn`] |
//! | `config.rs` | [`Config`]: targets, rules, and what is wrong with them |
//! | `config/keys.rs` | the schema: every key once, with variable, default, secrecy and help |
//! | `config/file.rs`, `config/rule_table.rs` | `tidegate.toml` |
//! | `config/environment.rs` | `MINIO_NOTIFY_KAFKA_*` |
//! | `config/setting.rs`, `config/values.rs`, `config/target.rs` | values as written, as types, and a target of them |
//! | `config/problem.rs`, `error.rs` | what can be wrong |

#![forbid(unsafe_code)]

mod arn;
pub mod config;
mod envelope;
pub mod error;
mod event;
mod event_name;
mod json;
mod nearest;
mod pattern;
mod rules;
mod scan;
mod time;

pub use arn::{Arn, TargetId};
pub use config::{Config, TargetConfig};
pub use envelope::Envelope;
pub use event::{Event, EventBuilder};
pub use event_name::{EventName, EventSet};
pub use pattern::{BucketPattern, KeyPattern};
pub use rules::{Mismatch, Rule, Rules};
