//! Nodes and publishers at real servers, and clusters of these.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_brokers::engine::broker::{Broker, Sink, State};
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::{Address, BrokerClient, BrokerConfig, Publisher};

use super::servers::{Server, free_port};
use super::{Taker, text, topic, wait};

pub fn hub(url: &str) -> BrokerConfig {
    BrokerConfig::new(Address::parse(url).unwrap())
}

pub fn node(hub: &BrokerConfig) -> (BrokerClient, Arc<Taker>) {
    let taker = Arc::new(Taker::default());
    let node = BrokerClient::start(hub, Some(Arc::clone(&taker) as Arc<dyn Sink>)).unwrap();
    wait(|| node.status().state == State::Connected);
    (node, taker)
}

pub fn want(node: &BrokerClient, patterns: &[&str]) {
    for text in patterns {
        node.interest(&Pattern::new(text).unwrap(), true);
    }
}

/// What is published there comes; the broker has had no reason to connect again.
pub fn comes(node: &BrokerClient, taker: &Taker, publisher: &Publisher, names: &[&str]) {
    taker.came.lock().unwrap().clear();
    for name in names {
        publisher.publish(Some(&topic(name)), text(name)).unwrap();
    }
    wait(|| taker.came.lock().unwrap().len() == names.len());
    let status = node.status();
    assert_eq!((status.state, status.reconnects), (State::Connected, 0));
}

/// What is to be a node of a cluster.
pub fn cluster_node(options: &[&str]) -> Option<Server> {
    let bus = free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
    let mut server = Server::new("redis-server", &[&cluster, options].concat())?;
    server.start();
    Some(server)
}

pub fn meet(server: &Server, other: &Server) {
    let bus = other.say("CONFIG GET cluster-port");
    let bus = bus.lines().last().unwrap();
    assert_eq!(server.say(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", other.port)), "+OK\r\n");
}

/// A cluster of so many nodes, which share the slots evenly; and its URL.
pub fn cluster(nodes: usize, options: &[&str]) -> Option<(Vec<Server>, String)> {
    let mut servers = Vec::new();
    for number in 0..nodes {
        let server = cluster_node(options)?;
        let slots = |number: usize| 16384 * number / nodes;
        server.say(&format!("CLUSTER ADDSLOTSRANGE {} {}", slots(number), slots(number + 1) - 1));
        servers.iter().for_each(|other| meet(&server, other));
        servers.push(server);
    }
    for server in &servers {
        wait(|| {
            let info = server.say("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{nodes}"))
        });
    }
    let places: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    Some((servers, format!("redis+cluster://{}", places.join(","))))
}

/// The thread waits for room, for longer than a server may be silent, while an answer is under way.
pub fn is_not_taken_for_dead_while_there_is_no_room(hub: &BrokerConfig) {
    let (node, taker) = node(hub);
    want(&node, &["a"]);
    wait(|| node.status().subscriptions == 1);
    let publisher = Publisher::new(hub).unwrap();
    comes(&node, &taker, &publisher, &["a"]);
    let (began, mut count) = (Instant::now(), 1);
    while began.elapsed() < Duration::from_secs(13) {
        publisher.publish(Some(&topic("a")), text("x")).unwrap();
        count += 1;
        node.publish(&topic("b"), text("x"));
        // Twice for long enough, and one message in between.
        taker.full.store(began.elapsed().as_millis() % 6500 > 100, std::sync::atomic::Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
    }
    taker.full.store(false, std::sync::atomic::Ordering::SeqCst);
    wait(|| taker.came.lock().unwrap().len() == count);
    let status = node.status();
    assert_eq!((status.state, status.reconnects, status.lost), (State::Connected, 0, 0));
}

/// What is published on all of these comes, sooner or later: what was published before may be lost.
pub fn come_at_last(taker: &Taker, publisher: &Publisher, names: &[String]) {
    for name in names {
        wait(|| {
            publisher.publish(Some(&topic(name)), text("x")).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            taker.came.lock().unwrap().iter().any(|(came, _)| came == name)
        });
    }
    taker.came.lock().unwrap().clear();
}
