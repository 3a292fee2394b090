//! Outages of the broker, in the middle of a drain: nothing is lost, no order is broken, and nobody is kept waiting.

use std::time::{Duration, Instant};

use super::{Client, Node, Verdict, compare};
use crate::setup::{PATIENCE, Serve, folder, primary, until, write_config};

const BACKLOG: u64 = 40_000;
const BATCH: u64 = 200;
/// Small batches make a drain long enough to be in the middle of it.
const KEYS: &str = "queue_limit = 1000000\nbatch_size = 100";
/// Shorter than the client's patience with a request, longer than anyone's with an answer.
const STANDSTILL: Duration = Duration::from_secs(20);

#[test]
fn a_broker_that_is_killed_in_the_middle_of_a_drain_and_comes_back_gets_everything_in_order() {
    let folder = folder();
    let mut drain = Drain::begin(folder.path(), "killed");

    drain.node.script(&["kill"]);
    drain.assert_halfway();
    drain.post(20);
    drain.node.script(&["restart"]);

    drain.assert_nothing_is_lost("killed and restarted");
}

#[test]
fn a_broker_that_stands_still_for_20_s_keeps_nobody_waiting_and_gets_everything_in_order() {
    let folder = folder();
    let mut drain = Drain::begin(folder.path(), "paused");

    drain.node.pause();
    drain.assert_halfway();
    // It goes on only after all these were answered: a publish that waited for it would never return.
    let paused = Instant::now();
    let mut posted = 0;
    while paused.elapsed() < STANDSTILL {
        drain.post(1);
        posted += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let delivered = drain.delivered();
    drain.node.resume();

    println!(
        "{posted} batches of {BATCH} accepted while the broker stood still; {delivered} delivered before"
    );
    drain.assert_nothing_is_lost("stopped and continued");
}

/// A backlog that is being drained into a node of the test's own.
struct Drain {
    client: Client,
    serve: Serve,
    topic: String,
    node: Node,
}

impl Drain {
    /// Returns when some of the backlog is delivered, and most of it is not.
    fn begin(folder: &std::path::Path, name: &str) -> Drain {
        let node = Node::own(folder);
        let topic = node.topic(name);
        // Paused, so that the backlog grows before the drain begins.
        node.pause();
        let text = primary(&node.address, &topic, &folder.join("queues"), KEYS);
        let serve = Serve::start(&write_config(folder, &text));
        let mut drain = Drain { client: Client::new(0), serve, topic, node };
        drain.post(BACKLOG / BATCH);
        assert_eq!(drain.delivered(), 0);
        drain.node.resume();
        until("the drain to begin", PATIENCE, || (drain.delivered() > BACKLOG / 20).then_some(()));
        drain
    }

    fn post(&mut self, batches: u64) {
        for _ in 0..batches {
            self.client.post(BATCH, || self.serve.address());
        }
        assert_eq!(self.client.reposted, 0, "every post was answered");
    }

    fn delivered(&self) -> u64 {
        self.serve.health()["delivered"].as_u64().expect("a number")
    }

    /// The broker is out of reach, some is delivered and some is not: else this test would show nothing.
    fn assert_halfway(&self) {
        let health = self.serve.health();
        let (delivered, queued) = (health["delivered"].as_u64(), health["queued"].as_u64());
        assert!(delivered > Some(0) && queued > Some(0), "{health}");
        println!("out of reach with {delivered:?} delivered and {queued:?} queued");
    }

    fn assert_nothing_is_lost(self, what: &str) {
        self.serve.drained();
        let messages = self.node.read(&self.topic);
        let (verdict, duplicates) = compare(std::slice::from_ref(&self.client), &messages);
        println!(
            "{what}: {} accepted, {} messages, {duplicates} again",
            self.client.accepted,
            messages.len()
        );
        assert_eq!(verdict, Verdict::default());
    }
}
