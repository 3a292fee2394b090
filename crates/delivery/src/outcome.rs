//! What became of one attempt to deliver a record, by what the drain does next.
//! Nothing here knows Kafka's codes: `kafka/classify.rs` translates them.

use std::sync::Arc;

/// The outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The target has it. The only outcome on which a record is acknowledged without a dead letter.
    Delivered,
    /// Not this time: resend after a delay, for ever if need be.
    Retry {
        /// Why a resend is worth it, and what the state shows meanwhile.
        kind: RetryKind,
        /// The client's own words.
        reason: Arc<str>,
    },
    /// Something in its batch is not acceptable, which fails the batch as a whole: resend in smaller groups, alone at
    /// last. Only a record that fails alone is rejected.
    Suspect {
        /// The client's own words.
        reason: Arc<str>,
    },
    /// This record will never be taken: dead letter, then ack.
    Reject {
        /// The client's own words.
        reason: Arc<str>,
    },
    /// The client itself is of no more use: make a new one and resend what is not acknowledged.
    Fatal {
        /// The client's own words.
        reason: Arc<str>,
    },
}

/// Why an attempt is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryKind {
    /// Certainly not written; goes away by itself (leader change, throttling, our own purge).
    Transient,
    /// It may have been written all the same (a lost answer): the next attempt may be a duplicate.
    Unconfirmed,
    /// An operator has to mend it: authentication, authorisation, an unknown topic. Retried at the capped delay and
    /// shown as [`TargetState::Blocked`](crate::TargetState::Blocked).
    Blocked,
    /// The target does not say why. Resent alone after some attempts, so that the records of its batch get through.
    Unclear,
}

impl Outcome {
    /// A retry with a reason.
    pub fn retry(kind: RetryKind, reason: impl Into<Arc<str>>) -> Outcome {
        Outcome::Retry { kind, reason: reason.into() }
    }

    /// A suspect with a reason.
    pub fn suspect(reason: impl Into<Arc<str>>) -> Outcome {
        Outcome::Suspect { reason: reason.into() }
    }

    /// A rejection with a reason.
    pub fn reject(reason: impl Into<Arc<str>>) -> Outcome {
        Outcome::Reject { reason: reason.into() }
    }

    /// A fatal outcome with a reason.
    pub fn fatal(reason: impl Into<Arc<str>>) -> Outcome {
        Outcome::Fatal { reason: reason.into() }
    }

    /// Why it was not delivered; `None` if it was.
    #[must_use]
    pub fn reason(&self) -> Option<&Arc<str>> {
        match self {
            Outcome::Delivered => None,
            Outcome::Retry { reason, .. }
            | Outcome::Suspect { reason }
            | Outcome::Reject { reason }
            | Outcome::Fatal { reason } => Some(reason),
        }
    }
}
