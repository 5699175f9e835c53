//! How much the read buffers of all connections may hold together. A test file of its own, because it counts those of its whole process.

#![allow(missing_docs)]

use wirespeed_driver::buffers::{self, LARGE_READ_SIZE, LENT_MAX, READ_SIZE, SMALL_READ_SIZE};

#[test]
fn buffers_are_bounded_together() {
    assert_eq!(buffers::lent(), 0);
    let buffers: Vec<_> = (0..2 * LENT_MAX / READ_SIZE).map(|_| buffers::take_read()).collect();
    let whole = buffers.iter().filter(|buffer| buffer.capacity() == READ_SIZE).count();
    assert_eq!(whole, LENT_MAX / READ_SIZE);
    assert!(buffers.iter().all(|buffer| buffer.capacity() >= SMALL_READ_SIZE));
    // Nobody gets a large one meanwhile.
    assert!(buffers::take_large_read().capacity() <= READ_SIZE);
    drop(buffers);
    assert_eq!(buffers::lent(), 0);
    assert_eq!(buffers::take_read().capacity(), READ_SIZE);

    let large: Vec<_> = (0..64).map(|_| buffers::take_large_read()).collect();
    let together: usize = large.iter().map(|buffer| buffer.capacity()).sum();
    assert!(together < 2 * LENT_MAX / 4, "{together}");
    // One thread has one, a few have some: as long as no more than 12 MiB are out.
    assert!(
        large.iter().map(|buffer| buffer.capacity()).eq([[LARGE_READ_SIZE; 4].as_slice(), &[READ_SIZE; 60]].concat())
    );
    drop(large);

    // One that grew, or was given back by another thread, counts as what was lent.
    let mut grown = buffers::take_read();
    grown.reserve(READ_SIZE + 1);
    std::thread::spawn(move || drop(grown)).join().expect("no panic");
    assert_eq!(buffers::lent(), 0);
}
