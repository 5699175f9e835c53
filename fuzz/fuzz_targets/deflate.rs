#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wirespeed_fuzz::deflate::run(data));
