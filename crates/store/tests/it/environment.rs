//! Where a queue_dir stands and who else uses it: links, locks, file systems, names, and what the system refuses.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use tidegate_store::sim::{SimDisk, SimOp};
use tidegate_store::{Cause, Durability, OpenError, QueueDir, QueueDirOptions, QueueOptions, Record};

use crate::setup::{Bed, dir_options, dir_path};

fn open(path: &Path) -> Result<QueueDir, OpenError> {
    QueueDir::open(path, QueueDirOptions::default())
}

fn record(value: &[u8]) -> Record<'_> {
    Record { value, ..Record::default() }
}

#[test]
fn a_queue_dir_behind_a_link_is_resolved_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (real, other, link) =
        (folder.path().join("real"), folder.path().join("other"), folder.path().join("link"));
    std::fs::create_dir(&real).expect("a folder");
    std::fs::create_dir(&other).expect("a folder");
    symlink(&real, &link).expect("a link");

    let dir = open(&link).expect("it opens");
    std::fs::remove_file(&link).expect("the link goes");
    symlink(&other, &link).expect("another link");
    let queue = dir.queue("q", QueueOptions::default()).expect("the queue opens");
    queue.append(&record(b"a"), Durability::Synced).and_then(tidegate_store::Ticket::wait).expect("durable");

    assert_eq!(dir.path(), real.canonicalize().expect("it is there"));
    assert_eq!(std::fs::read_dir(&other).expect("listed").count(), 0);
    assert!(matches!(open(&real), Err(OpenError::Locked { .. })), "the folder is locked, not the link");
}

#[test]
fn a_lock_text_that_is_garbage_names_nobody_and_breaks_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = open(folder.path()).expect("it opens");
    for garbage in [&b"\xff\xfe\x00"[..], b"", b"process x on y", b"process 99999999999 on y", b"process 1"] {
        std::fs::write(folder.path().join("LOCK"), garbage).expect("written");

        let refused = open(folder.path()).expect_err("it is locked");

        assert!(matches!(refused, OpenError::Locked { pid: None, host: None, .. }), "{refused:?}");
        assert!(refused.to_string().contains("in use by another process"), "{refused}");
    }
    drop(first);
}

#[test]
fn a_network_file_system_is_refused_unless_allowed() {
    let disk = SimDisk::new();
    disk.pretend(0x6969);
    let mut options = dir_options();

    let refused = QueueDir::open_on(Arc::new(disk.clone()), dir_path(), &options).expect_err("refused");
    assert!(matches!(refused, OpenError::NetworkFileSystem { kind: "NFS", .. }), "{refused:?}");
    assert!(refused.to_string().contains("network_file_system"), "it says how to allow it: {refused}");

    options.network_file_system = true;
    QueueDir::open_on(Arc::new(disk), dir_path(), &options).expect("allowed");
}

#[test]
fn names_of_any_bytes_up_to_4_kib_keep_their_own_records() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let long = "n".repeat(4096);
    let longer_twin = format!("{}m", "n".repeat(4095));
    let umlauts = "\u{fc}".repeat(2048);
    let names =
        [&long, &longer_twin, &umlauts, "a/b", "a_b", "a:b", "..", ".", "../../up", "line\nbreak", " "];
    let names = names.map(|name: &str| name.to_owned());
    {
        let dir = open(folder.path()).expect("it opens");
        for name in &names {
            let queue = dir.queue(name, QueueOptions::default()).expect("the queue opens");
            queue
                .append(&record(name.as_bytes()), Durability::Synced)
                .and_then(tidegate_store::Ticket::wait)
                .expect("durable");
        }
    }

    let dir = open(folder.path()).expect("it opens again");
    for name in &names {
        let queue = dir.queue(name, QueueOptions::default()).expect("the queue opens again");
        let mut reader = queue.reader();
        let entry = reader.next().expect("read").expect("the record is there");
        assert_eq!(entry.record().expect("decoded").value, name.as_bytes());
        assert!(reader.next().expect("read").is_none(), "one record");
    }
    let seen = tidegate_store::inspect::overview(folder.path()).expect("listed");
    let folders: HashSet<_> = seen.iter().map(|queue| queue.folder.clone()).collect();
    assert_eq!(folders.len(), names.len(), "a folder each");
    assert!(folders.iter().all(|path| path.parent() == Some(dir.path())), "all inside");
}

#[test]
fn a_name_of_no_bytes_or_too_many_is_refused_with_the_figures() {
    let bed = Bed::new();

    for name in [String::new(), "n".repeat(4097)] {
        let refused = bed.dir.queue(&name, QueueOptions::default()).expect_err("refused");
        assert!(
            matches!(refused, OpenError::BadName { bytes, max: 4096 } if bytes == name.len()),
            "{refused}"
        );
    }
}

/// By fault injection: tests often run as root, whom the system refuses nothing.
#[test]
fn what_the_system_refuses_has_a_cause_a_path_and_an_advice() {
    let cases = [
        (ErrorKind::PermissionDenied, Cause::Permission, "user of this process"),
        (ErrorKind::ReadOnlyFilesystem, Cause::ReadOnly, "mount the file system"),
        (ErrorKind::StorageFull, Cause::StorageFull, "free space"),
    ];
    for (kind, cause, advice) in cases {
        let bed = Bed::new();
        bed.disk.fail(SimOp::Write, 0, 1, kind, 0);

        let refused = bed
            .queue
            .append(&record(b"a"), Durability::Synced)
            .and_then(tidegate_store::Ticket::wait)
            .expect_err("refused");

        assert_eq!(refused.cause(), Some(cause), "{refused}");
        let text = refused.to_string();
        assert!(text.contains(advice) && text.contains("/q/"), "{text}");
    }
}

#[test]
fn the_store_asks_no_clock_that_can_be_set() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![sources];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).expect("text");
                assert!(!text.contains("SystemTime"), "{} uses the wall clock", path.display());
                read += 1;
            }
        }
    }
    assert!(read > 10, "the sources were read");
}
