//! The Kafka client. This file and those in its folder are the only ones that know rdkafka's types.
//! A message carries its sequence number as a plain number through librdkafka: no allocation and no future a record.

mod classify;
pub mod embedded;
mod reader;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::statistics::Statistics;
use tidegate_store::Seq;

use crate::outcome::Outcome;
use crate::produce::{Health, IDENTITY_HEADER, Outgoing, Problem, Producer, Refused, Report};
use crate::signal::Signal;

pub use reader::{ReadKafkaError, Received, TopicReader};
pub use settings::{
    ClientCertificate, Compression, KafkaSettings, Partitioner, Sasl, SaslMechanism, Secret, SettingsError,
    Tls,
};

// The sequence number travels as librdkafka's opaque pointer.
const _: () = assert!(usize::BITS >= u64::BITS, "tidegate needs a 64-bit machine");

/// A Kafka client for one target. Dropping it gives up what is in flight and blocks for at most about half a second.
pub struct KafkaProducer {
    producer: ThreadedProducer<Context>,
    context: Arc<Context>,
}

impl KafkaProducer {
    /// Makes a client. It connects in the background, for as long as it takes.
    ///
    /// # Errors
    /// [`SettingsError`]: a setting is not taken, or a file that it names cannot be read.
    pub fn connect(settings: &KafkaSettings, signal: &Arc<Signal>) -> Result<KafkaProducer, SettingsError> {
        settings.check_files()?;
        let config = settings.producer_config()?;
        let context = Context::new(Arc::clone(signal));
        let producer = ThreadedProducer::from_config_and_context(&config, context)
            .map_err(SettingsError::from_client)?;
        let context = Arc::clone(producer.client().context());
        Ok(KafkaProducer { producer, context })
    }
}

impl Producer for KafkaProducer {
    fn send(&mut self, seq: Seq, outgoing: &Outgoing<'_>) -> Result<(), Refused> {
        let record = BaseRecord {
            topic: outgoing.topic,
            partition: None,
            payload: Some(outgoing.value),
            key: outgoing.key,
            timestamp: outgoing.timestamp_ms,
            headers: headers(outgoing),
            delivery_opaque: usize::try_from(seq.get()).expect("the machine has 64 bits"),
        };
        self.producer.send(record).map_err(|(error, _)| {
            let refused = classify::refused(&error);
            if refused != Refused::Full {
                self.context.doubt.store(true, Ordering::Release);
            }
            refused
        })
    }

    fn take_reports(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.context.reports());
    }

    fn purge(&mut self) {
        self.producer.purge(PurgeConfig::default().queue().inflight());
    }

    fn fatal(&self) -> Option<Arc<str>> {
        // Asking costs a call into C: only after something went wrong.
        if !self.context.doubt.load(Ordering::Acquire) {
            return None;
        }
        let fatal = self.producer.client().fatal_error();
        if fatal.is_none() {
            self.context.doubt.store(false, Ordering::Release);
        }
        fatal.map(|(code, text)| format!("{code:?}: {text}").into())
    }

    fn health(&self) -> Health {
        self.context.connection().health.clone()
    }
}

fn headers(outgoing: &Outgoing<'_>) -> Option<OwnedHeaders> {
    let count = outgoing.headers.len() + usize::from(outgoing.id.is_some());
    if count == 0 {
        return None;
    }
    let mut headers = OwnedHeaders::new_with_capacity(count);
    if let Some(id) = outgoing.id {
        headers = headers.insert(KafkaHeader { key: IDENTITY_HEADER, value: Some(id) });
    }
    for header in outgoing.headers {
        headers = headers.insert(KafkaHeader { key: header.name, value: Some(header.value) });
    }
    Some(headers)
}

/// What librdkafka calls back, from the producer's polling thread. Nothing here blocks or panics.
struct Context {
    signal: Arc<Signal>,
    reports: Mutex<Vec<Report>>,
    connection: Mutex<Connection>,
    /// Whether something is wrong with the connection: lets a delivery see without the lock that nothing is.
    troubled: AtomicBool,
    /// Whether the client may be broken for good.
    doubt: AtomicBool,
}

/// What is known about the connection.
#[derive(Default)]
struct Connection {
    health: Health,
    /// What may become the reason once all brokers are down.
    cause: Option<Problem>,
    /// rdkafka 0.39 hands every error event over twice in a row; this is the first of a pair.
    first_of_pair: Option<(Option<Code>, String)>,
    /// The text of the last failed report: a spoiled batch has thousands with the same.
    last_reason: Option<(Code, Arc<str>)>,
}

impl Context {
    fn new(signal: Arc<Signal>) -> Context {
        Context {
            signal,
            reports: Mutex::default(),
            connection: Mutex::default(),
            // Nothing is known yet: the first delivery says that a broker is up.
            troubled: AtomicBool::new(true),
            doubt: AtomicBool::new(false),
        }
    }

    fn reports(&self) -> MutexGuard<'_, Vec<Report>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A broker answers: nothing is wrong any more.
    fn is_up(&self) {
        self.troubled.store(false, Ordering::Release);
        let mut connection = self.connection();
        connection.cause = None;
        let up = Health { up: Some(true), problem: None };
        if connection.health != up {
            connection.health = up;
            drop(connection);
            self.signal.poke();
        }
    }

    fn failed(&self, error: &KafkaError) -> Outcome {
        self.doubt.store(true, Ordering::Release);
        let Some(code) = error.rdkafka_error_code() else {
            return Outcome::retry(crate::RetryKind::Unclear, error.to_string());
        };
        let mut connection = self.connection();
        let reason = match &connection.last_reason {
            Some((last, reason)) if *last == code => Arc::clone(reason),
            _ => {
                let reason: Arc<str> = code.to_string().into();
                connection.last_reason = Some((code, Arc::clone(&reason)));
                reason
            }
        };
        classify::reported(code, reason)
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let outcome = match result {
            Ok(_) => {
                if self.troubled.load(Ordering::Acquire) {
                    self.is_up();
                }
                Outcome::Delivered
            }
            Err((error, _)) => self.failed(error),
        };
        let mut reports = self.reports();
        let first = reports.is_empty();
        reports.push(Report { seq: Seq::new(opaque as u64), outcome });
        drop(reports);
        // The drain takes all that there is; who is not the first finds it awake.
        if first {
            self.signal.poke();
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // What matters also comes as an error event and becomes the target's state, which is logged once.
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(facility, message, "librdkafka");
            }
            _ => tracing::debug!(facility, message, ?level, "librdkafka"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        let mut connection = self.connection();
        let pair = (code, reason.to_owned());
        if connection.first_of_pair.take_if(|first| *first == pair).is_some() {
            return;
        }
        connection.first_of_pair = Some(pair);
        tracing::debug!(?code, reason, "librdkafka reports an error");
        self.troubled.store(true, Ordering::Release);
        connection.event(code, reason);
        drop(connection);
        self.doubt.store(true, Ordering::Release);
        self.signal.poke();
    }

    fn stats(&self, statistics: Statistics) {
        let up = |state: &str| matches!(state, "UP" | "UPDATE");
        if statistics.brokers.values().any(|broker| up(&broker.state)) {
            self.is_up();
        }
    }
}

impl Connection {
    /// An error event. No message ever fails for one of these.
    fn event(&mut self, code: Option<Code>, reason: &str) {
        let reason: Arc<str> = reason.into();
        match code {
            Some(Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL) => {
                let problem = Problem { blocked: true, reason };
                self.cause = Some(problem.clone());
                self.health = Health { up: Some(false), problem: Some(problem) };
            }
            Some(Code::AllBrokersDown) => {
                let problem = self.cause.clone().unwrap_or(Problem { blocked: false, reason });
                self.health = Health { up: Some(false), problem: Some(problem) };
            }
            Some(Code::Resolve | Code::BrokerTransportFailure)
                if self.cause.as_ref().is_none_or(|cause| !cause.blocked) =>
            {
                self.cause = Some(Problem { blocked: false, reason });
            }
            _ => {}
        }
    }
}
