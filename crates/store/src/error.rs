//! Errors, by what the caller can do about them. Each carries path and operation, or the limit and the figures.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What an input or output error asks of whoever runs the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// No descriptor is left, of the process (EMFILE) or of the machine (ENFILE).
    TooManyFiles,
    /// The user of the process may not (EACCES, EPERM).
    Permission,
    /// The file system is mounted read-only (EROFS), as some are after an error.
    ReadOnly,
    /// The disk, or the owner's share of it, is full (ENOSPC, EDQUOT).
    StorageFull,
    /// The medium does not give or take the bytes (EIO and its like).
    Medium,
    /// Anything else; the system's own text says what.
    Other,
}

impl Cause {
    /// What to do about it, to stand behind the system's text.
    fn advice(self) -> &'static str {
        match self {
            Cause::TooManyFiles => "; raise the limit of open files (ulimit -n, LimitNOFILE=)",
            Cause::Permission => "; let the user of this process read and write there",
            Cause::ReadOnly => "; mount the file system for writing, and see why it is not (dmesg)",
            Cause::StorageFull => "; free space on that file system",
            Cause::Medium => "; the disk may be failing (dmesg, smartctl)",
            Cause::Other => "",
        }
    }
}

/// An input or output error with where and while doing what.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} {}: {error}{}", path.display(), self.cause().advice())]
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

    /// What kind of trouble it is, and so what mends it.
    #[must_use]
    pub fn cause(&self) -> Cause {
        use rustix::io::Errno;
        let code = self.error.raw_os_error();
        let files = [Errno::MFILE, Errno::NFILE];
        match self.error.kind() {
            _ if files.iter().any(|errno| code == Some(errno.raw_os_error())) => Cause::TooManyFiles,
            _ if self.is_storage_full() => Cause::StorageFull,
            ErrorKind::PermissionDenied => Cause::Permission,
            ErrorKind::ReadOnlyFilesystem => Cause::ReadOnly,
            _ if self.is_of_the_medium() => Cause::Medium,
            _ => Cause::Other,
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
    #[error("{} is in use by {}; one process at a time may have a queue_dir open", path.display(), holder(*pid, host.as_deref()))]
    Locked {
        /// The queue_dir.
        path: PathBuf,
        /// The holder's process id, as it wrote it down itself; none where that cannot be read. In a container it is the
        /// container's own count.
        pid: Option<u32>,
        /// The holder's host name, likewise.
        host: Option<String>,
    },
    /// The queue_dir is on a file system across a network or in user space, whose locks and syncs the store cannot rely
    /// on. Use a local disk, or allow it with [`QueueDirOptions::network_file_system`](crate::QueueDirOptions).
    #[error(
        "{} is on {kind}: there a lock may not exclude another host and a sync may not reach a disk; use a local disk, or \
         allow it (QueueDirOptions::network_file_system) if one host alone uses the folder and the server syncs",
        path.display()
    )]
    NetworkFileSystem {
        /// The queue_dir, resolved.
        path: PathBuf,
        /// The file system: `NFS`, `SMB`, `FUSE`.
        kind: &'static str,
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

impl OpenError {
    /// What kind of trouble the system reported, if it was the system that refused.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        match self {
            OpenError::Io(failure) => Some(failure.cause()),
            _ => None,
        }
    }
}

/// The holder of a lock in words.
fn holder(pid: Option<u32>, host: Option<&str>) -> String {
    match (pid, host) {
        (Some(pid), Some(host)) => format!("process {pid} on {host}"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "another process".to_owned(),
    }
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

    /// What kind of trouble the system reported, if it was the system that refused.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        match self {
            AppendError::StorageFull(failure)
            | AppendError::Io(failure)
            | AppendError::DurabilityUnknown(failure) => Some(failure.cause()),
            _ => None,
        }
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

impl ReadError {
    /// What kind of trouble the system reported.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.0.cause()
    }
}
