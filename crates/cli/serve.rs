//! `tidegate serve`: the daemon. HTTP in, queues, Kafka out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use tidegate::{Config, Engine};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::Verdict;
use crate::args::ServeArgs;
use crate::embedded::Embedded;
use crate::{config, http};

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Verdict> {
    let file = args.config.config.as_deref();
    let (config, embedded) = if args.embedded_kafka {
        let embedded = Embedded::start(file)?;
        (embedded.config()?, Some(embedded))
    } else {
        (config::load(file, &[])?, None)
    };
    if config.targets.is_empty() {
        bail!(
            "there is no target that works; set one up in a file (--config) or with MINIO_NOTIFY_KAFKA_ENABLE=on, \
             _BROKERS, _TOPIC and _QUEUE_DIR, or try --embedded-kafka{}",
            config::broken(&config)
        );
    }
    announce(&config, embedded.as_ref());
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(serve(args, config))?;
    Ok(Verdict::Done)
}

/// Says something on standard output. Nobody may be listening any more, which is no reason to end.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// What a user looks for at start: the ARNs, and how to add what is missing.
fn announce(config: &Config, embedded: Option<&Embedded>) {
    let arns: Vec<_> = config.arns().iter().map(ToString::to_string).collect();
    say(&format!("SQS ARNs: {}", arns.join(" ")));
    if let Some(embedded) = embedded {
        say(&format!("embedded Kafka: {}", embedded.bootstrap_servers()));
    }
    if config.rules.is_empty() {
        let arn = arns.first().map_or("arn:minio:sqs::primary:kafka", String::as_str);
        say("no rule exists, so no event matches; add one to the configuration file:");
        say(&format!("\n  [[rule]]\n  bucket = \"*\"\n  arn = \"{arn}\"\n"));
    }
}

async fn serve(args: &ServeArgs, config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let engine = Engine::open(config).await;
    if engine.targets().next().is_none() {
        bail!("no target could be opened{}", reasons(&engine));
    }
    let address: SocketAddr = listener.local_addr().context("the listener has no address")?;
    say(&format!("listening on http://{address}"));

    let end = answer(args, &engine, listener, &mut terminate, &mut interrupt).await;
    let left = args.grace.saturating_sub(end.as_ref().map_or_else(|_| args.grace, Instant::elapsed));
    let report = engine.shutdown(left).await;
    for (arn, counters, waiting) in report.targets {
        say(&format!("{arn}: {} delivered, {waiting} wait on disk", counters.delivered));
    }
    end.map(drop)
}

fn reasons(engine: &Engine) -> String {
    let mut text = String::new();
    for target in engine.status().targets {
        // Writing to a text does not fail.
        let _ = write!(text, "\n  {}: {}", target.name, target.state);
    }
    text
}

/// Answers requests until a signal comes, and then those that are open, for the grace period at most. Returns when the
/// signal came.
async fn answer(
    args: &ServeArgs,
    engine: &Engine,
    listener: TcpListener,
    terminate: &mut Signal,
    interrupt: &mut Signal,
) -> anyhow::Result<Instant> {
    let (tell, mut told) = tokio::sync::watch::channel(());
    let router = http::router(engine.clone(), args.body_bytes_max);
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is the end as well.
        let _ = told.changed().await;
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
        ended = &mut server => bail!("the HTTP server ended by itself: {ended:?}"),
    }
    let signalled = Instant::now();
    tell.send_replace(());
    // A request that is never finished must not keep the daemon from ending: its sender has no answer, and knows.
    if tokio::time::timeout(args.grace, server).await.is_err() {
        tracing::warn!("requests were still open after the grace period and are cut off");
    }
    Ok(signalled)
}
