//! Messages that are published in quick succession are sent as a batch; receivers notice no difference.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use support::{Client, TIMEOUT, config};
use wirespeed_engine::config::Policy;
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Session};

#[derive(Clone, Debug)]
enum Step {
    /// To all subscribers of the topic except one.
    Publish(usize, Option<usize>),
    Broadcast(Option<usize>),
    Send(usize),
}

const CLIENTS: usize = 3;
const FILL: usize = 128;

fn steps() -> impl Strategy<Value = Vec<(Step, usize)>> {
    let who = || proptest::option::weighted(0.1, 0..CLIENTS);
    let step = prop_oneof![
        20 => (prop_oneof![8 => Just(0_usize), 1 => Just(1_usize)], who()).prop_map(|(topic, who)| Step::Publish(topic, who)),
        4 => who().prop_map(Step::Broadcast),
        1 => (0..CLIENTS).prop_map(Step::Send),
    ];
    let size = prop_oneof![20 => 8..200_usize, 4 => 200..4100_usize, 1 => 4100..70_000_usize];
    // Consecutive steps are often equal.
    let several = (step, size, 1..60_usize).prop_map(|(step, size, count)| vec![(step, size); count]);
    proptest::collection::vec(several, 1..20).prop_map(|all| all.concat())
}

fn open(engine: &Engine) -> Vec<(Client, Session)> {
    let open = |_| {
        let client = Client::open(engine, "/");
        let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
        let (session, event) = batches.iter().flat_map(|batch| batch.iter()).next().unwrap();
        assert!(matches!(event, Event::Connected));
        (client, session.clone())
    };
    (0..CLIENTS).map(open).collect()
}

fn payload(number: usize, size: usize) -> Vec<u8> {
    let mut payload = vec![number as u8; size];
    payload[..8].copy_from_slice(&(number as u64).to_le_bytes());
    payload
}

fn number(data: &[u8]) -> usize {
    assert!(data[8..].iter().all(|byte| *byte == data[0]), "bytes of another message");
    u64::from_le_bytes(data[..8].try_into().unwrap()) as usize
}

/// The messages for each client: it subscribes to topic `t` if its bit is set there.
fn send(engine: &Engine, clients: &[(Client, Session)], steps: &[(Step, usize)]) -> Vec<Vec<(usize, usize)>> {
    let topics = [Topic::new("one").unwrap(), Topic::new("two").unwrap()];
    for (index, (_, session)) in clients.iter().enumerate() {
        session.subscribe(&Pattern::new("one").unwrap()).unwrap();
        if index == 0 {
            session.subscribe(&Pattern::new("*").unwrap()).unwrap(); // it still receives each message once
        }
    }
    let mut sent = vec![Vec::new(); CLIENTS];
    for (at, (step, size)) in steps.iter().enumerate() {
        let data = payload(at, *size);
        let of = |who: &Option<usize>| who.map(|who| &clients[who].1);
        let gets: Vec<usize> = match step {
            Step::Publish(topic, but) => {
                engine.publish(&topics[*topic], MessageKind::Binary, &data, of(but), None).unwrap();
                (0..CLIENTS).filter(|who| Some(*who) != *but && (*topic == 0 || *who == 0)).collect()
            }
            Step::Broadcast(but) => {
                engine.broadcast(MessageKind::Binary, &data, of(but)).unwrap();
                (0..CLIENTS).filter(|who| Some(*who) != *but).collect()
            }
            Step::Send(who) => {
                clients[*who].1.send(MessageKind::Binary, &data).unwrap();
                vec![*who]
            }
        };
        gets.into_iter().for_each(|who| sent[who].push((at, *size)));
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn clients_receive_their_messages_in_order(steps in steps()) {
        let limits = Config { outbox_limit: 64 << 20, workers: 1, ..config() };
        let engine = Engine::start(limits).unwrap();
        let mut clients = open(&engine);
        let sent = send(&engine, &clients, &steps);
        for ((client, _), sent) in clients.iter_mut().zip(sent) {
            for (at, size) in sent {
                let (_, data) = client.receive().unwrap();
                prop_assert_eq!((number(&data), data.len()), (at, size));
            }
        }
    }

    #[test]
    fn dropped_messages_are_counted_and_the_rest_is_in_order(steps in steps(), newest: bool) {
        let policy = if newest { Policy::DropNewest } else { Policy::DropOldest };
        let engine = Engine::start(Config { outbox_limit: 20_000, workers: 1, policy, ..config() }).unwrap();
        let mut clients = open(&engine);
        // More than the kernel buffers, so that messages are queued.
        let fill = vec![0; 64 * 1024];
        for _ in 0..FILL {
            engine.broadcast(MessageKind::Text, &fill, None).unwrap();
        }
        let sent = send(&engine, &clients, &steps);
        for (_, session) in &clients {
            session.close(CloseCode(1000), "").unwrap();
        }
        let mut received = 0;
        for ((client, _), sent) in clients.iter_mut().zip(&sent) {
            let mut left = sent.iter();
            while let Some((kind, data)) = client.receive() {
                received += 1;
                if kind == MessageKind::Binary {
                    let (at, size) = (number(&data), data.len());
                    prop_assert!(left.any(|one| *one == (at, size)), "{} twice, or too late", at);
                }
            }
        }
        let all = CLIENTS * FILL + sent.iter().map(Vec::len).sum::<usize>();
        let dropped = || engine.figures().total().dropped.iter().sum::<u64>() as usize;
        let deadline = Instant::now() + TIMEOUT;
        while received + dropped() != all && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        prop_assert!(dropped() > 0);
        prop_assert_eq!(received + dropped(), all);
    }
}
