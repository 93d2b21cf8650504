//! Saved conversations that a mod or a damaged disk wrote: errors within limits, and an app that
//! continues.

// Shared with the fuzz targets, which are a separate workspace.
#[path = "../../../../fuzz/src/bodies/conversation.rs"]
mod conversation;

use crate::common::*;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::prelude::*;
use serde::de::value::{Error as ValueError, MapDeserializer, SeqDeserializer};
use serde::{Deserialize, de::IntoDeserializer};

/// A save of `turns` turns of `bytes` bytes each.
fn save(turns: usize, bytes: usize) -> String {
    let text = "x".repeat(bytes);
    let turn = format!(r#"{{"speaker":"user","text":"{text}"}}"#);
    format!("[{}]", vec![turn; turns].join(","))
}

fn load(save: &str) -> Result<Conversation, String> {
    serde_json::from_str(save).map_err(|error| error.to_string())
}

#[test]
fn saves_beyond_a_limit_are_errors_that_name_the_limit() {
    let max_turns = Conversation::MAX_TURNS;
    assert_eq!(load(&save(max_turns, 0)).unwrap().turns().len(), max_turns);
    let error = load(&save(max_turns + 1, 0)).unwrap_err();
    assert!(error.contains("more than 16384 turns"), "{error}");
    let (half, one) = (Conversation::MAX_TEXT_BYTES / 2, 1);
    assert_eq!(load(&save(2, half)).unwrap().turns().len(), 2);
    for too_long in [save(2, half + one), save(1, 2 * half + one)] {
        let error = load(&too_long).unwrap_err();
        assert!(error.contains("more than 4194304 bytes of text"), "{error}");
    }
}

#[test]
fn a_conversation_that_could_not_be_loaded_again_is_not_saved() {
    let long = Turn::new(Speaker::Agent, "x".repeat(Conversation::MAX_TEXT_BYTES));
    let mut talk = Conversation::new([long]);
    assert!(serde_json::to_string(&talk).is_ok());
    talk.push(Speaker::User, "y");
    let error = serde_json::to_string(&talk).unwrap_err().to_string();
    assert!(error.contains("bytes of text"), "{error}");
}

/// A compact format claims lengths; this one claims that every list is as long as memory.
#[test]
fn a_claimed_length_allocates_nothing() {
    struct Claim<I>(I);
    impl<I: Iterator> Iterator for Claim<I> {
        type Item = I::Item;
        fn next(&mut self) -> Option<I::Item> {
            self.0.next()
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (usize::MAX, Some(usize::MAX))
        }
    }
    struct SavedTurn;
    impl<'de> IntoDeserializer<'de, ValueError> for SavedTurn {
        type Deserializer =
            MapDeserializer<'de, std::array::IntoIter<(&'static str, &'static str), 2>, ValueError>;
        fn into_deserializer(self) -> Self::Deserializer {
            MapDeserializer::new([("speaker", "agent"), ("text", "hello")].into_iter())
        }
    }
    let turns = Claim(std::iter::repeat_with(|| SavedTurn).take(3));
    let turns = SeqDeserializer::<_, ValueError>::new(turns);
    let loaded = Conversation::deserialize(turns).unwrap();
    assert_eq!(loaded.turns().len(), 3);
    let endless =
        SeqDeserializer::<_, ValueError>::new(Claim(std::iter::repeat_with(|| SavedTurn)));
    let error = Conversation::deserialize(endless).unwrap_err().to_string();
    assert!(error.contains("16384 turns"), "{error}");
}

#[test]
fn damaged_saves_are_errors_and_later_fields_are_ignored() {
    for damaged in [
        "",
        "{}",
        "[{}]",
        r#"[{"speaker":"user"}]"#,
        r#"[{"text":"a"}]"#,
        r#"[{"speaker":"system","text":"a"}]"#,
        r#"[{"speaker":"user","speaker":"user","text":"a"}]"#,
        r#"[{"speaker":"user","text":"a","text":"b"}]"#,
        r#"[{"speaker":"user","text":1}]"#,
        r#"[{"speaker":"user","text":"\ud800"}]"#,
        r#"[["user"]]"#,
        r#"[{"speaker":"user","text":"a"}"#,
    ] {
        assert!(load(damaged).is_err(), "{damaged}");
    }
    // An ignored field is skipped without recursion.
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!(r#"[{{"speaker":"user","text":"a","x":{deep}}}]"#);
    assert!(load(&deep).is_ok_and(|talk| talk.turns().len() == 1));
    let talk = load(r#"[{"tag":[1,{}],"text":"a","speaker":"user"},["agent","b"]]"#).unwrap();
    let texts: Vec<&str> = talk.turns().iter().map(|turn| turn.text.as_str()).collect();
    assert_eq!(texts, ["a", "b"]);
}

/// Every prefix, every bit and 4,000 mutations of each seed, as the fuzz target checks them.
#[test]
fn every_prefix_and_every_flipped_bit_is_a_value_or_an_error() {
    let mut random = 0x5eed_u64;
    for seed in conversation::seeds() {
        for end in 0..seed.len() {
            conversation::check(&seed[..end]);
        }
        for bit in 0..8 * seed.len() {
            let mut flipped = seed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            conversation::check(&flipped);
        }
        for _ in 0..4_000 {
            let mut mutated = seed.clone();
            for _ in 0..4 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % mutated.len();
                mutated[at] = b"[]{}\",:\\u0x"[(random >> 20) as usize % 11];
            }
            conversation::check(&mutated);
        }
    }
}

/// The largest save is restored in play: the agent answers, and the oldest turns are dropped.
#[test]
fn an_agent_with_the_largest_save_answers() {
    let mut app = app(&echo());
    let odo = spawn(&mut app, "Odo");
    updates(&mut app, 3);
    let largest = load(&save(Conversation::MAX_TURNS, 200)).unwrap();
    app.world_mut().entity_mut(odo).insert(largest);
    ask(&mut app, odo, "x");
    updates(&mut app, 10);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"]);
    let turns = turns(&app, odo);
    assert_eq!(turns.len(), WallaSettings::default().max_conversation_turns as usize);
    assert_eq!(turns[turns.len() - 2..], ["x", "Odo: x"]);
}

/// A refused save leaves the conversation of the agent as it was.
#[test]
fn a_refused_save_changes_nothing() {
    let mut app = app(&echo());
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 8);
    let refused = load(&save(Conversation::MAX_TURNS + 1, 0));
    if let Ok(loaded) = refused {
        app.world_mut().entity_mut(odo).insert(loaded);
    }
    ask(&mut app, odo, "y");
    updates(&mut app, 8);
    assert_eq!(turns(&app, odo), ["x", "Odo: x", "y", "Odo: y"]);
}
