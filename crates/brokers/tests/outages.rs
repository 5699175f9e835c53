//! Servers that answer with errors, hang, are demoted or full, or require passwords, and the resulting status and log.
//! Skipped where the servers are not installed.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::delayed_proxy::delayed_proxy;
use support::nodes::{
    assert_delivered, broker_config, client, cluster, stays_connected_while_the_engine_is_full, subscribe,
    wait_until_delivered,
};
use support::servers::{Server, free_port};
use support::{RecordingSink, text, topic, wait};
use wirespeed_brokers::engine::broker::{Broker, Notice, Sink, State, Status};
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::{BrokerClient, BrokerConfig, Publisher};

/// The one-way delay of a simulated network.
const NETWORK_DELAY: Duration = Duration::from_millis(5);

/// Options with which Redis answers pings with an error, although it works.
const NO_PING: [&str; 8] = ["--user", "default", "on", "nopass", "+@all", "-ping", "~*", "&*"];

fn stays_connected_to_a_server_that_answers_with_errors(broker_config: &BrokerConfig) {
    let (client, sink) = client(broker_config);
    subscribe(&client, &["a"]);
    wait(|| client.status().subscriptions == 1);
    let publisher = Publisher::new(broker_config).unwrap();
    // Longer than the idle time before a ping.
    std::thread::sleep(Duration::from_secs(3));
    assert_delivered(&client, &sink, &publisher, &["a"]);
    assert_eq!(publisher.status().reconnects, 0);
}

#[test]
fn redis_that_answers_pings_with_errors_stays_connected() {
    let Some(mut server) = Server::new("redis-server", &NO_PING) else { return };
    server.start();
    stays_connected_to_a_server_that_answers_with_errors(&broker_config(&format!("redis://127.0.0.1:{}", server.port)));
}

#[test]
fn cluster_that_answers_pings_with_errors_stays_connected() {
    let Some((_servers, url)) = cluster(2, &NO_PING) else { return };
    stays_connected_to_a_server_that_answers_with_errors(&broker_config(&url));
}

#[test]
fn nothing_is_published_to_a_primary_that_became_a_replica() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    let Some(mut other) = Server::new("redis-server", &[]) else { return };
    server.start();
    other.start();
    let broker_config = broker_config(&format!("redis://127.0.0.1:{}", server.port));
    let (client, sink) = client(&broker_config);
    subscribe(&client, &["a"]);
    let publisher = Publisher::new(&broker_config).unwrap();
    wait(|| client.status().subscriptions == 1 && publisher.status().state == State::Connected);
    server.command(&format!("REPLICAOF 127.0.0.1 {}", other.port));
    let statuses: [fn(&BrokerClient, &Publisher) -> Status; 2] =
        [|client, _| client.status(), |_, publisher| publisher.status()];
    for status in statuses {
        wait(|| status(&client, &publisher).reason.is_some_and(|reason| reason.contains("replica")));
        assert_eq!(status(&client, &publisher).state, State::Disconnected);
    }
    publisher.publish(Some(&topic("a")), text("kept")).unwrap();
    server.command("REPLICAOF NO ONE");
    wait(|| sink.received.lock().unwrap().len() == 1 || publisher.status().published == 1);
    wait(|| client.status().state == State::Connected);
}

#[test]
fn nats_subscriptions_above_the_limit_are_denied_until_others_end() {
    let Some(mut server) = Server::new("nats-server", &["-c", "nats.conf"]) else { return };
    std::fs::write(server.directory.join("nats.conf"), "max_subscriptions: 10\n").unwrap();
    server.start();
    let broker_config = broker_config(&format!("nats://127.0.0.1:{}", server.port));
    let (client, sink) = client(&broker_config);
    let names: Vec<String> = (0..100).map(|number| format!("t.{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    subscribe(&client, &names);
    // Two subscriptions are internal: broadcasts and confirmations.
    let mut denied = BTreeSet::new();
    wait(|| {
        for notice in client.take_notices() {
            if let Notice::Denied { pattern, reason } = notice {
                assert!(reason.contains("Maximum Subscriptions"), "{reason}");
                assert!(denied.insert(pattern.to_string()), "{pattern} was reported twice");
            }
        }
        denied.len() == 92
    });
    assert_eq!(client.status().subscriptions, 8);
    let publisher = Publisher::new(&broker_config).unwrap();
    let publish_to_all = || names.iter().for_each(|name| publisher.publish(Some(&topic(name)), text(name)).unwrap());
    publish_to_all();
    wait(|| sink.received.lock().unwrap().len() == 8);
    assert_eq!(client.status().state, State::Connected);
    // Unsubscribed patterns make room for others.
    let received: BTreeSet<String> = sink.received.lock().unwrap().iter().map(|(name, _)| name.clone()).collect();
    received.iter().for_each(|name| client.interest(&Pattern::new(name).unwrap(), false));
    wait(|| {
        publish_to_all();
        std::thread::sleep(Duration::from_millis(20));
        let others = sink.received.lock().unwrap();
        others.iter().map(|(name, _)| name).filter(|name| !received.contains(*name)).collect::<BTreeSet<_>>().len() == 8
    });
}

#[test]
fn hanging_nats_server_is_disconnected() {
    let Some(mut server) = Server::new("nats-server", &[]) else { return };
    server.start();
    let broker_config = broker_config(&format!("nats://127.0.0.1:{}?timeout=1", server.port));
    let (client, sink) = client(&broker_config);
    subscribe(&client, &["a"]);
    wait(|| client.status().subscriptions == 1);
    std::thread::sleep(Duration::from_millis(1500)); // until the server has answered a confirmation request
    server.signal("STOP");
    let began = Instant::now();
    wait(|| client.status().state == State::Disconnected);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(client.status().reason.unwrap().contains("does not answer"));
    server.signal("CONT");
    wait(|| client.status().subscriptions == 1);
    let publisher = Publisher::new(&broker_config).unwrap();
    wait_until_delivered(&sink, &publisher, &["a".to_owned()]);
}

#[test]
fn full_engine_does_not_disconnect_nats() {
    let Some(mut server) = Server::new("nats-server", &[]) else { return };
    server.start();
    let port = free_port();
    delayed_proxy(port, server.port, NETWORK_DELAY);
    stays_connected_while_the_engine_is_full(&broker_config(&format!("nats://127.0.0.1:{port}")));
}

/// Returns the log records since the last call, with level and text.
fn logged(sink: &RecordingSink) -> Vec<String> {
    let logs = sink.logs();
    logs.take(Instant::now()).into_iter().map(|record| format!("{:?} {}", record.level, record.text)).collect()
}

fn log_reports_the_start_and_the_end_of_outages(server: &mut Server, url: &str) {
    let mut broker_config = broker_config(url);
    broker_config.limit = 4096;
    let sink = Arc::new(RecordingSink::default());
    let client = BrokerClient::start(&broker_config, Some(Arc::clone(&sink) as Arc<dyn Sink>)).unwrap();
    let lines = std::cell::RefCell::new(Vec::new());
    let has = |words: &[&str]| {
        lines.borrow_mut().extend(logged(&sink));
        lines.borrow().iter().filter(|line: &&String| words.iter().all(|word| line.contains(word))).count()
    };
    wait(|| has(&["Warning", "no connection", "refused"]) == 1);
    server.start();
    wait(|| has(&["Info", "connected, after"]) == 1);
    server.kill();
    wait(|| has(&["Warning", "no connection"]) == 2);
    let payload = "x".repeat(1000);
    for _ in 0..20 {
        client.publish(&topic("t"), text(&payload));
    }
    wait(|| has(&["Warning", "do not reach other engines", "4096 bytes"]) == 1);
    assert!(client.status().refused > 0);
    server.start();
    wait(|| has(&["Info", "connected, after"]) == 2);
    wait(|| has(&["Info", "taken again", "refused or dropped"]) == 1);
    assert_eq!(lines.borrow().iter().filter(|line| line.contains("no connection, which")).count(), 2, "{lines:?}");
}

#[test]
fn log_reports_the_start_and_the_end_of_redis_outages() {
    let Some(mut server) = Server::new("redis-server", &[]) else { return };
    let url = format!("redis://127.0.0.1:{}", server.port);
    log_reports_the_start_and_the_end_of_outages(&mut server, &url);
}

#[test]
fn log_reports_the_start_and_the_end_of_nats_outages() {
    let Some(mut server) = Server::new("nats-server", &[]) else { return };
    let url = format!("nats://127.0.0.1:{}", server.port);
    log_reports_the_start_and_the_end_of_outages(&mut server, &url);
}

/// A server that requires another password accepts no messages: they stay queued until the credentials match again.
#[test]
fn redis_with_another_password_is_disconnected_until_it_accepts_ours() {
    for (credentials, wanted, told) in [("", "", "NOAUTH"), (":ours@", "ours", "WRONGPASS")] {
        let Some(mut server) = Server::new("redis-server", &["--requirepass", wanted]) else { return };
        server.start();
        let broker_config = broker_config(&format!("redis://{credentials}127.0.0.1:{}", server.port));
        let (client, sink) = client(&broker_config);
        subscribe(&client, &["a"]);
        wait(|| client.status().subscriptions == 1);
        let publisher = Publisher::new(&broker_config).unwrap();
        assert_delivered(&client, &sink, &publisher, &["a"]);
        server.kill();
        wait(|| client.status().state == State::Disconnected && publisher.status().state == State::Disconnected);
        server.set_option(1, "theirs");
        server.start();
        let says = |status: Status| {
            let is_known = |reason: &str| reason.contains(told) || reason.to_lowercase().contains("password");
            status.state == State::Disconnected && status.reason.as_deref().is_some_and(is_known)
        };
        wait(|| says(client.status()) && says(publisher.status()));
        sink.received.lock().unwrap().clear();
        publisher.publish(Some(&topic("a")), text("waits")).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let status = publisher.status();
        assert_eq!((status.queued, status.refused, status.unconfirmed), (1, 0, 0));
        server.command(&format!("AUTH theirs\r\nCONFIG SET requirepass \"{wanted}\""));
        wait(|| publisher.status().published == 2);
        wait(|| client.status().state == State::Connected && client.status().subscriptions == 1);
        wait_until_delivered(&sink, &publisher, &["a".to_owned()]);
        let status = publisher.status();
        assert_eq!((status.refused, status.unconfirmed), (0, 0), "{told}");
    }
}

#[test]
fn sentinels_may_require_the_password_of_their_servers_or_their_own() {
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
        sentinel.set_first_argument("sentinel.conf");
        sentinel.start();
        let broker_config =
            broker_config(&format!("redis+sentinel://:pa55@127.0.0.1:{}/mymaster{options}", sentinel.port));
        let publisher = Publisher::new(&broker_config).unwrap();
        wait(|| publisher.status().state == State::Connected);
    }
    let Some(mut sentinel) = Server::new("redis-server", &["--sentinel"]) else { return };
    let config = format!(
        "sentinel monitor mymaster 127.0.0.1 {} 1\nsentinel auth-pass mymaster pa55\nrequirepass 0ther\n",
        master.port
    );
    std::fs::write(sentinel.directory.join("sentinel.conf"), config).unwrap();
    sentinel.set_first_argument("sentinel.conf");
    sentinel.start();
    let broker_config = broker_config(&format!("redis+sentinel://:pa55@127.0.0.1:{}/mymaster", sentinel.port));
    let publisher = Publisher::new(&broker_config).unwrap();
    wait(|| publisher.status().reason.is_some());
    let reason = publisher.status().reason.unwrap();
    assert!(reason.contains("WRONGPASS") || reason.to_lowercase().contains("password"), "{reason}");
    assert!(!reason.contains("pa55"), "{reason}");
}
