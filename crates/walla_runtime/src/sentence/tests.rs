use proptest::prelude::*;

use super::*;

fn split_with(max_bytes: usize, pieces: &[&str]) -> Vec<String> {
    let mut splitter = SentenceSplitter::with_max_bytes(max_bytes);
    let mut sentences = Vec::new();
    for piece in pieces {
        splitter.push(piece, |sentence| sentences.push(sentence.to_owned()));
    }
    splitter.finish(|sentence| sentences.push(sentence.to_owned()));
    sentences
}

fn split(text: &str) -> Vec<String> {
    split_with(SentenceSplitter::MAX_BYTES, &[text])
}

#[track_caller]
fn check(sentences: &[&str]) {
    assert_eq!(split(&sentences.join(" ")), sentences);
}

#[test]
fn terminators_and_white_space_end_sentences() {
    check(&["Good day.", "What is it?", "Go away!", "Really?!", "No"]);
    check(&["I paid 3.5 silver at example.org for v1.2.", "Fair."]);
    check(&["So do I.", "Good."]);
}

#[test]
fn abbreviations_initials_and_list_numbers_end_no_sentence() {
    check(&["Mr. and Mrs. Smith met Dr. J. R. Brown, e.g. here.", "Yes."]);
    check(&["Swords (i.e. blades) vs. axes.", "Axes won."]);
    check(&["1. First the anvil.", "2. Then the hammer."]);
    check(&["There are 12.", "I counted."]);
    check(&["The St. Anne sank.", "Capt. Reed lived."]);
}

#[test]
fn some_ends_depend_on_the_next_word() {
    check(&["Nails, hooks etc. are cheap.", "Nails, hooks etc.", "Buy some."]);
    check(&["Nägel, Haken usw. kauft er dort.", "Nägel, Haken usw.", "Kauft welche."]);
    check(&["We open at 9 a.m. sharp.", "We close at 5 p.m.", "Come early."]);
    check(&["Well... maybe.", "Hm...", "Perhaps … not.", "Wait…", "What?"]);
    check(&["\"Stop!\" he said.", "\"Why?\"", "Nobody knew."]);
    check(&["Made in the U.S. by hand.", "Made in the U.S.", "By hand."]);
}

#[test]
fn closing_quotes_and_brackets_belong_to_the_sentence() {
    check(&["He said: \"Go.\"", "(They went.)", "“Done.”", "*Nods.*", "Fine."]);
}

#[test]
fn wide_terminators_need_no_space() {
    let sentences = ["「こんにちは。」", "元気ですか？", "はい！！", "3。", "では"];
    assert_eq!(split(&sentences.concat()), sentences);
}

#[test]
fn line_breaks_end_sentences_and_white_space_between_is_dropped() {
    assert_eq!(split("  One\n\n- two\r\n\t three. \n"), ["One", "- two", "three."]);
    assert_eq!(split(" \n \t"), [""; 0]);
}

#[test]
fn white_space_inside_is_kept() {
    assert_eq!(split("a  b\tc.  d"), ["a  b\tc.", "d"]);
}

#[test]
fn a_sentence_is_emitted_as_soon_as_its_end_is_certain() {
    let mut splitter = SentenceSplitter::new();
    let mut said_at = Vec::new();
    for (at, c) in "Yes. No… Hm".char_indices() {
        splitter.push(c.encode_utf8(&mut [0; 4]), |_| said_at.push(at));
    }
    // At the space, and at the capital behind the ellipsis.
    assert_eq!(said_at, [4, 11]);
}

#[test]
fn long_sentences_are_cut_at_words() {
    assert_eq!(split_with(12, &["one two three four"]), ["one two", "three four"]);
    assert_eq!(split_with(12, &["one  two  three"]), ["one  two", "three"]);
    assert_eq!(split_with(4, &["abcdefghi"]), ["abcd", "efgh", "i"]);
    assert_eq!(split_with(0, &["鍛冶屋"]), ["鍛", "冶", "屋"]);
    assert_eq!(split_with(4, &["ab.) cd"]), ["ab.)", "cd"]);
}

#[test]
fn clearing_discards_the_rest() {
    let mut splitter = SentenceSplitter::new();
    splitter.push("One. Tw", |_| {});
    splitter.clear();
    let mut rest = None;
    splitter.push("Three", |sentence| rest = Some(sentence.to_owned()));
    splitter.finish(|sentence| rest = Some(sentence.to_owned()));
    assert_eq!(rest.as_deref(), Some("Three"));
}

fn some_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a", "B", "Mr", "e.g", "etc", "3", ".", "...", "…", "!", "?", "\"", ")", " ", "  ", "\n",
        "。", "」", "é", "鍛", ",",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn all_text_is_emitted_once_in_order(text in some_text(), max_bytes in 4_usize..40) {
        let sentences = split_with(max_bytes, &[&text]);
        prop_assert_eq!(without_space(&sentences.concat()), without_space(&text));
        let mut rest = text.as_str();
        for sentence in &sentences {
            prop_assert!(!sentence.is_empty() && sentence.len() <= max_bytes);
            prop_assert_eq!(sentence.trim(), sentence.as_str());
            let at = rest.find(sentence.as_str());
            prop_assert!(at.is_some_and(|at| rest[..at].trim().is_empty()), "{:?} in {:?}", sentence, rest);
            rest = &rest[at.unwrap() + sentence.len()..];
        }
    }

    #[test]
    fn plain_text_at_once_equals_text_by_characters(
        text in some_text(),
        max_bytes in 4_usize..40,
    ) {
        let mut splitter = SentenceSplitter::with_max_bytes(max_bytes);
        let mut sentences = Vec::new();
        let mut say = |sentence: &str| sentences.push(sentence.to_owned());
        text.chars().for_each(|c| splitter.take(c, &mut say));
        splitter.finish(say);
        prop_assert_eq!(split_with(max_bytes, &[&text]), sentences);
    }

    #[test]
    fn sentences_do_not_depend_on_pieces(
        text in some_text(),
        max_bytes in 4_usize..40,
        cuts in prop::collection::vec(0_usize..60, 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        prop_assert_eq!(split_with(max_bytes, &pieces), split_with(max_bytes, &[&text]));
    }

    #[test]
    fn pushing_never_exceeds_initial_capacity(text in some_text(), max_bytes in 4_usize..40) {
        let mut splitter = SentenceSplitter::with_max_bytes(max_bytes);
        let capacity = splitter.text.capacity();
        splitter.push(&text, |_| {});
        prop_assert_eq!(splitter.text.capacity(), capacity);
    }
}

#[test]
fn a_cut_text_is_a_fragment_unless_it_ends_like_a_sentence() {
    for (text, is_at_end) in [
        ("", true),
        ("One. ", true),
        ("One", false),
        ("One.", true),
        ("One. Two", false),
        ("\"One!\"", true),
        ("One... ", true),
        ("I met Mr. ", false),
        ("It costs 3.5", false),
    ] {
        let mut splitter = SentenceSplitter::new();
        splitter.push(text, |_| {});
        assert_eq!(splitter.is_at_end(), is_at_end, "{text:?}");
    }
}
