use proptest::prelude::*;

use super::*;

/// Output of a reply: the concatenated text and the number of its tokens.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    text: String,
    tokens: u32,
    deltas: Vec<String>,
    stopped: bool,
}

fn show<'a>(text: &mut Detokenizer, tokens: impl IntoIterator<Item = &'a [u8]>) -> Shown {
    let mut shown = Shown::default();
    let mut say = |delta: InlineText<MAX_DELTA_BYTES>, tokens| {
        shown.text.push_str(&delta);
        shown.tokens += tokens;
        shown.deltas.push(delta.to_string());
    };
    let stopped = tokens.into_iter().any(|token| text.push_part(token, 1, &mut say));
    if !stopped {
        text.finish(&mut say);
    }
    // The character that replaces an unfinished one may also complete a stop string.
    shown.stopped = text.stopped;
    shown
}

fn strings(stops: &[&str]) -> Vec<String> {
    stops.iter().map(|stop| (*stop).to_owned()).collect()
}

fn show_with(stops: &[&str], tokens: &[&str]) -> Shown {
    let tokens = tokens.iter().map(|token| token.as_bytes());
    show(&mut Detokenizer::new(&strings(stops)), tokens)
}

#[test]
fn text_is_emitted_token_by_token() {
    let shown = show_with(&[], &["Three", " silver", "."]);
    assert_eq!(shown.deltas, ["Three", " silver", "."]);
    assert_eq!(shown.tokens, 3);
}

#[test]
fn a_stop_string_across_tokens_never_leaks() {
    let shown = show_with(&["\nUser:"], &["Hello.", "\n", "Us", "er", ": more"]);
    assert_eq!(shown.deltas, ["Hello."]);
    assert_eq!((shown.tokens, shown.stopped), (1, true));
}

#[test]
fn a_partial_stop_string_is_emitted_if_it_does_not_complete() {
    let shown = show_with(&["\nUser:"], &["Hello.", "\n", "Us", "ed", " horses."]);
    assert_eq!(shown.deltas, ["Hello.", "\nUsed", " horses."]);
    assert_eq!((shown.tokens, shown.stopped), (5, false));
    let shown = show_with(&["\nUser:"], &["Hello.", "\n", "User"]);
    assert_eq!((shown.text.as_str(), shown.tokens), ("Hello.\nUser", 3));
}

#[test]
fn the_first_complete_stop_string_applies_and_the_longest_of_ties() {
    assert_eq!(show_with(&["abcd", "bc"], &["xabcd"]).text, "xa");
    assert_eq!(show_with(&["bc", "abc"], &["xabcd"]).text, "x");
    assert_eq!(show_with(&["aab"], &["aaaab"]).text, "aa");
    assert_eq!(show_with(&["", "!"], &["a", "b!"]).text, "ab");
}

#[test]
fn characters_split_over_tokens_are_emitted_whole() {
    let smith = "Schmied für 鍛冶屋 🔨";
    let bytes: Vec<&[u8]> = smith.as_bytes().chunks(1).collect();
    let shown = show(&mut Detokenizer::new(&[]), bytes.iter().copied());
    assert_eq!(shown.text, smith);
    assert_eq!(shown.tokens as usize, smith.len());
    assert_eq!(shown.deltas.len(), smith.chars().count());
}

#[test]
fn an_unfinished_character_at_the_end_is_a_replacement_character() {
    let shown = show(&mut Detokenizer::new(&[]), [&b"a\xF0"[..], b"\x9F\x94"]);
    assert_eq!((shown.text.as_str(), shown.tokens), ("a\u{FFFD}", 2));
}

#[test]
fn long_tokens_fill_several_deltas_and_count_once() {
    let long = "é".repeat(100);
    let shown = show_with(&[], &[&long]);
    assert_eq!(shown.deltas.iter().map(String::len).collect::<Vec<_>>(), [56, 56, 56, 32]);
    assert_eq!((shown.text, shown.tokens), (long, 1));
}

#[test]
fn tokens_without_text_count_with_the_next_delta() {
    let mut counts = Vec::new();
    let mut text = Detokenizer::new(&[]);
    for token in ["", "a", "", "", "b"] {
        text.push_part(token.as_bytes(), 1, &mut |_, tokens| counts.push(tokens));
    }
    assert_eq!(counts, [2, 3]);
}

#[test]
fn new_stop_strings_reset_the_text() {
    let mut text = Detokenizer::new(&strings(&["X"]));
    assert!(text.push_part(b"X", 1, &mut |_, _| {}));
    text.set_stop_strings(&strings(&["Y"]));
    assert!(!text.push_part(b"X", 1, &mut |_, _| {}));
    assert!(text.push_part(b"Y", 1, &mut |_, _| {}));
    text.reset();
    assert_eq!(show(&mut text, [&b"fresh"[..]]).text, "fresh");
}

/// Reference implementation on the whole text: cut at the beginning of the first complete stop
/// string.
fn cut<'a>(whole: &'a str, stops: &[String]) -> &'a str {
    let ends = whole.char_indices().map(|(at, c)| at + c.len_utf8());
    let cut = ends.into_iter().find_map(|end| {
        let complete =
            stops.iter().filter(|stop| !stop.is_empty() && whole[..end].ends_with(*stop));
        complete.map(|stop| end - stop.len()).min()
    });
    &whole[..cut.unwrap_or(whole.len())]
}

/// A small alphabet, so that stop strings occur: whole characters, parts of characters, and bytes
/// that never occur in UTF-8.
fn some_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"a"[..],
        b"b",
        b"ab",
        b"\n",
        "é".as_bytes(),
        "鍛".as_bytes(),
        b"\xC3",
        b"\xA9",
        b"\xE9\x8D",
        b"\xF0\x9F",
        b"\xFF",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn some_stops() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[ab\né鍛\u{FFFD}]{0,4}", 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn deltas_joined_are_the_decoding_up_to_the_first_stop_string(
        tokens in prop::collection::vec(some_bytes(), 0..8),
        stops in some_stops(),
    ) {
        let whole = String::from_utf8_lossy(&tokens.concat()).into_owned();
        let shown = show(&mut Detokenizer::new(&stops), tokens.iter().map(Vec::as_slice));
        prop_assert_eq!(&shown.text, cut(&whole, &stops));
        prop_assert!(shown.tokens as usize <= tokens.len());
        if !shown.stopped && tokens.last().is_some_and(|token| !token.is_empty()) {
            prop_assert_eq!(shown.tokens as usize, tokens.len());
        }
    }

    #[test]
    fn pushing_tokens_does_not_allocate(
        tokens in prop::collection::vec(some_bytes(), 0..8),
        stops in some_stops(),
    ) {
        let mut text = Detokenizer::new(&stops);
        let capacities = |text: &Detokenizer| (text.held.capacity(), text.ends.capacity());
        let before = capacities(&text);
        for _ in 0..3 {
            show(&mut text, tokens.iter().map(Vec::as_slice));
            text.reset();
        }
        prop_assert_eq!(capacities(&text), before);
    }

    #[test]
    fn text_does_not_depend_on_the_split_of_bytes_into_tokens(
        bytes in some_bytes(),
        stops in some_stops(),
        size in 1_usize..9,
    ) {
        let at_once = show(&mut Detokenizer::new(&stops), [&bytes[..]]);
        let spread = show(&mut Detokenizer::new(&stops), bytes.chunks(size));
        prop_assert_eq!((at_once.text, at_once.stopped), (spread.text, spread.stopped));
    }
}

#[test]
fn the_longest_of_the_stop_strings_that_end_together_is_named() {
    for (stops, index) in [(["a", "cba", "ba"], 1), (["ba", "x", "ba"], 0), (["", "ba", ""], 1)] {
        let mut text = Detokenizer::new(&stops.map(str::to_owned));
        assert!(
            text.push_part(b"c", 1, &mut |_, _| {}) || !text.push_part(b"b", 1, &mut |_, _| {})
        );
        assert!(text.push_part(b"a", 1, &mut |_, _| {}));
        assert_eq!(text.stop_index(), index, "{stops:?}");
    }
}
