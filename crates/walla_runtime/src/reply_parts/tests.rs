use std::sync::OnceLock;

use proptest::prelude::*;
use walla_model::chat::{ChatTemplate, Marker};
use walla_model::tokenizer::{Tokenizer, Vocabulary};

use super::splitter::MAX_HEADER_BYTES;
use super::*;

/// Texts of the special tokens of [`vocabulary`].
const SPECIAL: [&str; 8] = [
    "<think>",
    "</think>",
    "<|channel>",
    "<channel|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
];

/// A vocabulary of the 256 bytes, followed by the special tokens.
fn vocabulary(special: &[&str]) -> Tokenizer {
    let is_visible = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let letter = |byte: u8| {
        let earlier = (0..byte).filter(|b| !is_visible(b)).count() as u32;
        if is_visible(&byte) { byte.into() } else { char::from_u32(0x100 + earlier).unwrap() }
    };
    let letters: Vec<String> = (0..=u8::MAX).map(|byte| letter(byte).to_string()).collect();
    let tokens: Vec<&str> =
        letters.iter().map(String::as_str).chain(special.iter().copied()).collect();
    let types = [vec![1; 256], vec![4; special.len()]].concat();
    let vocabulary = Vocabulary {
        model: "gpt2",
        pre: "llama-bpe",
        tokens,
        token_types: Some(types),
        merges: Some(Vec::new()),
        ..Vocabulary::default()
    };
    Tokenizer::new(&vocabulary).unwrap()
}

/// Markers that are tokens.
fn by_token() -> &'static (Tokenizer, Arc<ReasoningMarkers>) {
    static MODEL: OnceLock<(Tokenizer, Arc<ReasoningMarkers>)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let tokenizer = vocabulary(&SPECIAL);
        let markers = ReasoningMarkers::new(&tokenizer, None).unwrap();
        (tokenizer, Arc::new(markers))
    })
}

/// Markers that occur in the template but have no token in the vocabulary.
fn by_text() -> &'static Arc<ReasoningMarkers> {
    static MARKERS: OnceLock<Arc<ReasoningMarkers>> = OnceLock::new();
    MARKERS.get_or_init(|| {
        let source = "{{ messages[0].content }}<think>[THINK]";
        let template = ChatTemplate::new(source, "", "").unwrap();
        Arc::new(ReasoningMarkers::new(&vocabulary(&[]), Some(&template)).unwrap())
    })
}

/// Output of a reply.
#[derive(Debug, Default, PartialEq, Clone)]
struct Shown {
    speech: String,
    reasoning: String,
    /// Tokens completed by the deltas of each part.
    tokens: [u32; 2],
    /// Tokens counted in each part.
    counted: [u32; 2],
    stopped: bool,
}

const SOME_TOKEN: TokenId = TokenId(0);

/// Pushes tokens with their texts.
fn show<'a>(
    parts: &mut ReplyParts,
    tokens: impl IntoIterator<Item = (TokenId, &'a [u8])>,
) -> Shown {
    let mut shown = Shown::default();
    let mut say = |part: Part, text: InlineText<MAX_DELTA_BYTES>, tokens: u32| {
        match part {
            Part::Speech => shown.speech.push_str(&text),
            Part::Reasoning => shown.reasoning.push_str(&text),
        }
        shown.tokens[part as usize] += tokens;
    };
    let stopped = tokens.into_iter().any(|(token, bytes)| parts.push(token, bytes, &mut say));
    if !stopped {
        parts.finish(&mut say);
    }
    shown.stopped = parts.sinks.texts[0].is_stopped();
    shown.counted = [parts.speech_tokens(), parts.reasoning_tokens()];
    shown
}

fn begun(markers: &Arc<ReasoningMarkers>, start: ReplyStart, stops: &[&str]) -> ReplyParts {
    let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
    let mut parts = ReplyParts::new(&stops);
    parts.begin(markers, start);
    parts
}

fn spelled<'a>(tokens: &'a [&str]) -> impl Iterator<Item = (TokenId, &'a [u8])> {
    tokens.iter().map(|text| (SOME_TOKEN, text.as_bytes()))
}

/// Tokens with these texts; special tokens by their ids.
fn drawn<'a>(tokens: &'a [&str]) -> impl Iterator<Item = (TokenId, &'a [u8])> {
    let special = |text: &str| by_token().0.special_token(text).unwrap_or(SOME_TOKEN);
    tokens.iter().map(move |text| (special(text), text.as_bytes()))
}

fn think(markers: &ReasoningMarkers) -> ReasoningFormat {
    let token = by_token().0.special_token("<think>").unwrap();
    let of_text = markers.texts().iter().find(|(text, _)| *text == "<think>").map(|(_, m)| *m);
    match markers.of_token(token).or(of_text) {
        Some(Marker::Open(format)) => format,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_is_not_speech() {
    let tokens = ["\n", "<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Three", " silver."];
    let expected = |shown: &Shown| {
        assert_eq!((&*shown.speech, &*shown.reasoning), ("Three silver.", "\nHm.\n"));
        assert_eq!(shown.counted, [2, 8]);
        assert_eq!(shown.tokens[0], 2);
    };
    expected(&show(&mut begun(&by_token().1, ReplyStart::Speech, &[]), drawn(&tokens)));
    expected(&show(&mut begun(by_text(), ReplyStart::Speech, &[]), spelled(&tokens)));
    // The prompt has opened the block.
    for (markers, by_text) in [(&by_token().1, false), (by_text(), true)] {
        let start = ReplyStart::Reasoning(think(markers));
        let mut parts = begun(markers, start, &[]);
        let rest = &tokens[2..];
        let shown =
            if by_text { show(&mut parts, spelled(rest)) } else { show(&mut parts, drawn(rest)) };
        assert_eq!((&*shown.speech, &*shown.reasoning), ("Three silver.", "\nHm.\n"));
        assert_eq!(shown.counted, [2, 6]);
    }
}

/// The vocabulary has the marker's token, so the spelled marker is text: an agent may quote it.
#[test]
fn a_quoted_marker_is_speech_where_the_vocabulary_has_the_token() {
    let tokens = ["They write ", "<think", "> and </", "think", ">."];
    let mut parts = begun(&by_token().1, ReplyStart::Speech, &[]);
    let shown = show(&mut parts, spelled(&tokens));
    assert_eq!(shown.speech, "They write <think> and </think>.");
    assert_eq!((shown.counted, shown.reasoning.as_str()), ([5, 0], ""));
    // In a block, the spelled marker closes nothing.
    let mut parts = begun(&by_token().1, ReplyStart::Reasoning(think(&by_token().1)), &[]);
    assert_eq!(show(&mut parts, spelled(&tokens)).speech, "");
}

#[test]
fn a_reply_that_ends_in_a_block_has_no_text() {
    for tokens in [&["<think>", "a", "</thi"][..], &["<think>"], &["<think>", "\u{e9}"]] {
        let shown = show(&mut begun(by_text(), ReplyStart::Speech, &[]), spelled(tokens));
        assert_eq!(shown.speech, "", "{tokens:?}");
        assert_eq!(shown.reasoning, tokens[1..].concat());
        assert_eq!(shown.counted, [0, tokens.len() as u32]);
    }
}

/// Leading white space without a block, and an incomplete marker, are speech.
#[test]
fn pending_text_is_not_lost() {
    for (tokens, speech) in [
        (&["\n", " ", "Hi"][..], "\n Hi"),
        (&["\n"], "\n"),
        (&["\n", "<thi", "s>"], "\n<this>"),
        (&["a <", "<think", "<think>x</think> b"], "a <<thinkb"),
        (&["<th", "in", ""], "<thin"),
        (&[&" ".repeat(100), "x"], &format!("{}x", " ".repeat(100))),
    ] {
        let shown = show(&mut begun(by_text(), ReplyStart::Speech, &[]), spelled(tokens));
        assert_eq!(shown.speech, speech, "{tokens:?}");
    }
}

#[test]
fn other_markers_in_a_block_and_stray_ones_change_nothing() {
    for (tokens, speech, reasoning) in [
        (&["</think>", "\n", "Hi"][..], "Hi", ""),
        (&["Hi", "</think>", " there"], "Hithere", ""),
        (&["<think>", "a", "<think>", "b", "</think>", "c"], "c", "ab"),
        (&["<think>", "a[/THINK]b", "</think>", "c"], "c", "ab"),
        (&["<think>", "a</think>b", "<think>", "c</think>", "d"], "bd", "ac"),
    ] {
        let shown = show(&mut begun(by_text(), ReplyStart::Speech, &[]), spelled(tokens));
        assert_eq!((&*shown.speech, &*shown.reasoning), (speech, reasoning), "{tokens:?}");
    }
}

#[test]
fn stop_strings_apply_only_to_speech() {
    for (tokens, speech, stopped) in [
        (&["<think>", "END", "</think>", "Hi"][..], "Hi", false),
        (&["Hi E", "<think>", "x", "</think>", "ND", " more"], "Hi ", true),
        (&["Hi E", "<think>", "N", "</think>", "x"], "Hi Ex", false),
        (&["<think>", "x", "</think>", "Hi END"], "Hi ", true),
    ] {
        for (markers, by_text) in [(&by_token().1, false), (by_text(), true)] {
            let mut parts = begun(markers, ReplyStart::Speech, &["END"]);
            let shown = if by_text {
                show(&mut parts, spelled(tokens))
            } else {
                show(&mut parts, drawn(tokens))
            };
            assert_eq!((&*shown.speech, shown.stopped), (speech, stopped), "{tokens:?}");
        }
    }
}

#[test]
fn a_header_line_is_neither_reasoning_nor_speech() {
    let shown = |start, tokens: &[&str]| show(&mut begun(&by_token().1, start, &[]), drawn(tokens));
    let long = "x".repeat(MAX_HEADER_BYTES + 1);
    for (tokens, speech, reasoning) in [
        (&["<|channel>", "thou", "ght\nHm", ".", "<channel|>", "Three."][..], "Three.", "Hm."),
        (&["<|channel>", "thought\n", "<channel|>", "Three."], "Three.", ""),
        (&["<|channel>", "thought", "<channel|>", "Three."], "Three.", ""),
        (&["<|channel>", &long, "y\n", "<channel|>", "Three."], "Three.", &format!("{long}y\n")),
        (&["<|channel>", "thought"], "", ""),
    ] {
        let shown = shown(ReplyStart::Speech, tokens);
        assert_eq!((&*shown.speech, &*shown.reasoning), (speech, reasoning), "{tokens:?}");
    }
    let token = by_token().0.special_token("<|channel>").unwrap();
    let Some(Marker::Open(format)) = by_token().1.of_token(token) else { panic!("it opens") };
    let begun = shown(ReplyStart::Header(format), &["thought\n", "Hm.", "<channel|>", "Three."]);
    assert_eq!((&*begun.speech, &*begun.reasoning), ("Three.", "Hm."));
}

#[test]
fn only_the_final_channel_is_speech() {
    let header = ReplyStart::Header(ReasoningFormat::CHANNELS);
    let shown = |tokens: &[&str]| show(&mut begun(&by_token().1, header, &[]), drawn(tokens));
    for (tokens, speech, reasoning) in [
        (
            &[
                "<|channel|>",
                "analysis",
                "<|message|>",
                "Hm.",
                "<|end|>",
                "<|start|>",
                "assistant",
                "<|channel|>",
                "final",
                "<|message|>",
                "Three.",
            ][..],
            "Three.",
            "Hm.",
        ),
        (&["<|channel|>", "commentary to=x ", "<|message|>", "{}", "<|end|>"], "", "{}"),
        (&["<|message|>", "Three.", "<|end|>", "<|start|>", "assistant"], "Three.", ""),
        (&["<|channel|>", "ana"], "", ""),
    ] {
        let shown = shown(tokens);
        assert_eq!((&*shown.speech, &*shown.reasoning), (speech, reasoning), "{tokens:?}");
    }
}

#[test]
fn the_engine_closes_a_block() {
    let mut parts = begun(by_text(), ReplyStart::Speech, &[]);
    let mut said = Vec::new();
    let mut say = |part: Part, text: InlineText<MAX_DELTA_BYTES>, _: u32| {
        said.push((part, text.to_string()));
    };
    assert_eq!(parts.open_format(), None);
    for text in ["<think>", "a", "</th"] {
        assert!(parts.would_speak(b"\n") || text != "<think>");
        parts.push(SOME_TOKEN, text.as_bytes(), &mut say);
        assert!(parts.open_format().is_some() && !parts.would_speak(b"x"));
    }
    parts.close(&mut say);
    assert!(parts.open_format().is_none() && parts.would_speak(b"x") && !parts.would_speak(b"\n"));
    for text in ["\n", "Hi", "\n"] {
        parts.push(SOME_TOKEN, text.as_bytes(), &mut say);
    }
    parts.finish(&mut say);
    let [reasoning, speech] = [Part::Reasoning, Part::Speech].map(|wanted| {
        let of_part = said.iter().filter(|(part, _)| *part == wanted);
        of_part.map(|(_, text)| text.as_str()).collect::<String>()
    });
    assert_eq!((&*reasoning, &*speech), ("a</th", "Hi\n"));
}

#[test]
fn a_reply_that_is_not_separated_is_speech() {
    let mut parts = begun(by_text(), ReplyStart::Reasoning(think(by_text())), &[]);
    show(&mut parts, spelled(&["a", "<thi"]));
    parts.reset();
    let tokens = ["\n", "<think>", "x", "</think>", " y"];
    let shown = show(&mut parts, spelled(&tokens));
    assert_eq!((shown.speech, shown.counted), (tokens.concat(), [5, 0]));
}

/// Reference implementation on the whole text: speech and reasoning.
fn split(text: &str, is_open: bool) -> (String, String) {
    let markers = ["<think>", "</think>", "[THINK]", "[/THINK]"];
    let (mut speech, mut reasoning) = (String::new(), String::new());
    let (mut open, mut skips, mut rest) = (is_open.then_some("</think>"), false, text);
    loop {
        let next = markers.iter().filter_map(|marker| Some((rest.find(marker)?, *marker))).min();
        let before = next.map_or(rest, |(at, _)| &rest[..at]);
        if open.is_some() {
            reasoning.push_str(before);
        } else {
            let spoken = if skips { before.trim_ascii_start() } else { before };
            skips &= spoken.is_empty();
            speech.push_str(spoken);
        }
        let Some((at, marker)) = next else { return (speech, reasoning) };
        if speech.trim_ascii().is_empty() {
            speech.clear();
        }
        rest = &rest[at + marker.len()..];
        match (open, marker) {
            (None, "<think>") => open = Some("</think>"),
            (None, "[THINK]") => open = Some("[/THINK]"),
            (None, _) => skips = true,
            (Some(close), _) if close == marker => (open, skips) = (None, true),
            _ => {}
        }
    }
}

fn some_pieces() -> impl Strategy<Value = Vec<&'static str>> {
    let piece = prop::sample::select(vec![
        "<think>", "</think>", "[THINK]", "[/THINK]", "<", "<th", "ink>", "</", "[", "a", "é", " ",
        "\n", ">", "t",
    ]);
    prop::collection::vec(piece, 0..24)
}

/// `text` cut into tokens of these sizes in bytes, cyclically.
fn cut<'a>(text: &'a [u8], sizes: &'a [usize]) -> Vec<(TokenId, &'a [u8])> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (token, behind) = rest.split_at((*size).min(rest.len()));
        tokens.push((SOME_TOKEN, token));
        rest = behind;
    }
    tokens
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() }
}

/// Token sizes in bytes.
fn some_sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..9, 1..6)
}

/// Start of a reply with these markers.
fn start(markers: &ReasoningMarkers, is_open: bool) -> ReplyStart {
    if is_open { ReplyStart::Reasoning(think(markers)) } else { ReplyStart::Speech }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn markers_are_found_for_every_split_into_tokens(
        pieces in some_pieces(),
        mut sizes in prop::collection::vec(0_usize..9, 1..6),
        is_open: bool,
    ) {
        sizes.push(1);
        let text = pieces.concat();
        let start = start(by_text(), is_open);
        let tokens = cut(text.as_bytes(), &sizes);
        let count = tokens.len() as u32;
        let shown = show(&mut begun(by_text(), start, &[]), tokens);
        let (speech, reasoning) = split(&text, is_open);
        prop_assert_eq!((&shown.speech, &shown.reasoning), (&speech, &reasoning));
        prop_assert_eq!(shown.counted[0] + shown.counted[1], count);
        prop_assert!(shown.tokens[0] <= shown.counted[0] && shown.tokens[1] <= shown.counted[1]);
        if speech.is_empty() && !sizes.contains(&0) {
            prop_assert_eq!(shown.counted[0], 0);
        }
    }

    /// Both parts joined are the text without markers, except for white space around markers.
    #[test]
    fn no_text_is_lost_or_duplicated(pieces in some_pieces(), sizes in some_sizes()) {
        let text = pieces.concat();
        let mut parts = begun(by_text(), ReplyStart::Speech, &[]);
        let shown = show(&mut parts, cut(text.as_bytes(), &sizes));
        let mut plain = text;
        loop {
            // Take out the first marker. Bytes that join to a marker when another is removed are no
            // marker.
            let markers = ["<think>", "</think>", "[THINK]", "[/THINK]"];
            let places = markers.iter().filter_map(|m| Some((plain.find(m)?, m.len())));
            let Some((at, len)) = places.min() else { break };
            plain.replace_range(at..at + len, "\u{0}");
        }
        let sorted = |text: &str| {
            let is_text = |c: &char| !c.is_whitespace() && *c != '\u{0}';
            let mut letters: Vec<char> = text.chars().filter(is_text).collect();
            letters.sort_unstable();
            letters
        };
        prop_assert_eq!(sorted(&format!("{}{}", shown.speech, shown.reasoning)), sorted(&plain));
    }

    #[test]
    fn marker_tokens_split_as_their_texts_do(pieces in some_pieces(), is_open: bool) {
        let is_whole = |piece: &&str| !piece.contains(['[', '<']) || piece.contains("think>");
        let pieces: Vec<_> = pieces.into_iter().filter(is_whole).collect();
        let markers = &by_token().1;
        let mut parts = begun(markers, start(markers, is_open), &[]);
        let by_id = show(&mut parts, drawn(&pieces));
        let mut parts = begun(by_text(), start(by_text(), is_open), &[]);
        prop_assert_eq!(by_id, show(&mut parts, spelled(&pieces)));
    }

    #[test]
    fn splitting_does_not_allocate(pieces in some_pieces(), sizes in some_sizes()) {
        let text = pieces.concat();
        let mut parts = begun(by_text(), ReplyStart::Speech, &[]);
        let capacities = |parts: &ReplyParts| {
            let header = parts.splitter.as_ref().map(|splitter| splitter.header.capacity());
            (parts.sinks.texts[0].capacities(), parts.sinks.texts[1].capacities(), header)
        };
        let before = capacities(&parts);
        for _ in 0..3 {
            show(&mut parts, cut(text.as_bytes(), &sizes));
            parts.reset();
            parts.begin(by_text(), ReplyStart::Speech);
        }
        prop_assert_eq!(capacities(&parts), before);
    }

    #[test]
    fn without_separation_parts_join_to_the_text(pieces in some_pieces(), sizes in some_sizes()) {
        let text = pieces.concat();
        let shown = show(&mut ReplyParts::new(&[]), cut(text.as_bytes(), &sizes));
        prop_assert_eq!((shown.speech, shown.reasoning), (text, String::new()));
    }
}
