#![no_main]

use std::sync::Once;

static HOOK: Once = Once::new();

/// The template engine's own panics are caught by `walla_model::chat` and come out as errors; libFuzzer's hook would end the process
/// before. Any other panic is a defect.
fn let_the_engine_panic() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(|place| place.file().contains("/minijinja-")) {
            abort(info);
        }
    }));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    HOOK.call_once(let_the_engine_panic);
    walla_fuzz::bodies::template::check(bytes);
});
