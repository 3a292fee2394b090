//! Against Apache Kafka itself. These tests take a node's address from `TIDEGATE_TEST_KAFKA`, and fail without it:
//! `scripts/test` starts a node, or says that it leaves them out. Here are the node and the ledger that they share.

mod console;
mod golden;
mod journey;
mod kill_nine;
mod outage;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate::delivery::kafka::{KafkaSettings, Received, TopicReader};

use crate::setup::{Connection, NDJSON, PARTITIONS, PATIENCE, signal};

/// A Kafka node, and the script that rules it.
struct Node {
    address: String,
    /// Its folder if it is ours; it ends with us then.
    own: Option<PathBuf>,
}

impl Node {
    /// The node that `scripts/test` has started.
    fn given() -> Node {
        let Ok(address) = std::env::var("TIDEGATE_TEST_KAFKA") else {
            panic!(
                "these tests need a Kafka node: run scripts/test, which starts one and sets TIDEGATE_TEST_KAFKA"
            )
        };
        let node = Node { address, own: None };
        assert_eq!(
            node.script(&["status"]),
            node.address,
            "TIDEGATE_TEST_KAFKA is not the node of scripts/kafka"
        );
        node
    }

    /// A node of the test's own, for what would disturb others.
    fn own(folder: &Path) -> Node {
        // Where no node is given, none is wanted.
        drop(Node::given());
        let mut node = Node { address: String::new(), own: Some(folder.join("kafka")) };
        node.address = node.script(&["start"]);
        node
    }

    /// Runs `scripts/kafka` and returns what it prints.
    fn script(&self, args: &[&str]) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kafka");
        let mut command = Command::new(path);
        command.args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
        if let Some(folder) = &self.own {
            command.env("TIDEGATE_KAFKA_DIR", folder);
        }
        let output = command.output().expect("scripts/kafka runs");
        assert!(output.status.success(), "scripts/kafka {args:?}: {}", output.status);
        String::from_utf8(output.stdout).expect("it prints text").trim_end().to_owned()
    }

    /// A new topic, whose name nobody else has.
    fn topic(&self, name: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let topic = format!("it-{name}-{}-{now}", std::process::id());
        self.script(&["topic", &topic, &PARTITIONS.to_string()]);
        topic
    }

    /// All that a topic holds now.
    fn read(&self, topic: &str) -> Vec<Received> {
        let settings = KafkaSettings::new([self.address.as_str()]);
        let reader = TopicReader::open(&settings, topic, PATIENCE).expect("the topic can be read");
        let held =
            usize::try_from(reader.count(PATIENCE).expect("the topic can be counted")).expect("it fits");
        let deadline = Instant::now() + PATIENCE;
        let mut messages = Vec::with_capacity(held);
        while messages.len() < held {
            messages.extend(reader.next(Duration::from_millis(200)));
            assert!(Instant::now() < deadline, "{} messages of {held} came", messages.len());
        }
        messages
    }

    fn pid(&self) -> u32 {
        let folder = self.own.as_deref().expect("only a node of our own is told to stop");
        let pid = std::fs::read_to_string(folder.join("pid")).expect("a node has a pid");
        pid.trim().parse().expect("a number")
    }

    /// SIGSTOP: it holds its connections and answers nothing.
    fn pause(&self) {
        signal("STOP", self.pid());
    }

    fn resume(&self) {
        signal("CONT", self.pid());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.own.is_some() && !self.address.is_empty() {
            self.script(&["stop"]);
        }
    }
}

/// Keys of each client. Clients share none, so that the order of a key is the order of its client.
const KEYS: u64 = 25;

/// The key of a client's event.
fn key(client: usize, number: u64) -> String {
    format!("bucket/{client}/{}", number % KEYS)
}

/// A client's event: whoever reads it knows which one it is.
fn event(client: usize, number: u64) -> String {
    let key = key(client, number);
    format!(
        r#"{{"EventName":"s3:ObjectCreated:Put","Key":"{key}","Records":[{{"client":{client},"number":{number},"padding":"0123456789abcdef0123456789abcdef0123456789abcdef"}}]}}"#
    )
}

/// A client that remembers as accepted what was answered with 200, and posts again what was not answered.
struct Client {
    name: usize,
    /// Everything below is accepted.
    accepted: u64,
    /// Batches that were posted again, since nobody knew what had become of them.
    reposted: u64,
    connection: Option<Connection>,
}

impl Client {
    fn new(name: usize) -> Client {
        Client { name, accepted: 0, reposted: 0, connection: None }
    }

    /// Posts the next `events` until they are accepted. `address` says where the daemon listens now.
    fn post(&mut self, events: u64, address: impl Fn() -> SocketAddr) {
        let next = self.accepted + events;
        let body: String = (self.accepted..next).map(|number| event(self.name, number) + "\n").collect();
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_post(&body, address()) {
            self.connection = None;
            self.reposted += 1;
            assert!(Instant::now() < deadline, "no daemon has answered for {PATIENCE:?}: {error}");
            std::thread::sleep(Duration::from_millis(3));
        }
        self.accepted = next;
    }

    fn try_post(&mut self, body: &str, address: SocketAddr) -> std::io::Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(address)?,
        };
        let answer = connection.request("POST", "/events", NDJSON, body)?;
        assert_eq!(answer.status, 200, "{answer:?}");
        self.connection = Some(connection);
        Ok(())
    }
}

/// What a consumer with a memory of its own makes of the messages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    missing: u64,
    out_of_order: u64,
    /// Messages that nobody posted.
    foreign: u64,
}

/// Compares what was accepted with what came; says how often messages came again.
fn compare(clients: &[Client], messages: &[Received]) -> (Verdict, usize) {
    let mut verdict = Verdict::default();
    let mut seen: Vec<Vec<bool>> = clients
        .iter()
        .map(|client| vec![false; usize::try_from(client.accepted).expect("it fits")])
        .collect();
    let (mut distinct, mut highest) = (0, HashMap::new());
    for message in messages {
        let Some((client, number)) = posted(message, &seen) else {
            verdict.foreign += 1;
            continue;
        };
        let slot = &mut seen[client][usize::try_from(number).expect("it is an index")];
        if std::mem::replace(slot, true) {
            continue;
        }
        distinct += 1;
        let before = highest.insert((client, number % KEYS), number);
        verdict.out_of_order += u64::from(before.is_some_and(|before| before > number));
    }
    verdict.missing = seen.iter().flatten().filter(|seen| !**seen).count() as u64;
    (verdict, messages.len() - distinct)
}

/// Which event a message is: key and value are those that were posted, byte for byte.
fn posted(message: &Received, seen: &[Vec<bool>]) -> Option<(usize, u64)> {
    let value: serde_json::Value = serde_json::from_slice(&message.value).ok()?;
    let client = usize::try_from(value["Records"][0]["client"].as_u64()?).ok()?;
    let number = value["Records"][0]["number"].as_u64()?;
    let known = seen.get(client).is_some_and(|seen| number < seen.len() as u64);
    let same = message.value == event(client, number).into_bytes()
        && message.key.as_deref() == Some(key(client, number).as_bytes());
    (known && same).then_some((client, number))
}

#[test]
fn the_ledger_tells_gaps_repeats_inversions_and_strangers_apart() {
    let received = |client, number| Received {
        partition: 0,
        offset: 0,
        key: Some(key(client, number).into_bytes()),
        value: event(client, number).into_bytes(),
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let clients = [Client { accepted: 60, ..Client::new(0) }];
    let mut messages: Vec<_> = (0..60).map(|number| received(0, number)).collect();
    assert_eq!(compare(&clients, &messages), (Verdict::default(), 0));

    messages.swap(10, 35);
    messages.push(received(0, 35));
    messages.remove(59);
    let wrong = Verdict { missing: 1, out_of_order: 1, foreign: 0 };
    assert_eq!(compare(&clients, &messages), (wrong, 1));

    let stranger = Received { value: b"{}".to_vec(), ..received(0, 0) };
    let changed_key = Received { key: None, ..received(0, 0) };
    let (verdict, _) = compare(&clients, &[stranger, changed_key, received(0, 60), received(1, 0)]);
    assert_eq!((verdict.foreign, verdict.missing), (4, 60));
}
