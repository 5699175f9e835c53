#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wirespeed_fuzz::server_head::run(data));
