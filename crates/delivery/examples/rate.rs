use std::time::{Duration, Instant};
use tidegate_delivery::kafka::{KafkaProducer, KafkaSettings, embedded::EmbeddedKafka};
use tidegate_delivery::{Drain, DrainSettings};
use tidegate_store::{Durability, QueueDir, QueueDirOptions, QueueOptions, Record};
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
}
fn main() {
    let n: u64 = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let queues = QueueDir::open(folder.path(), QueueDirOptions::default()).unwrap();
    let queue = queues.queue("primary", QueueOptions::default().queue_limit(10_000_000)).unwrap();
    let value = vec![b'x'; 100];
    let mut last = None;
    let t = Instant::now();
    for i in 0..n {
        let k = format!("key-{:014}", i % 1000);
        last = Some(
            queue
                .append(
                    &Record { key: Some(k.as_bytes()), value: &value, ..Record::default() },
                    Durability::Synced,
                )
                .unwrap(),
        );
    }
    last.unwrap().wait().unwrap();
    println!("append {:?}", t.elapsed());
    let cluster = EmbeddedKafka::start(1, &[("events", 4)]).unwrap();
    let mut settings = KafkaSettings::new([cluster.bootstrap_servers()]);
    if std::env::args().nth(1).as_deref() == Some("none") {
        settings.compression = tidegate_delivery::kafka::Compression::None;
    }
    let connect = Box::new(move |signal: &_| Ok(Box::new(KafkaProducer::connect(&settings, signal)?) as _));
    let mut s = DrainSettings::new("primary", "events");
    s.identity_header = std::env::args().nth(2).is_none();
    let (t, c) = (Instant::now(), cpu());
    let drain = Drain::start(queue, s, connect, None).unwrap();
    let status = drain.wait(Duration::from_secs(60), |status| status.counters.delivered == n);
    let e = t.elapsed().as_secs_f64();
    println!(
        "{:?} {:.0}/s cpu {:.2} us/rec (with the mock in process)",
        status.counters,
        status.counters.delivered as f64 / e,
        (cpu() - c) * 1e6 / n as f64
    );
    println!("{:?}", drain.shutdown(Duration::from_secs(5)));
}
