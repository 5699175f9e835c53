//! Descriptions of types and methods that CPython refers to until the process ends.

/// Leaks a table, which is built once per type. Not inlined: the suppression list of LeakSanitizer names this
/// function.
#[inline(never)]
pub(crate) fn leak_static<T>(table: T) -> &'static mut T {
    Box::leak(Box::new(table))
}
