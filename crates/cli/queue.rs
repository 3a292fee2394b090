//! `tidegate queue`: looking at a queue_dir from outside.

use anyhow::Context;
use serde_json::{Value, json};
use tidegate::store::inspect::{QueueOverview, overview};

use crate::Verdict;
use crate::args::StatArgs;

/// Exit code 1 if something is damaged.
pub(crate) fn stat(args: &StatArgs) -> anyhow::Result<Verdict> {
    let queues = overview(&args.dir).with_context(|| format!("cannot look at {}", args.dir.display()))?;
    if args.json {
        let queues: Vec<_> = queues.iter().map(as_json).collect();
        println!("{}", json!({ "queues": queues }));
    } else if queues.is_empty() {
        println!("{} holds no queue", args.dir.display());
    } else {
        queues.iter().for_each(print);
    }
    let damaged = queues.iter().any(|queue| !queue.damage.is_empty());
    Ok(if damaged { Verdict::No } else { Verdict::Done })
}

fn as_json(queue: &QueueOverview) -> Value {
    let damage: Vec<_> = (queue.damage.iter())
        .map(|damage| {
            json!({
                "file": damage.file.display().to_string(),
                "position": damage.position,
                "first": damage.range.start.get(),
                "next": damage.range.end.get(),
                "cause": damage.cause,
            })
        })
        .collect();
    json!({
        "name": queue.name,
        "folder": queue.folder.display().to_string(),
        "uuid": queue.uuid.to_string(),
        "start": queue.start.get(),
        "cursor": queue.cursor.get(),
        "durable": queue.durable.get(),
        "end": queue.end.get(),
        "waiting": queue.end.since(queue.cursor),
        "segments": queue.segments,
        "bytes": queue.bytes,
        "damage": damage,
        "ignored": queue.ignored,
    })
}

fn print(queue: &QueueOverview) {
    println!("queue      {}", queue.name);
    println!("folder     {}", queue.folder.display());
    println!("uuid       {}", queue.uuid);
    println!("start      {}", queue.start);
    println!("cursor     {}", queue.cursor);
    println!("durable    {}", queue.durable);
    println!("end        {}", queue.end);
    println!("waiting    {} records at most", queue.end.since(queue.cursor));
    println!("segments   {} with {} bytes", queue.segments, queue.bytes);
    if queue.damage.is_empty() {
        println!("damage     none seen");
    }
    for damage in &queue.damage {
        let (first, next) = (damage.range.start, damage.range.end);
        println!(
            "damage     {} at {}: records {first} to {next}, {}",
            damage.file.display(),
            damage.position,
            damage.cause
        );
    }
    for ignored in &queue.ignored {
        println!("ignored    {ignored}");
    }
    println!();
}
