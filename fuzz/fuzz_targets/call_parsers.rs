#![no_main]

use std::sync::LazyLock;

/// Index of the only format to test, from `WALLA_FUZZ_FORMAT`.
static FORMAT: LazyLock<Option<u8>> = LazyLock::new(|| {
    let format = std::env::var("WALLA_FUZZ_FORMAT").ok()?;
    Some(format.parse().expect("WALLA_FUZZ_FORMAT is the index of a format"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(format) = *FORMAT else { return walla_fuzz::action::check(bytes) };
    let [kind, rest @ ..] = bytes else { return };
    let formats = walla_grammar::CallFormat::ALL.len() as u8;
    let kind = format % formats + kind % 2 * formats;
    walla_fuzz::action::check(&[&[kind], rest].concat());
});
