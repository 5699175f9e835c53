//! The first read buffer makes glibc's allocator keep freed memory. A separate program, as this setting is per process.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used)] // tests fail by panicking

use std::hint::black_box;

use wirespeed_driver::buffer_pool;

/// Returns the number of minor page faults of this process so far: `minflt` of proc_pid_stat(5).
fn faults() -> u64 {
    let line = std::fs::read_to_string("/proc/self/stat").unwrap();
    line.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Returns the number of page faults while four messages of 64 KiB are allocated and freed a hundred times.
fn faults_of_messages() -> u64 {
    let before = faults();
    for _ in 0..100 {
        black_box([(); 4].map(|()| vec![1_u8; 64 * 1024]));
    }
    faults() - before
}

/// By default glibc returns freed messages to the system at once, and each new message causes page faults.
#[test]
fn freed_memory_is_reused_for_later_messages() {
    if std::env::vars().any(|(name, _)| name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES") {
        return; // the driver does not override these settings
    }
    let before = faults_of_messages();
    drop(buffer_pool::take_read());
    faults_of_messages(); // the first messages cause page faults in any case
    let after = faults_of_messages();
    assert!(before > 1000 && after < 100, "{before} page faults before, {after} after");
}
