//! Progress of long work: a bar on a terminal, a plain line now and then elsewhere, nothing where it would be in the way.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a plain line is printed.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Progress {
    bar: ProgressBar,
    quiet: bool,
    terminal: bool,
    shown: Instant,
}

impl Progress {
    /// On standard error, so that the answer on standard output stays clean. `quiet` shows nothing.
    pub(crate) fn new(total: u64, quiet: bool) -> Progress {
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let target = if terminal && !quiet {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style);
        Progress { bar, quiet, terminal, shown: Instant::now() }
    }

    /// Of work whose end is not known.
    pub(crate) fn counting() -> Progress {
        let progress = Progress::new(0, false);
        progress.bar.unset_length();
        let style = ProgressStyle::with_template("{spinner} {pos} {msg}");
        progress.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        progress
    }

    /// So much is done.
    pub(crate) fn at(&mut self, done: u64, what: &str) {
        self.bar.set_position(done);
        self.bar.set_message(what.to_owned());
        if !self.terminal && !self.quiet && self.shown.elapsed() >= LINE_EVERY {
            self.shown = Instant::now();
            let of = self.bar.length().map_or_else(String::new, |total| format!("/{total}"));
            eprintln!("{done}{of} {what}");
        }
    }

    /// How much there is.
    pub(crate) fn total(&self) -> u64 {
        self.bar.length().unwrap_or_default()
    }

    /// Something that stays on the screen.
    pub(crate) fn say(&self, line: &str) {
        match (self.quiet, self.terminal) {
            (true, _) => {}
            (false, true) => self.bar.println(line),
            (false, false) => eprintln!("{line}"),
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
