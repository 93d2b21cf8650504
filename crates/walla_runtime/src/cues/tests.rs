use proptest::prelude::*;

use super::*;

/// Speech, cues and the splitter behind pieces of a reply.
fn split(cues: &Cues, pieces: &[&str]) -> (String, Vec<(Cue, usize)>, CueSplitter) {
    let (mut splitter, mut speech, mut found) = (CueSplitter::default(), String::new(), Vec::new());
    let mut take = |piece: CuePiece<'_>| match piece {
        CuePiece::Speech(text) => speech.push_str(text),
        CuePiece::Cue(cue) => {
            assert_eq!(cue.at_bytes, speech.len(), "a cue is reported at its place");
            found.push((cue.into(), cue.reply_bytes));
        }
    };
    pieces.iter().for_each(|piece| splitter.push(cues, piece, &mut take));
    splitter.finish(&mut take);
    (speech, found, splitter)
}

#[track_caller]
fn check(text: &str, speech: &str, cues: &[(&str, usize)]) {
    let (spoken, found) = Cues::new().separate(text);
    let found: Vec<(&str, usize)> = found.iter().map(|cue| (&*cue.text, cue.at_bytes)).collect();
    assert_eq!((&*spoken, &*found), (speech, cues), "{text}");
}

#[test]
fn stage_directions_are_apart_from_speech() {
    check("*smiles* Three silver.", "Three silver.", &[("smiles", 0)]);
    check("Three (sighs) silver.", "Three silver.", &[("sighs", 6)]);
    check("Three silver. [laughs]", "Three silver. ", &[("laughs", 14)]);
    check("*nods*\n\nYes.*bows*No", "Yes.No", &[("nods", 0), ("bows", 4)]);
    check("Yes. *nods*\nNo.", "Yes. \nNo.", &[("nods", 5)]);
    check("你好（微笑）朋友【点头】。", "你好朋友。", &[("微笑", 6), ("点头", 12)]);
    check("*wipes her brow, sighs* ", "", &[("wipes her brow, sighs", 0)]);
}

#[test]
fn other_marks_are_speech() {
    let texts = [
        "2 * 3 * 4",
        "**bold** words",
        "f(x) and a[b]",
        "(3 silver)",
        "* item\n* item",
        "a*b*c",
        "()",
        "(never closed",
        "*never\nclosed*",
        "well :) (:",
        "snake_case",
        "*** stars ***",
    ];
    for text in texts {
        check(text, text, &[]);
    }
    let long = format!("({})", "long ".repeat(13));
    check(&long, &long, &[]);
    check("(long (laughs) enough", "(long enough", &[("laughs", 6)]);
}

#[test]
fn inner_directions_are_removed_first() {
    check("(he *smiles* warmly) Yes", "Yes", &[("smiles", 0), ("he warmly", 0)]);
    check("*(grins)b* c", "c", &[("grins", 0), ("b", 0)]);
    check("(*grins*)", "()", &[("grins", 1)]);
    check("(a [b) c]", "c]", &[("a [b", 0)]);
}

#[test]
fn known_cues_have_names_and_others_are_dropped_or_kept() {
    let cues = Cues::new().with_cue("smile", ["smiles", "grins"]).with_cue("look away", ["瞥"]);
    let text = "*Grins.* Hm (you LOOK AWAY) so [smilesy] 啊（他瞥一眼）.";
    let names = |cues: &Cues| {
        let (speech, found) = cues.separate(text);
        (speech, found.into_iter().map(|cue| cue.name).collect::<Vec<_>>())
    };
    let known = vec!["smile".to_owned(), "look away".into(), "look away".into()];
    assert_eq!(names(&cues), ("Hm so 啊.".into(), known.clone()));
    let keeping = cues.clone().unknown(UnknownCues::Keep);
    assert_eq!(names(&keeping), ("Hm so [smilesy] 啊.".into(), known));
    let marks = CueMarks { asterisks: true, parentheses: false, brackets: false };
    let (speech, found) = cues.marks(marks).separate("*smiles* (smiles) [smiles]");
    assert_eq!((&*speech, found.len()), ("(smiles) [smiles]", 1));
}

#[test]
fn text_is_held_back_only_while_it_may_be_a_direction() {
    let (cues, mut splitter) = (Cues::new(), CueSplitter::default());
    let mut push = |text: &str| {
        let mut speech = String::new();
        splitter.push(&cues, text, |piece| match piece {
            CuePiece::Speech(text) => speech.push_str(text),
            CuePiece::Cue(cue) => speech.push_str(&format!("<{}>", cue.text)),
        });
        speech
    };
    assert_eq!(push("Hm, 2 * 3 *"), "Hm, 2 * 3 ");
    assert_eq!(push("smiles"), "");
    assert_eq!(push("* so"), "<smiles>so");
    assert_eq!(push(" (well"), " ");
    assert_eq!(push("\n"), "(well\n");
}

#[test]
fn the_place_in_the_reply_is_known_for_each_place_in_the_speech() {
    let text = "One.*nods* Two. (sighs)  Three.";
    let (speech, found, splitter) = split(&Cues::new(), &[text]);
    assert_eq!(speech, "One. Two. Three.");
    assert_eq!(found.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [4, 16]);
    for (spoken, of_reply) in [("One.", "One."), ("One. T", "One.*nods* T"), (&*speech, text)] {
        assert_eq!(splitter.reply_bytes(spoken.len()), of_reply.len());
    }
}

#[test]
fn the_instruction_names_the_words_of_the_cues() {
    let cues = Cues::new().with_cue("smile", ["smiles"]).with_cue("sigh", [""; 0]);
    let expected =
        "Stage directions that you may write in your lines, and no others: *smiles*, *sigh*.";
    assert_eq!(cues.instruction().as_deref(), Some(expected));
    assert_eq!(Cues::new().instruction(), None);
}

#[test]
fn words_that_cannot_be_cues_are_neither_asked_for_nor_allowed() {
    let long = "long ".repeat(14);
    let words = [
        "3 cheers",
        "smiles ",
        "smiles (sadly)",
        "😀",
        "a\nb",
        &long,
        "'sighs'",
        "…",
        "_smiles_",
        "",
    ];
    for word in words {
        let cues = Cues::new().with_cue("smile", [word]);
        assert_eq!(
            cues.instruction().as_deref().map(|its| its.ends_with(": *smile*.")),
            Some(true)
        );
        assert_eq!(cues.constraint(), Cues::new().with_cue("smile", [""; 0]).constraint());
    }
    let none = Cues::new().with_cue("😀", [""; 0]);
    assert_eq!(none.instruction(), None);
    assert_eq!(none.constraint(), Cues::new().constraint());
}

#[test]
fn a_reply_that_was_cut_off_in_a_direction_has_no_part_of_it() {
    let of = |text, reason| Cues::new().of_reply(text, reason).0;
    for reason in [FinishReason::Cancelled, FinishReason::Length, FinishReason::TimedOut] {
        assert_eq!(of("Well. *wipes her", reason), "Well. ");
        assert_eq!(of("Well (he (sighs) and", reason), "Well ");
        assert_eq!(of("Well. 2 * 3 (", reason), "Well. 2 * 3 (");
    }
    assert_eq!(of("Well. *wipes her", FinishReason::EndOfTurn), "Well. *wipes her");
    let known = Cues::new().with_cue("smile", ["smiles"]).unknown(UnknownCues::Keep);
    assert_eq!(known.of_reply("Well (I", FinishReason::Length).0, "Well (I");
}

/// The definition, on the whole text and without a stack: the earliest closing mark ends the
/// nearest direction that has only text behind its mark.
struct Definition {
    text: Vec<char>,
    /// Marks that too many others precede.
    is_dead: Vec<bool>,
}

impl Definition {
    fn opens(&self, at: usize) -> bool {
        let c = self.text[at];
        let Some(before) = at.checked_sub(1).map(|at| self.text[at]) else {
            return "*([（【".contains(c);
        };
        let is_word = before.is_alphanumeric() && before < '\u{2e80}' && "*([".contains(c);
        "*([（【".contains(c) && !is_word && !(c == '*' && before == '*')
    }

    /// Open marks, outermost first, from the text alone.
    fn open(&self) -> Vec<usize> {
        let mut open: Vec<usize> = Vec::new();
        for at in (0..self.text.len()).rev() {
            let end = open.last().copied().unwrap_or(self.text.len());
            let own: String = self.text[at + 1..end].iter().collect();
            // A mark before an inner one has no text yet.
            let begins = own.chars().next().is_none_or(char::is_alphabetic);
            if self.text[at] == '\n' {
                break;
            }
            if self.opens(at) && !self.is_dead[at] && begins && own.len() <= MAX_CUE_BYTES {
                open.push(at);
            }
        }
        open.reverse();
        open
    }

    fn separate(text: &str) -> (String, Vec<(String, usize)>) {
        let mut so_far = Self { text: Vec::new(), is_dead: Vec::new() };
        let mut found: Vec<(String, usize)> = Vec::new();
        let mut skips = false;
        for c in text.chars() {
            let before = so_far.text.last().copied();
            if skips && c.is_whitespace() && (c != '\n' || before.is_none()) {
                continue;
            }
            skips = false;
            let open = so_far.open();
            let closes = |at: &&usize| {
                let inside: String = so_far.text[**at + 1..].iter().collect();
                let pair = [so_far.text[**at], c];
                ["**", "()", "[]", "（）", "【】"].iter().any(|of| of.chars().eq(pair))
                    && inside.starts_with(char::is_alphabetic)
                    && inside.len() <= MAX_CUE_BYTES
                    && !(c == '*' && inside.ends_with(char::is_whitespace))
            };
            if let Some(&at) = open.iter().rev().find(closes) {
                let inside: String = so_far.text.drain(at..).skip(1).collect();
                so_far.is_dead.truncate(at);
                let place: usize = so_far.text.iter().map(|c| c.len_utf8()).sum();
                found.iter_mut().for_each(|(_, its)| *its = place.min(*its));
                found.push((inside.trim_end().to_owned(), place));
                skips = so_far.text.last().is_none_or(|c| c.is_whitespace());
                continue;
            }
            so_far.text.push(c);
            so_far.is_dead.push(false);
            if open.len() == CueSplitter::MAX_DEPTH && so_far.opens(so_far.text.len() - 1) {
                so_far.is_dead.fill(true);
            }
        }
        (so_far.text.into_iter().collect(), found)
    }
}

fn pieces_of_text() -> impl Strategy<Value = Vec<&'static str>> {
    let piece = prop::sample::select(vec![
        "*",
        "*",
        "(",
        ")",
        "[",
        "]",
        "（",
        "）",
        "【",
        "】",
        " ",
        " ",
        "\n",
        "a",
        "smiles",
        "é",
        "鍛",
        "1",
        ".",
        "a sentence of some words",
        "ａ",
    ]);
    prop::collection::vec(piece, 0..24)
}

/// A text in several splits gives the speech, cues and places of the definition; the speech has no
/// cue, and each of its places has one in the reply.
fn check_definition(pieces: &[&str], cuts: &[usize]) -> Result<(), TestCaseError> {
    let (text, cues) = (pieces.concat(), Cues::new());
    let (speech, found, splitter) = split(&cues, &[&text]);
    let (defined, places) = Definition::separate(&text);
    let found_here: Vec<_> =
        found.iter().map(|(cue, _)| (cue.text.clone(), cue.at_bytes)).collect();
    prop_assert_eq!((&speech, &found_here), (&defined, &places), "{:?}", text);
    prop_assert_eq!(cues.separate(&speech), (speech.clone(), Vec::new()), "{:?}", text);
    for (at, c) in speech.char_indices() {
        let end = at + c.len_utf8();
        prop_assert!(text[..splitter.reply_bytes(end)].ends_with(c), "{:?} at {}", text, end);
        prop_assert_eq!(splitter.spoken_bytes(splitter.reply_bytes(end)), end, "{:?}", text);
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    let mut random = Vec::new();
    let mut rest = &*text;
    for cut in cuts {
        let (piece, other) = rest.split_at(rest.floor_char_boundary(*cut));
        random.push(piece);
        rest = other;
    }
    random.push(rest);
    for pieces in [chars, pieces.to_vec(), random] {
        let (again, found_again, _) = split(&cues, &pieces);
        prop_assert_eq!((&again, &found_again), (&speech, &found), "{:?}", pieces);
    }
    Ok(())
}

fn check_texts(cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let cuts = prop::collection::vec(0_usize..30, 0..8);
    proptest!(config, |(pieces in pieces_of_text(), cuts in cuts)| {
        check_definition(&pieces, &cuts)?;
    });
}

#[test]
fn speech_and_cues_are_those_of_the_definition_for_any_text_in_any_pieces() {
    check_texts(20_000);
}

#[test]
#[ignore = "a million texts: one minute in a release build"]
fn speech_and_cues_are_those_of_the_definition_for_a_million_texts() {
    check_texts(1_000_000);
}
