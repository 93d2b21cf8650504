//! Template sources with more lines, or longer lines, than the engine can count.

use walla_model::chat::{ChatTemplate, MAX_SOURCE_BYTES};

/// Each kind of error that the engine finds at the end of a source.
const ERRORS: [&str; 8] = [
    "{{ \u{7f} }}",
    "{{ 'open",
    "{{ x",
    "{% if %}",
    "{# open",
    "{{ 1 1 }}",
    "{% raw %}",
    "{{ x }} }}",
];

#[test]
fn errors_after_65_535_columns_or_lines_are_reported() {
    for error in ERRORS {
        for filler in ["a", "é", "\n", "{{ x }}", "{{ x }}\n"] {
            for near in [64_998, 65_533, 65_534, 65_535, 65_536, 65_537] {
                let count = near / filler.chars().count().max(1);
                let columns = filler.repeat(count.min(MAX_SOURCE_BYTES / filler.len() - 8));
                let pad = "a".repeat(if filler.contains('\n') { 0 } else { near % filler.len() });
                let source = format!("{columns}{pad}{error}");
                if source.len() > MAX_SOURCE_BYTES {
                    continue;
                }
                // Either an error or a working template; nothing may overflow.
                if let Err(error) = ChatTemplate::new(&source, "", "") {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

#[test]
fn limit_errors_are_named_and_real_templates_are_far_below() {
    let message = |source: &str| ChatTemplate::new(source, "", "").unwrap_err().to_string();
    assert!(message(&"a".repeat(65_001)).contains("more than 65000 characters"));
    assert!(message(&"\n".repeat(65_000)).contains("more than 65000 lines"));
    assert!(ChatTemplate::new(&"é".repeat(65_000), "", "").is_ok());
    assert!(ChatTemplate::new(&"\n".repeat(64_999), "", "").is_ok());
}
