//! What describes a type or a method to CPython, which refers to it for ever.

/// Keeps a table: it is made once for each type, and not freed. Not inlined, as a sanitizer is told its name.
#[inline(never)]
pub(crate) fn for_ever<T>(table: T) -> &'static mut T {
    Box::leak(Box::new(table))
}
