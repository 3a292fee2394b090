//! Truncate: sealed segments that lie wholly below the cursor are deleted, and `start` moves. Needs no free byte.

use crate::Seq;
use crate::queue::Shared;
use crate::segment;

/// Deletes what is wholly below `cursor`, which is persisted already. The last segment stays: it says where the
/// sequence goes on.
pub(crate) fn truncate(queue: &Shared, cursor: Seq) {
    let mut state = queue.lock();
    let mut passed = Vec::new();
    let keep_from = state.unavailable.keep_from.unwrap_or(u64::MAX);
    while state.segments.len() > 1
        && state.segments[0].sealed
        && state.segments[0].next <= cursor
        && state.segments[0].ordinal < keep_from
    {
        passed.extend(state.segments.pop_front());
    }
    let start = state.start();
    state.check();
    drop(state);
    if passed.is_empty() {
        return;
    }
    let home = &queue.home;
    for segment in &passed {
        let path = segment::path(&home.folder, segment.ordinal);
        match home.disk.remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(queue = %home.name, path = %path.display(), %error, "an acknowledged segment could not be deleted; the next open tries again");
            }
            _ => {}
        }
    }
    // Not vital: a name that comes back after power loss is a segment below the cursor, deleted at the next open.
    let _ = home.disk.sync_dir(&home.folder);
    tracing::debug!(queue = %home.name, segments = passed.len(), start = start.get(), "acknowledged segments deleted");
}
