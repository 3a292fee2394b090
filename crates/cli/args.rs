//! The arguments, and the help that teaches them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Keeps events on disk until Kafka has them.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    max_term_width = 100,
    after_help = "\
Start here:
  tidegate demo                        see it survive an outage and a crash; needs nothing installed
  tidegate serve --embedded-kafka      take events over HTTP, with a Kafka of its own

TIDEGATE_LOG=debug shows what it does. Exit codes: 0 done, 1 the answer is no, 2 usage or configuration."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show it: events through a broker's outage and a crash, read back and counted
    Demo(DemoArgs),
    #[command(hide = true)]
    DemoWorker(WorkerArgs),
    /// Take events over HTTP, keep them on disk, deliver them to Kafka
    Serve(ServeArgs),
    /// Append lines to a target's queue and wait until Kafka has them
    Send(SendArgs),
    /// Look at the queues of a queue_dir
    #[command(subcommand)]
    Queue(QueueCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// Where each queue stands; works while a daemon runs and when none does
    Stat(StatArgs),
}

/// Where configuration comes from.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file, tidegate.toml; MINIO_NOTIFY_KAFKA_* variables win over it, key by key
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What happens: a mock Kafka starts inside this process and a worker process publishes events through the
real engine. A third of the way the broker goes down; events go on being accepted. Then the worker is
killed with SIGKILL and a new one goes on, on the same queue_dir. The broker comes back, the queue is
drained, and a consumer compares the topic with what was accepted.

Exit code 0 only if nothing is missing and no key is out of order.")]
pub(crate) struct DemoArgs {
    /// How many events to publish
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    pub(crate) events: u64,
    /// Bytes of each event's record; one has about 600 at least
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=500_000))]
    pub(crate) size: u64,
    /// How long the broker is down at least, in seconds
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    pub(crate) seconds_down: Duration,
    /// The queue_dir; kept afterwards. Default: a temporary one
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) brokers: String,
    #[arg(long)]
    pub(crate) topic: String,
    #[arg(long)]
    pub(crate) from: u64,
    #[arg(long)]
    pub(crate) size: u64,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tidegate serve --embedded-kafka
  curl -i http://127.0.0.1:8480/events -H 'content-type: application/json' -d \\
    '{\"EventName\":\"s3:ObjectCreated:Put\",\"Key\":\"images/cat.jpg\",\"Records\":[{}]}'

POST /events takes one envelope as an object store's webhook posts it, or one a line
(content-type: application/x-ndjson). The answer:
  200  every matched target has the events durable
  503  a target refused (see \"refused\"; the others have them): send again after Retry-After
  400  bad input, with the reason and the line; nothing of it was accepted
  413, 408  the body is over --body-bytes-max, or did not come within 30 s
GET /healthz says what every target is doing. SIGTERM and SIGINT end it: what is not delivered stays on disk.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8480")]
    pub(crate) listen: SocketAddr,
    /// Bring a Kafka along: librdkafka's mock cluster, in this process, in memory. For trying things out
    #[arg(long)]
    pub(crate) embedded_kafka: bool,
    /// The largest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub(crate) body_bytes_max: usize,
    /// How long to wait at the end, for open requests and for what is in flight, in seconds
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) grace: Duration,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  printf 'one\\ntwo\\n' | tidegate send --config tidegate.toml primary
  tidegate send --no-wait primary lines.txt      # returns when durable; needs no broker

Exit code 0: every line has arrived (with --no-wait: is durable). 1: some have not. 2: usage or configuration.
The queue_dir is opened, so a daemon that has it open must be ended, or be asked instead.")]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// The target: its identifier, as in [notify_kafka.primary], or its ARN
    pub(crate) target: String,
    /// The file to read, one record a line; - is standard input
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// Return when the records are durable, without waiting for Kafka
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The message key of all records: they go to one partition, in order. Default: none
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Give up waiting for Kafka after so many seconds; what is not delivered stays queued. Default: never
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
start <= cursor <= durable <= end: the first sequence number still stored, the first not acknowledged, the
first not known to survive power loss, and the next to be given out. Exit code 1 if damage is seen. Reads what the log says of itself: while
a daemon runs, cursor and durable are up to 50 ms behind.")]
pub(crate) struct StatArgs {
    /// A queue_dir, or one queue's folder in it
    pub(crate) dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The longest time that an argument may ask for.
const SECONDS_MAX: Duration = Duration::from_secs(24 * 60 * 60);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if duration > SECONDS_MAX { Err("at most a day".to_owned()) } else { Ok(duration) }
}
