//! What a user can say about a Kafka target, and librdkafka's configuration made from it.
//! The engine's promises rest on some properties; those cannot be passed through.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

/// Properties that the engine's promises rest on: they have a setting of their own, or no other value would do.
const OWNED: [&str; 16] = [
    "bootstrap.servers",
    "metadata.broker.list",
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "transactional.id",
    "message.send.max.retries",
    // Health and the bound on memory rest on these.
    "statistics.interval.ms",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "retries",
];

/// Parts of property names whose values `Debug` does not show.
const SECRET_PARTS: [&str; 5] = ["password", "secret", ".pem", "sasl.oauthbearer.config", "jaas"];

/// Properties of a connection start with one of these.
const CONNECTION_PREFIXES: [&str; 6] =
    ["security.", "ssl.", "enable.ssl.", "sasl.", "socket.", "broker.address."];

/// A Kafka target. [`KafkaSettings::new`] has the defaults; fields are changed afterwards.
#[derive(Clone)]
#[non_exhaustive]
pub struct KafkaSettings {
    /// The brokers to ask first, as `host:port`.
    pub brokers: Vec<String>,
    /// How the client names itself to the brokers. Default `tidegate`.
    pub client_id: String,
    /// TLS; `None` is plain text.
    pub tls: Option<Tls>,
    /// SASL; `None` is no authentication.
    pub sasl: Option<Sasl>,
    /// How batches are compressed. Default lz4, which costs next to nothing.
    pub compression: Compression,
    /// How a key chooses its partition. Default FNV-1a, as the reference.
    pub partitioner: Partitioner,
    /// How long a batch waits for more. Default 5 ms; with a backlog batches fill at once and it does not matter.
    pub linger: Duration,
    /// The largest message, in bytes before compression. Default 1 000 000; the broker's own limit is a little higher.
    pub message_bytes_max: usize,
    /// Whether the broker drops what the client's own retries repeat. Default true. Without it, requests go one at a
    /// time, which keeps the order but not a duplicate away; for brokers that do not allow it.
    pub idempotence: bool,
    /// librdkafka properties by name, over everything above but what the engine owns.
    pub properties: BTreeMap<String, String>,
}

/// How a connection is encrypted.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Tls {
    /// A file or directory of certificates that are trusted, in PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate and key, in PEM.
    pub client: Option<ClientCertificate>,
    /// Whether any certificate of the broker is taken. Default false.
    pub skip_verify: bool,
}

/// A certificate by which the client proves who it is.
#[derive(Debug, Clone)]
pub struct ClientCertificate {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
    /// The key's password, if it is encrypted.
    pub key_password: Option<Secret>,
}

/// Who the client says it is.
#[derive(Debug, Clone)]
pub struct Sasl {
    /// The mechanism.
    pub mechanism: SaslMechanism,
    /// The user.
    pub username: String,
    /// The user's password.
    pub password: Secret,
}

/// A SASL mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaslMechanism {
    /// `PLAIN`.
    Plain,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `SCRAM-SHA-512`.
    ScramSha512,
}

/// A codec for batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// None.
    None,
    /// gzip: ten times the CPU of lz4.
    Gzip,
    /// snappy.
    Snappy,
    /// lz4.
    #[default]
    Lz4,
    /// zstd: the smallest.
    Zstd,
}

/// How a key chooses its partition. A record without a key goes to any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// FNV-1a, as the reference and sarama.
    #[default]
    Fnv1a,
    /// murmur2, as the Java client.
    Murmur2,
    /// CRC32, as librdkafka by default.
    Consistent,
    /// Any partition, whatever the key: no order.
    Random,
}

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` from being shown.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Why settings do not make a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// No broker is named.
    #[error("no broker is named; name at least one as host:port")]
    NoBrokers,
    /// The property is the engine's: use the setting, or leave it.
    #[error("property {name} is owned by tidegate and cannot be passed through")]
    Owned {
        /// The property.
        name: String,
    },
    /// librdkafka does not take the property.
    #[error("property {name}={value}: {reason}")]
    Property {
        /// The property.
        name: String,
        /// Its value, unless it is a secret.
        value: String,
        /// librdkafka's own words.
        reason: String,
    },
    /// A file that is named cannot be read by this process.
    #[error("{setting}: {}: {reason}", path.display())]
    File {
        /// What the file is for.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's own words.
        reason: String,
    },
    /// The client was not made, for a reason that is not a single property: a file that is not PEM, settings that
    /// contradict each other.
    #[error("{reason}")]
    Client {
        /// librdkafka's own words.
        reason: String,
    },
}

impl KafkaSettings {
    /// The defaults, for these brokers.
    pub fn new<B: Into<String>>(brokers: impl IntoIterator<Item = B>) -> KafkaSettings {
        KafkaSettings {
            brokers: brokers.into_iter().map(Into::into).collect(),
            client_id: "tidegate".to_owned(),
            tls: None,
            sasl: None,
            compression: Compression::default(),
            partitioner: Partitioner::default(),
            linger: Duration::from_millis(5),
            message_bytes_max: 1_000_000,
            idempotence: true,
            properties: BTreeMap::new(),
        }
    }

    /// Checks what can be checked without a broker and without reading a file.
    ///
    /// # Errors
    /// [`SettingsError`]: which setting, and what is wrong with it.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.producer_config()?.create_native_config().map_err(SettingsError::from_client)?;
        Ok(())
    }

    /// Looks for the files that are named: librdkafka's words about a missing one do not say which it is.
    pub(super) fn check_files(&self) -> Result<(), SettingsError> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let client = tls.client.as_ref();
        let files = [
            ("trusted certificates", tls.ca.as_ref()),
            ("client certificate", client.map(|client| &client.certificate)),
            ("client key", client.map(|client| &client.key)),
        ];
        for (setting, path) in files {
            let Some(path) = path else { continue };
            if let Err(error) = std::fs::File::open(path) {
                return Err(SettingsError::File { setting, path: path.clone(), reason: error.to_string() });
            }
        }
        Ok(())
    }

    /// The configuration of a producer.
    pub(super) fn producer_config(&self) -> Result<ClientConfig, SettingsError> {
        let mut config = self.connection_config()?;
        let in_flight = if self.idempotence { "5" } else { "1" };
        config
            .set("acks", "all")
            .set("enable.idempotence", self.idempotence.to_string())
            .set("max.in.flight.requests.per.connection", in_flight)
            // The disk is the timeout: a local one would turn a slow cluster into unknown outcomes.
            .set("message.timeout.ms", "0")
            .set("linger.ms", self.linger.as_millis().to_string())
            .set("compression.type", self.compression.word())
            .set("partitioner", self.partitioner.word())
            .set("message.max.bytes", self.message_bytes_max.to_string())
            .set("queue.buffering.max.messages", "100000")
            // Twice the drain's window, so that the client has room for what the drain sends.
            .set("queue.buffering.max.kbytes", "65536")
            // A broker up again after an outage is found this soon.
            .set("topic.metadata.refresh.interval.ms", "60000")
            // The only way to learn that a broker is up again; 6 KB of JSON each time.
            .set("statistics.interval.ms", "5000");
        self.pass_through(&mut config);
        Ok(config)
    }

    /// The configuration of a consumer that belongs to no group and commits nothing.
    pub(super) fn consumer_config(&self) -> Result<ClientConfig, SettingsError> {
        let mut config = self.connection_config()?;
        config
            // Assigning partitions needs a name for a group; nothing is ever committed to it.
            .set("group.id", "tidegate-reader")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest");
        Ok(config)
    }

    /// What producers and consumers have in common.
    fn connection_config(&self) -> Result<ClientConfig, SettingsError> {
        if self.brokers.iter().all(|broker| broker.trim().is_empty()) {
            return Err(SettingsError::NoBrokers);
        }
        if let Some(name) = self.properties.keys().find(|name| OWNED.contains(&name.as_str())) {
            return Err(SettingsError::Owned { name: name.clone() });
        }
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.brokers.join(","))
            .set("client.id", &self.client_id)
            .set("reconnect.backoff.max.ms", "3000")
            .set("socket.keepalive.enable", "true")
            .set_log_level(RDKafkaLogLevel::Info);
        self.secure(&mut config);
        Ok(config)
    }

    fn secure(&self, config: &mut ClientConfig) {
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            tls.set(config);
        }
        if let Some(sasl) = &self.sasl {
            config
                .set("sasl.mechanisms", sasl.mechanism.word())
                .set("sasl.username", &sasl.username)
                .set("sasl.password", &sasl.password.0);
        }
        // A producer takes all properties; this is what a consumer needs of them to reach the same brokers.
        for (name, value) in &self.properties {
            if CONNECTION_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                config.set(name, value);
            }
        }
    }

    fn pass_through(&self, config: &mut ClientConfig) {
        for (name, value) in &self.properties {
            config.set(name, value);
        }
    }
}

impl Tls {
    fn set(&self, config: &mut ClientConfig) {
        // `probe` finds the system's store on other distributions too, which a copied static binary needs.
        let ca = self.ca.as_ref().map_or("probe".into(), |path| path.to_string_lossy());
        config.set("ssl.ca.location", ca);
        if self.skip_verify {
            config.set("enable.ssl.certificate.verification", "false");
        }
        if let Some(client) = &self.client {
            config
                .set("ssl.certificate.location", client.certificate.to_string_lossy())
                .set("ssl.key.location", client.key.to_string_lossy());
            if let Some(password) = &client.key_password {
                config.set("ssl.key.password", &password.0);
            }
        }
    }
}

impl SaslMechanism {
    fn word(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl Compression {
    fn word(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl Partitioner {
    fn word(self) -> &'static str {
        match self {
            Partitioner::Fnv1a => "fnv1a_random",
            Partitioner::Murmur2 => "murmur2_random",
            Partitioner::Consistent => "consistent_random",
            Partitioner::Random => "random",
        }
    }
}

impl SettingsError {
    pub(super) fn from_client(error: rdkafka::error::KafkaError) -> SettingsError {
        match error {
            rdkafka::error::KafkaError::ClientConfig(_, reason, name, value) => {
                let value = shown(&name, &value).to_owned();
                SettingsError::Property { name, value, reason }
            }
            rdkafka::error::KafkaError::ClientCreation(reason) => SettingsError::Client { reason },
            other => SettingsError::Client { reason: other.to_string() },
        }
    }
}

/// The value, unless the name says that it is a secret.
fn shown<'v>(name: &str, value: &'v str) -> &'v str {
    if SECRET_PARTS.iter().any(|part| name.contains(part)) { "***" } else { value }
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties: BTreeMap<&str, &str> =
            self.properties.iter().map(|(name, value)| (name.as_str(), shown(name, value))).collect();
        f.debug_struct("KafkaSettings")
            .field("brokers", &self.brokers)
            .field("client_id", &self.client_id)
            .field("tls", &self.tls)
            .field("sasl", &self.sasl)
            .field("compression", &self.compression)
            .field("partitioner", &self.partitioner)
            .field("linger", &self.linger)
            .field("message_bytes_max", &self.message_bytes_max)
            .field("idempotence", &self.idempotence)
            .field("properties", &properties)
            .finish()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca)
            .field("client", &self.client)
            .field("skip_verify", &self.skip_verify)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> KafkaSettings {
        KafkaSettings::new(["a:9092", "b:9092"])
    }

    #[test]
    fn the_defaults_never_time_a_message_out_and_never_write_one_twice() {
        let config = settings().producer_config().expect("the defaults are good");

        let value = |name| config.get(name);
        assert_eq!(value("bootstrap.servers"), Some("a:9092,b:9092"));
        assert_eq!(value("message.timeout.ms"), Some("0"));
        assert_eq!(value("enable.idempotence"), Some("true"));
        assert_eq!(value("acks"), Some("all"));
        assert_eq!(value("partitioner"), Some("fnv1a_random"));
        assert_eq!(value("compression.type"), Some("lz4"));
        assert_eq!(value("linger.ms"), Some("5"));
        assert_eq!(value("queue.buffering.max.kbytes"), Some("65536"));
        assert_eq!(value("security.protocol"), Some("plaintext"));
    }

    #[test]
    fn the_defaults_are_taken_by_the_client_library() {
        assert_eq!(settings().check(), Ok(()));
    }

    #[test]
    fn without_idempotence_requests_go_one_at_a_time() {
        let mut settings = settings();
        settings.idempotence = false;

        let config = settings.producer_config().expect("a good setting");

        assert_eq!(config.get("max.in.flight.requests.per.connection"), Some("1"));
    }

    #[test]
    fn a_property_that_the_promises_rest_on_is_refused_by_name() {
        for name in OWNED {
            let mut settings = settings();
            settings.properties.insert(name.to_owned(), "1".to_owned());

            assert_eq!(settings.check(), Err(SettingsError::Owned { name: name.to_owned() }));
        }
    }

    #[test]
    fn an_unknown_property_or_value_is_an_error_that_names_it() {
        for (name, value) in [("no.such.property", "1"), ("socket.timeout.ms", "soon")] {
            let mut settings = settings();
            settings.properties.insert(name.to_owned(), value.to_owned());

            let error = settings.check().expect_err("a bad property").to_string();

            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn other_properties_win_over_the_settings() {
        let mut settings = settings();
        settings.properties.insert("linger.ms".to_owned(), "50".to_owned());

        let config = settings.producer_config().expect("a good property");

        assert_eq!(config.get("linger.ms"), Some("50"));
    }

    #[test]
    fn no_broker_is_an_error() {
        assert_eq!(KafkaSettings::new([""]).check(), Err(SettingsError::NoBrokers));
        assert_eq!(KafkaSettings::new::<String>([]).check(), Err(SettingsError::NoBrokers));
    }

    #[test]
    fn passwords_are_in_the_configuration_and_in_no_debug_text() {
        let mut settings = settings();
        settings.sasl = Some(Sasl {
            mechanism: SaslMechanism::ScramSha512,
            username: "carol".to_owned(),
            password: Secret::new("hunter2"),
        });
        settings.tls = Some(Tls {
            client: Some(ClientCertificate {
                certificate: "c.pem".into(),
                key: "k.pem".into(),
                key_password: Some(Secret::new("hunter2")),
            }),
            ..Tls::default()
        });
        settings.properties.insert("ssl.keystore.password".to_owned(), "hunter2".to_owned());

        let config = settings.producer_config().expect("good settings");

        assert_eq!(config.get("sasl.password"), Some("hunter2"));
        assert_eq!(config.get("ssl.key.password"), Some("hunter2"));
        assert_eq!(config.get("security.protocol"), Some("sasl_ssl"));
        assert_eq!(config.get("sasl.mechanisms"), Some("SCRAM-SHA-512"));
        let debug = format!("{settings:?}");
        assert!(!debug.contains("hunter2") && debug.contains("carol"), "{debug}");
    }
}
