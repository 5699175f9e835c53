//! Settings with the largest values of their types.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::{Config, Drain, Engine, Listen, Place};

#[test]
fn number_of_workers_is_limited() {
    for workers in [257, usize::MAX] {
        let refused = Engine::start(Config { workers, ..config() }).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn times_beyond_the_clock_never_expire() {
    let most = Duration::MAX;
    let engine = Engine::start(Config {
        open_timeout: most,
        ping_interval: Some(most),
        ping_timeout: Some(most),
        close_timeout: most,
        outbox_limit: usize::MAX,
        mailbox_limit: usize::MAX,
        ..config()
    })
    .unwrap();
    let client = Client::open(&engine, "/");
    let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
    let session = batches[0].iter().next().unwrap().0.clone();
    // More than the kernel buffers: the client does not read, so closing waits for it.
    let large = vec![0; 1 << 20];
    for _ in 0..32 {
        session.send(MessageKind::Binary, &large).unwrap();
    }
    session.close(CloseCode(1000), "").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(session.queued() > 0);
    let mut draining = engine.begin_drain(Drain { timeout: most, notice: most, ..Drain::default() });
    assert!(draining.step(Instant::now()).is_some());
    let total = engine.figures().total();
    assert_eq!((total.panics, total.sessions), (0, 1));
    drop(client);
    engine.stop().unwrap();
}

#[test]
fn regular_files_at_socket_paths_are_kept() {
    let directory = std::env::temp_dir().join(format!("wirespeed-files-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("data");
    std::fs::write(&path, "kept").unwrap();
    let at = Listen { at: Place::Unix(path.clone()), tls: None };
    let listening = Engine::start(Config { listen: vec![at], ..config() }).unwrap_err();
    let handoff = Engine::start(Config { handoff: Some(path.clone()), ..config() }).unwrap_err();
    let content = std::fs::read_to_string(&path);
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(content.unwrap(), "kept");
    assert_eq!((listening.kind(), handoff.kind()), (ErrorKind::AddrInUse, ErrorKind::AlreadyExists));
}
