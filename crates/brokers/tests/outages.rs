//! Servers that answer with errors, hang, are demoted or full, or ask for passwords, and what is said of it: skipped where
//! they are not installed.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::link::slow_link;
use support::nodes::{cluster, come_at_last, comes, hub, is_not_taken_for_dead_while_there_is_no_room, node, want};
use support::servers::{Server, free_port};
use support::{Taker, text, topic, wait};
use wirespeed_brokers::engine::broker::{Broker, Notice, Sink, State, Status};
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::{BrokerClient, BrokerConfig, Publisher};

/// One way, between us and a server that isn't on the same machine.
const WAY: Duration = Duration::from_millis(5);

/// Commands that Redis answers with errors, where nothing else is wrong: it is there.
const NO_PING: [&str; 8] = ["--user", "default", "on", "nopass", "+@all", "-ping", "~*", "&*"];

fn is_there_though_it_answers_with_errors(hub: &BrokerConfig) {
    let (node, taker) = node(hub);
    want(&node, &["a"]);
    wait(|| node.status().subscriptions == 1);
    let publisher = Publisher::new(hub).unwrap();
    // Longer than it is idle until it is asked.
    std::thread::sleep(Duration::from_secs(3));
    comes(&node, &taker, &publisher, &["a"]);
    assert_eq!(publisher.status().reconnects, 0);
}

#[test]
fn redis_that_answers_pings_with_errors_is_there() {
    let Some(mut server) = Server::new("redis-server", &NO_PING) else { return };
    server.start();
    is_there_though_it_answers_with_errors(&hub(&format!("redis://127.0.0.1:{}", server.port)));
}

#[test]
fn a_cluster_that_answers_pings_with_errors_is_there() {
    let Some((_servers, url)) = cluster(2, &NO_PING) else { return };
    is_there_though_it_answers_with_errors(&hub(&url));
}

#[test]
fn nothing_is_published_to_a_primary_that_has_become_a_replica() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    let Some(mut other) = Server::new("redis-server", &[]) else { return };
    server.start();
    other.start();
    let hub = hub(&format!("redis://127.0.0.1:{}", server.port));
    let (node, taker) = node(&hub);
    want(&node, &["a"]);
    let publisher = Publisher::new(&hub).unwrap();
    wait(|| node.status().subscriptions == 1 && publisher.status().state == State::Connected);
    server.say(&format!("REPLICAOF 127.0.0.1 {}", other.port));
    let statuses: [fn(&BrokerClient, &Publisher) -> Status; 2] =
        [|node, _| node.status(), |_, publisher| publisher.status()];
    for status in statuses {
        wait(|| status(&node, &publisher).reason.is_some_and(|reason| reason.contains("replica")));
        assert_eq!(status(&node, &publisher).state, State::Disconnected);
    }
    publisher.publish(Some(&topic("a")), text("kept")).unwrap();
    server.say("REPLICAOF NO ONE");
    wait(|| taker.came.lock().unwrap().len() == 1 || publisher.status().published == 1);
    wait(|| node.status().state == State::Connected);
}

#[test]
fn what_is_one_too_many_for_nats_is_denied_until_there_is_room() {
    let Some(mut server) = Server::new("nats-server", &["-c", "nats.conf"]) else { return };
    std::fs::write(server.directory.join("nats.conf"), "max_subscriptions: 10\n").unwrap();
    server.start();
    let hub = hub(&format!("nats://127.0.0.1:{}", server.port));
    let (node, taker) = node(&hub);
    let names: Vec<String> = (0..100).map(|number| format!("t.{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    want(&node, &names);
    // Two are for broadcasts, and for what the server has got.
    let mut denied = BTreeSet::new();
    wait(|| {
        for notice in node.take_notices() {
            if let Notice::Denied { pattern, reason } = notice {
                assert!(reason.contains("Maximum Subscriptions"), "{reason}");
                assert!(denied.insert(pattern.to_string()), "{pattern} was told twice");
            }
        }
        denied.len() == 92
    });
    assert_eq!(node.status().subscriptions, 8);
    let publisher = Publisher::new(&hub).unwrap();
    let publish_to_all = || names.iter().for_each(|name| publisher.publish(Some(&topic(name)), text(name)).unwrap());
    publish_to_all();
    wait(|| taker.came.lock().unwrap().len() == 8);
    assert_eq!(node.status().state, State::Connected);
    // Those that are wanted no more make room for others.
    let came: BTreeSet<String> = taker.came.lock().unwrap().iter().map(|(name, _)| name.clone()).collect();
    came.iter().for_each(|name| node.interest(&Pattern::new(name).unwrap(), false));
    wait(|| {
        publish_to_all();
        std::thread::sleep(Duration::from_millis(20));
        let others = taker.came.lock().unwrap();
        others.iter().map(|(name, _)| name).filter(|name| !came.contains(*name)).collect::<BTreeSet<_>>().len() == 8
    });
}

#[test]
fn nats_that_hangs_is_given_up() {
    let Some(mut server) = Server::new("nats-server", &[]) else { return };
    server.start();
    let hub = hub(&format!("nats://127.0.0.1:{}?timeout=1", server.port));
    let (node, taker) = node(&hub);
    want(&node, &["a"]);
    wait(|| node.status().subscriptions == 1);
    std::thread::sleep(Duration::from_millis(1500)); // it has answered
    server.signal("STOP");
    let began = Instant::now();
    wait(|| node.status().state == State::Disconnected);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(node.status().reason.unwrap().contains("does not answer"));
    server.signal("CONT");
    wait(|| node.status().subscriptions == 1);
    let publisher = Publisher::new(&hub).unwrap();
    come_at_last(&taker, &publisher, &["a".to_owned()]);
}

#[test]
fn who_waits_for_room_does_not_take_nats_for_dead() {
    let Some(mut server) = Server::new("nats-server", &[]) else { return };
    server.start();
    let port = free_port();
    slow_link(port, server.port, WAY);
    is_not_taken_for_dead_while_there_is_no_room(&hub(&format!("nats://127.0.0.1:{port}")));
}

/// What was logged since the last call: level and text.
fn logged(taker: &Taker) -> Vec<String> {
    let logs = taker.logs();
    logs.take(Instant::now()).into_iter().map(|record| format!("{:?} {}", record.level, record.text)).collect()
}

fn outages_are_logged_when_they_begin_and_when_they_end(server: &mut Server, url: &str) {
    let mut hub = hub(url);
    hub.limit = 4096;
    let taker = Arc::new(Taker::default());
    let node = BrokerClient::start(&hub, Some(Arc::clone(&taker) as Arc<dyn Sink>)).unwrap();
    let lines = std::cell::RefCell::new(Vec::new());
    let has = |words: &[&str]| {
        lines.borrow_mut().extend(logged(&taker));
        lines.borrow().iter().filter(|line: &&String| words.iter().all(|word| line.contains(word))).count()
    };
    wait(|| has(&["Warning", "no connection", "refused"]) == 1);
    server.start();
    wait(|| has(&["Info", "connected, after"]) == 1);
    server.kill();
    wait(|| has(&["Warning", "no connection"]) == 2);
    let payload = "x".repeat(1000);
    for _ in 0..20 {
        node.publish(&topic("t"), text(&payload));
    }
    wait(|| has(&["Warning", "do not reach other engines", "4096 bytes"]) == 1);
    assert!(node.status().refused > 0);
    server.start();
    wait(|| has(&["Info", "connected, after"]) == 2);
    wait(|| has(&["Info", "taken again", "refused or dropped"]) == 1);
    assert_eq!(lines.borrow().iter().filter(|line| line.contains("no connection, which")).count(), 2, "{lines:?}");
}

#[test]
fn outages_of_redis_are_logged_when_they_begin_and_when_they_end() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    let url = format!("redis://127.0.0.1:{}", server.port);
    outages_are_logged_when_they_begin_and_when_they_end(&mut server, &url);
}

#[test]
fn outages_of_nats_are_logged_when_they_begin_and_when_they_end() {
    let Some(mut server) = Server::new("nats-server", &[]) else { return };
    let url = format!("nats://127.0.0.1:{}", server.port);
    outages_are_logged_when_they_begin_and_when_they_end(&mut server, &url);
}

/// A server that wants a password, or another one, takes no messages: they wait until it takes the node's credentials.
#[test]
fn redis_that_wants_another_password_is_away_until_it_takes_ours() {
    for (credentials, wanted, told) in [("", "", "NOAUTH"), (":ours@", "ours", "WRONGPASS")] {
        let Some(mut server) = Server::new("redis-server", &["--requirepass", wanted]) else { return };
        server.start();
        let hub = hub(&format!("redis://{credentials}127.0.0.1:{}", server.port));
        let (node, taker) = node(&hub);
        want(&node, &["a"]);
        wait(|| node.status().subscriptions == 1);
        let publisher = Publisher::new(&hub).unwrap();
        comes(&node, &taker, &publisher, &["a"]);
        server.kill();
        wait(|| node.status().state == State::Disconnected && publisher.status().state == State::Disconnected);
        server.set_option(1, "theirs");
        server.start();
        let says = |status: Status| {
            let is_known = |reason: &str| reason.contains(told) || reason.to_lowercase().contains("password");
            status.state == State::Disconnected && status.reason.as_deref().is_some_and(is_known)
        };
        wait(|| says(node.status()) && says(publisher.status()));
        taker.came.lock().unwrap().clear();
        publisher.publish(Some(&topic("a")), text("waits")).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let status = publisher.status();
        assert_eq!((status.queued, status.refused, status.unconfirmed), (1, 0, 0));
        server.say(&format!("AUTH theirs\r\nCONFIG SET requirepass \"{wanted}\""));
        wait(|| publisher.status().published == 2);
        wait(|| node.status().state == State::Connected && node.status().subscriptions == 1);
        come_at_last(&taker, &publisher, &["a".to_owned()]);
        let status = publisher.status();
        assert_eq!((status.refused, status.unconfirmed), (0, 0), "{told}");
    }
}

#[test]
fn sentinels_may_ask_for_the_password_of_their_servers_or_for_their_own() {
    let password = ["--requirepass", "pa55"];
    let Some(mut master) = Server::new("redis-server", &password) else { return };
    master.start();
    for (sentinel_password, options) in [
        ("", ""),
        ("requirepass pa55", ""),
        ("requirepass 0ther", "?sentinel_password=0ther"),
        ("user u on >0ther ~* &* +@all\nuser default off", "?sentinel_user=u&sentinel_password=0ther"),
    ] {
        let Some(mut sentinel) = Server::new("redis-server", &["--sentinel"]) else { return };
        let config = format!(
            "sentinel monitor mymaster 127.0.0.1 {} 1\nsentinel auth-pass mymaster pa55\n{sentinel_password}\n",
            master.port
        );
        std::fs::write(sentinel.directory.join("sentinel.conf"), config).unwrap();
        sentinel.begin_with("sentinel.conf");
        sentinel.start();
        let hub = hub(&format!("redis+sentinel://:pa55@127.0.0.1:{}/mymaster{options}", sentinel.port));
        let publisher = Publisher::new(&hub).unwrap();
        wait(|| publisher.status().state == State::Connected);
    }
    let Some(mut sentinel) = Server::new("redis-server", &["--sentinel"]) else { return };
    let config = format!(
        "sentinel monitor mymaster 127.0.0.1 {} 1\nsentinel auth-pass mymaster pa55\nrequirepass 0ther\n",
        master.port
    );
    std::fs::write(sentinel.directory.join("sentinel.conf"), config).unwrap();
    sentinel.begin_with("sentinel.conf");
    sentinel.start();
    let hub = hub(&format!("redis+sentinel://:pa55@127.0.0.1:{}/mymaster", sentinel.port));
    let publisher = Publisher::new(&hub).unwrap();
    wait(|| publisher.status().reason.is_some());
    let reason = publisher.status().reason.unwrap();
    assert!(reason.contains("WRONGPASS") || reason.to_lowercase().contains("password"), "{reason}");
    assert!(!reason.contains("pa55"), "{reason}");
}
