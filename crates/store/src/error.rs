//! Errors, by what the caller can do about them. Each carries path and operation, or the limit and the figures.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An input or output error with where and while doing what.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} {}: {error}", path.display())]
pub struct IoFailure {
    /// What was being done, as a verb: `write`, `sync`, `create`.
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said. Shared, since one failure answers every waiter of a group.
    pub error: Arc<io::Error>,
}

impl IoFailure {
    pub(crate) fn new(operation: &'static str, path: &Path, error: io::Error) -> IoFailure {
        IoFailure { operation, path: path.to_owned(), error: Arc::new(error) }
    }

    /// Whether a file stands where a new one was to be made.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.error.kind() == ErrorKind::AlreadyExists
    }

    /// Whether the medium does not give the bytes: an unreadable sector, a broken block, a file system that found its own
    /// checksums wrong. Everything else (no descriptors, no permission, no memory) is a state of the system.
    pub(crate) fn is_of_the_medium(&self) -> bool {
        use rustix::io::Errno;
        let medium = [Errno::IO, Errno::NODATA, Errno::BADMSG, Errno::UCLEAN, Errno::REMOTEIO, Errno::NXIO];
        match self.error.raw_os_error() {
            Some(code) => medium.iter().any(|errno| errno.raw_os_error() == code),
            // The simulated disk's EIO.
            None => self.error.kind() == ErrorKind::Other && self.error.get_ref().is_none(),
        }
    }

    /// Whether the disk, or the owner's share of it, is full.
    #[must_use]
    pub fn is_storage_full(&self) -> bool {
        matches!(
            self.error.kind(),
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::WriteZero
        )
    }
}

/// Names an operation on a path when it fails.
pub(crate) trait AtPath<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T, IoFailure>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T, IoFailure> {
        self.map_err(|error| IoFailure::new(operation, path, error))
    }
}

/// How often something is read before its bytes are given up: a medium that answers wrong once may answer right.
pub(crate) const READ_TRIES: u32 = 3;

/// Reads again, a few times, while the medium does not answer.
pub(crate) fn patiently<T>(mut read: impl FnMut() -> Result<T, IoFailure>) -> Result<T, IoFailure> {
    for _ in 1..READ_TRIES {
        match read() {
            Err(failure) if failure.is_of_the_medium() => {}
            result => return result,
        }
    }
    read()
}

/// Why a queue_dir or a queue could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another part of this one, has it open. Close that one, or use another directory.
    #[error("{} is in use by {holder}; one process at a time may have a queue_dir open", path.display())]
    Locked {
        /// The queue_dir.
        path: PathBuf,
        /// Who holds it, as it wrote down itself: process id and host.
        holder: String,
    },
    /// The same queue is open already in this process. Clone that handle.
    #[error("queue {name:?} is open already in this process; use a clone of its handle")]
    AlreadyOpen {
        /// The queue's name.
        name: String,
    },
    /// A name that no queue can have.
    #[error("queue name of {bytes} bytes: a name has 1 to {max} bytes")]
    BadName {
        /// Its length.
        bytes: usize,
        /// The longest that is taken.
        max: usize,
    },
    /// An option that is out of its range.
    #[error("{option} is {value}: {expected}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What is taken.
        expected: String,
    },
    /// The system refused something that opening cannot do without: the directory itself, the lock, listing it.
    #[error(transparent)]
    Io(#[from] IoFailure),
}

/// The limit that refused a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// `queue_limit`: records that are not acknowledged.
    QueueLimit {
        /// The setting.
        limit: u64,
        /// Records that wait now.
        queued: u64,
    },
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::QueueLimit { limit, queued } => {
                write!(
                    f,
                    "queue_limit is {limit} records and {queued} wait; raise it or wait until some are delivered"
                )
            }
        }
    }
}

/// Why a record was not accepted. The caller still has it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// A limit is reached: wait until records are acknowledged, or raise it.
    #[error("queue is full: {0}")]
    Full(Limit),
    /// The record is larger than `record_bytes_max`; it will never be taken.
    #[error("record of {bytes} bytes is larger than record_bytes_max, {max} bytes")]
    TooLarge {
        /// Bytes of the encoded record.
        bytes: usize,
        /// The setting.
        max: usize,
    },
    /// The disk is full: nothing of the record was kept. Appending works again when there is room.
    #[error("storage is full: {0}")]
    StorageFull(IoFailure),
    /// The record was not kept; the next one may be.
    #[error(transparent)]
    Io(IoFailure),
    /// The record was written and the sync failed: it may or may not survive power loss. Appending it again may make
    /// it arrive twice.
    #[error("durability is unknown: {0}")]
    DurabilityUnknown(IoFailure),
    /// The queue stopped writing after a second failed sync; reading and acknowledging go on. Mend the disk and open
    /// the queue again.
    #[error("queue has stopped writing: {first}")]
    Failed {
        /// The first reason.
        first: Arc<str>,
    },
    /// The queue was closed.
    #[error("queue is closed")]
    Closed,
    /// The buffer is full while a group is being written; only `try_append` says so. Wait for `Queue::room`.
    #[error("the write buffer is full")]
    Busy,
}

impl AppendError {
    /// Whether waiting alone may mend it: a limit was reached, or the disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, AppendError::Full(_) | AppendError::StorageFull(_))
    }
}

impl From<IoFailure> for AppendError {
    fn from(failure: IoFailure) -> AppendError {
        if failure.is_storage_full() { AppendError::StorageFull(failure) } else { AppendError::Io(failure) }
    }
}

/// Why a record could not be read now. Nothing is lost: read again later, from the same place.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct ReadError(#[from] pub IoFailure);
