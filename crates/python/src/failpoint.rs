//! Python functions that arm failpoints, for tests/panics. Released packages are built without this module.

use pyo3::prelude::*;
use wirespeed_driver::protocol::failpoint;

/// Arms one failpoint and disarms all others. It panics once, in any thread, after `passes` passes without a panic. An
/// empty name arms none.
#[pyfunction]
#[pyo3(signature = (name, passes = 0))]
fn arm_failpoint(name: &str, passes: usize) {
    failpoint::arm(name, passes);
}

/// Returns the number of failpoints that have panicked since the process started.
#[pyfunction]
fn failpoints_hit() -> usize {
    failpoint::hits()
}

pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(arm_failpoint, module)?)?;
    module.add("PanicException", module.py().get_type::<pyo3::panic::PanicException>())?;
    module.add_function(wrap_pyfunction!(failpoints_hit, module)?)
}
