//! How long to wait before the next attempt: exponential, full jitter, a cap, reset by success.
//! Pure: the random number is passed in, the caller keeps the time.

use std::time::Duration;

/// The limits of a backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits {
    /// The longest delay after the first failure; it doubles with each further one. Default 100 ms: a leader election
    /// takes about that long.
    pub first: Duration,
    /// The longest delay of all. Default 5 s: a target that is mended is noticed within this time, and a window that
    /// is resent this often costs nothing.
    pub cap: Duration,
}

impl Default for BackoffLimits {
    fn default() -> BackoffLimits {
        BackoffLimits { first: Duration::from_millis(100), cap: Duration::from_secs(5) }
    }
}

/// Counts failures in a row and says how long to wait.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    limits: BackoffLimits,
    failures: u32,
}

impl Backoff {
    /// A backoff that has seen no failure.
    #[must_use]
    pub(crate) fn new(limits: BackoffLimits) -> Backoff {
        Backoff { limits, failures: 0 }
    }

    /// Counts a failure. The delay lies anywhere between nothing and the ceiling ("full jitter": many targets that
    /// failed together do not come back together), at the place that `random`, in `0.0..1.0`, says.
    pub(crate) fn failed(&mut self, random: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.ceiling().mul_f64(random.clamp(0.0, 1.0))
    }

    /// Counts a failure that only an operator can mend: from half the cap to the cap, at the first one too.
    pub(crate) fn blocked(&mut self, random: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.limits.cap.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// A success: the next failure is the first again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The longest delay after this many failures.
    fn ceiling(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(31);
        self.limits.first.saturating_mul(1 << doublings).min(self.limits.cap)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = BackoffLimits> {
        (1u64..10_000, 1u64..1_000_000).prop_map(|(first, cap)| BackoffLimits {
            first: Duration::from_millis(first),
            cap: Duration::from_millis(cap),
        })
    }

    proptest! {
        #[test]
        fn a_delay_never_exceeds_the_cap(limits in limits(), randoms in prop::collection::vec(0.0f64..1.0, 1..80)) {
            let mut backoff = Backoff::new(limits);

            for random in randoms {
                prop_assert!(backoff.failed(random) <= limits.cap);
                prop_assert!(backoff.blocked(random) <= limits.cap);
            }
        }

        #[test]
        fn the_ceiling_doubles_up_to_the_cap_and_stays(limits in limits(), failures in 1u32..100) {
            let mut backoff = Backoff::new(limits);
            let mut last = Duration::ZERO;

            for _ in 0..failures {
                let longest = backoff.failed(1.0);
                prop_assert!(longest == (last * 2).max(limits.first).min(limits.cap));
                last = longest;
            }
        }

        #[test]
        fn after_a_success_the_next_failure_is_the_first_again(limits in limits(), failures in 0u32..50) {
            let mut backoff = Backoff::new(limits);
            for _ in 0..failures {
                backoff.failed(0.5);
            }

            backoff.reset();

            prop_assert_eq!(backoff.failed(1.0), limits.first.min(limits.cap));
        }

        #[test]
        fn what_an_operator_must_mend_waits_at_least_half_the_cap(limits in limits(), random in 0.0f64..1.0) {
            prop_assert!(Backoff::new(limits).blocked(random) >= limits.cap / 2);
        }
    }
}
