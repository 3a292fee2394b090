//! The demo's worker: accepts events through the real engine as far as it is told, and says how far it has come only
//! when they are durable. Ends when its orders end, so that it never outlives the demo.

use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tidegate::notify::config::Key;
use tidegate::{Config, Engine, Envelope, Event, EventName, Target, TargetId};

use crate::Verdict;
use crate::args::WorkerArgs;

/// Events that are published together, as a busy object store would.
pub(crate) const TOGETHER: u64 = 256;
/// Events of one key follow one another at this distance.
const KEYS: u64 = 500;
/// The metadata that makes a record as large as was asked, and what it takes without its value.
const PADDING_NAME: &str = "X-Amz-Meta-Padding";
const PADDING_MEMBER: &str = r#""userMetadata":{"X-Amz-Meta-Padding":""},"#;
/// How often the worker says what waits.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &WorkerArgs) -> anyhow::Result<Verdict> {
    let id: TargetId = "demo".parse()?;
    let settings = [
        (Key::Enable.variable(&id), "on".to_owned()),
        (Key::Brokers.variable(&id), args.brokers.clone()),
        (Key::Topic.variable(&id), args.topic.clone()),
        (Key::QueueDir.variable(&id), args.dir.display().to_string()),
        (Key::QueueLimit.variable(&id), "100000000".to_owned()),
    ];
    let rule = "[[rule]]\nbucket = \"*\"\narn = \"arn:minio:sqs::demo:kafka\"\n";
    let config = Config::parse(Some(rule), settings)?;
    let engine = Engine::open_blocking(&config);
    let target = Arc::clone(engine.target(&id)?);
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().context("cannot start the runtime")?;
    let mut next = args.from;
    for order in stdin().lines() {
        let order = order.context("cannot read orders")?;
        match order.split_once(' ') {
            Some(("accept", until)) => {
                let until = until.parse().context("accept needs a number")?;
                runtime.block_on(accept(&engine, args, &mut next, until))?;
            }
            None if order == "drain" => drain(&target)?,
            _ => bail!("unknown order {order:?}"),
        }
    }
    let _ = engine.shutdown_blocking(Duration::from_secs(5));
    Ok(Verdict::Done)
}

async fn accept(engine: &Engine, args: &WorkerArgs, next: &mut u64, until: u64) -> anyhow::Result<()> {
    while *next < until {
        let end = until.min(*next + TOGETHER);
        let events: Vec<Envelope<'_>> =
            (*next..end).map(|number| event(number, args.size)).collect::<Result<_, _>>()?;
        let published = engine.publish_all(&events).await;
        if let Some(refused) = published.refused.first() {
            bail!("{} events were refused: {}", refused.events, refused.reason);
        }
        *next = end;
        say("accepted", end)?;
    }
    Ok(())
}

/// An event whose record has `size` bytes, or as few as it can have.
fn event(number: u64, size: u64) -> anyhow::Result<Envelope<'static>> {
    // Any moment will do; a demo should not depend on the clock.
    let time_ms = 1_767_225_600_000 + i64::try_from(number).unwrap_or(0);
    let key = format!("photos/{:04}.jpg", number % KEYS);
    let event = Event::builder(EventName::ObjectCreatedPut, "demo", key, time_ms)
        .size(number)
        .content_type("image/jpeg")
        .principal_id("demo")
        .source_host("127.0.0.1")
        .sequencer(format!("{number:016X}"));
    let bare = event.clone().build()?.to_envelope();
    let padding = usize::try_from(size)?.saturating_sub(bare.json().len() + PADDING_MEMBER.len());
    if padding == 0 {
        return Ok(bare);
    }
    Ok(event.user_metadata(PADDING_NAME, "x".repeat(padding)).build()?.to_envelope())
}

fn drain(target: &Target) -> anyhow::Result<()> {
    loop {
        let waiting = target.queue().status().queued;
        say("waiting", waiting)?;
        if waiting == 0 {
            return Ok(());
        }
        target.wait(LOOK, |_| target.queue().status().queued == 0);
    }
}

fn say(what: &str, number: u64) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{what} {number}").and_then(|()| out.flush()).context("nobody listens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_size_that_was_asked_for_or_the_least_it_can_have() {
        let least = event(7, 0).expect("an event").json().len();
        for size in [least + 100, 1024, 100_000] {
            assert_eq!(event(7, size as u64).expect("an event").json().len(), size);
        }
        assert_eq!(event(7, least as u64).expect("an event").json().len(), least);
    }
}
