//! A Kafka cluster inside this process: librdkafka's mock, for the demo and for tests. It listens on 127.0.0.1 and
//! speaks the real protocol; it keeps about 5 MiB a partition, has no TLS, no SASL and no memory of producers.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Command = Box<dyn FnOnce(&Cluster) + Send>;

/// Why the embedded cluster did not do something.
#[derive(Debug, thiserror::Error)]
#[error("embedded kafka: {0}")]
pub struct EmbeddedError(String);

impl From<KafkaError> for EmbeddedError {
    fn from(error: KafkaError) -> EmbeddedError {
        EmbeddedError(error.to_string())
    }
}

/// An error that a broker can be told to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerError {
    /// None: ends a topic's error.
    None,
    /// A message or batch is too large.
    MessageTooLarge,
    /// The client may not write to the topic.
    TopicAuthorizationFailed,
    /// The topic is not there.
    UnknownTopic,
    /// The producer's sequence is broken: fatal for an idempotent producer.
    OutOfOrderSequence,
    /// The partition has moved.
    NotLeader,
    /// A quota is exceeded.
    ThrottlingQuotaExceeded,
    /// The broker does not say why.
    Unknown,
}

impl BrokerError {
    fn code(self) -> RDKafkaRespErr {
        match self {
            BrokerError::None => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
            BrokerError::MessageTooLarge => RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
            BrokerError::TopicAuthorizationFailed => {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED
            }
            BrokerError::UnknownTopic => RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
            BrokerError::OutOfOrderSequence => RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            BrokerError::NotLeader => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            BrokerError::ThrottlingQuotaExceeded => {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED
            }
            BrokerError::Unknown => RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN,
        }
    }
}

/// An embedded cluster. It ends when it is dropped.
pub struct EmbeddedKafka {
    bootstrap_servers: String,
    /// The mock is neither `Send` nor `Sync`: it lives in a thread and is told what to do.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedKafka {
    /// Starts a cluster of `brokers` brokers, numbered from 1, with these topics and their partition counts. Other
    /// topics are made when they are first used, with 4 partitions.
    ///
    /// # Errors
    /// [`EmbeddedError`] if the cluster does not start.
    pub fn start(brokers: i32, topics: &[(&str, i32)]) -> Result<EmbeddedKafka, EmbeddedError> {
        let (commands, inbox) = channel::<Command>();
        let (started, starting) = channel();
        let topics: Vec<(String, i32)> =
            topics.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let thread = std::thread::Builder::new().name("embedded kafka".to_owned()).spawn(move || {
            match make(brokers, &topics) {
                Err(error) => drop(started.send(Err(error))),
                Ok(cluster) => {
                    // If nobody listens any more, the inbox is closed too.
                    drop(started.send(Ok(cluster.bootstrap_servers())));
                    for command in inbox {
                        command(&cluster);
                    }
                }
            }
        });
        let thread = thread.map_err(|error| EmbeddedError(error.to_string()))?;
        let bootstrap_servers =
            starting.recv().map_err(|_| EmbeddedError("the cluster's thread ended".to_owned()))??;
        Ok(EmbeddedKafka { bootstrap_servers, commands: Some(commands), thread: Some(thread) })
    }

    /// Where clients connect, as `host:port,...`.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Cuts all connections to all brokers and refuses new ones.
    ///
    /// # Errors
    /// [`EmbeddedError`] if the cluster has ended.
    pub fn stop_brokers(&self) -> Result<(), EmbeddedError> {
        self.stop_broker(-1)
    }

    /// Lets all brokers accept connections again.
    ///
    /// # Errors
    /// [`EmbeddedError`] if the cluster has ended.
    pub fn start_brokers(&self) -> Result<(), EmbeddedError> {
        self.start_broker(-1)
    }

    /// Cuts all connections to a broker and refuses new ones. Leaders do not move.
    ///
    /// # Errors
    /// [`EmbeddedError`] if there is no such broker.
    pub fn stop_broker(&self, broker: i32) -> Result<(), EmbeddedError> {
        self.ask(move |cluster| cluster.broker_down(broker))
    }

    /// Lets a broker accept connections again.
    ///
    /// # Errors
    /// [`EmbeddedError`] if there is no such broker.
    pub fn start_broker(&self, broker: i32) -> Result<(), EmbeddedError> {
        self.ask(move |cluster| cluster.broker_up(broker))
    }

    /// Moves a partition to a broker, or leaves it without a leader.
    ///
    /// # Errors
    /// [`EmbeddedError`] if there is no such broker or partition.
    pub fn move_leader(&self, topic: &str, partition: i32, broker: Option<i32>) -> Result<(), EmbeddedError> {
        let topic = topic.to_owned();
        self.ask(move |cluster| cluster.partition_leader(&topic, partition, broker))
    }

    /// Answers the next produce requests with these errors, one each; what they carry is not written.
    ///
    /// # Errors
    /// [`EmbeddedError`] if the cluster has ended.
    pub fn fail_produce(&self, errors: &[BrokerError]) -> Result<(), EmbeddedError> {
        let codes: Vec<RDKafkaRespErr> = errors.iter().map(|error| error.code()).collect();
        self.ask(move |cluster| {
            cluster.request_errors(RDKafkaApiKey::Produce, &codes);
            Ok(())
        })
    }

    /// Shows a topic with this error in the metadata from now on; [`BrokerError::None`] ends it.
    ///
    /// # Errors
    /// [`EmbeddedError`] if the cluster has ended.
    pub fn fail_topic(&self, topic: &str, error: BrokerError) -> Result<(), EmbeddedError> {
        let topic = topic.to_owned();
        self.ask(move |cluster| cluster.topic_error(&topic, error.code()))
    }

    fn ask(
        &self,
        command: impl FnOnce(&Cluster) -> Result<(), KafkaError> + Send + 'static,
    ) -> Result<(), EmbeddedError> {
        let ended = || EmbeddedError("the cluster has ended".to_owned());
        let (answer, answered) = channel();
        let command: Command = Box::new(move |cluster| drop(answer.send(command(cluster))));
        self.commands.as_ref().ok_or_else(ended)?.send(command).map_err(|_| ended())?;
        Ok(answered.recv().map_err(|_| ended())??)
    }
}

impl Drop for EmbeddedKafka {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It ends when its inbox is closed; if it panicked, there is nothing left to end.
            drop(thread.join());
        }
    }
}

fn make(brokers: i32, topics: &[(String, i32)]) -> Result<Cluster, EmbeddedError> {
    let cluster = MockCluster::new(brokers)?;
    for (name, partitions) in topics {
        cluster.create_topic(name, *partitions, brokers.min(3))?;
    }
    Ok(cluster)
}
