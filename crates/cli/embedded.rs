//! A Kafka that comes along: librdkafka's mock cluster, and a configuration that points every target to it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;
use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::notify::config::Key;
use tidegate::{Config, TargetId, load_config};

/// Partitions of each topic in the embedded cluster.
const PARTITIONS: i32 = 3;

/// The embedded cluster of `serve`, and what of the configuration it overrides.
pub(crate) struct Embedded {
    kafka: EmbeddedKafka,
    file: Option<PathBuf>,
    overrides: Vec<(String, String)>,
    /// Holds the made-up configuration and its queue_dir where the user gave none.
    _folder: Option<TempDir>,
}

impl Embedded {
    /// Starts a cluster with the topics of the targets in the configuration; without any target, makes one up.
    pub(crate) fn start(file: Option<&Path>) -> anyhow::Result<Embedded> {
        // A target need not name brokers: they are overridden.
        let unset = "127.0.0.1:9092";
        let named = targets(&load_config(file, &[])?);
        let trial: Vec<_> = named.iter().map(|id| (Key::Brokers.variable(id), unset.to_owned())).collect();
        let config = load_config(file, &trial)?;
        let (file, folder, config) = if named.is_empty() {
            let (folder, path) = made_up()?;
            let config = load_config(Some(&path), &[])?;
            (Some(path), Some(folder), config)
        } else {
            (file.map(Path::to_owned), None, config)
        };
        let mut topics: Vec<_> =
            config.targets.iter().map(|target| (target.topic.as_str(), PARTITIONS)).collect();
        topics.sort_unstable();
        topics.dedup();
        let kafka = EmbeddedKafka::start(1, &topics).context("the embedded Kafka does not start")?;
        let brokers = kafka.bootstrap_servers().to_owned();
        // It speaks plain text and asks nobody who they are.
        let plain = |id: &TargetId| {
            let settings = [(Key::Brokers, brokers.as_str()), (Key::Tls, "off"), (Key::Sasl, "off")];
            settings.map(|(key, value)| (key.variable(id), value.to_owned()))
        };
        let overrides = config.targets.iter().flat_map(|target| plain(&target.id)).collect();
        Ok(Embedded { kafka, file, overrides, _folder: folder })
    }

    pub(crate) fn bootstrap_servers(&self) -> &str {
        self.kafka.bootstrap_servers()
    }

    /// The configuration with every target pointed here.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        Ok(crate::config::load(self.file.as_deref(), &self.overrides)?)
    }
}

fn targets(config: &Config) -> Vec<TargetId> {
    let broken = config.broken.iter().filter_map(|broken| broken.id.parse().ok());
    config.targets.iter().map(|target| target.id.clone()).chain(broken).collect()
}

/// One target for every bucket, in a folder that goes when the daemon ends.
fn made_up() -> anyhow::Result<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let path = folder.path().join("tidegate.toml");
    let queue_dir = folder.path().join("queues");
    // Debug of a text is a TOML string, but for characters that no temporary folder has.
    let queue_dir = queue_dir.display().to_string();
    let text = format!(
        "[notify_kafka.primary]\nbrokers = \"127.0.0.1:9092\"\ntopic = \"bucket-events\"\nqueue_dir = {queue_dir:?}\n\n\
         [[rule]]\nbucket = \"*\"\narn = \"arn:minio:sqs::primary:kafka\"\n\
         events = [\"put\", \"delete\", \"get\", \"replica\", \"ilm\", \"scanner\"]\n"
    );
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("no target is configured; every event goes to topic bucket-events, kept until the daemon ends");
    Ok((folder, path))
}
