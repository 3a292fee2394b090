//! The whole way into a real topic: every message once, in order, with its key and its identity.

use std::collections::HashSet;

use super::{Client, Node, Verdict, compare};
use crate::setup::{Serve, folder, primary, write_config};

#[test]
fn what_is_posted_is_on_the_topic_once_in_order_and_has_an_identity() {
    let node = Node::given();
    let folder = folder();
    let topic = node.topic("journey");
    let queues = folder.path().join("queues");
    let serve = Serve::start(&write_config(folder.path(), &primary(&node.address, &topic, &queues, "")));

    let mut clients = [Client::new(0), Client::new(1)];
    for _ in 0..20 {
        for client in &mut clients {
            client.post(50, || serve.address());
        }
    }
    serve.drained();

    let messages = node.read(&topic);
    assert_eq!(compare(&clients, &messages), (Verdict::default(), 0));
    let identities: HashSet<_> = messages.iter().map(|message| message.headers.clone()).collect();
    assert_eq!(identities.len(), messages.len(), "every message has an identity of its own");
    assert!(identities.iter().all(|headers| headers.len() == 1 && headers[0].0 == "tidegate-id"));
    let health = serve.health();
    assert_eq!((&health["delivered"], &health["queue"]["cursor"]), (&2000.into(), &2001.into()));
}
