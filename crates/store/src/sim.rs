//! The simulated disk, for tests: it forgets what was not synced.
//!
//! Each file has a durable image and a list of operations that no sync has covered; names in directories likewise. A
//! [crash](SimDisk::crash) keeps, drops, tears or garbles each of them on its own, and gives a new disk with what is
//! left; the old one answers errors from then on, so that threads that still hold it cannot write into the future.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Access, Disk, EntryKind, Handle, HandleInner, IndexFile, IndexInner, sealed};

/// What a torn write keeps or loses as one.
const SECTOR_BYTES: usize = 512;

/// What a crash does to that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process dies and the machine lives (`kill -9`): everything that was written stays.
    Process,
    /// The power fails before anything unsynced reached the disk.
    PowerAllLost,
    /// The power fails; each unsynced operation is kept, dropped, torn or garbled, as this seed says.
    Power {
        /// The seed of the choices.
        seed: u64,
    },
}

/// The operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimOp {
    /// Making a file.
    Create,
    /// Opening a file that is there.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Cutting or extending.
    SetLen,
    /// fdatasync.
    SyncData,
    /// fsync of a directory.
    SyncDir,
    /// Removing or renaming.
    Names,
    /// Flushing the index.
    IndexFlush,
}

#[derive(Debug, Clone)]
struct Fault {
    op: SimOp,
    /// Calls of this kind that still succeed.
    after: u64,
    error: ErrorKind,
    /// How many calls fail.
    times: u64,
    /// Bytes of a failing write that reach the file all the same.
    partial: usize,
    /// The calling thread panics instead.
    panics: bool,
}

#[derive(Debug, Clone)]
enum FileOp {
    Write { position: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug, Clone, Default)]
struct Node {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<FileOp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Directory,
    File(u64),
}

#[derive(Debug, Default)]
struct World {
    nodes: HashMap<u64, Node>,
    next_node: u64,
    names: BTreeMap<PathBuf, Name>,
    durable_names: BTreeMap<PathBuf, Name>,
    /// Changes of names that no sync of their directory has covered, oldest first.
    pending_names: Vec<(PathBuf, Option<Name>)>,
    locks: HashSet<PathBuf>,
    indexes: BTreeMap<PathBuf, IndexImage>,
    faults: Vec<Fault>,
    /// Bytes of files that reads do not get.
    spoiled: Vec<(u64, Range<u64>)>,
    /// Mutating calls so far.
    steps: u64,
    /// The power fails before this step.
    off_at: Option<u64>,
    off: bool,
    /// What it says of itself (statfs).
    file_system: u32,
}

#[derive(Debug, Clone, Default)]
struct IndexImage {
    current: BTreeMap<String, Vec<u8>>,
    flushed: BTreeMap<String, Vec<u8>>,
    broken: bool,
}

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimDisk(Arc<Mutex<World>>);

/// An open file of a [`SimDisk`].
#[derive(Debug)]
pub(crate) struct SimHandle {
    node: u64,
    /// The lock that ends with this handle.
    lock: Option<(SimDisk, PathBuf)>,
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        if let Some((disk, path)) = &self.lock {
            disk.world().locks.remove(path);
        }
    }
}

/// The index of a [`SimDisk`].
#[derive(Debug, Clone)]
pub struct SimIndex {
    disk: SimDisk,
    path: PathBuf,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left after a crash. This disk answers errors from now on.
    #[must_use]
    pub fn crash(&self, crash: Crash) -> SimDisk {
        let mut world = self.world();
        world.off = true;
        let mut rng = fastrand::Rng::with_seed(if let Crash::Power { seed } = crash { seed } else { 0 });
        let mut after = World { next_node: world.next_node, ..World::default() };
        after.names = match crash {
            Crash::Process => world.names.clone(),
            Crash::PowerAllLost => world.durable_names.clone(),
            Crash::Power { .. } => world.names_after(&mut rng),
        };
        after.durable_names = after.names.clone();
        for (id, node) in &world.nodes {
            let image = match crash {
                Crash::Process => node.current.clone(),
                Crash::PowerAllLost => node.durable.clone(),
                Crash::Power { .. } => node.after(&mut rng),
            };
            // After a mere crash of the process the page cache still holds what was not synced.
            let kept = crash == Crash::Process;
            let durable = if kept { node.durable.clone() } else { image.clone() };
            let pending = if kept { node.pending.clone() } else { Vec::new() };
            after.nodes.insert(*id, Node { current: image, durable, pending });
        }
        if crash == Crash::Process {
            after.durable_names = world.durable_names.clone();
            after.pending_names.clone_from(&world.pending_names);
        }
        for (path, index) in &world.indexes {
            let keep = crash == Crash::Process || (matches!(crash, Crash::Power { .. }) && rng.bool());
            let image = if keep { index.current.clone() } else { index.flushed.clone() };
            let flushed = if crash == Crash::Process { index.flushed.clone() } else { image.clone() };
            after.indexes.insert(path.clone(), IndexImage { current: image, flushed, broken: index.broken });
        }
        SimDisk(Arc::new(Mutex::new(after)))
    }

    /// After `after` more successes, `times` calls of `op` fail with `error`. A failing write lets `partial` bytes
    /// through; a failing fdatasync forgets what it should have covered, as kernels do.
    pub fn fail(&self, op: SimOp, after: u64, times: u64, error: ErrorKind, partial: usize) {
        self.world().faults.push(Fault { op, after, error, times, partial, panics: false });
    }

    /// From now on the disk says that it is a file system with this magic number (statfs); at first it has none, which
    /// is taken as a local one.
    pub fn pretend(&self, magic: u32) {
        self.world().file_system = magic;
    }

    /// After `after` more successes, the thread that calls `op` panics.
    pub fn panic_in(&self, op: SimOp, after: u64) {
        let error = ErrorKind::Other;
        self.world().faults.push(Fault { op, after, error, times: 1, partial: 0, panics: true });
    }

    /// Reads that touch these bytes of the file fail with EIO, until [`SimDisk::mend`] or a crash: a bad sector.
    pub fn spoil(&self, path: &Path, bytes: Range<u64>) {
        let mut world = self.world();
        if let Some(Name::File(node)) = world.names.get(path).copied() {
            world.spoiled.push((node, bytes));
        }
    }

    /// Ends all injected faults.
    pub fn mend(&self) {
        let mut world = self.world();
        world.faults.clear();
        world.spoiled.clear();
    }

    /// Calls so far that change the disk.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.world().steps
    }

    /// The power fails when so many changing calls more have been made.
    pub fn power_off_after(&self, steps: u64) {
        let mut world = self.world();
        world.off_at = Some(world.steps + steps);
    }

    /// The files below a folder, ascending.
    #[must_use]
    pub fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let world = self.world();
        let below = |path: &&PathBuf| path.starts_with(folder) && matches!(world.names[*path], Name::File(_));
        world.names.keys().filter(below).cloned().collect()
    }

    /// A file's bytes; None if it is not there.
    #[must_use]
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let world = self.world();
        let Some(Name::File(node)) = world.names.get(path) else { return None };
        Some(world.nodes[node].current.clone())
    }

    /// Replaces a file's bytes, durably: rot, or a file from elsewhere.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let mut world = self.world();
        let existing = world.names.get(path).copied();
        let node = match existing {
            Some(Name::File(node)) => node,
            _ => world.new_file(path),
        };
        world.durable_names.insert(path.to_owned(), Name::File(node));
        world.nodes.insert(node, Node { current: bytes.clone(), durable: bytes, pending: Vec::new() });
    }

    /// Removes a file, durably.
    pub fn take(&self, path: &Path) {
        let mut world = self.world();
        world.names.remove(path);
        world.durable_names.remove(path);
    }

    /// All indexes are gone.
    pub fn lose_index(&self) {
        self.world().indexes.clear();
    }

    /// All indexes fail to open until they are set aside.
    pub fn break_index(&self) {
        for index in self.world().indexes.values_mut() {
            index.broken = true;
        }
    }
}

/// Opens a queue whose only segment has these bytes, reads all of it, appends, acknowledges, reads again. Panics if any
/// of that does not go on; what the bytes hold does not matter.
///
/// # Panics
/// If a promise is broken.
pub fn survive_segment(bytes: &[u8]) {
    let disk = SimDisk::new();
    let queues = Path::new("/q");
    let folder = queues.join(crate::segment::folder_name("q"));
    disk.create_dir_all(&folder).expect("a fresh disk takes folders");
    disk.put(&crate::segment::path(&folder, 1), bytes.to_vec());
    let options = crate::QueueDirOptions::default();
    let dir = crate::QueueDir::open_on(Arc::new(disk), queues, &options).expect("it opens");
    let queue = dir.queue("q", crate::QueueOptions::default()).expect("damage never keeps it from opening");
    let mut reader = queue.reader();
    let mut last = crate::Seq::new(0);
    while let Some(entry) = reader.next().expect("the disk answers") {
        assert!(entry.seq > last, "sequence numbers rise");
        last = entry.seq;
    }
    let ticket = queue.append(&crate::Record::default(), crate::Durability::Synced);
    // Only a log that has used up all numbers there are refuses.
    let Ok(seq) = ticket.and_then(crate::Ticket::wait) else { return };
    assert!(seq > last, "a number is never used twice");
    queue.ack(crate::Seq::new(0)..seq);
    assert_eq!(queue.status().cursor, seq, "no gap holds the cursor back");
    assert_eq!(reader.next().expect("the disk answers").map(|entry| entry.seq), Some(seq));
}

impl World {
    fn new_file(&mut self, path: &Path) -> u64 {
        let node = self.next_node;
        self.next_node += 1;
        self.nodes.insert(node, Node::default());
        self.set_name(path, Some(Name::File(node)));
        node
    }

    fn set_name(&mut self, path: &Path, name: Option<Name>) {
        match name {
            Some(name) => self.names.insert(path.to_owned(), name),
            None => self.names.remove(path),
        };
        self.pending_names.push((path.to_owned(), name));
    }

    /// The durable names, and those changes that happened to reach the disk.
    fn names_after(&self, rng: &mut fastrand::Rng) -> BTreeMap<PathBuf, Name> {
        let mut names = self.durable_names.clone();
        for (path, name) in &self.pending_names {
            if rng.bool() {
                match name {
                    Some(name) => names.insert(path.clone(), *name),
                    None => names.remove(path),
                };
            }
        }
        names
    }

    /// Whether this call fails, and for a write, how many bytes get through.
    fn meet(&mut self, op: SimOp) -> Result<(), (io::Error, usize)> {
        if !matches!(op, SimOp::Open | SimOp::Read) {
            self.off |= self.off_at == Some(self.steps);
            self.steps += 1;
        }
        if self.off {
            return Err((io::Error::other("the power is off"), 0));
        }
        for fault in self.faults.iter_mut().filter(|fault| fault.op == op && fault.times > 0) {
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            fault.times -= 1;
            assert!(!fault.panics, "a panic that a test asked for");
            return Err((fault.error.into(), fault.partial));
        }
        Ok(())
    }

    fn node(&mut self, handle: &Handle) -> io::Result<&mut Node> {
        match &handle.0 {
            HandleInner::Simulated(handle) => {
                self.nodes.get_mut(&handle.node).ok_or_else(|| io::Error::other("no such file"))
            }
            HandleInner::Real(_) => Err(io::Error::other("a handle of another disk")),
        }
    }
}

impl FileOp {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            FileOp::SetLen(len) => image.resize(*len, 0),
            FileOp::Write { position, bytes } => {
                if image.len() < position + bytes.len() {
                    image.resize(position + bytes.len(), 0);
                }
                image[*position..position + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// What a power failure makes of it.
    fn meet_crash(&self, image: &mut Vec<u8>, rng: &mut fastrand::Rng) {
        match (rng.u8(0..6), self) {
            (0 | 1, _) => self.apply(image),
            (2 | 3, _) | (_, FileOp::SetLen(_)) => {}
            (4, FileOp::Write { position, bytes }) => tear(*position, bytes, image, rng),
            (_, FileOp::Write { position, bytes }) => {
                let garbage = (0..bytes.len()).map(|_| rng.u8(..)).collect();
                FileOp::Write { position: *position, bytes: garbage }.apply(image);
            }
        }
    }
}

/// Keeps some sectors of a write; the length grows to it all the same.
fn tear(position: usize, bytes: &[u8], image: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    let mut at = 0;
    while at < bytes.len() {
        let sector_end = (position + at + 1).next_multiple_of(SECTOR_BYTES) - position;
        let piece = &bytes[at..sector_end.min(bytes.len())];
        let bytes = if rng.bool() { piece.to_vec() } else { vec![0; piece.len()] };
        FileOp::Write { position: position + at, bytes }.apply(image);
        at += piece.len();
    }
}

impl Node {
    fn change(&mut self, op: FileOp) {
        op.apply(&mut self.current);
        self.pending.push(op);
    }

    fn after(&self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut image = self.durable.clone();
        for op in &self.pending {
            op.meet_crash(&mut image, rng);
        }
        image
    }
}

impl sealed::Sealed for SimDisk {}

impl Disk for SimDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let missing: Vec<_> =
            path.ancestors().filter(|p| !world.names.contains_key(*p)).map(Path::to_owned).collect();
        for folder in missing.iter().rev() {
            world.meet(SimOp::Create).map_err(|(error, _)| error)?;
            world.set_name(folder, Some(Name::Directory));
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        let world = self.world();
        let kind =
            |name: &Name| if *name == Name::Directory { EntryKind::Directory } else { EntryKind::File };
        let inside = world.names.iter().filter(|(entry, _)| entry.parent() == Some(path));
        Ok(inside
            .map(|(entry, name)| (entry.file_name().unwrap_or_default().to_owned(), kind(name)))
            .collect())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Handle> {
        let mut world = self.world();
        let op = if access == Access::CreateNew { SimOp::Create } else { SimOp::Open };
        world.meet(op).map_err(|(error, _)| error)?;
        let node = match (world.names.get(path).copied(), access) {
            (Some(_), Access::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (None, Access::CreateNew) => world.new_file(path),
            (Some(Name::File(node)), _) => node,
            (Some(Name::Directory), _) => return Err(ErrorKind::IsADirectory.into()),
            (None, _) => return Err(ErrorKind::NotFound.into()),
        };
        Ok(Handle(HandleInner::Simulated(SimHandle { node, lock: None })))
    }

    fn len(&self, file: &Handle) -> io::Result<u64> {
        Ok(self.world().node(file)?.current.len() as u64)
    }

    fn read_at(&self, file: &Handle, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut world = self.world();
        world.meet(SimOp::Read).map_err(|(error, _)| error)?;
        if let HandleInner::Simulated(SimHandle { node, .. }) = &file.0 {
            let end = position.saturating_add(buffer.len() as u64);
            let bad =
                |(of, bytes): &(u64, Range<u64>)| of == node && bytes.start < end && position < bytes.end;
            if world.spoiled.iter().any(bad) {
                return Err(ErrorKind::Other.into());
            }
        }
        let bytes = &world.node(file)?.current;
        let start = usize::try_from(position).unwrap_or(usize::MAX).min(bytes.len());
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, file: &Handle, bytes: &[u8], position: u64) -> io::Result<usize> {
        let mut world = self.world();
        let position = usize::try_from(position).map_err(|_| ErrorKind::FileTooLarge)?;
        match world.meet(SimOp::Write) {
            Ok(()) => {
                world.node(file)?.change(FileOp::Write { position, bytes: bytes.to_vec() });
                Ok(bytes.len())
            }
            Err((_, partial)) if partial > 0 && partial < bytes.len() => {
                // A short write; the rest meets the error.
                world.node(file)?.change(FileOp::Write { position, bytes: bytes[..partial].to_vec() });
                for fault in
                    world.faults.iter_mut().filter(|fault| fault.op == SimOp::Write && fault.partial > 0)
                {
                    (fault.partial, fault.times) = (0, fault.times + 1);
                }
                Ok(partial)
            }
            Err((error, _)) => Err(error),
        }
    }

    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()> {
        let mut world = self.world();
        world.meet(SimOp::SetLen).map_err(|(error, _)| error)?;
        let len = usize::try_from(len).map_err(|_| ErrorKind::FileTooLarge)?;
        world.node(file)?.change(FileOp::SetLen(len));
        Ok(())
    }

    fn sync_data(&self, file: &Handle) -> io::Result<()> {
        let mut world = self.world();
        let met = world.meet(SimOp::SyncData);
        if world.off {
            // The power went before the call: nothing has decided yet what becomes of the pending writes.
            return Err(io::Error::other("the power is off"));
        }
        let node = world.node(file)?;
        match met {
            Ok(()) => {
                // Not simply the current image: what an earlier, failed sync forgot stays forgotten.
                let pending = std::mem::take(&mut node.pending);
                for op in pending {
                    op.apply(&mut node.durable);
                }
                Ok(())
            }
            Err((error, _)) => {
                node.pending.clear();
                Err(error)
            }
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.meet(SimOp::SyncDir).map_err(|(error, _)| error)?;
        let (synced, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut world.pending_names)
            .into_iter()
            .partition(|(name, _)| name.parent() == Some(path));
        world.pending_names = pending;
        for (name, value) in synced {
            match value {
                Some(value) => world.durable_names.insert(name, value),
                None => world.durable_names.remove(&name),
            };
        }
        // A synced folder is there, and so are those above it: file systems journal their own ancestors.
        for ancestor in path.ancestors() {
            world.durable_names.insert(ancestor.to_owned(), Name::Directory);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.meet(SimOp::Names).map_err(|(error, _)| error)?;
        if let Some(index) = world.indexes.remove(from) {
            world.indexes.insert(to.to_owned(), index);
            return Ok(());
        }
        let name = world.names.get(from).copied().ok_or(ErrorKind::NotFound)?;
        world.set_name(from, None);
        world.set_name(to, Some(name));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.meet(SimOp::Names).map_err(|(error, _)| error)?;
        if !world.names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        world.set_name(path, None);
        Ok(())
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn file_system(&self, _path: &Path) -> io::Result<u32> {
        Ok(self.world().file_system)
    }

    fn lock(&self, path: &Path, _holder: &str) -> io::Result<Result<Handle, String>> {
        let mut world = self.world();
        if !world.locks.insert(path.to_owned()) {
            return Ok(Err("this process".to_owned()));
        }
        let handle = SimHandle { node: u64::MAX, lock: Some((self.clone(), path.to_owned())) };
        Ok(Ok(Handle(HandleInner::Simulated(handle))))
    }

    fn will_read_sequentially(&self, _file: &Handle) {}

    fn will_read_soon(&self, _path: &Path, _bytes: u64) {}

    fn open_index(&self, path: &Path) -> io::Result<IndexFile> {
        self.world().indexes.entry(path.to_owned()).or_default();
        Ok(IndexFile(IndexInner::Simulated(SimIndex { disk: self.clone(), path: path.to_owned() })))
    }
}

impl SimIndex {
    pub(crate) fn check(&self) -> io::Result<()> {
        let world = self.disk.world();
        let broken = world.indexes.get(&self.path).is_some_and(|index| index.broken);
        if broken { Err(io::Error::other("the index is broken")) } else { Ok(()) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.disk.world().indexes.get(&self.path).and_then(|index| index.current.get(key).cloned())
    }

    pub(crate) fn insert(&self, key: &str, value: Vec<u8>) -> io::Result<()> {
        let mut world = self.disk.world();
        if world.off {
            return Err(io::Error::other("the power is off"));
        }
        world.indexes.entry(self.path.clone()).or_default().current.insert(key.to_owned(), value);
        Ok(())
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.meet(SimOp::IndexFlush).map_err(|(error, _)| error)?;
        let index = world.indexes.entry(self.path.clone()).or_default();
        index.flushed = index.current.clone();
        Ok(())
    }
}
