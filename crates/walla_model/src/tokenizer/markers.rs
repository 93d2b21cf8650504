//! Markers of a chat template that a file stores as ordinary tokens.
//!
//! Some converters store `<start_of_turn>` or `<|im_start|>` as ordinary tokens. An ordinary token
//! counts as a marker under two conditions: the chat template prints the text outside of all
//! messages, and the text has the shape of a marker. The shape alone is not sufficient, because
//! vocabularies contain pieces of markup and code; printing alone is not sufficient, because
//! templates also print words.

use std::collections::BTreeSet;

use walla_types::TokenId;

use super::Vocabulary;

/// Maximum length of a marker in bytes. The longest known ones have some 40.
const MAX_MARKER_BYTES: usize = 128;

/// Codes of `tokenizer.ggml.token_type`.
const CONTROL: i64 = 3;
const NORMAL: i64 = 1;

impl Vocabulary<'_> {
    /// Converts the ordinary tokens that a chat template prints as [markers](markers_in) to control
    /// tokens. `printed` is the template text, without messages. Returns the changed tokens,
    /// ascending.
    ///
    /// Control tokens are matched as whole texts in template text. Untrusted text never becomes
    /// one, neither as a word nor by merges.
    pub fn reserve_markers<'t>(
        &mut self,
        printed: impl IntoIterator<Item = &'t str>,
    ) -> Vec<TokenId> {
        let markers: BTreeSet<&str> = printed.into_iter().flat_map(markers_in).collect();
        let mut changed = Vec::new();
        if markers.is_empty() {
            return changed;
        }
        let types = self.token_types.get_or_insert_with(|| vec![NORMAL; self.tokens.len()]);
        for (id, (text, kind)) in (0..).zip(self.tokens.iter().zip(types)) {
            // Undefined, normal or unused. The other types are special already, or bytes.
            if matches!(*kind, 0 | NORMAL | 5) && markers.contains(text) {
                *kind = CONTROL;
                changed.push(TokenId(id));
            }
        }
        changed
    }
}

/// The parts of a text that have the shape of a marker.
///
/// A marker is `<…>` with at least one letter (`<s>`, `<|im_end|>`, `<start_of_turn>`), or `[…]` of
/// at least two characters with a capital letter or a bar (`[INST]`, `[/INST]`, `[|user|]`).
/// Neither contains white space or another bracket. Not markers are `<>`, `<->`, `[i]`, `[0]`,
/// `[index]`.
#[must_use]
pub fn markers_in(text: &str) -> Vec<&str> {
    let mut markers = Vec::new();
    let mut open = None;
    for (at, character) in text.char_indices() {
        match character {
            '<' | '[' => open = Some(at),
            '>' | ']' => {
                let marker = open.take().and_then(|start| text.get(start..=at));
                markers.extend(marker.filter(|marker| is_marker(marker)));
            }
            _ if character.is_whitespace() => open = None,
            _ => {}
        }
    }
    markers
}

/// Whether a text from one bracket to the next has the shape of a marker.
fn is_marker(text: &str) -> bool {
    let within = |open, close| text.strip_prefix(open)?.strip_suffix(close);
    let is_marker = if let Some(inner) = within('<', '>') {
        inner.contains(char::is_alphabetic)
    } else if let Some(inner) = within('[', ']') {
        inner.chars().nth(1).is_some()
            && inner.contains(|c: char| c.is_uppercase() || matches!(c, '|' | '｜'))
    } else {
        false
    };
    is_marker && text.len() <= MAX_MARKER_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        for marker in [
            "<s>",
            "</s>",
            "<bos>",
            "<|im_start|>",
            "<start_of_turn>",
            "<|turn>",
            "<turn|>",
            "[INST]",
            "[/INST]",
            "[SYSTEM_PROMPT]",
            "[|user|]",
            "[gMASK]",
            "<｜User｜>",
            "<｜end▁of▁sentence｜>",
            "<用户>",
            "<think>",
        ] {
            assert_eq!(markers_in(marker), [marker]);
            assert_eq!(markers_in(&format!("a {marker}user\n{marker}[ <")), [marker, marker]);
        }
        for other in [
            "<>",
            "<->",
            "<?>",
            "[,]",
            "[i]",
            "[0]",
            "[12]",
            "[index]",
            "[A]",
            "<a b>",
            "< a>",
            "a>b",
            "<a]",
            "[A>",
            "]A[",
            "<|im_end",
            "im_end|>",
            "<<>>",
            "<\u{a0}a>",
            "[]",
        ] {
            assert_eq!(markers_in(other), [""; 0], "{other}");
        }
        assert_eq!(markers_in("<<SYS>> a<b>"), ["<SYS>", "<b>"]);
        assert_eq!(markers_in(&format!("<{}>", "a".repeat(200))), [""; 0]);
    }
}
