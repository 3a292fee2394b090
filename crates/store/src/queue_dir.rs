//! A queue_dir: one lock, one index, one folder for each queue.
//!
//! Invariant: whoever has a [`QueueDir`] is the only one, in this and every other process on the machine.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use uuid::Uuid;

use crate::Seq;
use crate::disk::{Disk, Handle, RealDisk};
use crate::error::{AtPath, OpenError};
use crate::file_system::FileSystem;
use crate::flush::Flusher;
use crate::index::Index;
use crate::queue::{Doing, Queue, QueueOptions, Shared, State};
use crate::recover::{Recovered, recover};
use crate::segment::{Home, NAME_BYTES_MAX, folder_name};
use crate::truncate::truncate;

/// How a queue_dir behaves. Every field has a safe default.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct QueueDirOptions {
    /// Acknowledgements are persisted at the latest after this time. Default 100 ms.
    ///
    /// Bound: after a crash (`kill -9` or power loss) of one queue at most so many records are delivered again as were
    /// acknowledged within this time, or [`index_flush_acks`](QueueDirOptions::index_flush_acks) if those are fewer; and
    /// those that were acknowledged while the flush itself ran. If the index is lost too, the watermarks in the log
    /// count: then everything above the lowest record that was not acknowledged 50 ms before, or when the last group
    /// was written. An index that cannot be written takes these bounds away, never the queue: space is freed all the
    /// same, and what was freed is not delivered again.
    pub index_flush_interval: Duration,
    /// Acknowledgements are persisted at the latest after so many records of one queue. Default 10 000. What it bounds:
    /// see [`index_flush_interval`](QueueDirOptions::index_flush_interval). Of records that are acknowledged out of
    /// order, the lowest 65 536 ranges are persisted.
    pub index_flush_acks: u64,
    /// Whether the directory may be on NFS, SMB, FUSE or another file system across a network. Default false: there a
    /// lock may not exclude another host, and a sync is the server's promise.
    pub network_file_system: bool,
}

impl Default for QueueDirOptions {
    fn default() -> QueueDirOptions {
        QueueDirOptions {
            index_flush_interval: Duration::from_millis(100),
            index_flush_acks: 10_000,
            network_file_system: false,
        }
    }
}

/// An open queue_dir. Cheap to clone; lock and index are released when it and all its queues are closed.
#[derive(Debug, Clone)]
pub struct QueueDir(Arc<DirInner>);

#[derive(Debug)]
pub(crate) struct DirInner {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    flusher: Arc<Flusher>,
    thread: Mutex<Option<JoinHandle<()>>>,
    queues: Mutex<Vec<Weak<Shared>>>,
    index_note: Option<String>,
    /// Last, so that the lock is the last to go.
    _lock: Handle,
}

impl QueueDir {
    /// Opens `path`, making it if it is not there. When this returns, the directory and its lock exist. Symbolic links in
    /// `path` are resolved once, here: changing them later moves nothing.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if it is open elsewhere, [`OpenError::NetworkFileSystem`] if it is on one and that is not
    /// allowed, [`OpenError::Io`] if the system refuses the directory or the lock.
    /// A broken index is no error: it is set aside.
    pub fn open(path: impl AsRef<Path>, options: QueueDirOptions) -> Result<QueueDir, OpenError> {
        Self::open_on(Arc::new(RealDisk), path.as_ref(), &options)
    }

    /// As [`QueueDir::open`], on a disk of the caller's choice.
    ///
    /// # Errors
    /// As [`QueueDir::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        options: &QueueDirOptions,
    ) -> Result<QueueDir, OpenError> {
        disk.create_dir_all(path).at("create", path)?;
        let path = disk.resolve(path).at("resolve", path)?;
        let path = path.as_path();
        check_file_system(&*disk, path, options.network_file_system)?;
        let lock_path = path.join("LOCK");
        let lock = disk.lock(&lock_path, &holder()).at("lock", &lock_path)?;
        let lock = lock.map_err(|text| locked(path, &text))?;
        let (index, index_note) = Index::open(&disk, &path.join("index.sled"))?;
        disk.sync_dir(path).at("sync", path)?;
        if let Some(reason) = &index_note {
            tracing::warn!(queue_dir = %path.display(), %reason, "the index does not open; a new one is made");
        }
        let flusher = Arc::new(Flusher::new(index, options.index_flush_interval, options.index_flush_acks));
        let thread = Mutex::new(Some(flusher.start()?));
        let path = path.to_owned();
        Ok(QueueDir(Arc::new(DirInner {
            path,
            disk,
            flusher,
            thread,
            queues: Mutex::default(),
            index_note,
            _lock: lock,
        })))
    }

    /// The directory, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Why the index was replaced when the directory was opened, if it was.
    #[must_use]
    pub fn index_note(&self) -> Option<&str> {
        self.0.index_note.as_deref()
    }

    /// Opens the queue of this name, making it if it is not there, and recovers it. When this returns, everything that
    /// was acknowledged as durable before is readable again, or was reported as lost.
    ///
    /// # Errors
    /// [`OpenError`]: the name or an option is out of range, the queue is open already, or the system refuses to list
    /// its folder. Damage is no error; see [`Queue::recovery`].
    pub fn queue(&self, name: &str, options: QueueOptions) -> Result<Queue, OpenError> {
        options.check()?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(OpenError::BadName { bytes: name.len(), max: NAME_BYTES_MAX });
        }
        let dir = &self.0;
        let mut open = dir.queues();
        open.retain(|queue| queue.strong_count() > 0);
        if open.iter().filter_map(Weak::upgrade).any(|queue| queue.home.name == name) {
            return Err(OpenError::AlreadyOpen { name: name.to_owned() });
        }
        let folder_name = folder_name(name);
        let folder = dir.path.join(&folder_name);
        dir.disk.create_dir_all(&folder).at("create", &folder)?;
        dir.disk.sync_dir(&dir.path).at("sync", &dir.path)?;
        let mut home =
            Home { disk: Arc::clone(&dir.disk), folder, name: name.to_owned(), uuid: Uuid::new_v4() };
        let recovered =
            recover(&home, dir.flusher.index().map_or(Ok(None), |index| index.load(&folder_name)))?;
        home.uuid = recovered.uuid;
        let shared = Arc::new(shared(home, folder_name, options, &recovered, Arc::clone(&dir.flusher)));
        dir.flusher.add(&shared);
        open.push(Arc::downgrade(&shared));
        drop(open);
        let cursor = shared.lock().cursor();
        truncate(&shared, cursor);
        Queue::start(shared, recovered, Arc::clone(dir))
    }
}

impl DirInner {
    fn queues(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue is closed: its last acknowledgements are persisted, and its name is free.
    pub(crate) fn release(&self, queue: &Arc<Shared>) {
        // What it says when it fails was logged; the cost is redelivery.
        let _ = self.flusher.flush(std::slice::from_ref(queue), true);
        self.queues().retain(|open| !std::ptr::eq(open.as_ptr(), Arc::as_ptr(queue)));
    }
}

impl Drop for DirInner {
    fn drop(&mut self) {
        self.flusher.stop();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // If it panicked, that was said when it happened; the cost is redelivery.
            let _ = thread.join();
        }
        self.flusher.close_index();
    }
}

fn shared(
    home: Home,
    folder_name: String,
    options: QueueOptions,
    recovered: &Recovered,
    flusher: Arc<Flusher>,
) -> Shared {
    let remembered = &recovered.remembered;
    let state = State {
        acks: recovered.acks.clone(),
        durable: recovered.durable.max(recovered.acks.prefix()).min(recovered.end),
        readable: recovered.end,
        end: recovered.end,
        segments: recovered.segments.clone(),
        counters: remembered.counters,
        losses: remembered
            .losses
            .iter()
            .map(|(from, to)| Seq::new(*from)..Seq::new(*to))
            .collect::<VecDeque<_>>(),
        hint: recovered.hint,
        unavailable: recovered.unavailable.clone(),
        group: crate::append::Group::default(),
        committer: Doing::Working,
        failed: None,
        closed: false,
        unflushed: 0,
        released: false,
    };
    state.check();
    Shared {
        home,
        options,
        state: Mutex::new(state),
        work: Condvar::new(),
        room: Condvar::new(),
        readers: Mutex::default(),
        flusher,
        folder_name,
    }
}

/// Refuses a file system that cannot keep what the store promises, unless that is allowed.
fn check_file_system(disk: &dyn Disk, path: &Path, network_allowed: bool) -> Result<(), OpenError> {
    match FileSystem::of(disk.file_system(path).at("ask for the file system of", path)?) {
        FileSystem::Local => {}
        FileSystem::Memory => {
            tracing::warn!(queue_dir = %path.display(), "the queue_dir is in memory: it does not survive a reboot");
        }
        FileSystem::Network(kind) if network_allowed => {
            tracing::warn!(queue_dir = %path.display(), kind, "the queue_dir is on a network file system, as allowed");
        }
        FileSystem::Network(kind) => {
            return Err(OpenError::NetworkFileSystem { path: path.to_owned(), kind });
        }
    }
    Ok(())
}

/// The lock is held; its text says by whom. The kernel's lock decided already, so any text will do.
fn locked(path: &Path, text: &str) -> OpenError {
    let (pid, host) = text
        .strip_prefix("process ")
        .and_then(|rest| rest.split_once(" on "))
        .and_then(|(pid, host)| Some((pid.parse().ok()?, host)))
        .unzip();
    OpenError::Locked { path: path.to_owned(), pid, host: host.map(str::to_owned) }
}

/// Who we are, for the text in the lock file.
fn holder() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} on {host}", std::process::id())
}
