//! `tidegate demo`: an outage and a crash, on purpose, and the count afterwards. The worker that accepts events is a
//! process of its own, so that it can be killed; this one holds the broker, remembers what was accepted, and reads the
//! topic back.

mod tally;
pub(crate) mod worker;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use tidegate::delivery::kafka::embedded::EmbeddedKafka;
use tidegate::delivery::kafka::{KafkaSettings, TopicReader};

use crate::Verdict;
use crate::args::DemoArgs;
use crate::demo::tally::{Tally, Verdicts};
use crate::progress::Progress;

const TOPIC: &str = "demo-events";
/// The mock cluster keeps 5 MiB a partition and drops the oldest: so many bytes of backlog are spread over partitions.
const BYTES_PER_PARTITION: u64 = 2 << 20;
/// An event without padding, in bytes, rounded up.
const EVENT_BYTES: u64 = 1000;
/// How long the reader waits for one more message when everything should have come.
const SILENCE: Duration = Duration::from_secs(10);
/// How long the drain may stand still before the demo gives up.
const STANDSTILL: Duration = Duration::from_secs(60);
/// How long one poll of the reader lasts.
const POLL: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<Verdict> {
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let dir = args.dir.clone().unwrap_or_else(|| temporary.path().join("queues"));
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let dir = dir.canonicalize().with_context(|| format!("cannot resolve {}", dir.display()))?;
    let partitions = (args.events * (EVENT_BYTES + args.size) / BYTES_PER_PARTITION).clamp(4, 64);
    let partitions = i32::try_from(partitions).expect("at most 64");
    let kafka =
        EmbeddedKafka::start(1, &[(TOPIC, partitions)]).context("the embedded Kafka does not start")?;
    let settings = KafkaSettings::new([kafka.bootstrap_servers()]);
    let reader =
        TopicReader::open(&settings, TOPIC, Duration::from_secs(10)).context("cannot read the topic")?;

    let everything_accepted = AtomicBool::new(false);
    let mut progress = Progress::new(args.events, args.json);
    let (timings, tally) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_back(&reader, args.events, &everything_accepted));
        let timings = play(args, &dir, &kafka, &mut progress);
        everything_accepted.store(true, Ordering::Release);
        let tally = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        anyhow::Ok((timings?, tally))
    })?;
    progress.end();
    let verdicts = tally.verdicts(args.events);
    tell(args, &verdicts, &timings);
    Ok(if verdicts.holds() { Verdict::Done } else { Verdict::No })
}

/// How long each act took.
struct Timings {
    accepting: Duration,
    broker_down: Duration,
    draining: Duration,
    total: Duration,
}

/// The play: a third with the broker up, a kill while it is down, the rest, the broker again, the drain.
fn play(
    args: &DemoArgs,
    dir: &Path,
    kafka: &EmbeddedKafka,
    progress: &mut Progress,
) -> anyhow::Result<Timings> {
    let start = Instant::now();
    let (third, half) = (args.events / 3, args.events / 2);
    let mut worker = Worker::start(args, dir, kafka.bootstrap_servers(), 0)?;
    progress.say(&format!("a worker accepts events into {}", dir.display()));
    worker.accept_until(third, third, progress)?;

    kafka.stop_brokers()?;
    let down = Instant::now();
    progress.say("the broker is down; events go on being accepted");
    // Told to go on a little, so that the kill finds it at work.
    let accepted = worker.accept_until(args.events.min(half + 8 * worker::TOGETHER), half, progress)?;
    worker.kill()?;
    progress.say(&format!(
        "the worker is killed (SIGKILL) at {accepted} accepted; a new one goes on, same queue_dir"
    ));
    let mut worker = Worker::start(args, dir, kafka.bootstrap_servers(), accepted)?;
    worker.accept_until(args.events, args.events, progress)?;
    let accepting = start.elapsed();
    std::thread::sleep(args.seconds_down.saturating_sub(down.elapsed()));

    kafka.start_brokers()?;
    let broker_down = down.elapsed();
    progress.say("the broker is back; the queue drains");
    let drain = Instant::now();
    worker.drain(progress)?;
    Ok(Timings { accepting, broker_down, draining: drain.elapsed(), total: start.elapsed() })
}

/// A worker process: told how far to go, it says how far it has come.
struct Worker {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(args: &DemoArgs, dir: &Path, brokers: &str, from: u64) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut process = Command::new(program)
            .arg("demo-worker")
            .arg("--dir")
            .arg(dir)
            .args(["--brokers", brokers, "--topic", TOPIC])
            .args(["--from", &from.to_string(), "--size", &args.size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the worker")?;
        let (orders, answers) = (process.stdin.take(), process.stdout.take());
        let (Some(orders), Some(answers)) = (orders, answers) else { bail!("the worker has no pipes") };
        Ok(Worker { process, orders, answers: BufReader::new(answers).lines() })
    }

    fn order(&mut self, order: &str) -> anyhow::Result<()> {
        writeln!(self.orders, "{order}").context("the worker takes no orders")
    }

    /// The number in the worker's next answer of this kind.
    fn answer(&mut self, kind: &str) -> anyhow::Result<u64> {
        let Some(line) = self.answers.next() else { bail!("the worker ended too early") };
        let line = line.context("the worker does not answer")?;
        let number = line.strip_prefix(kind).and_then(|rest| rest.trim().parse().ok());
        number.with_context(|| format!("the worker answered {line:?}"))
    }

    /// Lets it accept events up to `order`; returns when `enough` are accepted.
    fn accept_until(&mut self, order: u64, enough: u64, progress: &mut Progress) -> anyhow::Result<u64> {
        self.order(&format!("accept {order}"))?;
        loop {
            let accepted = self.answer("accepted")?;
            progress.at(accepted, "accepted");
            if accepted >= enough {
                return Ok(accepted);
            }
        }
    }

    fn drain(mut self, progress: &mut Progress) -> anyhow::Result<()> {
        self.order("drain")?;
        let total = progress.total();
        let (mut least, mut since) = (u64::MAX, Instant::now());
        loop {
            let waiting = self.answer("waiting")?;
            progress.at(total.saturating_sub(waiting), "delivered");
            if waiting < least {
                (least, since) = (waiting, Instant::now());
            }
            if since.elapsed() > STANDSTILL {
                bail!("the drain stands still with {waiting} events waiting");
            }
            if waiting == 0 {
                break;
            }
        }
        drop(self.orders);
        let status = self.process.wait().context("cannot wait for the worker")?;
        if !status.success() {
            bail!("the worker ended with {status}");
        }
        Ok(())
    }

    /// SIGKILL: no handler runs, nothing is flushed.
    fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().context("cannot kill the worker")?;
        self.process.wait().context("cannot wait for the worker")?;
        Ok(())
    }
}

/// Reads the topic while it fills, until everything has come, or nothing comes any more.
fn read_back(reader: &TopicReader, events: u64, everything_accepted: &AtomicBool) -> Tally {
    let mut tally = Tally::new(events);
    let mut silent_since = Instant::now();
    loop {
        if let Some(message) = reader.next(POLL) {
            tally.add(message.key.as_deref().unwrap_or_default(), &message.value);
            silent_since = Instant::now();
        } else if everything_accepted.load(Ordering::Acquire)
            && (tally.is_complete() || silent_since.elapsed() > SILENCE)
        {
            return tally;
        }
    }
}

fn tell(args: &DemoArgs, verdicts: &Verdicts, timings: &Timings) {
    let Verdicts { accepted, delivered, distinct, duplicates, missing, out_of_order } = *verdicts;
    let seconds = |duration: Duration| (duration.as_secs_f64() * 1000.0).round() / 1000.0;
    if args.json {
        let timings = json!({
            "accepting_s": seconds(timings.accepting),
            "broker_down_s": seconds(timings.broker_down),
            "draining_s": seconds(timings.draining),
            "total_s": seconds(timings.total),
        });
        let verdict = json!({
            "accepted": accepted, "delivered": delivered, "distinct": distinct,
            "duplicates": duplicates, "missing": missing, "out_of_order": out_of_order, "timings": timings,
        });
        println!("{verdict}");
        return;
    }
    println!("accepted      {accepted:>10}   events, durable before they were answered");
    println!("delivered     {delivered:>10}   messages on the topic");
    println!("distinct      {distinct:>10}");
    println!("duplicates    {duplicates:>10}   at least once: the price of the crash");
    println!("missing       {missing:>10}");
    println!("out of order  {out_of_order:>10}   per key");
    println!(
        "\nbroker down {:.1} s, drained in {:.1} s, {:.1} s in all",
        seconds(timings.broker_down),
        seconds(timings.draining),
        seconds(timings.total)
    );
    let verdict =
        if verdicts.holds() { "nothing is missing, every key is in order" } else { "THE PROMISE IS BROKEN" };
    println!("{verdict}");
}
