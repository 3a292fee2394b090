//! A durable queue on disk: records go in, are durable when the ticket says so, come out in order, and are freed when
//! they are acknowledged. Built for one job: to keep events until somebody else has them for certain.
//!
//! It is a segmented log with group commit, exact recovery and acknowledgement in any order. It is not a database, not a
//! stream with many consumers, and not a cache: it knows no event, no Kafka, no async runtime and no configuration file.
//!
//! # What it guarantees
//!
//! - A record whose ticket has resolved under [`Durability::Synced`] is returned by a reader after any crash or power
//!   loss, until it is acknowledged; or it is reported as lost, with its range, if the disk itself destroyed it.
//! - Records are returned in the order in which appends returned, each once per pass of a reader.
//! - A failed append leaves nothing behind, and its sequence number is not used again while the queue is open.
//! - Opening never fails for damage: it reports and goes on. Reading, acknowledging and freeing need no free space.
//! - Memory does not grow with the backlog, and opening reads the outlines of all segments and the records of one.
//!
//! # The journey
//!
//! ```text
//! append -> commit -> read -> ack -> truncate
//! start <= cursor <= durable <= end        (all are "next" sequence numbers, ranges half-open)
//! ```
//!
//! `end` moves in append, `durable` in commit, `cursor` in ack, `start` in truncate. The line is asserted after every
//! move in debug builds, and [`Queue::status`] shows it.
//!
//! # Example
//!
//! ```
//! use tidegate_store::{Durability, QueueDir, QueueDirOptions, QueueOptions, Record};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let dir = QueueDir::open(path, QueueDirOptions::default())?;
//! let queue = dir.queue("primary", QueueOptions::default())?;
//!
//! let record = Record { key: Some(b"bucket/key"), value: b"{}", ..Record::default() };
//! let seq = queue.append(&record, Durability::Synced)?.wait()?; // durable from here on
//!
//! let mut reader = queue.reader();
//! while let Some(entry) = reader.next()? {
//!     assert_eq!(entry.record()?.value, b"{}"); // hand it on; when it has arrived:
//!     queue.ack(entry.seq..entry.seq.next());
//! }
//! assert_eq!(queue.status().cursor, seq.next());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Map
//!
//! | file | what it owns |
//! |---|---|
//! | `queue_dir.rs`, `queue.rs` | the public handles; the queue's moving state |
//! | `append.rs` | encoding, the claim, tickets |
//! | `commit.rs` | the committing thread: one write and one sync for all who wait |
//! | `read.rs` | records in order; damage reported and passed over |
//! | `cursor.rs`, `ranges.rs`, `flush.rs` | acknowledged ranges; persisting them |
//! | `truncate.rs` | freeing what is acknowledged |
//! | `recover.rs` | from what stands on the disk to a queue that goes on |
//! | `segment.rs`, `frame.rs`, `record.rs`, `scan.rs` | the format; `docs/format.md` describes every byte |
//! | `index.rs` | the advisory index |
//! | `disk.rs`, `sim.rs` | the seam to the file system; the disk that forgets |
//! | `file_system.rs` | which file systems a queue_dir may be on |
//! | `inspect.rs` | looking from outside |

mod append;
mod commit;
mod cursor;
mod disk;
mod error;
mod file_system;
mod flush;
mod frame;
mod index;
pub mod inspect;
mod queue;
mod queue_dir;
mod ranges;
mod read;
mod record;
mod recover;
mod scan;
mod segment;
mod seq;
#[cfg(feature = "sim")]
pub mod sim;
mod truncate;

pub use append::{Room, Ticket};
pub use disk::{Access, Disk, EntryKind, Handle, IndexFile, RealDisk};
pub use error::{AppendError, Cause, IoFailure, Limit, OpenError, ReadError};
pub use index::Counters;
pub use queue::{Durability, Queue, QueueOptions, QueueStatus};
pub use queue_dir::{QueueDir, QueueDirOptions};
pub use read::{Entry, Reader};
pub use record::{DecodeError, Header, Record};
pub use recover::RecoveryReport;
pub use seq::Seq;
