//! Passes the interpreter's version and features (`Py_GIL_DISABLED`, ...) to the compiler, and tells the linker
//! which interpreter functions to wrap with those of src/thread_exit.rs.

use std::{env, fs};

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    println!("cargo::rerun-if-changed=src/thread_exit.rs");
    println!("cargo::rustc-check-cfg=cfg(threads_are_unwound)");
    let libc_unwinds = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu")
        && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    let version = pyo3_build_config::get().version();
    if !libc_unwinds || version >= (pyo3_build_config::PythonVersion { major: 3, minor: 14 }) {
        return;
    }
    println!("cargo::rustc-cfg=threads_are_unwound");
    let source = fs::read_to_string("src/thread_exit.rs").expect("the list of functions");
    for name in wrapped_functions(&source, version.minor) {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
        // LLD wraps only symbols that are referenced, and would not find the function that the wrapper itself
        // calls.
        println!("cargo::rustc-link-arg-cdylib=-Wl,--undefined={name}");
    }
}

/// Returns the names of the functions in thread_exit.rs that exist in Python 3.`minor`.
fn wrapped_functions(source: &str, minor: u8) -> impl Iterator<Item = &str> {
    let mut exists = true;
    source.lines().filter_map(move |line| {
        let line = line.trim_start_matches("unsafe extern \"C\"").trim_start();
        if let Some(condition) = line.strip_prefix("#[cfg(") {
            let since = condition.trim_start_matches("not(").strip_prefix("Py_3_")?.trim_end_matches([')', ']']);
            let since: u8 = since.parse().expect("a version");
            exists = condition.starts_with("not(") != (minor >= since);
            return None;
        }
        let name = line.strip_prefix("fn ")?.split_once('(')?.0;
        (std::mem::replace(&mut exists, true) && name.contains("Py")).then_some(name)
    })
}
