//! Tells the compiler which interpreter this is for, `Py_GIL_DISABLED` and its kin, and the linker which of its
//! functions are called by way of ours (src/thread_exit.rs).

use std::{env, fs};

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    println!("cargo::rerun-if-changed=src/thread_exit.rs");
    println!("cargo::rustc-check-cfg=cfg(threads_are_unwound)");
    let unwinds = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu")
        && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    let version = pyo3_build_config::get().version();
    if !unwinds || version >= (pyo3_build_config::PythonVersion { major: 3, minor: 14 }) {
        return;
    }
    println!("cargo::rustc-cfg=threads_are_unwound");
    let source = fs::read_to_string("src/thread_exit.rs").expect("the list of functions");
    for name in names(&source, version.minor) {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
        // LLD wraps nothing that nobody refers to, and would not find what the wrapper itself calls.
        println!("cargo::rustc-link-arg-cdylib=-Wl,--undefined={name}");
    }
}

/// The interpreter's functions that have one of ours, of those that it has itself.
fn names(source: &str, minor: u8) -> impl Iterator<Item = &str> {
    let mut is_there = true;
    source.lines().filter_map(move |line| {
        let line = line.trim_start_matches("unsafe extern \"C\"").trim_start();
        if let Some(condition) = line.strip_prefix("#[cfg(") {
            let since = condition.trim_start_matches("not(").strip_prefix("Py_3_")?.trim_end_matches([')', ']']);
            let since: u8 = since.parse().expect("a version");
            is_there = condition.starts_with("not(") != (minor >= since);
            return None;
        }
        let name = line.strip_prefix("fn ")?.split_once('(')?.0;
        (std::mem::replace(&mut is_there, true) && name.contains("Py")).then_some(name)
    })
}
