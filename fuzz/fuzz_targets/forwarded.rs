#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| wirespeed_fuzz::forwarded::run(data));
