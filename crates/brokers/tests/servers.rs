//! What real servers refuse, take away and move: skipped where they are not installed.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::Instant;

use support::servers::{Server, free_port};
use support::{PATIENCE, text, topic, wait};
use wirespeed_brokers::{Address, Hub, Publisher};

/// What Redis lets the default user publish and subscribe to.
const ACL: [&str; 8] = ["--user", "default", "on", "nopass", "+@all", "~*", "&ok.*", "&_wirespeed.*"];

fn hub(url: &str) -> Hub {
    Hub::new(Address::parse(url).unwrap())
}

/// A cluster of so many nodes, which share the slots evenly; and its URL.
fn cluster(nodes: usize, options: &[&str]) -> Option<(Vec<Server>, String)> {
    let mut servers = Vec::new();
    for number in 0..nodes {
        let bus = free_port().to_string();
        let cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
        let mut server = Server::new("redis-server", &[&cluster, options].concat())?;
        server.start();
        let slots = |number: usize| 16384 * number / nodes;
        server.say(&format!("CLUSTER ADDSLOTSRANGE {} {}", slots(number), slots(number + 1) - 1));
        for other in &servers {
            let Server { port, .. } = other;
            let bus = other.say("CONFIG GET cluster-port");
            let bus = bus.lines().last().unwrap();
            assert_eq!(server.say(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}")), "+OK\r\n");
        }
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

fn publish_what_is_refused_and_what_is_not(publisher: &Publisher) {
    for number in 0..10 {
        let name = if number % 2 == 0 { "ok.topic" } else { "no.topic" };
        publisher.publish(Some(&topic(name)), text("x")).unwrap();
    }
}

fn five_of_ten_were_refused(publisher: &Publisher) {
    assert_eq!(publisher.flush(publisher.published(), Some(Instant::now() + PATIENCE)), Some(5));
    let status = publisher.status();
    assert_eq!((status.published, status.refused, status.doubtful), (5, 5, 0));
}

#[test]
fn what_redis_refuses_costs_no_other_message() {
    let Some(mut server) = Server::new("redis-server", &ACL) else { return };
    let publisher = Publisher::new(&hub(&format!("redis://127.0.0.1:{}", server.port))).unwrap();
    publish_what_is_refused_and_what_is_not(&publisher);
    server.start(); // all of it is one pipeline
    five_of_ten_were_refused(&publisher);
}

#[test]
fn what_a_cluster_refuses_costs_no_other_message() {
    let Some((_servers, url)) = cluster(1, &ACL) else { return };
    let publisher = Publisher::new(&hub(&url)).unwrap();
    publish_what_is_refused_and_what_is_not(&publisher);
    five_of_ten_were_refused(&publisher);
}
