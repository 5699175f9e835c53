//! Failpoints for tests/campaigns/panics. Not compiled into packages.

use pyo3::prelude::*;
use wirespeed_driver::protocol::failpoint;

/// Makes the failpoint `name` panic once, in any thread, after it was passed `passes` times. Disarms all
/// others. An empty name disarms all.
#[pyfunction]
#[pyo3(signature = (name, passes = 0))]
fn arm_failpoint(name: &str, passes: usize) {
    failpoint::arm(name, passes);
}

/// Returns how many failpoints have panicked.
#[pyfunction]
fn failpoints_hit() -> usize {
    failpoint::hits()
}

pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(arm_failpoint, module)?)?;
    module.add("PanicException", module.py().get_type::<pyo3::panic::PanicException>())?;
    module.add_function(wrap_pyfunction!(failpoints_hit, module)?)
}
