//! The alphabet of untrusted text.
//!
//! Each UTF-8 byte `b` of untrusted text becomes the private-use code point `U+10F000 + b`. ASCII
//! white space becomes rare code points that are white space in Unicode too, so that a template can
//! still trim. *Every* byte is mapped, including the bytes of private-use characters that a player
//! types. So untrusted text has no code point outside the alphabet, and a template that contains a
//! code point of the alphabet is refused. Every code point of the output therefore has a known
//! origin.

use super::Segment;

const FIRST: u32 = 0x10_F000;

/// ASCII white space and its representation.
const SPACES: [(u8, char); 6] = [
    (b' ', '\u{2002}'),
    (b'\t', '\u{2003}'),
    (0x0b, '\u{2004}'),
    (0x0c, '\u{2005}'),
    (b'\n', '\u{2028}'),
    (b'\r', '\u{2029}'),
];

/// Converts untrusted text to its alphabet.
pub(super) fn taint(text: &str) -> String {
    text.bytes().map(to_tainted).collect()
}

fn to_tainted(byte: u8) -> char {
    let space = SPACES.iter().find(|(space, _)| *space == byte).map(|(_, tainted)| *tainted);
    space.or_else(|| char::from_u32(FIRST + u32::from(byte))).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn from_tainted(character: char) -> Option<u8> {
    if let Some((space, _)) = SPACES.iter().find(|(_, tainted)| *tainted == character) {
        return Some(*space);
    }
    u32::from(character).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok())
}

/// The ASCII white space that a character is or represents.
///
/// White space is the only part of untrusted text that templates see: they trim it.
pub(super) fn space(character: char) -> Option<char> {
    let tainted = SPACES.iter().find(|(_, tainted)| *tainted == character);
    let own = SPACES.iter().find(|(space, _)| char::from(*space) == character);
    tainted.or(own).map(|(space, _)| char::from(*space))
}

/// Number of characters of a text, as its author counts them: an untrusted character counts once,
/// at its first byte.
pub(super) fn characters(text: &str) -> usize {
    starts(text).count()
}

/// Start offsets of these characters.
pub(super) fn starts(text: &str) -> impl Iterator<Item = usize> {
    let firsts = text.char_indices().filter(|&(place, c)| place == 0 || is_first(c));
    firsts.map(|(place, _)| place)
}

/// These characters as slices.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut places: Vec<usize> = starts(text).collect();
    places.push(text.len());
    places.windows(2).filter_map(|ends| text.get(*ends.first()?..*ends.last()?)).collect()
}

fn is_first(character: char) -> bool {
    from_tainted(character).is_none_or(|byte| !(0x80..0xc0).contains(&byte))
}

/// Appends a text in quotes: as JSON, or as Python's `repr` formats it, except for non-ASCII
/// characters, which are not escaped. The escape of an untrusted character is untrusted too.
pub(super) fn push_quoted(text: &str, is_json: bool, out: &mut String) {
    let has = |quote: u8| text.chars().any(|c| byte(c) == Some(quote));
    let quote = if is_json || has(b'\'') && !has(b'"') { b'"' } else { b'\'' };
    let escape = |byte: u8| {
        Some(match byte {
            b'\\' => "\\\\".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\t' => "\\t".to_owned(),
            byte if byte == quote => format!("\\{}", char::from(byte)),
            byte if byte < b' ' && is_json => format!("\\u{byte:04x}"),
            byte if byte < b' ' || byte == 0x7f && !is_json => format!("\\x{byte:02x}"),
            _ => return None,
        })
    };
    out.push(quote.into());
    for character in text.chars() {
        match byte(character).and_then(escape) {
            Some(escape) if from_tainted(character).is_some() => out.push_str(&taint(&escape)),
            Some(escape) => out.push_str(&escape),
            None => out.push(character),
        }
    }
    out.push(quote.into());
}

/// The byte that a character represents in either alphabet.
fn byte(character: char) -> Option<u8> {
    from_tainted(character).or_else(|| u8::try_from(character).ok())
}

/// Untrusted and other text in readable form, for messages.
pub(super) fn readable(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match from_tainted(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The first code point of a text that is in the alphabet.
pub(super) fn first_reserved(text: &str) -> Option<char> {
    text.chars().find(|&character| from_tainted(character).is_some())
}

/// Splits a rendered text into template text and untrusted text. Incomplete UTF-8 sequences, which
/// a template has split, become U+FFFD.
pub(super) fn segments(text: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_untrusted = from_tainted(first).is_some();
        let end = rest.find(|c| from_tainted(c).is_some() != is_untrusted).unwrap_or(rest.len());
        let (run, behind) = rest.split_at(end);
        segments.push(match is_untrusted {
            true => Segment::Untrusted(readable(run)),
            false => Segment::Template(run.to_owned()),
        });
        rest = behind;
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips() {
        let text: String =
            (0..=0x2fff).chain(0x10_ef00..=0x10_ffff).filter_map(char::from_u32).collect();
        assert!(taint(&text).chars().all(|c| from_tainted(c).is_some()));
        assert_eq!(segments(&taint(&text)), [Segment::Untrusted(text)]);
    }

    #[test]
    fn characters_are_counted_as_typed() {
        assert_eq!(characters(&format!("ab{}", taint("é 日😀\n"))), 2 + 5);
    }

    #[test]
    fn json_escapes_of_untrusted_characters_are_untrusted() {
        let mut json = String::from("<");
        push_quoted(&(taint("a\"\n\u{1}é") + "\"\\"), true, &mut json);
        let expected = [
            Segment::Template("<\"".into()),
            Segment::Untrusted("a\\\"\\n\\u0001é".into()),
            Segment::Template("\\\"\\\\\"".into()),
        ];
        assert_eq!(segments(&json), expected);
    }

    #[test]
    fn quoted_text_is_escaped_as_in_python() {
        let quoted = |text: &str| {
            let mut out = String::new();
            push_quoted(text, false, &mut out);
            readable(&out)
        };
        for (text, expected) in [
            ("a\nb", r"'a\nb'"),
            ("it's", r#""it's""#),
            ("it's \"it\"", r#"'it\'s "it"'"#),
            ("\\ \u{1}\u{7f} é", r"'\\ \x01\x7f é'"),
        ] {
            assert_eq!(quoted(text), expected);
            assert_eq!(quoted(&taint(text)), expected);
        }
        let mut out = String::new();
        push_quoted(&taint("\n"), false, &mut out);
        let expected = [("'", "\\n"), ("'", "")]
            .map(|(own, said)| [Segment::Template(own.into()), Segment::Untrusted(said.into())]);
        let segments = segments(&out);
        assert_eq!(segments, expected.concat()[..3]);
    }

    #[test]
    fn white_space_stays_white_space() {
        assert_eq!(taint(" \t\r\n\u{b}\u{c}").trim(), "");
        assert_eq!(taint("  a b ").trim(), taint("a b"));
    }
}
