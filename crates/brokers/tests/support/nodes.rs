//! Clients and publishers at real servers, and Redis clusters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_brokers::engine::broker::{Broker, Sink, State};
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::{Address, BrokerClient, BrokerConfig, Publisher};

use super::servers::{Server, free_port};
use super::{RecordingSink, text, topic, wait};

pub fn broker_config(url: &str) -> BrokerConfig {
    BrokerConfig::new(Address::parse(url).unwrap())
}

pub fn client(broker_config: &BrokerConfig) -> (BrokerClient, Arc<RecordingSink>) {
    let sink = Arc::new(RecordingSink::default());
    let client = BrokerClient::start(broker_config, Some(Arc::clone(&sink) as Arc<dyn Sink>)).unwrap();
    wait(|| client.status().state == State::Connected);
    (client, sink)
}

pub fn subscribe(client: &BrokerClient, patterns: &[&str]) {
    for text in patterns {
        client.interest(&Pattern::new(text).unwrap(), true);
    }
}

/// Messages published on these topics are received, without a reconnect.
pub fn assert_delivered(client: &BrokerClient, sink: &RecordingSink, publisher: &Publisher, names: &[&str]) {
    sink.received.lock().unwrap().clear();
    for name in names {
        publisher.publish(Some(&topic(name)), text(name)).unwrap();
    }
    wait(|| sink.received.lock().unwrap().len() == names.len());
    let status = client.status();
    assert_eq!((status.state, status.reconnects), (State::Connected, 0));
}

/// Starts a server that can become a node of a cluster.
pub fn cluster_node(options: &[&str]) -> Option<Server> {
    let bus = free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
    let mut server = Server::new("redis-server", &[&cluster, options].concat())?;
    server.start();
    Some(server)
}

pub fn meet(server: &Server, other: &Server) {
    let bus = other.command("CONFIG GET cluster-port");
    let bus = bus.lines().last().unwrap();
    assert_eq!(server.command(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", other.port)), "+OK\r\n");
}

/// Starts a cluster whose nodes share the slots evenly; returns its servers and its URL.
pub fn cluster(nodes: usize, options: &[&str]) -> Option<(Vec<Server>, String)> {
    let mut servers = Vec::new();
    for number in 0..nodes {
        let server = cluster_node(options)?;
        let slots = |number: usize| 16384 * number / nodes;
        server.command(&format!("CLUSTER ADDSLOTSRANGE {} {}", slots(number), slots(number + 1) - 1));
        servers.iter().for_each(|other| meet(&server, other));
        servers.push(server);
    }
    for server in &servers {
        wait(|| {
            let info = server.command("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{nodes}"))
        });
    }
    let places: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    Some((servers, format!("redis+cluster://{}", places.join(","))))
}

/// The client's thread waits for capacity longer than the server may be silent, while a reply is outstanding.
pub fn stays_connected_while_the_engine_is_full(broker_config: &BrokerConfig) {
    let (client, sink) = client(broker_config);
    subscribe(&client, &["a"]);
    wait(|| client.status().subscriptions == 1);
    let publisher = Publisher::new(broker_config).unwrap();
    assert_delivered(&client, &sink, &publisher, &["a"]);
    let (began, mut count) = (Instant::now(), 1);
    while began.elapsed() < Duration::from_secs(13) {
        publisher.publish(Some(&topic("a")), text("x")).unwrap();
        count += 1;
        client.publish(&topic("b"), text("x"));
        // The sink is full twice for longer than the timeout, with one message in between.
        sink.full.store(began.elapsed().as_millis() % 6500 > 100, std::sync::atomic::Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
    }
    sink.full.store(false, std::sync::atomic::Ordering::SeqCst);
    wait(|| sink.received.lock().unwrap().len() == count);
    let status = client.status();
    assert_eq!((status.state, status.reconnects, status.lost), (State::Connected, 0, 0));
}

/// Messages on all of these topics are received sooner or later; earlier ones may be lost.
pub fn wait_until_delivered(sink: &RecordingSink, publisher: &Publisher, names: &[String]) {
    for name in names {
        wait(|| {
            publisher.publish(Some(&topic(name)), text("x")).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            sink.received.lock().unwrap().iter().any(|(received, _)| received == name)
        });
    }
    sink.received.lock().unwrap().clear();
}
