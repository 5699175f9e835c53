//! For tests/panics: places of ours that are to panic. In no package.

use pyo3::prelude::*;
use wirespeed_driver::protocol::failpoint;

/// Has the place with this name panic the next time but `passes` that it is reached, once, in any thread; no other any
/// more. An empty name: none.
#[pyfunction]
#[pyo3(signature = (name, passes = 0))]
fn arm_fault(name: &str, passes: usize) {
    failpoint::arm(name, passes);
}

/// How many places have panicked.
#[pyfunction]
fn faults_fired() -> usize {
    failpoint::fired()
}

pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(arm_fault, module)?)?;
    module.add("PanicException", module.py().get_type::<pyo3::panic::PanicException>())?;
    module.add_function(wrap_pyfunction!(faults_fired, module)?)
}
