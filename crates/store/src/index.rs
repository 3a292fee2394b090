//! The index of a queue_dir: cursors, acknowledged ranges, hints and counters of its queues, kept in sled.
//!
//! Advisory by design: if it is missing, broken or behind, the cost is redelivery, never loss. sled's `flush` issues no
//! device flush, so [`Index::flush`] syncs sled's file itself before it returns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::disk::{Access, Disk, Handle, IndexFile, IndexInner};
use crate::error::{AtPath, IoFailure};

/// The version of [`QueueState`]'s encoding: its first byte.
const STATE_VERSION: u8 = 1;
/// No more memory than this is taken for an index value, whatever its bytes say.
const STATE_BYTES_LIMIT: usize = 16 << 20;
/// Acknowledged ranges above the cursor that the index keeps, the lowest: a value is then at most 1.2 MiB, far below the
/// limit for decoding it. What lies beyond is delivered again after a restart.
pub(crate) const ABOVE_RANGES_MAX: usize = 1 << 16;
const _: () = assert!(ABOVE_RANGES_MAX * size_of::<(u64, u64)>() < STATE_BYTES_LIMIT / 4);
/// Memory that sled may use for its pages. The index is a few KiB a queue.
const CACHE_BYTES: u64 = 1 << 20;

/// What the index remembers of one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct QueueState {
    pub(crate) uuid: [u8; 16],
    /// Everything below is acknowledged.
    pub(crate) cursor: u64,
    /// Acknowledged ranges above the cursor, ascending.
    pub(crate) above: Vec<(u64, u64)>,
    /// Everything below was durable.
    pub(crate) durable: u64,
    /// Every sequence number below was given out: none of them may be given out again.
    pub(crate) issued: u64,
    /// A place in the active segment from which recovery may scan.
    pub(crate) hint: Option<Hint>,
    pub(crate) counters: Counters,
    /// The newest lost ranges, for people.
    pub(crate) losses: Vec<(u64, u64)>,
}

/// A frame boundary in a segment, and what is known of the frames before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Hint {
    pub(crate) ordinal: u64,
    pub(crate) position: u64,
    pub(crate) next: u64,
    pub(crate) chain: u32,
    pub(crate) records: u64,
}

/// Lifetime counters of a queue, in records. As durable as the index: after a crash they may be a little behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counters {
    /// Records whose append succeeded.
    pub appended: u64,
    /// Records that were acknowledged.
    pub acknowledged: u64,
    /// Records that damage destroyed; each was reported when it was found.
    pub lost: u64,
}

/// The open index.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Sled {
        db: sled::Db,
        /// sled's data file once more: syncing any descriptor of a file syncs the file.
        file: Handle,
        disk: Arc<dyn Disk>,
    },
    #[cfg(feature = "sim")]
    Simulated(crate::sim::SimIndex),
}

impl Index {
    /// Opens the index; one that does not open is set aside, and a new one takes its place. The second value says so.
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: &Path) -> Result<(Index, Option<String>), IoFailure> {
        match Self::open_once(disk, path) {
            Ok(index) => Ok((index, None)),
            Err(first) => {
                let aside = set_aside(disk.as_ref(), path)?;
                let reason = format!("{first}; the old index was set aside as {}", aside.display());
                Self::open_once(disk, path).map(|index| (index, Some(reason)))
            }
        }
    }

    fn open_once(disk: &Arc<dyn Disk>, path: &Path) -> Result<Index, IoFailure> {
        let store = match disk.open_index(path).at("open the index", path)? {
            IndexFile(IndexInner::Sled { path }) => open_sled(disk, &path)?,
            #[cfg(feature = "sim")]
            IndexFile(IndexInner::Simulated(index)) => {
                index.check().at("open the index", path)?;
                Store::Simulated(index)
            }
        };
        Ok(Index { path: path.to_owned(), store })
    }

    /// What is known of a queue. `Err` says that there is something, and that it cannot be read.
    pub(crate) fn load(&self, queue: &str) -> Result<Option<QueueState>, String> {
        let value = match &self.store {
            Store::Sled { db, .. } => {
                db.get(queue).map_err(|error| error.to_string())?.map(|value| value.to_vec())
            }
            #[cfg(feature = "sim")]
            Store::Simulated(index) => index.get(queue),
        };
        value.map(|bytes| decode(&bytes)).transpose()
    }

    /// Replaces what is known of a queue. Durable after the next [`Index::flush`].
    pub(crate) fn store(&self, queue: &str, state: &QueueState) -> Result<(), IoFailure> {
        let value = encode(state);
        match &self.store {
            Store::Sled { db, .. } => {
                db.insert(queue, value).map(drop).map_err(|e| std::io::Error::other(e.to_string()))
            }
            #[cfg(feature = "sim")]
            Store::Simulated(index) => index.insert(queue, value),
        }
        .at("write the index", &self.path)
    }

    /// When this returns, all that was stored survives power loss.
    pub(crate) fn flush(&self) -> Result<(), IoFailure> {
        match &self.store {
            Store::Sled { db, file, disk } => db
                .flush()
                .map_err(|e| std::io::Error::other(e.to_string()))
                .and_then(|_| disk.sync_data(file)),
            #[cfg(feature = "sim")]
            Store::Simulated(index) => index.flush(),
        }
        .at("flush the index", &self.path)
    }
}

fn open_sled(disk: &Arc<dyn Disk>, path: &Path) -> Result<Store, IoFailure> {
    let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
    // sled panics on some damage instead of answering an error; to us both mean that the index is gone.
    let opened = catch_unwind(AssertUnwindSafe(|| config.open()))
        .unwrap_or_else(|_| Err(sled::Error::ReportableBug("sled panicked while opening".into())));
    let db = opened.map_err(|error| std::io::Error::other(error.to_string())).at("open the index", path)?;
    let data = path.join("db");
    let file = disk.open(&data, Access::ReadWrite).at("open", &data)?;
    Ok(Store::Sled { db, file, disk: Arc::clone(disk) })
}

/// Renames a broken index to the first free name beside it.
fn set_aside(disk: &dyn Disk, path: &Path) -> Result<PathBuf, IoFailure> {
    let parent = path.parent().unwrap_or(path);
    let taken = disk.list(parent).at("list", parent)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let free = (1..=taken.len() as u64 + 1)
        .map(|number| format!("{name}.broken-{number}"))
        .find(|candidate| !taken.iter().any(|(entry, _)| entry.to_string_lossy() == *candidate))
        .expect("one of n + 1 names is not among n");
    let aside = parent.join(free);
    disk.rename(path, &aside).at("set aside", path)?;
    Ok(aside)
}

fn encode(state: &QueueState) -> Vec<u8> {
    let mut value = vec![STATE_VERSION];
    value.extend(
        bincode::encode_to_vec(state, bincode::config::standard()).expect("numbers and lists always encode"),
    );
    value
}

fn decode(value: &[u8]) -> Result<QueueState, String> {
    let config = bincode::config::standard().with_limit::<STATE_BYTES_LIMIT>();
    match value.split_first() {
        Some((&STATE_VERSION, body)) => bincode::decode_from_slice(body, config)
            .map(|(state, _)| state)
            .map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("index value of version {version}, expected {STATE_VERSION}")),
        None => Err("empty index value".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn some_state() -> QueueState {
        QueueState {
            cursor: 7,
            above: vec![(9, 12)],
            issued: 15,
            losses: vec![(3, 4)],
            ..QueueState::default()
        }
    }

    #[test]
    fn a_queue_state_survives_closing_the_index() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("index.sled");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);

        let (index, aside) = Index::open(&disk, &path).expect("a new index opens");
        assert_eq!((aside, index.load("q")), (None, Ok(None)));
        index.store("q", &some_state()).expect("store");
        index.flush().expect("flush");
        drop(index);

        let (index, _) = Index::open(&disk, &path).expect("it opens again");
        assert_eq!(index.load("q"), Ok(Some(some_state())));
    }

    #[test]
    fn the_largest_state_that_is_stored_can_be_read_back() {
        let far = u64::MAX - 4 * ABOVE_RANGES_MAX as u64;
        let above = (0..ABOVE_RANGES_MAX as u64).map(|at| (far + 2 * at, far + 2 * at + 1)).collect();
        let losses = vec![(u64::MAX - 1, u64::MAX); 256];
        let state = QueueState { cursor: far - 1, above, losses, ..some_state() };

        let value = encode(&state);

        assert!(value.len() < 3 << 19, "{} bytes", value.len());
        assert_eq!(decode(&value), Ok(state));
    }

    #[test]
    fn an_index_that_does_not_open_is_set_aside_and_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("index.sled");
        std::fs::write(&path, b"not a folder").expect("write");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);

        let (index, aside) = Index::open(&disk, &path).expect("it opens");

        assert_eq!(index.load("q"), Ok(None));
        assert!(aside.expect("it was set aside").contains("index.sled.broken-1"));
        assert!(folder.path().join("index.sled.broken-1").exists());
    }

    #[test]
    fn any_bytes_in_the_index_are_an_error_and_nothing_worse() {
        let good = encode(&some_state());
        for cut in 0..good.len() {
            assert!(decode(&good[..cut]).is_err());
        }
        assert!(decode(&[STATE_VERSION, 255, 255, 255, 255, 255, 255]).is_err());
        assert!(decode(&[9]).expect_err("a later version").contains("version 9"));
    }
}
