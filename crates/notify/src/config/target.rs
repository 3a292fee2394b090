//! Settings into a target that works: every value typed, every dependency between keys checked. All problems are found
//! in one go, not only the first.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::keys::Key;
use super::problem::{Problem, Warning};
use super::setting::{Secret, SecretSource, Setting, Settings, Source};
use super::values::{self, Acks, Broker, Codec, Mechanism, Partitioner};
use crate::arn::TargetId;

/// A target that is valid and switched on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetConfig {
    /// Its identifier.
    pub id: TargetId,
    /// Where to find the cluster; at least one.
    pub brokers: Vec<Broker>,
    /// The topic.
    pub topic: String,
    /// How to authenticate; `None` if `sasl` is off.
    pub sasl: Option<Sasl>,
    /// How to encrypt; `None` if `tls` is off.
    pub tls: Option<Tls>,
    /// The directory that keeps events until Kafka has them; absolute.
    pub queue_dir: PathBuf,
    /// How many events may wait; at least 1. Default [`QUEUE_LIMIT`](TargetConfig::QUEUE_LIMIT).
    pub queue_limit: u64,
    /// The version of Kafka that was named; without effect.
    pub version: Option<String>,
    /// At most so many events in a batch; `None` leaves it to the client.
    pub batch_size: Option<NonZeroU32>,
    /// How long a batch may wait for more events; `None` leaves it to the client.
    pub batch_commit_timeout: Option<Duration>,
    /// How batches are compressed. Default lz4.
    pub compression: Compression,
    /// Which replicas must have an event. Default all.
    pub acks: Acks,
    /// How the key chooses the partition. Default as the reference.
    pub partitioner: Partitioner,
    /// Whether the header `tidegate-id` is added. Default true.
    pub headers: bool,
    /// Free text; may be empty.
    pub comment: String,
    /// Everything as it was written, with its sources; the properties for librdkafka are in it.
    pub settings: Settings,
}

/// How to authenticate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sasl {
    /// The mechanism. Default PLAIN.
    pub mechanism: Mechanism,
    /// The user's name; never empty.
    pub username: String,
    /// The password, or where it is.
    pub password: SecretSource,
}

/// How to encrypt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// Whether any certificate is trusted. Default false.
    pub skip_verify: bool,
    /// A PEM file with the authorities to trust; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The client's own certificate, if it has one.
    pub client: Option<ClientTls>,
}

/// The client's own certificate and key, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientTls {
    /// The certificate's file; absolute.
    pub cert: PathBuf,
    /// The key's file; absolute.
    pub key: PathBuf,
}

/// How batches are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compression {
    /// The codec.
    pub codec: Codec,
    /// The level; `None` for the codec's own.
    pub level: Option<i32>,
}

impl TargetConfig {
    /// How many events may wait where `queue_limit` says nothing, or 0. As the reference.
    pub const QUEUE_LIMIT: u64 = 100_000;

    /// Reads a target that is switched on; `problems` are those that reading the file has found.
    pub(super) fn read(
        id: &TargetId,
        settings: Settings,
        problems: Vec<Problem>,
    ) -> Result<(TargetConfig, Vec<Warning>), (Settings, Vec<Problem>)> {
        let mut reader = Reader { id, settings: &settings, problems, warnings: Vec::new() };
        let target = reader.target();
        let Reader { problems, warnings, .. } = reader;
        match target {
            Some(target) if problems.is_empty() => Ok((target, warnings)),
            _ => Err((settings, problems)),
        }
    }
}

/// Reads values of one target and collects what is wrong with them.
struct Reader<'s> {
    id: &'s TargetId,
    settings: &'s Settings,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Reader<'_> {
    /// The target, or `None` after at least one problem. Every value is read before it gives up.
    fn target(&mut self) -> Option<TargetConfig> {
        let brokers = self.required(Key::Brokers, values::brokers);
        let topic = self.required(Key::Topic, values::topic);
        let queue_dir = self.required(Key::QueueDir, values::absolute_path);
        let queue_limit = self.value(Key::QueueLimit, |text| values::whole(text, 0..=u64::MAX));
        let sasl = self.sasl();
        let tls = self.tls();
        let version = self.optional(Key::Version, values::version);
        let batch_size = self.value(Key::BatchSize, |text| values::whole(text, 0..=u32::MAX));
        let batch_commit_timeout = self.value(Key::BatchCommitTimeout, values::duration);
        let compression = self.compression();
        let acks = self.value(Key::Acks, Acks::parse);
        let partitioner = self.value(Key::Partitioner, Partitioner::parse);
        let headers = self.value(Key::Headers, values::switch);
        if matches!(acks, Some(Acks::Leader | Acks::None)) {
            self.warn(
                Key::Acks,
                "without effect: it stays at all, since with less, delivered events are lost when a broker fails",
            );
        }

        Some(TargetConfig {
            id: self.id.clone(),
            brokers: brokers?,
            topic: topic?,
            sasl,
            tls,
            queue_dir: queue_dir?,
            queue_limit: queue_limit
                .map(|limit| if limit == 0 { TargetConfig::QUEUE_LIMIT } else { limit })?,
            version,
            // 0 and 1 mean no batching to the reference, and its client batches all the same.
            batch_size: NonZeroU32::new(batch_size?).filter(|size| size.get() > 1),
            batch_commit_timeout: Some(batch_commit_timeout?).filter(|timeout| !timeout.is_zero()),
            compression: compression?,
            acks: acks?,
            partitioner: partitioner?,
            headers: headers?,
            comment: self.settings.get(Key::Comment).map(Setting::value).unwrap_or_default().to_owned(),
            settings: self.settings.clone(),
        })
    }

    /// How to authenticate; `None` if it is off, and after a problem.
    fn sasl(&mut self) -> Option<Sasl> {
        let on = self.value(Key::Sasl, values::switch);
        let mechanism = self.value(Key::SaslMechanism, Mechanism::parse);
        let file = self.optional(Key::SaslPasswordFile, values::absolute_path);
        if on == Some(false) {
            let keys = [Key::SaslUsername, Key::SaslPassword, Key::SaslPasswordFile, Key::SaslMechanism];
            self.warn_all(&keys, "without effect while sasl is off");
            return None;
        }
        let (username, password) = (self.settings.get(Key::SaslUsername), self.password(file));
        if on == Some(true) && username.is_none() {
            self.missing(Key::SaslUsername, "sasl is on and needs it");
        }
        if on == Some(true) && password.is_none() {
            self.missing(Key::SaslPassword, "sasl is on and needs it, or sasl_password_file");
        }
        let username = username?.value().to_owned();
        Some(Sasl { mechanism: mechanism?, username, password: password? })
    }

    /// The password in effect. Given both ways, the environment wins over the file as for any key.
    fn password(&mut self, file: Option<PathBuf>) -> Option<SecretSource> {
        let given = |key| self.settings.get(key);
        let from_environment = |setting: &Setting| matches!(setting.source(), Source::Environment { .. });
        match (given(Key::SaslPassword), given(Key::SaslPasswordFile)) {
            (None, _) => file.map(SecretSource::File),
            (Some(inline), Some(path)) if from_environment(inline) == from_environment(path) => {
                let problem = Problem::of_setting(
                    Key::SaslPasswordFile.name(),
                    path,
                    "set this or sasl_password, not both",
                );
                self.problems.push(problem);
                None
            }
            (Some(_), Some(path)) if from_environment(path) => file.map(SecretSource::File),
            (Some(inline), _) => Some(SecretSource::Inline(Secret::new(inline.value()))),
        }
    }

    /// How to encrypt; `None` if it is off, and after a problem.
    fn tls(&mut self) -> Option<Tls> {
        let on = self.value(Key::Tls, values::switch);
        let skip_verify = self.value(Key::TlsSkipVerify, values::switch);
        let ca = self.optional(Key::TlsCa, values::absolute_path);
        let cert = self.optional(Key::ClientTlsCert, values::absolute_path);
        let key = self.optional(Key::ClientTlsKey, values::absolute_path);
        let is_set = |key| self.settings.get(key).is_some();
        match (is_set(Key::ClientTlsCert), is_set(Key::ClientTlsKey)) {
            (true, false) => self.missing(Key::ClientTlsKey, "client_tls_cert is set and needs it"),
            (false, true) => self.missing(Key::ClientTlsCert, "client_tls_key is set and needs it"),
            _ => {}
        }
        if self
            .value(Key::TlsClientAuth, |text| values::whole(text, 0u8..=4))
            .is_some_and(|number| number > 0)
        {
            self.warn(Key::TlsClientAuth, "without effect: it is a policy of servers, and this is a client");
        }
        if on == Some(false) {
            let keys = [Key::TlsSkipVerify, Key::TlsCa, Key::ClientTlsCert, Key::ClientTlsKey];
            self.warn_all(&keys, "without effect while tls is off");
            return None;
        }
        let client = cert.zip(key).map(|(cert, key)| ClientTls { cert, key });
        Some(Tls { skip_verify: skip_verify?, ca, client })
    }

    fn compression(&mut self) -> Option<Compression> {
        let codec = self.value(Key::CompressionCodec, Codec::parse);
        let most = if codec == Some(Codec::Gzip) { 9 } else { 12 };
        let level = self.optional(Key::CompressionLevel, |text| values::whole(text, -1..=most));
        if level.is_some() && matches!(codec, Some(Codec::None | Codec::Snappy)) {
            self.warn(Key::CompressionLevel, "without effect: the codec has no levels");
            return codec.map(|codec| Compression { codec, level: None });
        }
        codec.map(|codec| Compression { codec, level: level.filter(|level| *level >= 0) })
    }

    /// A value that the schema has a default for.
    fn value<T>(&mut self, key: Key, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match self.settings.get(key) {
            Some(_) => self.optional(key, parse),
            None => Some(
                parse(key.default_text()).expect("the schema's defaults are values; a test reads them all"),
            ),
        }
    }

    /// A value that may be left out, without a default.
    fn optional<T>(&mut self, key: Key, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let setting = self.settings.get(key)?;
        match parse(setting.value()) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.problems.push(Problem::of_setting(key.name(), setting, reason));
                None
            }
        }
    }

    /// A value that every target has.
    fn required<T>(&mut self, key: Key, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        if self.settings.get(key).is_none() {
            let why = if key == Key::QueueDir {
                "an event must be durable before it is answered"
            } else {
                "every target needs it"
            };
            self.missing(key, why);
        }
        self.optional(key, parse)
    }

    fn missing(&mut self, key: Key, why: &str) {
        let variable = key.variable(self.id);
        let reason = format!("not set: {why}; set {} in the file or {variable}", key.name());
        self.problems.push(Problem::missing(key.name(), reason));
    }

    fn warn_all(&mut self, keys: &[Key], reason: &str) {
        for key in keys {
            self.warn(*key, reason);
        }
    }

    /// Warns of a key if it is set.
    fn warn(&mut self, key: Key, reason: &str) {
        if let Some(setting) = self.settings.get(key) {
            let problem = Problem::of_setting(key.name(), setting, reason);
            self.warnings.push(Warning::Setting { id: self.id.clone(), problem });
        }
    }
}
