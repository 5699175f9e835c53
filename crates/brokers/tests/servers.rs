//! Refusals, denials and failovers of real servers. Skipped where the servers are not installed.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::delayed_proxy::delayed_proxy;
use support::nodes::{
    assert_delivered, broker_config, client, cluster, cluster_node, meet, stays_connected_while_the_engine_is_full,
    subscribe, wait_until_delivered,
};
use support::servers::{Server, free_port};
use support::{DEADLINE, RecordingSink, text, topic, wait};
use wirespeed_brokers::engine::broker::{Broker, Notice, State};
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::{BrokerClient, BrokerConfig, Publisher};

/// The one-way delay of a simulated network.
const NETWORK_DELAY: Duration = Duration::from_millis(5);

/// An ACL that restricts the channels of the default user.
const ACL: [&str; 8] =
    ["--user", "default", "on", "nopass", "+@all", "~*", "&wirespeed.ok.*", "&wirespeed._wirespeed.*"];

/// Collects notices until there are `count` denied or unsupported patterns, and returns these.
#[track_caller]
fn denied(client: &BrokerClient, count: usize) -> BTreeSet<String> {
    let denied = std::cell::RefCell::new(BTreeSet::new());
    wait(|| {
        for notice in client.take_notices() {
            match notice {
                Notice::Connected => continue,
                Notice::Denied { pattern, reason } => {
                    assert!(reason.to_lowercase().contains("permission"), "{reason}");
                    denied.borrow_mut().insert(pattern.to_string())
                }
                Notice::Unsupported(pattern) => {
                    denied.borrow_mut().insert(format!("{pattern}, which is not supported"))
                }
                other => panic!("{other:?}"),
            };
        }
        denied.borrow().len() >= count
    });
    denied.take()
}

fn publish_allowed_and_refused_messages(publisher: &Publisher) {
    for number in 0..10 {
        let name = if number % 2 == 0 { "ok.topic" } else { "no.topic" };
        publisher.publish(Some(&topic(name)), text("x")).unwrap();
    }
}

fn assert_five_of_ten_refused(publisher: &Publisher) {
    assert_eq!(publisher.flush(publisher.published(), Some(Instant::now() + DEADLINE)), Some(5));
    let status = publisher.status();
    assert_eq!((status.published, status.refused, status.unconfirmed), (5, 5, 0));
}

#[test]
fn refusals_of_redis_affect_no_other_message() {
    let Some(mut server) = Server::new("redis-server", &ACL) else { return };
    let publisher = Publisher::new(&broker_config(&format!("redis://127.0.0.1:{}", server.port))).unwrap();
    publish_allowed_and_refused_messages(&publisher);
    server.start(); // all messages go into one pipeline
    assert_five_of_ten_refused(&publisher);
}

/// The client reconnects while subscriptions change faster than the server answers.
fn reconnects_while_subscriptions_change(server: &mut Server, client: &BrokerClient) {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let patterns: Vec<_> = (0..1000).map(|number| Pattern::new(&format!("room.{number}")).unwrap()).collect();
            for turn in (0..).take_while(|_| !stop.load(std::sync::atomic::Ordering::Relaxed)) {
                patterns.iter().for_each(|pattern| client.interest(pattern, turn % 2 == 0));
            }
        });
        server.kill();
        wait(|| client.status().state != State::Connected);
        server.start();
        let began = Instant::now();
        while client.status().state != State::Connected && began.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(began.elapsed() < DEADLINE, "not connected while subscriptions change");
    });
}

#[test]
fn redis_reconnects_while_subscriptions_change() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    server.start();
    let port = free_port();
    delayed_proxy(port, server.port, NETWORK_DELAY);
    let (client, _sink) = client(&broker_config(&format!("redis://127.0.0.1:{port}")));
    reconnects_while_subscriptions_change(&mut server, &client);
}

#[test]
fn cluster_reconnects_while_subscriptions_change() {
    let port = free_port();
    let Some((mut servers, _)) = cluster(1, &["--cluster-announce-port", &port.to_string()]) else { return };
    delayed_proxy(port, servers[0].port, NETWORK_DELAY);
    let (client, _sink) = client(&broker_config(&format!("redis+cluster://127.0.0.1:{port}")));
    reconnects_while_subscriptions_change(&mut servers[0], &client);
}

#[test]
fn full_engine_does_not_disconnect_redis() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    server.start();
    let port = free_port();
    delayed_proxy(port, server.port, NETWORK_DELAY);
    stays_connected_while_the_engine_is_full(&broker_config(&format!("redis://127.0.0.1:{port}")));
}

#[test]
fn full_engine_does_not_disconnect_a_cluster() {
    let port = free_port();
    let Some((servers, _)) = cluster(1, &["--cluster-announce-port", &port.to_string()]) else { return };
    delayed_proxy(port, servers[0].port, NETWORK_DELAY);
    stays_connected_while_the_engine_is_full(&broker_config(&format!("redis+cluster://127.0.0.1:{port}")));
}

#[test]
fn refusals_of_a_cluster_affect_no_other_message() {
    let Some((_servers, url)) = cluster(1, &ACL) else { return };
    let publisher = Publisher::new(&broker_config(&url)).unwrap();
    publish_allowed_and_refused_messages(&publisher);
    assert_five_of_ten_refused(&publisher);
}

/// One command requests many channels, of which the server denies some.
#[test]
fn denials_of_redis_affect_no_other_subscription() {
    let Some(mut server) = Server::new("redis-server", &ACL) else { return };
    server.start();
    let broker_config = broker_config(&format!("redis://127.0.0.1:{}", server.port));
    let (client, sink) = client(&broker_config);
    let publisher = Publisher::new(&broker_config).unwrap();
    subscribe(&client, &["ok.a", "no.a", "no.b", "ok.>", "ok.b.*", "no.>", "no.*"]);
    // The ACL allows only those patterns that it contains literally.
    assert_eq!(denied(&client, 5), ["no.*", "no.>", "no.a", "no.b", "ok.b.*"].map(String::from).into());
    wait(|| client.status().subscriptions == 2);
    let reason = client.status().reason.unwrap();
    assert!(reason.contains("permissions"), "{reason}");
    assert_delivered(&client, &sink, &publisher, &["ok.a", "ok.c.d"]);
    // A retry that is denied again is not reported, and a pattern that becomes allowed is subscribed.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!client.take_notices().iter().any(|notice| matches!(notice, Notice::Denied { .. })));
    server.command("ACL SETUSER default &wirespeed.no.*");
    wait(|| client.status().subscriptions == 6);
    assert_delivered(&client, &sink, &publisher, &["no.a", "no.c", "ok.d"]);
    // The server ends subscriptions that become forbidden. They return once they are allowed again.
    server.command("ACL SETUSER default resetchannels &wirespeed.ok.* &wirespeed._wirespeed.*");
    wait(|| client.status().reconnects > 0 && client.status().subscriptions == 2);
    server.command("ACL SETUSER default &wirespeed.no.*");
    wait(|| client.status().subscriptions == 6);
    // A restarted server has the first ACL, and the new connection requests all subscriptions.
    server.kill();
    wait(|| client.status().state != State::Connected);
    server.start();
    wait(|| client.status().state == State::Connected);
    wait(|| client.status().subscriptions == 2);
    let reason = client.status().reason.unwrap();
    assert!(reason.contains("permissions"), "{reason}");
}

#[test]
fn denied_broadcasts_of_redis_affect_no_other_subscription() {
    let acl: Vec<&str> = ACL.into_iter().filter(|word| !word.contains("_wirespeed")).collect();
    let Some(mut server) = Server::new("redis-server", &acl) else { return };
    server.start();
    let broker_config = broker_config(&format!("redis://127.0.0.1:{}", server.port));
    let (client, sink) = client(&broker_config);
    assert_eq!(denied(&client, 1), ["_wirespeed.broadcast".to_owned()].into());
    subscribe(&client, &["ok.a"]);
    wait(|| client.status().subscriptions == 1);
    let publisher = Publisher::new(&broker_config).unwrap();
    assert_delivered(&client, &sink, &publisher, &["ok.a"]);
    server.command("ACL SETUSER default &wirespeed._wirespeed.*");
    sink.received.lock().unwrap().clear();
    wait(|| {
        publisher.publish(None, text("to all")).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        !sink.received.lock().unwrap().is_empty()
    });
}

#[test]
fn denials_of_a_cluster_affect_no_other_subscription() {
    let Some((servers, url)) = cluster(1, &ACL) else { return };
    let broker_config = broker_config(&url);
    let (client, sink) = client(&broker_config);
    let publisher = Publisher::new(&broker_config).unwrap();
    subscribe(&client, &["ok.a", "no.a", "ok.>"]);
    assert_eq!(denied(&client, 2), ["no.a", "ok.>, which is not supported"].map(String::from).into());
    wait(|| client.status().subscriptions == 1);
    assert_delivered(&client, &sink, &publisher, &["ok.a"]);
    servers[0].command("ACL SETUSER default &wirespeed.no.*");
    wait(|| client.status().subscriptions == 2);
    assert_delivered(&client, &sink, &publisher, &["ok.a", "no.a"]);
}

/// Returns a client with ten subscribed topics on a cluster, and a publisher.
fn ten_topics(url: &str) -> (BrokerClient, Arc<RecordingSink>, Publisher, Vec<String>) {
    let broker_config = broker_config(url);
    let (client, sink) = client(&broker_config);
    let names: Vec<String> = (0..10).map(|number| format!("topic.{number}")).collect();
    subscribe(&client, &names.iter().map(String::as_str).collect::<Vec<_>>());
    wait(|| client.status().subscriptions == 10);
    let publisher = Publisher::new(&broker_config).unwrap();
    wait_until_delivered(&sink, &publisher, &names);
    (client, sink, publisher, names)
}

fn id(server: &Server) -> String {
    server.command("CLUSTER MYID").lines().last().unwrap().to_owned()
}

#[test]
fn subscriptions_follow_a_slot_that_moves() {
    let Some((servers, url)) = cluster(2, &[]) else { return };
    let (client, sink, publisher, names) = ten_topics(&url);
    // Unsubscribing by the client itself does not cause a reconnect.
    for round in 0..20 {
        let pattern = Pattern::new(&names[round % 10]).unwrap();
        client.interest(&pattern, false);
        wait(|| client.status().subscriptions == 9);
        client.interest(&pattern, true);
        wait(|| client.status().subscriptions == 10);
    }
    wait_until_delivered(&sink, &publisher, &names);
    assert_eq!(client.status().reconnects, 0);
    let slot = |name: &str| -> usize {
        servers[0].command(&format!("CLUSTER KEYSLOT wirespeed.{name}")).trim().trim_start_matches(':').parse().unwrap()
    };
    let all = names.iter().map(|name| slot(name)).chain([slot("_wirespeed.broadcast")]);
    for slot in all.filter(|slot| *slot < 8192) {
        for server in [&servers[1], &servers[0]] {
            assert_eq!(server.command(&format!("CLUSTER SETSLOT {slot} NODE {}", id(&servers[1]))), "+OK\r\n");
        }
    }
    wait_until_delivered(&sink, &publisher, &names);
    wait(|| client.status().subscriptions == 10 && client.status().state == State::Connected);
    publisher.publish(None, text("to all")).unwrap();
    wait(|| sink.received.lock().unwrap().iter().any(|(name, _)| name.is_empty()));
    assert_eq!(servers[1].command("PUBSUB SHARDCHANNELS").lines().next(), Some("*11"));
}

#[test]
fn subscriptions_follow_a_planned_failover() {
    let Some((servers, url)) = cluster(1, &[]) else { return };
    let Some(mut replica) = cluster_node(&[]) else { return };
    meet(&replica, &servers[0]);
    wait(|| replica.command("CLUSTER INFO").contains("cluster_state:ok"));
    assert_eq!(replica.command(&format!("CLUSTER REPLICATE {}", id(&servers[0]))), "+OK\r\n");
    wait(|| replica.command("INFO replication").contains("master_link_status:up"));
    let (client, sink, publisher, names) = ten_topics(&url);
    assert_eq!(replica.command("CLUSTER FAILOVER"), "+OK\r\n");
    wait(|| replica.command("ROLE").contains("master"));
    wait_until_delivered(&sink, &publisher, &names);
    wait(|| client.status().subscriptions == 10);
    replica.kill();
}

/// Starts a NATS server whose user may publish and subscribe to these subjects and the internal ones.
fn nats(subjects: &str) -> Option<Server> {
    let mut server = Server::new("nats-server", &["-c", "nats.conf"])?;
    permit(&server, subjects);
    server.start();
    Some(server)
}

fn permit(server: &Server, subjects: &str) {
    let both = format!("[{subjects}, \"wirespeed._wirespeed.>\"]");
    let user = format!("{{user: u, password: p, permissions: {{publish: {both}, subscribe: {both}}}}}");
    std::fs::write(server.directory.join("nats.conf"), format!("authorization {{users: [{user}]}}\n")).unwrap();
}

fn nats_config(server: &Server) -> BrokerConfig {
    broker_config(&format!("nats://u:p@127.0.0.1:{}", server.port))
}

#[test]
fn subscriptions_denied_by_nats_are_retried() {
    let Some(mut server) = nats("\"wirespeed.ok.>\"") else { return };
    let broker_config = nats_config(&server);
    let (client, sink) = client(&broker_config);
    let publisher = Publisher::new(&broker_config).unwrap();
    subscribe(&client, &["ok.a", "no.a", "no.\"b\"", "ok.*.c", "no.>"]);
    assert_eq!(denied(&client, 3), ["no.>", "no.\"b\"", "no.a"].map(String::from).into());
    wait(|| client.status().subscriptions == 2);
    let reason = client.status().reason.unwrap();
    assert!(reason.contains("Permissions Violation"), "{reason}");
    assert_delivered(&client, &sink, &publisher, &["ok.a", "ok.b.c"]);
    // The permissions change during a connection.
    permit(&server, "\"wirespeed.ok.>\", \"wirespeed.no.a\"");
    server.signal("HUP");
    wait(|| client.status().subscriptions == 3);
    assert!(client.status().reason.is_some(), "other patterns are still denied");
    subscribe(&client, &["ok.more"]);
    permit(&server, "\"wirespeed.>\"");
    server.signal("HUP");
    for pattern in ["no.>", "no.\"b\""] {
        let pattern = Pattern::new(pattern).unwrap();
        client.interest(&pattern, false);
        client.interest(&pattern, true); // it is requested at once
    }
    wait(|| client.status().subscriptions == 6 && client.status().reason.is_none());
    client.interest(&Pattern::new("ok.more").unwrap(), false);
    wait(|| client.status().subscriptions == 5);
    permit(&server, "\"wirespeed.ok.>\"");
    server.signal("HUP");
    wait(|| client.status().subscriptions == 2);
    // A new connection requests it at once.
    server.kill();
    wait(|| client.status().state != State::Connected);
    permit(&server, "\"wirespeed.ok.>\", \"wirespeed.no.a\"");
    server.start();
    wait(|| client.status().subscriptions == 3);
    sink.received.lock().unwrap().clear();
    wait(|| {
        publisher.publish(Some(&topic("no.a")), text("x")).unwrap();
        !sink.received.lock().unwrap().is_empty()
    });
}

#[test]
fn many_subscriptions_denied_by_nats_are_all_found() {
    let Some(server) = nats("\"wirespeed.ok.>\"") else { return };
    let (client, _sink) = client(&nats_config(&server));
    for number in 0..2000 {
        let topic = if number % 4 == 0 { "ok" } else { "no" };
        subscribe(&client, &[&format!("{topic}.{number}")]);
    }
    wait(|| {
        let count = client.status().subscriptions;
        assert!(count <= 500, "{count}");
        count == 500
    });
    subscribe(&client, &["ok.last"]);
    wait(|| client.status().subscriptions == 501);
}

#[test]
fn messages_denied_by_nats_are_unconfirmed() {
    let Some(server) = nats("\"wirespeed.ok.>\"") else { return };
    let publisher = Publisher::new(&nats_config(&server)).unwrap();
    let mut expected = 0;
    for round in 0..50 {
        let denied = round % 2 == 0;
        let name = if denied { "no.a" } else { "ok.a" };
        publisher.publish(Some(&topic(name)), text("x")).unwrap();
        expected += u64::from(denied);
        let end = Instant::now() + DEADLINE;
        assert_eq!(publisher.flush(publisher.published(), Some(end)), Some(expected), "{round}");
    }
    let status = publisher.status();
    assert_eq!((status.published, status.unconfirmed, status.state), (25, 25, State::Connected));
    assert!(status.reason.unwrap().contains("no.a"));
    permit(&server, "\"wirespeed.>\"");
    server.signal("HUP");
    // The reason disappears once messages are accepted again.
    wait(|| {
        publisher.publish(Some(&topic("no.a")), text("x")).unwrap();
        let _ = publisher.flush(publisher.published(), Some(Instant::now() + DEADLINE));
        publisher.status().reason.is_none()
    });
}
