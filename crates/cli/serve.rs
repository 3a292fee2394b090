//! `tidegate serve`: the daemon. HTTP in, queues, Kafka out.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use tidegate::{Config, Engine, load_config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::Verdict;
use crate::args::ServeArgs;
use crate::embedded::Embedded;
use crate::http;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Verdict> {
    let file = args.config.config.as_deref();
    let (config, embedded) = if args.embedded_kafka {
        let embedded = Embedded::start(file)?;
        (embedded.config()?, Some(embedded))
    } else {
        (load_config(file, &[])?, None)
    };
    announce(&config, embedded.as_ref());
    if config.targets.is_empty() {
        bail!(
            "there is no target that works; set one up in a file (--config) or with MINIO_NOTIFY_KAFKA_ENABLE=on, \
             _BROKERS, _TOPIC and _QUEUE_DIR, or try --embedded-kafka"
        );
    }
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(serve(args, config))?;
    Ok(Verdict::Done)
}

/// What a user looks for at start: the ARNs, what is wrong, and how to add what is missing.
fn announce(config: &Config, embedded: Option<&Embedded>) {
    for broken in &config.broken {
        for problem in &broken.problems {
            tracing::error!("notify_kafka:{}: {problem}", broken.id);
        }
    }
    for rule in &config.broken_rules {
        for problem in &rule.problems {
            tracing::error!("rule at line {}: {problem}", rule.line);
        }
    }
    for problem in &config.problems {
        tracing::error!("{problem}");
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let arns: Vec<_> = config.arns().iter().map(ToString::to_string).collect();
    println!("SQS ARNs: {}", arns.join(" "));
    if let Some(embedded) = embedded {
        println!("embedded Kafka: {}", embedded.bootstrap_servers());
    }
    if config.rules.is_empty() {
        let arn = arns.first().map_or("arn:minio:sqs::primary:kafka", String::as_str);
        println!(
            "no rule exists, so no event matches; add one to the configuration file:\n\n  [[rule]]\n  bucket = \"*\"\n  arn = \"{arn}\"\n"
        );
    }
}

async fn serve(args: &ServeArgs, config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let engine = Engine::open(config).await;
    let address: SocketAddr = listener.local_addr().context("the listener has no address")?;
    println!("listening on http://{address}");

    let router = http::router(engine.clone(), args.body_bytes_max);
    let (tell, told) = tokio::sync::watch::channel(());
    let mut ending = told.clone();
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is the end as well.
        let _ = ending.changed().await;
    });
    let server = tokio::spawn(server.into_future());
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
    }
    tell.send_replace(());
    // A request that is never finished must not keep the daemon from ending: its sender has no answer, and knows.
    if tokio::time::timeout(args.grace, server).await.is_err() {
        tracing::warn!("requests were still open after the grace period and are cut off");
    }
    let report = engine.shutdown(args.grace).await;
    for (arn, counters, waiting) in report.targets {
        println!("{arn}: {} delivered, {waiting} wait on disk", counters.delivered);
    }
    Ok(())
}
