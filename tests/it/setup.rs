//! What the tests stand on: folders, configurations, the program as a process that never outlives its test, HTTP, and
//! waiting with a deadline. Knows no promise.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::delivery::kafka::{KafkaSettings, Received, TopicReader};
use tidegate::{Config, Envelope};

/// How long anything may take before a test gives up: far beyond what it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(5);
/// What a silent log is cut to when a test fails.
const LOG_LINES_MAX: usize = 60;
/// The topic of most tests.
pub(crate) const TOPIC: &str = "events";
/// Partitions of each topic.
pub(crate) const PARTITIONS: i32 = 3;
pub(crate) const ARN: &str = "arn:minio:sqs::primary:kafka";
pub(crate) const JSON: &str = "application/json";
pub(crate) const NDJSON: &str = "application/x-ndjson";
/// A broker that is down: nobody listens on port 1.
pub(crate) const NO_BROKER: &str = "127.0.0.1:1";

/// A folder below `target/`, gone when it is dropped.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("target/tmp takes folders")
}

/// Looks until `look` finds something. Panics, naming `what`, if that takes longer than `patience`.
pub(crate) fn until<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain for {what}");
        std::thread::sleep(LOOK);
    }
}

/// As [`until`], for a condition and the usual patience.
pub(crate) fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, PATIENCE, || condition().then_some(()));
}

/// Runs a future to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
    runtime.block_on(future)
}

/// A mock cluster with [`TOPIC`].
pub(crate) fn mock_kafka() -> EmbeddedKafka {
    EmbeddedKafka::start(1, &[(TOPIC, PARTITIONS)]).expect("the mock cluster starts")
}

/// The table of one target, with further lines of keys.
pub(crate) fn target(id: &str, brokers: &str, topic: &str, queue_dir: &Path, more: &str) -> String {
    let queue_dir = queue_dir.to_str().expect("a path of ours");
    format!(
        "[notify_kafka.{id}]\nbrokers = {brokers:?}\ntopic = {topic:?}\nqueue_dir = {queue_dir:?}\n{more}\n"
    )
}

/// The rule that sends every event of some buckets to a target.
pub(crate) fn rule(bucket: &str, id: &str) -> String {
    let events = r#"["put", "delete", "get", "replica", "ilm", "s3:Scanner:*"]"#;
    format!("[[rule]]\nbucket = {bucket:?}\narn = \"arn:minio:sqs::{id}:kafka\"\nevents = {events}\n")
}

/// One target `primary` that gets everything.
pub(crate) fn primary(brokers: &str, topic: &str, queue_dir: &Path, more: &str) -> String {
    target("primary", brokers, topic, queue_dir, more) + &rule("*", "primary")
}

/// Writes `tidegate.toml` into a folder.
pub(crate) fn write_config(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("tidegate.toml");
    std::fs::write(&path, text).expect("the folder takes a file");
    path
}

/// The configuration of a text, whatever the environment says.
pub(crate) fn parse_config(text: &str) -> Config {
    Config::parse(Some(text), std::iter::empty()).expect("the text is TOML")
}

/// An envelope as an object store posts it, with a number to know it by.
pub(crate) fn event(key: &str, number: u64) -> String {
    format!(r#"{{"EventName":"s3:ObjectCreated:Put","Key":"{key}","Records":[{{"number":{number}}}]}}"#)
}

/// Events of one key, numbered, one a line.
pub(crate) fn lines(key: &str, numbers: std::ops::Range<u64>) -> String {
    numbers.fold(String::new(), |mut lines, number| {
        writeln!(lines, "{}", event(key, number)).expect("a string takes lines");
        lines
    })
}

pub(crate) fn envelope(json: &str) -> Envelope<'_> {
    Envelope::parse(json.as_bytes()).expect("the test's events are events")
}

/// The number of an event from [`event`].
pub(crate) fn number_of(value: &[u8]) -> u64 {
    let value: Value = serde_json::from_slice(value).expect("a message is JSON");
    value["Records"][0]["number"].as_u64().expect("a message has its number")
}

/// Reads `count` messages of a topic, from the beginning, and sees to it that there are no more.
pub(crate) fn read_topic(brokers: &str, topic: &str, count: usize) -> Vec<Received> {
    let settings = KafkaSettings::new([brokers]);
    let reader = TopicReader::open(&settings, topic, PATIENCE).expect("the topic can be read");
    let deadline = Instant::now() + PATIENCE;
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        messages.extend(reader.next(Duration::from_millis(200)));
        assert!(Instant::now() < deadline, "{} messages of {count} came", messages.len());
    }
    let held = reader.count(PATIENCE).expect("the topic can be counted");
    assert_eq!(held, count as u64, "messages on topic {topic}");
    messages
}

/// The numbers of the messages with a key, in their order.
pub(crate) fn numbers(messages: &[Received], key: &str) -> Vec<u64> {
    let of_key = messages.iter().filter(|message| message.key.as_deref() == Some(key.as_bytes()));
    of_key.map(|message| number_of(&message.value)).collect()
}

/// The program, without this process's configuration in its environment.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("MINIO_") || text.starts_with("TIDEGATE_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Runs the program with these arguments and this input to its end.
pub(crate) fn run(args: &[&str], input: &str) -> Ended {
    let folder = folder();
    let [out, err] = ["out", "err"].map(|name| folder.path().join(name));
    let file = |path: &Path| File::create(path).expect("the folder takes a file");
    let process = program()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(file(&out))
        .stderr(file(&err))
        .spawn()
        .expect("the program starts");
    let mut process = Guard(process);
    let mut stdin = process.0.stdin.take().expect("its input is a pipe");
    // A program that ends without reading its input is for the caller to judge.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let status = process.wait();
    let read = |path: &Path| std::fs::read_to_string(path).expect("what it says is text");
    Ended { code: status.code(), out: read(&out), err: read(&err) }
}

/// A process that ends with the test, by its pid.
struct Guard(Child);

impl Guard {
    fn wait(&mut self) -> ExitStatus {
        until("a process to end", PATIENCE, || self.0.try_wait().expect("a child can be waited for"))
    }

    /// SIGKILL: no handler runs, nothing is flushed.
    fn kill(&mut self) {
        // One that has ended already is as dead as it should be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process that this test started.
pub(crate) fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("kill(1) is there").success(), "no SIG{name} for {pid}");
}

/// `tidegate serve`, killed when it is dropped.
pub(crate) struct Serve {
    process: Guard,
    output: BufReader<ChildStdout>,
    log: PathBuf,
    address: SocketAddr,
}

impl Serve {
    /// Starts it on a free port and returns when it listens. Its log is beside the configuration.
    pub(crate) fn start(config: &Path) -> Serve {
        Serve::start_with(config, &[])
    }

    /// As [`Serve::start`], with further arguments.
    pub(crate) fn start_with(config: &Path, args: &[&str]) -> Serve {
        let log = config.with_extension("log");
        let mut process = Guard(spawn(config, args, &log));
        let mut output = BufReader::new(process.0.stdout.take().expect("its output is a pipe"));
        let mut line = String::new();
        loop {
            line.clear();
            let read = output.read_line(&mut line).expect("its output is text");
            assert!(read > 0, "serve ended before it listened:\n{}", tail(&log));
            if let Some(address) = line.trim().strip_prefix("listening on http://") {
                let address = address.parse().expect("an address");
                return Serve { process, output, log, address };
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn post(&self, content_type: &str, body: &str) -> Answer {
        self.request("POST", "/events", content_type, body)
    }

    pub(crate) fn request(&self, method: &str, path: &str, content_type: &str, body: &str) -> Answer {
        let connection = Connection::open(self.address);
        let answer = connection.and_then(|mut to| to.request(method, path, content_type, body));
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// What `/healthz` says of the first target.
    pub(crate) fn health(&self) -> Value {
        self.request("GET", "/healthz", JSON, "").json()["targets"][0].take()
    }

    /// Waits until nothing is queued any more.
    pub(crate) fn drained(&self) {
        until_true("the queue to be empty", || self.health()["queued"] == 0);
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// SIGTERM; returns how it ended and what it said.
    pub(crate) fn terminate(mut self) -> (ExitStatus, String) {
        signal("TERM", self.pid());
        let status = self.process.wait();
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("its output is text");
        (status, said)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of serve:\n{}", tail(&self.log));
        }
    }
}

/// Starts `serve` and kills it after `delay`, whatever it is doing then: it may not have come to listen.
pub(crate) fn serve_and_kill(config: &Path, delay: Duration) {
    let mut process = Guard(spawn(config, &[], &config.with_extension("log")));
    std::thread::sleep(delay);
    process.kill();
}

fn spawn(config: &Path, args: &[&str], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("the folder takes a log");
    program()
        .args(["serve", "--listen", &format!("{}:0", own_loopback(config)), "--config"])
        .arg(config)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("the program starts")
}

/// A loopback address for each configuration. A client may still post to where a killed daemon was: on an address that all
/// share, another test's daemon may listen at that port by now.
fn own_loopback(config: &Path) -> Ipv4Addr {
    let mut hasher = DefaultHasher::new();
    config.hash(&mut hasher);
    let [a, b, ..] = hasher.finish().to_le_bytes();
    Ipv4Addr::new(127, 77, a, b.clamp(1, 254))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
}

/// A connection that speaks as much HTTP/1.1 as `serve` needs, and stays open between requests.
pub(crate) struct Connection(BufReader<TcpStream>);

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection(BufReader::new(stream)))
    }

    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> io::Result<Answer> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: tidegate\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.0.get_mut().write_all(request.as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let bad = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP: {line:?}"));
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| bad(&first))?;
        let mut answer = Answer { status, headers: Vec::new(), body: Vec::new() };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
            answer.headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        answer.body.resize(length, 0);
        self.0.read_exact(&mut answer.body)?;
        Ok(answer)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}
