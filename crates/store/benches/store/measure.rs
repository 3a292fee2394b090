//! How things are measured: on memory that was touched before, beside their reference, in interleaved rounds, by medians.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// What a guest uses for the first time is twenty times slower than what it used before; more than any round dirties.
const TOUCHED_BYTES: usize = 768 << 20;
/// How long a rate is watched in one round.
pub(crate) const ROUND: Duration = Duration::from_millis(500);

/// What the command line asks for.
pub(crate) struct Bench {
    pub(crate) rounds: usize,
    /// The large backlogs: 4 and 10 GiB instead of 1 and 2.5.
    pub(crate) full: bool,
}

impl Bench {
    /// Runs the rounds, each with all that is compared in it, after the memory was touched.
    pub(crate) fn rounds<const N: usize>(&self, mut round: impl FnMut(usize) -> [f64; N]) -> [Samples; N] {
        touch_memory();
        let mut samples: [Samples; N] = std::array::from_fn(|_| Samples(Vec::new()));
        for number in 0..self.rounds {
            for (samples, value) in samples.iter_mut().zip(round(number)) {
                samples.0.push(value);
            }
        }
        samples
    }
}

/// One figure a round.
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The median of the ratios of the rounds: a disturbance that lasts a round hits both sides alike.
    pub(crate) fn over(&self, reference: &Samples) -> f64 {
        let ratios: Vec<_> = self.0.iter().zip(&reference.0).map(|(one, other)| one / other).collect();
        median(&ratios)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Uses so much memory that what follows is measured on pages that the machine has already.
pub(crate) fn touch_memory() {
    drop(std::hint::black_box(vec![1_u8; TOUCHED_BYTES]));
}

/// A folder on the disk that the build is on: a system's temporary folder may be in memory, where a sync costs nothing.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder")
}

/// A value that does not compress and is not all the same byte.
pub(crate) fn value(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'A' + u8::try_from(state >> 40 & 31).expect("5 bits")
    };
    (0..bytes).map(|_| next()).collect()
}

/// How long single operations took.
#[derive(Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub(crate) fn extend(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The latency in microseconds that so many hundredths of the operations did not exceed.
    pub(crate) fn percentile(&mut self, hundredths: usize) -> f64 {
        self.0.sort_unstable();
        let at = (self.0.len() * hundredths / 100).min(self.0.len() - 1);
        self.0[at].as_secs_f64() * 1e6
    }
}

/// So many a second since `start`.
pub(crate) fn per_second(count: u64, start: Instant) -> f64 {
    float(count) / start.elapsed().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// A rate as people read it.
pub(crate) fn rate(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
        value if value >= 1e3 => format!("{:.1} k/s", value / 1e3),
        value => format!("{value:.0} /s"),
    }
}

/// A rate of bytes as people read it.
pub(crate) fn byte_rate(value: f64) -> String {
    format!("{:.2} GB/s", value / 1e9)
}

/// The files below a folder, in the order of their names.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The segments below a folder, oldest first.
pub(crate) fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder);
    found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    found
}

/// Makes the next read of these files one from the disk: what is dirty is written, then the page cache lets go of it.
pub(crate) fn forget(files: &[PathBuf]) {
    for path in files {
        let file = std::fs::File::open(path).expect("the file opens");
        file.sync_all().expect("it syncs");
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("advice is taken");
    }
}
