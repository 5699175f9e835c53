//! The masking kernels, compared with a simple loop.

mod support;

use proptest::prelude::*;
use support::{Rng, sparse};
use wirespeed_protocol::mask::{append, apply, portable};

/// Masks data of every size up to several vectors, with every alignment in memory and of the key, in place and as a copy.
#[test]
fn kernels_mask_every_size_and_alignment() {
    let mut rng = Rng::new(1);
    let data = rng.bytes(700);
    let key = [0x12, 0x34, 0x56, 0x78];
    let mut storage = [0u8; 800];
    let mut copy = Vec::new();
    // Miri is a thousand times slower: only the sizes around each step of the kernels.
    let steps = [0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 127, 128, 129, 161];
    let larger = (0..=300).chain([383, 384, 385, 511, 512, 513, 639, 640, 641]);
    let lengths: Vec<usize> = if cfg!(miri) { steps.into() } else { larger.collect() };
    let alignments: Vec<usize> = if cfg!(miri) { vec![0, 1, 31] } else { (0..32).collect() };
    for len in lengths {
        for &alignment in &alignments {
            for offset in 0..4 {
                let mut expected = data[..len].to_vec();
                portable::oracle(&mut expected, key, offset);

                let storage = &mut storage[..len + 64];
                storage.fill(0xEE);
                storage[alignment..alignment + len].copy_from_slice(&data[..len]);
                apply(&mut storage[alignment..alignment + len], key, offset);
                assert_eq!(storage[alignment..alignment + len], expected, "in place: {len} {alignment} {offset}");
                assert!(storage[..alignment].iter().chain(&storage[alignment + len..]).all(|byte| *byte == 0xEE));

                copy.clear();
                copy.resize(alignment, 0xEE);
                append(&mut copy, &data[..len], key, offset);
                assert_eq!(copy[alignment..], expected, "copied: {len} {alignment} {offset}");
                assert!(copy[..alignment].iter().all(|byte| *byte == 0xEE));
            }
        }
    }
}

#[test]
fn source_alignment() {
    let mut rng = Rng::new(2);
    let data = rng.bytes(400);
    for start in (0..64).step_by(sparse(21)) {
        for len in [0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 300] {
            let mut expected = data[start..start + len].to_vec();
            portable::oracle(&mut expected, [9, 8, 7, 6], 3);
            let mut copy = Vec::new();
            append(&mut copy, &data[start..start + len], [9, 8, 7, 6], 3);
            assert_eq!(copy, expected, "{start} {len}");
        }
    }
}

/// Checks the simple loop itself against RFC 6455 5.3: octet i is XORed with octet i modulo 4 of the key.
#[test]
fn oracle_matches_the_rfc() {
    let mut data = *b"Hello";
    portable::oracle(&mut data, support::KEY, 0);
    assert_eq!(data, [0x7f, 0x9f, 0x4d, 0x51, 0x58]);
}

proptest! {
    /// Masking a payload in pieces gives the same bytes as masking the whole payload.
    #[test]
    fn pieces_join(data in prop::collection::vec(any::<u8>(), 0..2000), key: [u8; 4], start in 0..10_usize, cuts in prop::collection::vec(0..2000_usize, 0..5)) {
        let mut expected = data.clone();
        portable::oracle(&mut expected, key, start);

        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(data.len())).chain([0, data.len()]).collect();
        cuts.sort_unstable();
        let mut in_place = data.clone();
        let mut copy = Vec::new();
        for pair in cuts.windows(2) {
            apply(&mut in_place[pair[0]..pair[1]], key, start + pair[0]);
            append(&mut copy, &data[pair[0]..pair[1]], key, start + pair[0]);
        }
        prop_assert_eq!(&in_place, &expected);
        prop_assert_eq!(&copy, &expected);

        apply(&mut in_place, key, start);
        prop_assert_eq!(&in_place, &data);
    }
}
