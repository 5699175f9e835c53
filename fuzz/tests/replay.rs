//! Runs all targets on their corpora and on random mutations of them, with any compiler. If `FUZZ_SECONDS` is set, each
//! target runs for this time: fuzzing without libFuzzer and its coverage feedback.

use std::path::Path;
use std::time::{Duration, Instant};

use wirespeed_fuzz::TARGETS;

/// Number of mutations per target without `FUZZ_SECONDS`, which take a few seconds together.
const INPUTS: u64 = 2000;

#[test]
fn targets_accept_corpora_and_mutations() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().map(|seconds| seconds.parse().expect("FUZZ_SECONDS: a number"));
    let (mut kept, mut made) = (0, 0);
    for (name, run) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "fuzz/corpus/{name} is empty");
        for (path, seed) in &seeds {
            guarded(run, seed, path);
        }
        let start = Instant::now();
        // With a time limit, each run begins at another number.
        let first = if seconds.is_some() { u64::from(std::process::id()) << 32 } else { 0 };
        let mut count = 0;
        while match seconds {
            Some(seconds) => start.elapsed() < Duration::from_secs(seconds),
            None => count < INPUTS,
        } {
            let input = mutate(&seeds, first + count);
            guarded(run, &input, "a mutation");
            count += 1;
        }
        println!("{name}: {} seeds, {count} mutations, {:.1} s", seeds.len(), start.elapsed().as_secs_f32());
        kept += seeds.len();
        made += count;
    }
    println!("fuzz: {} targets, {kept} seeds, {made} mutations", TARGETS.len());
}

/// Runs a target on an input, and prints the input if it fails.
fn guarded(run: fn(&[u8]), input: &[u8], name: &str) {
    let outcome = std::panic::catch_unwind(|| run(input));
    if let Err(panic) = outcome {
        println!("failed on {name}: {}", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

fn seeds(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut seeds: Vec<(String, Vec<u8>)> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
        .collect();
    seeds.sort();
    seeds
}

/// Returns a seed with bytes changed, inserted, removed, repeated or taken from another seed.
fn mutate(seeds: &[(String, Vec<u8>)], number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |bound: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound.max(1)
    };
    let mut input = seeds[below(seeds.len())].1.clone();
    for _ in 0..1 + below(6) {
        let at = below(input.len() + 1);
        let end = (at + below(12)).min(input.len());
        match below(7) {
            0 | 1 if at < input.len() => input[at] = below(256) as u8,
            2 if at < input.len() => input[at] ^= 1 << below(8),
            3 => input.insert(at, below(256) as u8),
            4 => drop(input.drain(at..end)),
            5 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            _ => {
                let other = &seeds[below(seeds.len())].1;
                let from = below(other.len() + 1);
                let to = (from + below(40)).min(other.len());
                input.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    input
}
