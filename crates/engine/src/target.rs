//! A target at work: its queue, and the drain that carries it to Kafka. Also how both are made from configuration.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tidegate_delivery::kafka::{
    ClientCertificate, Compression, KafkaProducer, KafkaSettings, Sasl, SaslMechanism, Secret, Tls,
};
use tidegate_delivery::{Connect, Drain, DrainSettings, OpenDeadLetters, TargetStatus};
use tidegate_notify::config::{self, Codec, Mechanism};
use tidegate_notify::{Arn, TargetConfig, TargetId};
use tidegate_store::{Disk, Queue, QueueDir, QueueDirOptions, QueueOptions, RealDisk};

use crate::load::secret;

/// One target of an engine.
#[derive(Debug)]
pub struct Target {
    id: TargetId,
    arn: Arn,
    queue: Queue,
    drain: Drain,
}

impl Target {
    /// The target's identifier.
    #[must_use]
    pub fn id(&self) -> &TargetId {
        &self.id
    }

    /// The target's name in rules.
    #[must_use]
    pub fn arn(&self) -> &Arn {
        &self.arn
    }

    /// The queue that keeps its events until Kafka has them.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What its delivery is doing.
    #[must_use]
    pub fn delivery(&self) -> TargetStatus {
        self.drain.status()
    }

    /// Blocks until `condition` holds for the state of the delivery, or for `timeout`; returns the state then. It is
    /// looked at whenever the state changes.
    pub fn wait(&self, timeout: Duration, condition: impl FnMut(&TargetStatus) -> bool) -> TargetStatus {
        self.drain.wait(timeout, condition)
    }

    /// Opens the queue and starts the drain.
    pub(crate) fn start(config: &TargetConfig, arn: Arn, dirs: &QueueDirs) -> Result<Target, String> {
        let settings = kafka_settings(config)?;
        settings.check().map_err(|error| error.to_string())?;
        let dir = dirs.open(&config.queue_dir)?;
        let options = QueueOptions::default().queue_limit(config.queue_limit);
        let queue = dir.queue(config.id.as_str(), options).map_err(|error| error.to_string())?;
        let mut drain = DrainSettings::new(config.id.as_str(), &config.topic);
        drain.identity_header = config.headers;
        let dead_letters = dead_letters(dir, &config.id);
        let drain = Drain::start(queue.clone(), drain, connect(settings), Some(dead_letters))
            .map_err(|error| format!("cannot start the drain's thread: {error}"))?;
        Ok(Target { id: config.id.clone(), arn, queue, drain })
    }

    /// Stops the delivery after at most `grace`, then closes the queue. What is not delivered stays. A second call
    /// changes nothing.
    pub(crate) fn shutdown(&self, grace: Duration) {
        self.drain.shutdown(grace);
        self.queue.close();
    }
}

/// What a dead letter carries beside its record, in bytes: the headers that say why. A reason is a sentence of the
/// broker's.
const DEAD_LETTER_EXTRA_BYTES: usize = 64 << 10;

/// The queue of records that Kafka will never take: beside the target's own. No target can have its name, since an
/// identifier has no slash.
fn dead_letters(dir: QueueDir, id: &TargetId) -> OpenDeadLetters {
    let name = format!("{}/dead-letters", id.as_str());
    Box::new(move || {
        let options = QueueOptions::default();
        let record_bytes_max = options.record_bytes_max + DEAD_LETTER_EXTRA_BYTES;
        // Bounded by the disk alone: refusing a dead letter would hold the queue that it comes from.
        let options = options.queue_limit(u64::MAX).record_bytes_max(record_bytes_max);
        dir.queue(&name, options).map_err(Into::into)
    })
}

fn connect(settings: KafkaSettings) -> Connect {
    Box::new(move |signal| Ok(Box::new(KafkaProducer::connect(&settings, signal)?)))
}

/// The queue_dirs of an engine, each opened once however many targets share it.
#[derive(Debug, Default)]
pub(crate) struct QueueDirs(Mutex<HashMap<PathBuf, Arc<OnceLock<Opened>>>>);

type Opened = Result<QueueDir, String>;

impl QueueDirs {
    /// Targets open side by side; those that share a folder wait for the one that opens it, and for no other.
    fn open(&self, path: &Path) -> Result<QueueDir, String> {
        let failed = |error: &dyn std::fmt::Display| format!("queue_dir {}: {error}", path.display());
        RealDisk.create_dir_all(path).map_err(|error| failed(&error))?;
        // Two spellings of one folder are one folder: a link in between is resolved once, here.
        let real = path.canonicalize().map_err(|error| failed(&error))?;
        let dir = Arc::clone(
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(real.clone()).or_default(),
        );
        let opened = dir.get_or_init(|| {
            let mut options = QueueDirOptions::default();
            // No key of the configuration could allow it, so the store warns instead of refusing.
            options.network_file_system = true;
            QueueDir::open(&real, options).map_err(|error| error.to_string())
        });
        opened.clone().map_err(|error| failed(&error))
    }
}

/// What a target's configuration means to the Kafka client.
fn kafka_settings(target: &TargetConfig) -> Result<KafkaSettings, String> {
    let mut settings = KafkaSettings::new(target.brokers.iter().map(ToString::to_string));
    settings.client_id = format!("tidegate-{}", target.id.as_str());
    settings.tls = target.tls.as_ref().map(tls);
    settings.sasl = target.sasl.as_ref().map(sasl).transpose()?;
    settings.compression = compression(target.compression.codec)?;
    settings.properties.insert("partitioner".to_owned(), target.partitioner.as_str().to_owned());
    if let Some(timeout) = target.batch_commit_timeout {
        settings.linger = timeout;
    }
    if let Some(size) = target.batch_size {
        settings.properties.insert("batch.num.messages".to_owned(), size.to_string());
    }
    if let Some(level) = target.compression.level {
        settings.properties.insert("compression.level".to_owned(), level.to_string());
    }
    for (name, setting) in target.settings.properties() {
        settings.properties.insert(name.to_owned(), setting.value().to_owned());
    }
    Ok(settings)
}

fn compression(codec: Codec) -> Result<Compression, String> {
    match codec {
        Codec::None => Ok(Compression::None),
        Codec::Gzip => Ok(Compression::Gzip),
        Codec::Snappy => Ok(Compression::Snappy),
        Codec::Lz4 => Ok(Compression::Lz4),
        Codec::Zstd => Ok(Compression::Zstd),
        other => Err(format!("compression_codec {} is not known to this version", other.as_str())),
    }
}

fn tls(from: &config::Tls) -> Tls {
    let mut tls = Tls::default();
    tls.ca.clone_from(&from.ca);
    tls.skip_verify = from.skip_verify;
    tls.client = from.client.as_ref().map(|client| ClientCertificate {
        certificate: client.cert.clone(),
        key: client.key.clone(),
        key_password: None,
    });
    tls
}

fn sasl(from: &config::Sasl) -> Result<Sasl, String> {
    let mechanism = match from.mechanism {
        Mechanism::ScramSha256 => SaslMechanism::ScramSha256,
        Mechanism::ScramSha512 => SaslMechanism::ScramSha512,
        Mechanism::Plain => SaslMechanism::Plain,
        other => return Err(format!("sasl_mechanism {} is not known to this version", other.as_str())),
    };
    let password = Secret::new(secret(&from.password)?);
    Ok(Sasl { mechanism, username: from.username.clone(), password })
}

/// What has become of a target that the configuration names.
#[derive(Debug)]
pub(crate) enum Slot {
    Working(Arc<Target>),
    /// Its configuration or its queue_dir does not work: every event for it is refused, with this reason.
    Broken {
        arn: Arn,
        reason: Arc<str>,
    },
}
