use super::*;

const MARKER: Kind = Kind::USER_DEFINED.with(Kind::MARKER);

fn partition(specials: &[(&'static str, Kind)]) -> Partition {
    Partition::new((0..).zip(specials).map(|(id, &(text, kind))| (text, TokenId(id), kind)))
}

/// Formats fragments as `text`, `#3`.
fn show(text: &str, fragments: &[Fragment]) -> Vec<String> {
    let show = |fragment: &Fragment| match fragment {
        Fragment::Text(range) => text[range.clone()].to_owned(),
        Fragment::Token(token) => format!("#{token}"),
    };
    fragments.iter().map(show).collect()
}

fn cut(partition: &Partition, text: &str, trust: Trust<'_>) -> Vec<String> {
    show(text, &partition.cut(text, trust))
}

fn all(text: &str) -> Vec<Range<usize>> {
    core::iter::once(0..text.len()).collect()
}

#[test]
fn longer_tokens_match_before_shorter_ones() {
    let partition = partition(&[
        ("ab", Kind::CONTROL),
        ("abc", Kind::CONTROL),
        ("cdef", Kind::CONTROL),
        ("<s>", Kind::CONTROL),
    ]);
    let text = "xabcabcdefab<s>";
    let trust = Trust { parse_special: true, trusted: &all(text) };
    // The second "abc" overlaps "cdef", which is longer; "ab" remains.
    assert_eq!(cut(&partition, text, trust), ["x", "#1", "#0", "#2", "#0", "#3"]);
}

#[test]
fn scopes() {
    let partition =
        partition(&[("<c>", Kind::CONTROL), ("<m>", MARKER), ("\n\n", Kind::USER_DEFINED)]);
    let text = "<c><m>\n\n";
    let trusted = all(text);
    let unasked = Trust { parse_special: false, trusted: &trusted };
    assert_eq!(cut(&partition, text, unasked), ["<c>", "#1", "#2"]);
    let untrusted = Trust { parse_special: true, trusted: &[] };
    assert_eq!(cut(&partition, text, untrusted), ["<c><m>", "#2"]);
    // A marker must be within one trusted range.
    let halves = Trust { parse_special: true, trusted: &[0..2, 2..8] };
    assert_eq!(cut(&partition, text, halves), ["<c>", "#1", "#2"]);
}

#[test]
fn white_space_goes_with_tokens_that_strip() {
    let partition =
        partition(&[("<e>", Kind::CONTROL.with(Kind::STRIPS_RIGHT)), ("\n\n", Kind::CONTROL)]);
    let text = "a <e> \n\n b<e>\n<e>";
    let trust = Trust { parse_special: true, trusted: &all(text) };
    assert_eq!(cut(&partition, text, trust), ["a ", "#0", "b", "#0", "#0"]);
}

#[test]
fn many_candidates_stay_cheap() {
    // Runs of 2 to 31 spaces, as in some vocabularies, over 100 000 spaces: the longest are used.
    let runs: Vec<String> = (2..=31).map(|n| " ".repeat(n)).collect();
    let partition = Partition::new(
        (0..).zip(&runs).map(|(id, run)| (run.as_str(), TokenId(id), Kind::USER_DEFINED)),
    );
    let text = " ".repeat(100_001);
    let fragments = partition.cut(&text, Trust { parse_special: false, trusted: &[] });
    assert_eq!(fragments.len(), 100_001 / 31 + 1);
    assert_eq!(fragments.last(), Some(&Fragment::Token(TokenId(100_001 % 31 - 2))));
}
