//! The seam to the file system: every system call of the store is in this file, behind [`Disk`].
//! [`RealDisk`] is the machine's; the simulated one (feature `sim`) forgets, tears and garbles what was not synced.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An open file. Only the disk that opened it understands it.
#[derive(Debug)]
pub struct Handle(pub(crate) HandleInner);

#[derive(Debug)]
pub(crate) enum HandleInner {
    Real(File),
    #[cfg(feature = "sim")]
    Simulated(crate::sim::SimHandle),
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It has to be there; reading only.
    Read,
    /// It has to be there; reading and writing.
    ReadWrite,
    /// It must not be there.
    CreateNew,
}

/// What a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// An ordinary file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, a socket, a device.
    Other,
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The system calls that the store makes. Sealed: a real and a simulated disk implement it.
///
/// Nothing here is durable until the matching `sync` call has returned: data and length of a file by
/// [`sync_data`](Disk::sync_data), names in a directory by [`sync_dir`](Disk::sync_dir).
#[expect(clippy::missing_errors_doc, reason = "each answers the system's own error")]
pub trait Disk: sealed::Sealed + fmt::Debug + Send + Sync {
    /// Makes a directory and those above it. When this returns, those that were made are durable.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// What is in a directory, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, EntryKind)>>;
    /// Opens a file. A symbolic link is refused.
    fn open(&self, path: &Path, access: Access) -> io::Result<Handle>;
    /// The length of a file, in bytes.
    fn len(&self, file: &Handle) -> io::Result<u64>;
    /// One read; may be short, 0 at the end.
    fn read_at(&self, file: &Handle, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    /// One write; may be short.
    fn write_at(&self, file: &Handle, bytes: &[u8], position: u64) -> io::Result<usize>;
    /// Cuts or extends a file to `len` bytes.
    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()>;
    /// When this returns, data and length of the file survive power loss (fdatasync).
    fn sync_data(&self, file: &Handle) -> io::Result<()>;
    /// When this returns, the names in the directory survive power loss.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames within one file system, replacing what is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// The path without symbolic links.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// The kind of file system that `path` is on, as its magic number (statfs).
    fn file_system(&self, path: &Path) -> io::Result<u32>;
    /// Takes the exclusive lock at `path` for as long as the handle lives, and writes `holder` into the file for
    /// people to read; if another holds it, says what stands there.
    fn lock(&self, path: &Path, holder: &str) -> io::Result<Result<Handle, String>>;
    /// Hints that the file will be read from front to back.
    fn will_read_sequentially(&self, file: &Handle);
    /// Hints that the first `bytes` of the file at `path` will be read soon. Does not wait for them.
    fn will_read_soon(&self, path: &Path, bytes: u64);
    /// Opens the key-value index at `path`.
    fn open_index(&self, path: &Path) -> io::Result<IndexFile>;
}

/// Where the index lives. Only `index.rs` looks inside.
#[derive(Debug, Clone)]
pub struct IndexFile(pub(crate) IndexInner);

#[derive(Debug, Clone)]
pub(crate) enum IndexInner {
    Sled {
        path: PathBuf,
    },
    #[cfg(feature = "sim")]
    Simulated(crate::sim::SimIndex),
}

/// Writes all of `bytes`, however many calls it takes.
pub(crate) fn write_all_at(
    disk: &dyn Disk,
    file: &Handle,
    mut bytes: &[u8],
    mut position: u64,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match disk.write_at(file, bytes, position) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                position += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until `buffer` is full or the file ends; returns how many bytes there were.
pub(crate) fn read_full_at(
    disk: &dyn Disk,
    file: &Handle,
    buffer: &mut [u8],
    position: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match disk.read_at(file, &mut buffer[filled..], position + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The machine's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl sealed::Sealed for RealDisk {}

/// Not following links: a link to somewhere else is not this queue's file.
fn no_follow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

#[cfg_attr(
    not(feature = "sim"),
    expect(clippy::unnecessary_wraps, reason = "with the simulated disk there is another kind of handle")
)]
fn real(file: &Handle) -> io::Result<&File> {
    match &file.0 {
        HandleInner::Real(file) => Ok(file),
        #[cfg(feature = "sim")]
        HandleInner::Simulated(_) => Err(io::Error::other("a handle of another disk")),
    }
}

impl Disk for RealDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        std::fs::create_dir_all(path)?;
        // A new folder is durable when the one above it is synced.
        missing.iter().rev().filter_map(|folder| folder.parent()).try_for_each(|above| {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            self.sync_dir(above)
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        let kind = |kind: std::fs::FileType| match kind {
            kind if kind.is_file() => EntryKind::File,
            kind if kind.is_dir() => EntryKind::Directory,
            _ => EntryKind::Other,
        };
        std::fs::read_dir(path)?
            .map(|entry| entry.and_then(|e| Ok((e.file_name(), kind(e.file_type()?)))))
            .collect()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Handle> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(no_follow()).mode(0o640);
        match access {
            Access::Read => {}
            Access::ReadWrite => {
                options.write(true);
            }
            Access::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        options.open(path).map(|file| Handle(HandleInner::Real(file)))
    }

    fn len(&self, file: &Handle) -> io::Result<u64> {
        Ok(real(file)?.metadata()?.len())
    }

    fn read_at(&self, file: &Handle, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        real(file)?.read_at(buffer, position)
    }

    fn write_at(&self, file: &Handle, bytes: &[u8], position: u64) -> io::Result<usize> {
        real(file)?.write_at(bytes, position)
    }

    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()> {
        real(file)?.set_len(len)
    }

    fn sync_data(&self, file: &Handle) -> io::Result<()> {
        real(file)?.sync_data()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn file_system(&self, path: &Path) -> io::Result<u32> {
        // The kernel's constants have 32 bits, whatever the width of the field.
        let magic = rustix::fs::statfs(path)?.f_type & 0xffff_ffff;
        Ok(u32::try_from(magic).unwrap_or(0))
    }

    fn lock(&self, path: &Path, holder: &str) -> io::Result<Result<Handle, String>> {
        // Read and write: NFS answers EBADF to a lock on a read-only descriptor.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(no_follow()).mode(0o640);
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {
                // For people only: the kernel's lock decides, so a failure to write the text is no failure to lock.
                let _ = file.set_len(0).and_then(|()| file.write_at(holder.as_bytes(), 0));
                Ok(Ok(Handle(HandleInner::Real(file))))
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = Vec::new();
                let _ = (&mut file).take(256).read_to_end(&mut holder);
                Ok(Err(String::from_utf8_lossy(&holder).into_owned()))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn will_read_sequentially(&self, file: &Handle) {
        if let Ok(file) = real(file) {
            // A hint; where the file system does not know it, reading is slower and still right.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
        }
    }

    fn will_read_soon(&self, path: &Path, bytes: u64) {
        if let Ok(handle) = self.open(path, Access::Read)
            && let Ok(file) = real(&handle)
        {
            let _ = rustix::fs::fadvise(file, 0, NonZeroU64::new(bytes), rustix::fs::Advice::WillNeed);
        }
    }

    fn open_index(&self, path: &Path) -> io::Result<IndexFile> {
        Ok(IndexFile(IndexInner::Sled { path: path.to_owned() }))
    }
}
