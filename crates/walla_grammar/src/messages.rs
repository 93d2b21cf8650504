//! Messages of the library in the words of this crate.

/// The limit that a message of the library is about, if any. `work` names the limit of work: of a
/// compilation or of a mask.
pub(crate) fn limit(message: &str, work: &str) -> Option<String> {
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let of = |what: &str, name: &str| Some(format!("{what} than CompilerOptions::{name} allows"));
    if has(&["is empty: ", "are disjoint"]) && has(&["nable to determine", "can't determine"]) {
        return Some("the patterns and formats are too complex to compare".to_owned());
    }
    if has(&["too many states"]) {
        return of("more lexer states", "max_lexer_states");
    }
    if has(&["Current row has", "Too many items", "max items exceeded"]) {
        return of("more alternatives at one position of the text", "max_mask_items");
    }
    if has(&["number of symbols) too big"]) {
        return of("more symbols in the grammar", "max_grammar_symbols");
    }
    if has(&["schema too large", "stack level"]) {
        return Some("the schema is too large after its parts are combined".to_owned());
    }
    let is_work = has(&["too many expressions", "fuel", "lexer configuration", "precomputation"]);
    if is_work {
        return of("regular expressions and texts that need more work", work);
    }
    let is_limit = has(&["too large", "too complex", "too many", "too big", "exceeded", "limit"]);
    is_limit.then(|| crate::vocabulary::first_line(message))
}
