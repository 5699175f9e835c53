//! What real servers refuse, take away and move: skipped where they are not installed.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::link::slow_link;
use support::nodes::{
    cluster, cluster_node, come_at_last, comes, hub, is_not_taken_for_dead_while_there_is_no_room, meet, node, want,
};
use support::servers::{Server, free_port};
use support::{PATIENCE, Taker, text, topic, wait};
use wirespeed_brokers::engine::broker::{Broker, Notice, State};
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::{BrokerClient, BrokerConfig, Publisher};

/// One way, between us and a server that isn't on the same machine.
const WAY: Duration = Duration::from_millis(5);

/// What Redis lets the default user publish and subscribe to.
const ACL: [&str; 8] =
    ["--user", "default", "on", "nopass", "+@all", "~*", "&wirespeed.ok.*", "&wirespeed._wirespeed.*"];

/// What a node was told, until it is as much as that: what is denied, and what is not supported.
#[track_caller]
fn denied(node: &BrokerClient, count: usize) -> BTreeSet<String> {
    let denied = std::cell::RefCell::new(BTreeSet::new());
    wait(|| {
        for notice in node.take_notices() {
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

fn publish_what_is_refused_and_what_is_not(publisher: &Publisher) {
    for number in 0..10 {
        let name = if number % 2 == 0 { "ok.topic" } else { "no.topic" };
        publisher.publish(Some(&topic(name)), text("x")).unwrap();
    }
}

fn five_of_ten_were_refused(publisher: &Publisher) {
    assert_eq!(publisher.flush(publisher.published(), Some(Instant::now() + PATIENCE)), Some(5));
    let status = publisher.status();
    assert_eq!((status.published, status.refused, status.unconfirmed), (5, 5, 0));
}

#[test]
fn what_redis_refuses_costs_no_other_message() {
    let Some(mut server) = Server::new("redis-server", &ACL) else { return };
    let publisher = Publisher::new(&hub(&format!("redis://127.0.0.1:{}", server.port))).unwrap();
    publish_what_is_refused_and_what_is_not(&publisher);
    server.start(); // all of it is one pipeline
    five_of_ten_were_refused(&publisher);
}

/// Somebody begins and ends subscriptions all the time, faster than a server answers.
fn is_connected_again_while_interests_change(server: &mut Server, node: &BrokerClient) {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let patterns: Vec<_> = (0..1000).map(|number| Pattern::new(&format!("room.{number}")).unwrap()).collect();
            for turn in (0..).take_while(|_| !stop.load(std::sync::atomic::Ordering::Relaxed)) {
                patterns.iter().for_each(|pattern| node.interest(pattern, turn % 2 == 0));
            }
        });
        server.kill();
        wait(|| node.status().state != State::Connected);
        server.start();
        let began = Instant::now();
        while node.status().state != State::Connected && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(began.elapsed() < PATIENCE, "not while somebody wants something");
    });
}

#[test]
fn redis_is_connected_though_interests_change_all_the_time() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    server.start();
    let port = free_port();
    slow_link(port, server.port, WAY);
    let (node, _taker) = node(&hub(&format!("redis://127.0.0.1:{port}")));
    is_connected_again_while_interests_change(&mut server, &node);
}

#[test]
fn a_cluster_is_connected_though_interests_change_all_the_time() {
    let port = free_port();
    let Some((mut servers, _)) = cluster(1, &["--cluster-announce-port", &port.to_string()]) else { return };
    slow_link(port, servers[0].port, WAY);
    let (node, _taker) = node(&hub(&format!("redis+cluster://127.0.0.1:{port}")));
    is_connected_again_while_interests_change(&mut servers[0], &node);
}

#[test]
fn who_waits_for_room_does_not_take_the_server_for_dead() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    server.start();
    let port = free_port();
    slow_link(port, server.port, WAY);
    is_not_taken_for_dead_while_there_is_no_room(&hub(&format!("redis://127.0.0.1:{port}")));
}

#[test]
fn who_waits_for_room_does_not_take_a_cluster_for_dead() {
    let port = free_port();
    let Some((servers, _)) = cluster(1, &["--cluster-announce-port", &port.to_string()]) else { return };
    slow_link(port, servers[0].port, WAY);
    is_not_taken_for_dead_while_there_is_no_room(&hub(&format!("redis+cluster://127.0.0.1:{port}")));
}

#[test]
fn what_a_cluster_refuses_costs_no_other_message() {
    let Some((_servers, url)) = cluster(1, &ACL) else { return };
    let publisher = Publisher::new(&hub(&url)).unwrap();
    publish_what_is_refused_and_what_is_not(&publisher);
    five_of_ten_were_refused(&publisher);
}

/// Of many that are asked for by one command some are denied.
#[test]
fn what_redis_denies_takes_nothing_else_away() {
    let Some(mut server) = Server::new("redis-server", &ACL) else { return };
    server.start();
    let hub = hub(&format!("redis://127.0.0.1:{}", server.port));
    let (node, taker) = node(&hub);
    let publisher = Publisher::new(&hub).unwrap();
    want(&node, &["ok.a", "no.a", "no.b", "ok.>", "ok.b.*", "no.>", "no.*"]);
    // Of patterns only those that the ACL names are let through.
    assert_eq!(denied(&node, 5), ["no.*", "no.>", "no.a", "no.b", "ok.b.*"].map(String::from).into());
    wait(|| node.status().subscriptions == 2);
    let reason = node.status().reason.unwrap();
    assert!(reason.contains("permissions"), "{reason}");
    comes(&node, &taker, &publisher, &["ok.a", "ok.c.d"]);
    // What is still denied is not told again, and what is allowed later is asked for.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!node.take_notices().iter().any(|notice| matches!(notice, Notice::Denied { .. })));
    server.say("ACL SETUSER default &wirespeed.no.*");
    wait(|| node.status().subscriptions == 6);
    comes(&node, &taker, &publisher, &["no.a", "no.c", "ok.d"]);
    // The server ends subscriptions that it denies from now on; those that it allows again come back.
    server.say("ACL SETUSER default resetchannels &wirespeed.ok.* &wirespeed._wirespeed.*");
    wait(|| node.status().reconnects > 0 && node.status().subscriptions == 2);
    server.say("ACL SETUSER default &wirespeed.no.*");
    wait(|| node.status().subscriptions == 6);
    // A server that has begun again has the first ACL, and another connection asks for all.
    server.kill();
    wait(|| node.status().state != State::Connected);
    server.start();
    wait(|| node.status().state == State::Connected);
    wait(|| node.status().subscriptions == 2);
    let reason = node.status().reason.unwrap();
    assert!(reason.contains("permissions"), "{reason}");
}

#[test]
fn broadcasts_that_redis_denies_take_nothing_else_away() {
    let acl: Vec<&str> = ACL.into_iter().filter(|word| !word.contains("_wirespeed")).collect();
    let Some(mut server) = Server::new("redis-server", &acl) else { return };
    server.start();
    let hub = hub(&format!("redis://127.0.0.1:{}", server.port));
    let (node, taker) = node(&hub);
    assert_eq!(denied(&node, 1), ["_wirespeed.broadcast".to_owned()].into());
    want(&node, &["ok.a"]);
    wait(|| node.status().subscriptions == 1);
    let publisher = Publisher::new(&hub).unwrap();
    comes(&node, &taker, &publisher, &["ok.a"]);
    server.say("ACL SETUSER default &wirespeed._wirespeed.*");
    taker.came.lock().unwrap().clear();
    wait(|| {
        publisher.publish(None, text("to all")).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        !taker.came.lock().unwrap().is_empty()
    });
}

#[test]
fn what_a_cluster_denies_takes_nothing_else_away() {
    let Some((servers, url)) = cluster(1, &ACL) else { return };
    let hub = hub(&url);
    let (node, taker) = node(&hub);
    let publisher = Publisher::new(&hub).unwrap();
    want(&node, &["ok.a", "no.a", "ok.>"]);
    assert_eq!(denied(&node, 2), ["no.a", "ok.>, which is not supported"].map(String::from).into());
    wait(|| node.status().subscriptions == 1);
    comes(&node, &taker, &publisher, &["ok.a"]);
    servers[0].say("ACL SETUSER default &wirespeed.no.*");
    wait(|| node.status().subscriptions == 2);
    comes(&node, &taker, &publisher, &["ok.a", "no.a"]);
}

/// Ten topics on a cluster, to which somebody subscribes.
fn ten_topics(url: &str) -> (BrokerClient, Arc<Taker>, Publisher, Vec<String>) {
    let hub = hub(url);
    let (node, taker) = node(&hub);
    let names: Vec<String> = (0..10).map(|number| format!("topic.{number}")).collect();
    want(&node, &names.iter().map(String::as_str).collect::<Vec<_>>());
    wait(|| node.status().subscriptions == 10);
    let publisher = Publisher::new(&hub).unwrap();
    come_at_last(&taker, &publisher, &names);
    (node, taker, publisher, names)
}

fn id(server: &Server) -> String {
    server.say("CLUSTER MYID").lines().last().unwrap().to_owned()
}

#[test]
fn a_slot_that_moves_takes_its_subscriptions_with_it() {
    let Some((servers, url)) = cluster(2, &[]) else { return };
    let (node, taker, publisher, names) = ten_topics(&url);
    // What is ended by whoever has it is no reason to connect again.
    for round in 0..20 {
        let pattern = Pattern::new(&names[round % 10]).unwrap();
        node.interest(&pattern, false);
        wait(|| node.status().subscriptions == 9);
        node.interest(&pattern, true);
        wait(|| node.status().subscriptions == 10);
    }
    come_at_last(&taker, &publisher, &names);
    assert_eq!(node.status().reconnects, 0);
    let slot = |name: &str| -> usize {
        servers[0].say(&format!("CLUSTER KEYSLOT wirespeed.{name}")).trim().trim_start_matches(':').parse().unwrap()
    };
    let all = names.iter().map(|name| slot(name)).chain([slot("_wirespeed.broadcast")]);
    for slot in all.filter(|slot| *slot < 8192) {
        for server in [&servers[1], &servers[0]] {
            assert_eq!(server.say(&format!("CLUSTER SETSLOT {slot} NODE {}", id(&servers[1]))), "+OK\r\n");
        }
    }
    come_at_last(&taker, &publisher, &names);
    wait(|| node.status().subscriptions == 10 && node.status().state == State::Connected);
    publisher.publish(None, text("to all")).unwrap();
    wait(|| taker.came.lock().unwrap().iter().any(|(name, _)| name.is_empty()));
    assert_eq!(servers[1].say("PUBSUB SHARDCHANNELS").lines().next(), Some("*11"));
}

#[test]
fn a_planned_failover_takes_the_subscriptions_with_it() {
    let Some((servers, url)) = cluster(1, &[]) else { return };
    let Some(mut replica) = cluster_node(&[]) else { return };
    meet(&replica, &servers[0]);
    wait(|| replica.say("CLUSTER INFO").contains("cluster_state:ok"));
    assert_eq!(replica.say(&format!("CLUSTER REPLICATE {}", id(&servers[0]))), "+OK\r\n");
    wait(|| replica.say("INFO replication").contains("master_link_status:up"));
    let (node, taker, publisher, names) = ten_topics(&url);
    assert_eq!(replica.say("CLUSTER FAILOVER"), "+OK\r\n");
    wait(|| replica.say("ROLE").contains("master"));
    come_at_last(&taker, &publisher, &names);
    wait(|| node.status().subscriptions == 10);
    replica.kill();
}

/// A server of NATS whose user may publish and subscribe to these, and what is needed for brokers themselves.
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

fn nats_hub(server: &Server) -> BrokerConfig {
    hub(&format!("nats://u:p@127.0.0.1:{}", server.port))
}

#[test]
fn what_nats_denies_is_not_subscribed_to() {
    let Some(mut server) = nats("\"wirespeed.ok.>\"") else { return };
    let hub = nats_hub(&server);
    let (node, taker) = node(&hub);
    let publisher = Publisher::new(&hub).unwrap();
    want(&node, &["ok.a", "no.a", "no.\"b\"", "ok.*.c", "no.>"]);
    assert_eq!(denied(&node, 3), ["no.>", "no.\"b\"", "no.a"].map(String::from).into());
    wait(|| node.status().subscriptions == 2);
    let reason = node.status().reason.unwrap();
    assert!(reason.contains("Permissions Violation"), "{reason}");
    comes(&node, &taker, &publisher, &["ok.a", "ok.b.c"]);
    // Permissions that change while there is a connection.
    permit(&server, "\"wirespeed.ok.>\", \"wirespeed.no.a\"");
    server.signal("HUP");
    wait(|| node.status().subscriptions == 3);
    assert!(node.status().reason.is_some(), "others are denied");
    want(&node, &["ok.more"]);
    permit(&server, "\"wirespeed.>\"");
    server.signal("HUP");
    for pattern in ["no.>", "no.\"b\""] {
        let pattern = Pattern::new(pattern).unwrap();
        node.interest(&pattern, false);
        node.interest(&pattern, true); // asked for at once
    }
    wait(|| node.status().subscriptions == 6 && node.status().reason.is_none());
    node.interest(&Pattern::new("ok.more").unwrap(), false);
    wait(|| node.status().subscriptions == 5);
    permit(&server, "\"wirespeed.ok.>\"");
    server.signal("HUP");
    wait(|| node.status().subscriptions == 2);
    // By another connection it is asked for at once.
    server.kill();
    wait(|| node.status().state != State::Connected);
    permit(&server, "\"wirespeed.ok.>\", \"wirespeed.no.a\"");
    server.start();
    wait(|| node.status().subscriptions == 3);
    taker.came.lock().unwrap().clear();
    wait(|| {
        publisher.publish(Some(&topic("no.a")), text("x")).unwrap();
        !taker.came.lock().unwrap().is_empty()
    });
}

#[test]
fn of_very_many_that_nats_denies_none_is_subscribed_to() {
    let Some(server) = nats("\"wirespeed.ok.>\"") else { return };
    let (node, _taker) = node(&nats_hub(&server));
    for number in 0..2000 {
        let topic = if number % 4 == 0 { "ok" } else { "no" };
        want(&node, &[&format!("{topic}.{number}")]);
    }
    wait(|| {
        let count = node.status().subscriptions;
        assert!(count <= 500, "{count}");
        count == 500
    });
    want(&node, &["ok.last"]);
    wait(|| node.status().subscriptions == 501);
}

#[test]
fn what_nats_does_not_let_us_publish_is_in_doubt() {
    let Some(server) = nats("\"wirespeed.ok.>\"") else { return };
    let publisher = Publisher::new(&nats_hub(&server)).unwrap();
    let mut expected = 0;
    for round in 0..50 {
        let denied = round % 2 == 0;
        let name = if denied { "no.a" } else { "ok.a" };
        publisher.publish(Some(&topic(name)), text("x")).unwrap();
        expected += u64::from(denied);
        let end = Instant::now() + PATIENCE;
        assert_eq!(publisher.flush(publisher.published(), Some(end)), Some(expected), "{round}");
    }
    let status = publisher.status();
    assert_eq!((status.published, status.unconfirmed, status.state), (25, 25, State::Connected));
    assert!(status.reason.unwrap().contains("no.a"));
    permit(&server, "\"wirespeed.>\"");
    server.signal("HUP");
    // Once messages are taken again.
    wait(|| {
        publisher.publish(Some(&topic("no.a")), text("x")).unwrap();
        let _ = publisher.flush(publisher.published(), Some(Instant::now() + PATIENCE));
        publisher.status().reason.is_none()
    });
}
