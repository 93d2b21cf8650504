//! Lore files.

use std::time::Duration;

use proptest::prelude::*;
use walla_memory::{Entry, EntryError, LoreError, Store, StoreLimits};

fn entries(text: &str) -> Vec<Entry> {
    let store = Store::from_lore_text(text).unwrap();
    assert!(store.iter().zip(0..).all(|((id, _), number)| id.get() == number));
    store.iter().map(|(_, entry)| entry.clone()).collect()
}

#[test]
fn paragraphs_headers_and_comments() {
    let text = "\u{feff}# A comment.\r\n\r\nEmberfall has\r\n  forty houses.  \r\n# inside\r\nOne well.\n\
                \n \t \n[tags: mill, river; visible to: millers, guards; importance: 0.8]\n\
                The wheel broke.\n\n\n[importance:1]\n\\[This is text.]\n\\# And this. \\n";
    let expected = [
        Entry::new("Emberfall has forty houses. One well."),
        Entry::new("The wheel broke.")
            .tags(["mill", "river"])
            .visible_to(["guards", "millers"])
            .importance(0.8),
        Entry::new("[This is text.] # And this. \\n").importance(1.0),
    ];
    assert_eq!(entries(text), expected);
    assert_eq!(entries("[visible_to: a]\nx")[0], Entry::new("x").visible_to(["a"]));
    for nothing in ["", "\n\n", "# only\n#comments", "\u{feff}"] {
        assert!(entries(nothing).is_empty());
    }
}

#[test]
fn errors_name_the_line() {
    let wrong = |text: &str| Store::from_lore_text(text).unwrap_err();
    let cases = [
        ("x\n\n[tags: a", "line 3: a header reads"),
        ("[]\nx", "line 1: a header reads"),
        ("[Keep out]\nx", "line 1: a header reads"),
        ("[tags: a; tags: b]\nx", "line 1: a header reads"),
        ("[tag: a]\nx", "line 1: unknown field `tag`"),
        ("# c\n[importance: high]\nx", "line 2: the importance is no number"),
        ("[importance: 2]\nx", "line 1: importance 2 is not in 0 to 1"),
        ("[importance: NaN]\nx", "line 1: importance NaN is not in 0 to 1"),
        ("[tags: a,,b]\nx", "line 1: a tag is empty"),
        ("[tags: a]\n\nx", "line 1: a header without a text"),
        ("x\n\n[tags: a]", "line 3: a header without a text"),
    ];
    for (text, message) in cases {
        let error = wrong(text).to_string();
        assert!(error.starts_with(message), "{text:?}: {error}");
    }
    let field = format!("[{}: a]\nx", "é".repeat(1_000));
    assert!(wrong(&field).to_string().len() < 200, "messages are short");
    let long = wrong(&format!("x\n\n{}", "y ".repeat(2_000)));
    assert!(matches!(long, LoreError::Entry { line: 3, error: EntryError::TooLong { .. } }));
}

/// A header that an author writes is a header or an error, with anything before it and any end of
/// lines: its secret is never text for everyone.
#[test]
fn no_header_becomes_text() {
    let secret = || Entry::new("The mayor did it.").visible_to(["guards"]);
    let invisible = ["", " ", "\t", "\u{feff}", "\u{200b}", "\u{200e}\u{a0}", "\u{2060}", "\u{ad}"];
    for end in ["\n", "\r\n", "\r", "\u{2028}", "\u{2029}", "\u{85}"] {
        for mark in invisible {
            let lore = ["Geese.", "", "[visible_to: guards]", "The mayor did it."];
            let text = lore.map(|line| format!("{mark}{line}{mark}")).join(end);
            assert_eq!(entries(&text), [Entry::new("Geese."), secret()], "{text:?}");
            let header = format!("{mark}[visible_to: guards]{mark}");
            for before in [&["Geese."][..], &["[tags: a]"], &["[tags: a]", "Geese."]] {
                let text = [before, &[&header, "It was Odo."]].concat().join(end);
                let wrong = Store::from_lore_text(&text).unwrap_err();
                assert!(matches!(wrong, LoreError::HeaderInside { .. }), "{text:?}: {wrong}");
            }
        }
    }
    let line = Store::from_lore_text("a\r\n\r\nb\r\n[tags: c]\r\nd").unwrap_err().to_string();
    assert!(line.starts_with("line 4: a header is the first line"), "{line}");
}

/// Input methods of Chinese and Japanese write other brackets and signs.
#[test]
fn a_header_in_other_brackets_is_a_header() {
    let secret = Entry::new("The mayor did it.").visible_to(["guards", "mayors"]).importance(0.5);
    for header in [
        "［visible_to： guards， mayors； importance： 0.5］",
        "【visible_to：guards、mayors；importance：０．５】",
        "〔ｖｉｓｉｂｌｅ＿ｔｏ：guards,mayors〕",
        "﹇visible_to: guards，mayors﹈",
        "［visible_to: guards, mayors]",
        "[visible_to: guards, mayors］",
        "【 visible　to：guards，　mayors 】",
    ] {
        assert_eq!(
            entries(&format!("{header}\nThe mayor did it.")),
            std::slice::from_ref(&secret),
            "{header}"
        );
        let inside = Store::from_lore_text(&format!("Geese.\n{header}\nThe mayor did it."));
        assert!(matches!(inside, Err(LoreError::HeaderInside { line: 2 })), "{header}");
    }
    for wrong in ["【注意】\nx", "［x", "【visible_to：guards\nx", "〖visible_to：guards】 x\ny"]
    {
        let error = Store::from_lore_text(wrong).unwrap_err();
        assert!(matches!(error, LoreError::Header { line: 1 }), "{wrong}: {error}");
    }
    // A name is not changed.
    assert_eq!(entries("【tags：Ａ】\nx"), [Entry::new("x").tags(["Ａ"])]);
    let text = "\\【注意】\n\\＃1\n＃ A comment.";
    assert_eq!(entries(text), [Entry::new("【注意】 ＃1")]);
}

#[test]
fn lore_is_never_evicted() {
    let limits = StoreLimits { max_entries: 2, ..StoreLimits::lore() };
    let full = Store::unindexed_lore_text("a\n\nb\n\n\nc", limits).unwrap_err();
    assert!(matches!(full, LoreError::Full { line: 6, max_entries: 2, .. }), "{full}");
    let limits = StoreLimits { max_bytes: 3, ..StoreLimits::lore() };
    let full = Store::unindexed_lore_json(r#"[{"text": "ab"}, {"text": "cd"}]"#, limits);
    assert!(matches!(full, Err(LoreError::Full { line: 2, .. })));
}

#[test]
fn json() {
    let text = r#"[
        {"text": "Emberfall has forty houses."},
        {"text": "The wheel broke.", "tags": ["mill"], "visible_to": ["millers"],
         "importance": 0.8, "time_seconds": 60}
    ]"#;
    let store = Store::from_lore_json(text).unwrap();
    let found: Vec<_> = store.iter().map(|(_, entry)| entry.clone()).collect();
    let wheel = Entry::new("The wheel broke.").tags(["mill"]).visible_to(["millers"]);
    let expected = [
        Entry::new("Emberfall has forty houses."),
        wheel.importance(0.8).at(Duration::from_secs(60)),
    ];
    assert_eq!(found, expected);
    let marked = Store::from_lore_json(&format!("\u{feff}{text}")).unwrap();
    assert!(marked.iter().eq(store.iter()), "a byte order mark is no text");
    for (text, message) in [
        ("[{\"text\": \"a\"},\n{\"txt\": 1}]", "line 2 column"),
        ("{}", "lore as JSON"),
        (r#"[{"text": "a"}, {"text": " "}]"#, "line 2: an entry needs a text"),
        (r#"[{"text": "a", "importance": 7}]"#, "line 1: importance 7"),
        (&"[".repeat(100_000), "lore as JSON"),
    ] {
        let error = Store::from_lore_json(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

proptest! {
    #[test]
    fn hostile_text_is_an_error_or_a_store(
        text in any::<String>(),
        lines in prop::collection::vec(
            "(\\[[a-z:; ,.\\]\\[0-9]{0,12}\\]?|#|\\\\|tags: |visible_to:|importance: |\\PC{0,6}|\r)",
            0..12,
        ),
    ) {
        for text in [text, lines.join("\n"), lines.concat()] {
            if let Ok(store) = Store::from_lore_text(&text) {
                prop_assert!(store.bytes() <= text.len() as u64 + 1);
                prop_assert!(store.iter().all(|(_, entry)| !entry.text.trim().is_empty()));
            }
            let _error_or_store = Store::from_lore_json(&text);
        }
    }

    #[test]
    fn plain_paragraphs_are_read_as_they_are(texts in prop::collection::vec("[a-z][a-z .]{0,20}[a-z]", 0..10)) {
        let read = entries(&texts.join("\n\n"));
        prop_assert!(read.iter().map(|entry| &*entry.text).eq(texts.iter().map(String::as_str)));
    }
}
