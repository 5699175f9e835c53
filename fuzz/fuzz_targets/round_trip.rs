#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wirespeed_fuzz::round_trip::run(data));
