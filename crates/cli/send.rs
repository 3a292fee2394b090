//! `tidegate send`: each line a record, durable, and delivered unless told not to wait.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use tidegate::store::{AppendError, Durability, Ticket};
use tidegate::{Arn, Engine, Record, Seq, Target, TargetId};

use crate::args::SendArgs;
use crate::progress::Progress;
use crate::{Verdict, config};

/// Tickets that wait at the same time: enough for large groups, little memory.
const TICKETS_MAX: usize = 10_000;
/// The longest line.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// How long one look at the delivery lasts at most, so that progress moves.
const LOOK: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &SendArgs) -> anyhow::Result<Verdict> {
    let mut config = config::load(args.config.config.as_deref(), &[])?;
    let id: TargetId = match args.target.parse::<Arn>() {
        Ok(arn) => arn.id().clone(),
        Err(_) => args.target.parse().context("a target is named by its identifier or its ARN")?,
    };
    let known = config.targets.iter().map(|target| target.id.to_string());
    let known: Vec<_> = known.chain(config.broken.iter().map(|broken| broken.id.clone())).collect();
    if !known.iter().any(|known| known == id.as_str()) {
        bail!("there is no target {:?}; there are: {}", id.as_str(), known.join(", "));
    }
    // The others are not this command's business: their queues stay closed.
    config.targets.retain(|target| target.id == id);
    config.broken.retain(|broken| broken.id == id.as_str());
    let input = open(&args.file)?;
    let engine = Engine::open_blocking(&config);
    let target = Arc::clone(engine.target(&id)?);
    let verdict = send(args, &target, input);
    let grace = if args.no_wait { Duration::ZERO } else { Duration::from_secs(1) };
    let _ = engine.shutdown_blocking(grace);
    Ok(verdict)
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(stdin())));
    }
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

fn send(args: &SendArgs, target: &Target, input: impl BufRead) -> Verdict {
    let before = target.delivery().counters;
    let mut progress = Progress::counting();
    let mut sent = Sent::default();
    let appended = append_all(args, target, input, &mut sent, &mut progress);
    let settled = sent.settle(0);
    if let Err(error) = appended.and(settled) {
        progress.end();
        eprintln!("tidegate: {error:#}; the {} lines before it are durable and stay queued", sent.durable);
        return Verdict::No;
    }
    progress.say(&format!("{} records are durable in {}", sent.durable, target.arn()));
    let Some(last) = sent.last.filter(|_| !args.no_wait) else {
        progress.end();
        return Verdict::Done;
    };
    let delivered = wait(args, target, last, &mut progress);
    progress.end();
    let dead = target.delivery().counters.dead_lettered - before.dead_lettered;
    if dead > 0 {
        eprintln!("tidegate: Kafka rejected {dead} records of the queue; they are in the dead letters");
    }
    if delivered && dead == 0 { Verdict::Done } else { Verdict::No }
}

/// Appends line by line; an error names the line.
fn append_all(
    args: &SendArgs,
    target: &Target,
    mut input: impl BufRead,
    sent: &mut Sent,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.with_context(|| format!("line {number} cannot be read"))? == 0 {
            break;
        }
        let value = line.strip_suffix(b"\n").unwrap_or(&line);
        let value = value.strip_suffix(b"\r").unwrap_or(value);
        let key = args.key.as_deref().map(str::as_bytes);
        let record = Record { key, timestamp_ms: now_ms(), value, ..Record::default() };
        let ticket = append(args, target, &record).with_context(|| format!("line {number}"))?;
        sent.tickets.push_back((number, ticket));
        sent.settle(TICKETS_MAX)?;
        progress.at(number, "appended");
    }
    Ok(())
}

/// Appends; a full queue is waited for as long as it is being drained.
fn append(args: &SendArgs, target: &Target, record: &Record<'_>) -> anyhow::Result<Ticket> {
    let started = Instant::now();
    loop {
        match target.queue().append(record, Durability::Synced) {
            Err(AppendError::Full(limit)) if !args.no_wait => {
                if args.timeout.is_some_and(|timeout| started.elapsed() > timeout) {
                    bail!("queue is full: {limit}; delivery: {}", target.delivery().state);
                }
                let queued = target.queue().status().queued;
                target.wait(LOOK, |_| target.queue().status().queued < queued);
            }
            result => return Ok(result?),
        }
    }
}

/// What was appended, and what of it is not yet known to be durable.
#[derive(Default)]
struct Sent {
    /// Line numbers and tickets.
    tickets: VecDeque<(u64, Ticket)>,
    durable: u64,
    last: Option<Seq>,
}

impl Sent {
    /// Waits until at most `left` tickets wait.
    fn settle(&mut self, left: usize) -> anyhow::Result<()> {
        while self.tickets.len() > left {
            let Some((number, ticket)) = self.tickets.pop_front() else { break };
            self.last = Some(ticket.wait().with_context(|| format!("line {number} is not durable"))?);
            self.durable += 1;
        }
        Ok(())
    }
}

/// Waits until everything up to `last` is acknowledged.
fn wait(args: &SendArgs, target: &Target, last: Seq, progress: &mut Progress) -> bool {
    let started = Instant::now();
    loop {
        let cursor = target.queue().status().cursor;
        if cursor > last {
            return true;
        }
        if args.timeout.is_some_and(|timeout| started.elapsed() > timeout) {
            let waiting = last.next().since(cursor);
            eprintln!(
                "tidegate: {waiting} records are not delivered and stay queued; delivery: {}",
                target.delivery().state
            );
            return false;
        }
        let status = target.wait(LOOK, |_| target.queue().status().cursor > last);
        progress.at(status.counters.delivered, &status.state.to_string());
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
