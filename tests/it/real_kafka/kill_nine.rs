//! kill -9: the daemon is killed again and again while clients post, and everything that was answered arrives.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

use super::{Client, Node, Verdict, compare};
use crate::setup::{NO_BROKER, Serve, folder, primary, serve_and_kill, until_true, write_config};

const EVENTS: u64 = 200_000;
const CLIENTS: u64 = 8;
const KILLS: usize = 50;
/// Of these, such as hit a daemon that has just begun: it recovers, or does not yet listen.
const KILLS_AT_START: usize = 10;
const BATCH: Range<u64> = 20..180;
/// How long after the moment that the dice gave a kill comes, so that no answer is its cue.
const AFTER_MICROS: Range<u64> = 0..20_000;
/// Between two batches of a client. A new Kafka client delivers nothing for about half a second: without pauses all
/// would be accepted before most of the kills could hit a daemon that is delivering.
const PAUSE_MICROS: Range<u64> = 0..350_000;
/// When a daemon that has just begun is killed.
const AT_START_MICROS: Range<u64> = 0..120_000;
/// What waits when the drain begins that is killed again and again.
const BACKLOG: u64 = 40_000;
/// What is added for each of its kills.
const REFILL: u64 = 10_000;
const DRAIN_KILLS: u64 = 10;
/// When, after its first delivery, a draining daemon is killed.
const AT_DRAIN_MICROS: Range<u64> = 0..150_000;

#[test]
fn fifty_kills_lose_nothing_that_was_accepted_and_keep_the_order_of_every_key() {
    let node = Node::given();
    let folder = folder();
    let seed = seed();
    println!("TIDEGATE_TEST_SEED={seed}");
    let mut dice = Rng::with_seed(seed);
    let topic = node.topic("kill-nine");
    let queues = folder.path().join("queues");
    let config =
        write_config(folder.path(), &primary(&node.address, &topic, &queues, "queue_limit = 1000000"));
    let serve = Serve::start(&config);
    let address = Mutex::new(serve.address());
    let accepted = AtomicU64::new(0);

    let (clients, (serve, halfway)) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|name| {
                let (address, accepted, dice) = (&address, &accepted, dice.fork());
                scope.spawn(move || post_all(name, address, accepted, dice))
            })
            .collect();
        let killed = kill_again_and_again(serve, &config, &address, &accepted, &mut dice);
        let clients: Vec<_> =
            clients.into_iter().map(|client| client.join().expect("all are accepted")).collect();
        (clients, killed)
    });
    assert_eq!(clients.iter().map(|client| client.accepted).sum::<u64>(), EVENTS);
    serve.drained();
    assert_eq!(serve.terminate().0.code(), Some(0));

    let messages = node.read(&topic);
    let (verdict, duplicates) = compare(&clients, &messages);
    let reposted: u64 = clients.iter().map(|client| client.reposted).sum();
    println!(
        "{EVENTS} accepted, {KILLS} kills, {halfway} of them of a daemon that had delivered something, {reposted} batches posted again; {} messages, {duplicates} of them again",
        messages.len()
    );
    assert_eq!(verdict, Verdict::default(), "TIDEGATE_TEST_SEED={seed}");
}

#[test]
fn kills_in_the_middle_of_a_drain_lose_nothing_and_keep_the_order_of_every_key() {
    let node = Node::given();
    let folder = folder();
    let seed = seed();
    println!("TIDEGATE_TEST_SEED={seed}");
    let mut dice = Rng::with_seed(seed);
    let topic = node.topic("kill-drain");
    // Small batches make the drain long enough to be in the middle of it.
    let keys = "queue_limit = 1000000\nbatch_size = 50";
    let config_for = |brokers: &str| {
        write_config(folder.path(), &primary(brokers, &topic, &folder.path().join("queues"), keys))
    };
    let serve = Serve::start(&config_for(NO_BROKER));
    let mut client = Client::new(0);
    for _ in 0..BACKLOG / 500 {
        client.post(500, || serve.address());
    }
    serve.kill();

    let config = config_for(&node.address);
    let mut halfway = 0;
    for _ in 0..DRAIN_KILLS {
        let serve = Serve::start(&config);
        // What the last one delivered is made up for, so that each kill finds a backlog.
        for _ in 0..REFILL / 500 {
            client.post(500, || serve.address());
        }
        until_true("the drain to begin", || delivers(&serve));
        std::thread::sleep(Duration::from_micros(dice.u64(AT_DRAIN_MICROS)));
        halfway += u64::from(serve.health()["queued"] != 0);
        serve.kill();
    }
    let serve = Serve::start(&config);
    serve.drained();
    assert_eq!(serve.terminate().0.code(), Some(0));

    let messages = node.read(&topic);
    let (verdict, duplicates) = compare(&[client], &messages);
    println!(
        "{} accepted, {DRAIN_KILLS} kills, {halfway} in the middle of the drain; {} messages, {duplicates} of them again",
        BACKLOG + DRAIN_KILLS * REFILL,
        messages.len()
    );
    assert!(halfway >= DRAIN_KILLS / 2, "{halfway} of {DRAIN_KILLS} kills were in the middle of the drain");
    assert_eq!(verdict, Verdict::default(), "TIDEGATE_TEST_SEED={seed}");
}

fn delivers(serve: &Serve) -> bool {
    serve.health()["delivered"] != 0
}

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_TEST_SEED").ok();
    given.map_or_else(
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::from(since.subsec_nanos())),
        |text| text.parse().expect("TIDEGATE_TEST_SEED is a number"),
    )
}

/// One client: posts all its events, in batches, each until it is accepted.
fn post_all(name: u64, address: &Mutex<SocketAddr>, accepted: &AtomicU64, mut dice: Rng) -> Client {
    let mut client = Client::new(usize::try_from(name).expect("it is small"));
    let share = EVENTS / CLIENTS;
    while client.accepted < share {
        let events = dice.u64(BATCH).min(share - client.accepted);
        client.post(events, || *address.lock().expect("nobody panics with it"));
        accepted.fetch_add(events, Ordering::AcqRel);
        std::thread::sleep(Duration::from_micros(dice.u64(PAUSE_MICROS)));
    }
    client
}

/// Kills the daemon at moments spread over the whole of the accepting; returns the last one, alive,
/// and how many of the others had come to deliver something.
fn kill_again_and_again(
    mut serve: Serve,
    config: &Path,
    address: &Mutex<SocketAddr>,
    accepted: &AtomicU64,
    dice: &mut Rng,
) -> (Serve, u64) {
    let mut halfway = 0;
    let mut moments: Vec<u64> = (KILLS_AT_START..KILLS).map(|_| dice.u64(0..EVENTS)).collect();
    moments.sort_unstable();
    for (kill, moment) in moments.into_iter().enumerate() {
        until_true("enough to be accepted", || accepted.load(Ordering::Acquire) >= moment);
        halfway += u64::from(delivers(&serve));
        std::thread::sleep(Duration::from_micros(dice.u64(AFTER_MICROS)));
        serve.kill();
        if kill < KILLS_AT_START {
            serve_and_kill(config, Duration::from_micros(dice.u64(AT_START_MICROS)));
        }
        serve = Serve::start(config);
        *address.lock().expect("nobody panics with it") = serve.address();
    }
    (serve, halfway)
}
