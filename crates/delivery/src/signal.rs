//! The one thing that a drain waits on: the store, delivery reports and commands poke it, timers bound the wait.
//! A poke that comes before the wait is not lost; pokes are not counted, the drain looks at everything anyway.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Wakes a drain. Poked by whoever has something for it to look at.
#[derive(Debug, Default)]
pub struct Signal {
    poked: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Wakes the drain, or keeps it from falling asleep. Never blocks for longer than a few instructions, so it may be
    /// called from a client's callback.
    pub fn poke(&self) {
        let mut poked = self.poked.lock().unwrap_or_else(PoisonError::into_inner);
        if !*poked {
            *poked = true;
            self.changed.notify_one();
        }
    }

    /// Waits until poked, or until `deadline`. Returns at once if poked since the last wait.
    pub(crate) fn wait(&self, deadline: Option<Instant>) {
        let mut poked = self.poked.lock().unwrap_or_else(PoisonError::into_inner);
        while !*poked {
            poked = match deadline {
                None => self.changed.wait(poked).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.changed.wait_timeout(poked, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *poked = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_poke_before_the_wait_is_not_lost() {
        let signal = Signal::default();

        signal.poke();
        signal.poke();

        signal.wait(None);
    }

    #[test]
    fn a_poke_from_another_thread_ends_the_wait() {
        let signal = Arc::new(Signal::default());
        let other = Arc::clone(&signal);
        let poker = std::thread::spawn(move || other.poke());

        signal.wait(None);

        poker.join().expect("poking does not panic");
    }

    #[test]
    fn a_deadline_ends_the_wait_and_two_pokes_are_one() {
        let signal = Signal::default();
        signal.poke();
        signal.poke();
        signal.wait(None);
        let deadline = Instant::now() + Duration::from_millis(5);

        signal.wait(Some(deadline));

        assert!(Instant::now() >= deadline);
    }
}
