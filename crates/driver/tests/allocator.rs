//! What the C library's allocator does with what is freed. A program of its own: it can be taught once.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used)] // tests fail by panicking

use std::hint::black_box;

use wirespeed_driver::buffer_pool;

/// Page faults of this process so far that needed no disk: `minflt` of proc_pid_stat(5).
fn faults() -> u64 {
    let line = std::fs::read_to_string("/proc/self/stat").unwrap();
    line.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Of a hundred times four messages of 64 KiB.
fn faults_of_messages() -> u64 {
    let before = faults();
    for _ in 0..100 {
        black_box([(); 4].map(|()| vec![1_u8; 64 * 1024]));
    }
    faults() - before
}

/// By itself glibc gives them back as soon as they are freed, and the next ones are taken from the system anew.
#[test]
fn messages_that_were_freed_are_there_for_those_that_follow() {
    if std::env::vars().any(|(name, _)| name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES") {
        return; // who has said what it keeps is not contradicted
    }
    let untaught = faults_of_messages();
    drop(buffer_pool::take_read());
    faults_of_messages(); // the first of them are new
    let taught = faults_of_messages();
    assert!(untaught > 1000 && taught < 100, "{untaught} page faults before, {taught} after");
}
