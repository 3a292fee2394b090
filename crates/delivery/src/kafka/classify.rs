//! Kafka's error codes as outcomes. What each code does was measured; the table is in `docs/kafka.md` of the project.
//! Everything that is not known to be hopeless is retried for ever.

use std::sync::Arc;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::outcome::{Outcome, RetryKind};
use crate::produce::Refused;

/// What a report with this error means.
pub(super) fn reported(code: Code, reason: Arc<str>) -> Outcome {
    match code {
        // The broker has this sequence number of the idempotent producer already.
        Code::DuplicateSequenceNumber => Outcome::Delivered,
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidRecord
        | Code::PolicyViolation
        | Code::InvalidTimestamp
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::UnsupportedForMessageFormat => Outcome::Suspect { reason },
        Code::Fatal | Code::Fenced | Code::ProducerFenced => Outcome::Fatal { reason },
        _ => Outcome::Retry { kind: retry_kind(code), reason },
    }
}

/// What a refused send means. No report comes for it.
pub(super) fn refused(error: &KafkaError) -> Refused {
    let reason: Arc<str> = error.to_string().into();
    let outcome = match error.rdkafka_error_code() {
        Some(Code::QueueFull) => return Refused::Full,
        // The client's own limit: the broker was not asked, so this record alone is meant.
        Some(Code::MessageSizeTooLarge) => {
            Outcome::reject(format!("larger than message.max.bytes of this client: {reason}"))
        }
        Some(code) => reported(code, reason),
        // A topic with a zero byte in its name.
        None => Outcome::Reject { reason },
    };
    Refused::Outcome(outcome)
}

fn retry_kind(code: Code) -> RetryKind {
    match code {
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::Authentication
        | Code::SSL
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::InvalidTopic => RetryKind::Blocked,
        Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::NetworkException
        | Code::BrokerTransportFailure
        | Code::NotEnoughReplicasAfterAppend
        | Code::OutOfOrderSequenceNumber
        | Code::PurgeInflight => RetryKind::Unconfirmed,
        Code::NotEnoughReplicas
        | Code::KafkaStorageError
        | Code::NotLeaderForPartition
        | Code::LeaderNotAvailable
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::ThrottlingQuotaExceeded
        | Code::InvalidProducerEpoch
        | Code::UnknownProducerId
        | Code::PurgeQueue
        | Code::AllBrokersDown
        | Code::Resolve => RetryKind::Transient,
        _ => RetryKind::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(code: Code) -> RetryKind {
        match reported(code, "why".into()) {
            Outcome::Retry { kind, .. } => kind,
            other => panic!("{code:?} is {other:?}"),
        }
    }

    #[test]
    fn what_spoils_a_batch_is_a_suspect_and_never_rejected_at_once() {
        for code in
            [Code::MessageSizeTooLarge, Code::InvalidRecord, Code::PolicyViolation, Code::InvalidTimestamp]
        {
            assert_eq!(reported(code, "why".into()), Outcome::suspect("why"), "{code:?}");
        }
    }

    #[test]
    fn too_large_for_the_client_is_rejected_because_it_was_judged_alone() {
        let refused = refused(&KafkaError::MessageProduction(Code::MessageSizeTooLarge));

        let Refused::Outcome(Outcome::Reject { reason }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("message.max.bytes of this client"), "{reason}");
    }

    #[test]
    fn what_an_operator_must_mend_is_retried_and_shown() {
        for code in [Code::TopicAuthorizationFailed, Code::UnknownTopic, Code::UnknownTopicOrPartition] {
            assert_eq!(retry(code), RetryKind::Blocked, "{code:?}");
        }
    }

    #[test]
    fn our_own_purge_is_never_a_loss_and_says_whether_it_may_be_a_duplicate() {
        assert_eq!(retry(Code::PurgeQueue), RetryKind::Transient);
        assert_eq!(retry(Code::PurgeInflight), RetryKind::Unconfirmed);
    }

    #[test]
    fn throttling_which_the_client_takes_for_permanent_is_retried() {
        assert_eq!(retry(Code::ThrottlingQuotaExceeded), RetryKind::Transient);
    }

    #[test]
    fn a_code_that_nobody_knows_is_retried() {
        assert_eq!(retry(Code::Unknown), RetryKind::Unclear);
        assert_eq!(retry(Code::TelemetryTooLarge), RetryKind::Unclear);
    }

    #[test]
    fn a_record_that_the_broker_has_already_is_delivered() {
        assert_eq!(reported(Code::DuplicateSequenceNumber, "why".into()), Outcome::Delivered);
    }

    #[test]
    fn a_full_client_is_not_a_failure() {
        assert_eq!(refused(&KafkaError::MessageProduction(Code::QueueFull)), Refused::Full);
    }
}
