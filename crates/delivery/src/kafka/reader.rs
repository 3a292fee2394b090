//! Reads a topic from the beginning, all partitions, in no group: for the demo, for `check`, and for tests.
//! Works against the embedded cluster and a real one alike.

use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{Offset, TopicPartitionList};

use super::{KafkaSettings, SettingsError};

/// A message as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The partition.
    pub partition: i32,
    /// Its place in the partition.
    pub offset: i64,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Vec<u8>,
    /// The headers, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The timestamp, in milliseconds since the Unix epoch.
    pub timestamp_ms: Option<i64>,
}

/// Why a topic could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadKafkaError {
    /// The settings do not make a client.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The topic is not there, or has no partitions.
    #[error("topic {0} does not exist")]
    NoTopic(String),
    /// The client gave up; a later call may succeed.
    #[error("topic {topic}: {reason}")]
    Client {
        /// The topic.
        topic: String,
        /// librdkafka's own words.
        reason: String,
    },
}

/// A reader of a whole topic.
pub struct TopicReader {
    consumer: BaseConsumer,
    topic: String,
    partitions: Vec<i32>,
}

impl TopicReader {
    /// Starts to read all partitions of `topic` from the beginning. Blocks for at most `timeout`.
    ///
    /// # Errors
    /// [`ReadKafkaError`] if the settings do not make a client, no broker answers in time, or there is no such topic.
    pub fn open(
        settings: &KafkaSettings,
        topic: &str,
        timeout: Duration,
    ) -> Result<TopicReader, ReadKafkaError> {
        let config = settings.consumer_config()?;
        let consumer: BaseConsumer = config.create().map_err(SettingsError::from_client)?;
        let failed = |error: rdkafka::error::KafkaError| ReadKafkaError::Client {
            topic: topic.to_owned(),
            reason: error.to_string(),
        };
        let metadata = consumer.fetch_metadata(Some(topic), timeout).map_err(failed)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic && found.error().is_none());
        let partitions: Vec<i32> = found
            .map(|found| found.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect())
            .unwrap_or_default();
        if partitions.is_empty() {
            return Err(ReadKafkaError::NoTopic(topic.to_owned()));
        }
        let mut assignment = TopicPartitionList::new();
        for partition in &partitions {
            assignment.add_partition_offset(topic, *partition, Offset::Beginning).map_err(failed)?;
        }
        consumer.assign(&assignment).map_err(failed)?;
        Ok(TopicReader { consumer, topic: topic.to_owned(), partitions })
    }

    /// The topic's partitions.
    #[must_use]
    pub fn partitions(&self) -> &[i32] {
        &self.partitions
    }

    /// The next message of any partition, or `None` if none came within `timeout`. Messages of one partition come in
    /// the order of their offsets. A connection that is lost is made again by itself, and is not an error here.
    pub fn next(&self, timeout: Duration) -> Option<Received> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.consumer.poll(left) {
                Some(Ok(message)) => return Some(received(&message)),
                Some(Err(error)) => tracing::debug!(topic = self.topic, %error, "reading goes on"),
                None => {}
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    /// How many messages the topic holds now, by its partitions' offsets. Blocks for at most `timeout` a partition.
    ///
    /// # Errors
    /// [`ReadKafkaError::Client`] if no broker answers in time.
    pub fn count(&self, timeout: Duration) -> Result<u64, ReadKafkaError> {
        let mut count = 0;
        for partition in &self.partitions {
            let (low, high) =
                self.consumer.fetch_watermarks(&self.topic, *partition, timeout).map_err(|error| {
                    ReadKafkaError::Client { topic: self.topic.clone(), reason: error.to_string() }
                })?;
            count += u64::try_from(high - low).unwrap_or(0);
        }
        Ok(count)
    }
}

fn received(message: &BorrowedMessage<'_>) -> Received {
    let headers = message.headers().map(|headers| {
        headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.unwrap_or_default().to_vec()))
            .collect()
    });
    Received {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().unwrap_or_default().to_vec(),
        headers: headers.unwrap_or_default(),
        timestamp_ms: message.timestamp().to_millis(),
    }
}
