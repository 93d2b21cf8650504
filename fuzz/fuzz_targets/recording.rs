#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| walla_fuzz::recording::check(bytes));
