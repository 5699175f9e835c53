//! Tells the compiler which interpreter this is for: `Py_GIL_DISABLED` and its kin.
fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
