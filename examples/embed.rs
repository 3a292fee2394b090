//! Embedding: a service that publishes its own events. `cargo run --example embed` needs nothing installed: it brings a
//! mock Kafka along, reads the topic back, and shows what a consumer gets.

use std::error::Error;
use std::time::{Duration, SystemTime};

use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::delivery::kafka::{KafkaSettings, TopicReader};
use tidegate::{Config, Engine, Event, EventName};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let kafka = EmbeddedKafka::start(1, &[("bucket-events", 3)])?;
    let folder = tempfile::tempdir()?;

    // The same text may stand in a file: tidegate::load_config reads it, and the environment.
    let config = Config::parse(
        Some(&format!(
            r#"
            [notify_kafka.primary]
            brokers = "{brokers}"
            topic = "bucket-events"
            queue_dir = "{folder}"

            [[rule]]
            bucket = "images"
            arn = "arn:minio:sqs::primary:kafka"
            events = ["put"]
            suffix = ".jpg"
            "#,
            brokers = kafka.bootstrap_servers(),
            folder = folder.path().display(),
        )),
        std::iter::empty(),
    )?;
    let engine = Engine::open(config).await;

    for name in ["cat.jpg", "dog.jpg", "notes.txt"] {
        let event =
            Event::builder(EventName::ObjectCreatedPut, "images", name, now_ms()).size(5120).build()?;
        let published = engine.publish(&event).await;
        // From here on the event survives whatever happens to this process.
        println!(
            "{name}: accepted by {} targets, {} refused",
            published.accepted.len(),
            published.refused.len()
        );
    }

    let brokers = kafka.bootstrap_servers().to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let reader =
            TopicReader::open(&KafkaSettings::new([brokers]), "bucket-events", Duration::from_secs(10))?;
        let read: Vec<_> = (0..2).map_while(|_| reader.next(Duration::from_secs(10))).collect();
        Ok::<_, Box<dyn Error + Send + Sync>>(read)
    });
    for message in read.await?.map_err(|error| error.to_string())? {
        println!("partition {}: {}", message.partition, String::from_utf8_lossy(&message.value));
    }

    engine.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
