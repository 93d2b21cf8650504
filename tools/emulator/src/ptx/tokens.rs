//! Splits text into words, numbers and punctuation.

/// A token and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

/// Splits a text into tokens. A word keeps its dots and double colons (`cp.async.shared::cluster`);
/// a single colon is a separate token. Comments are skipped.
pub(super) fn tokens(text: &str, first_line: u32) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, first_line);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().take_while(|b| **b != b'\n').count();
                continue;
            }
            b'"' => at += 2 + bytes[at + 1..].iter().take_while(|b| **b != b'"').count(),
            _ if is_of_word(byte) => at = end_of_word(bytes, at),
            _ => at += 1,
        }
        found.push(Token { text: text.get(start..at).unwrap_or_default(), line });
    }
    found
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'%' | b'$')
}

fn end_of_word(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at) {
            Some(byte) if is_of_word(*byte) => at += 1,
            Some(b':') if bytes.get(at + 1) == Some(&b':') => at += 2,
            _ => return at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_dots_and_double_colons() {
        let found: Vec<_> =
            tokens("@!p bra L; // no\nst.async.shared::cluster [%r1+-4], {a, b};", 1)
                .iter()
                .map(|token| (token.text, token.line))
                .collect();
        let first = ["@", "!", "p", "bra", "L", ";"].map(|text| (text, 1));
        let second =
            ["st.async.shared::cluster", "[", "%r1", "+", "-", "4", "]", ","].map(|text| (text, 2));
        assert_eq!(found[..6], first);
        assert_eq!(found[6..14], second);
        assert_eq!(tokens("again:\nx", 3)[1], Token { text: ":", line: 3 });
    }
}
