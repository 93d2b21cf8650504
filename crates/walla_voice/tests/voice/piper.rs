use std::path::Path;
use std::sync::Arc;

use walla_voice::{Piper, PiperOptions, SpeakOptions, SpeechSynthesizer, Viseme, VoiceError};

use crate::common::{part, speak};
use crate::tiny;

/// Loads the tiny voice.
fn tiny_voice() -> Arc<Piper> {
    let folder = tempfile::tempdir().unwrap();
    Piper::load(tiny::voice(folder.path()), PiperOptions::default()).unwrap()
}

const TEXTS: [&str; 3] = [
    "Yes.",
    "The guard at the gate asks for your name and your business in the city.",
    "Well, when the sun had gone down behind the mountains, and the last of the merchants had \
     left the market, we walked along the river, which was still high from the rain, until we \
     came to the mill, where the old woman was waiting for us with a lantern in her hand.",
];

/// A voice has the same samples in pieces of any size, with any number of threads, and for each use
/// of a seed.
fn check_bits(path: &Path) {
    let voice = Piper::load(path, PiperOptions::default()).unwrap();
    let two = Piper::load(path, PiperOptions { threads: 2, ..PiperOptions::default() }).unwrap();
    for text in TEXTS {
        let of = |seed, frames| SpeakOptions {
            seed,
            first_piece_frames: frames,
            piece_frames: frames,
            ..SpeakOptions::default()
        };
        let (whole, timing, _) = speak(&voice, text, &of(7, 65_536));
        assert_eq!(whole.len() as u64, timing.samples.end);
        for frames in [1, 16, 32, 64] {
            let (pieces, _, steps) = speak(&voice, text, &of(7, frames));
            assert!(pieces == whole, "{frames} frames");
            assert!(steps > 4 || frames > 1);
        }
        assert!(speak(&two, text, &of(7, 32)).0 == whole, "two threads");
        assert!(speak(&voice, text, &of(8, 32)).0 != whole, "another seed");
    }
}

#[test]
fn pieces_seeds_and_threads_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    check_bits(&tiny::voice(folder.path()));
}

#[test]
#[ignore = "needs the voice of `cargo xtask voice`"]
fn pieces_seeds_and_threads_of_a_real_voice_have_the_same_bits() {
    check_bits(&part("en_US-joe-medium.onnx"));
}

#[test]
fn times_follow_each_other() {
    let voice = tiny_voice();
    for text in TEXTS {
        let (samples, timing, _) = speak(&voice, text, &SpeakOptions::default());
        assert_eq!(timing.samples, 0..samples.len() as u64);
        let mut at = 0;
        for viseme in &timing.visemes {
            assert!(viseme.start == at && viseme.end > at, "{viseme:?} at {at}");
            at = viseme.end;
        }
        assert_eq!(at, samples.len() as u64, "visemes cover the sound");
        let mut at = 0;
        for phoneme in &timing.phonemes {
            assert!(phoneme.start == at && phoneme.end >= at, "{phoneme:?} at {at}");
            at = phoneme.end;
        }
        assert_eq!(at, samples.len() as u64);
        let words: Vec<&str> = timing.words.iter().map(|word| &text[word.value.clone()]).collect();
        let expected: Vec<&str> = text
            .split_whitespace()
            .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
            .collect();
        assert_eq!(words, expected);
        assert!(timing.words.is_sorted_by_key(|word| word.start));
        assert_eq!(timing.viseme_at(0), Viseme::Silence);
        assert_eq!(timing.heard_bytes(samples.len() as u64), text.trim_end_matches('.').len());
    }
}

#[test]
fn speed_and_variation_change_the_durations() {
    let voice = tiny_voice();
    let length = |options| speak(&voice, TEXTS[1], &options).0.len();
    let usual = length(SpeakOptions::default());
    let fast = length(SpeakOptions { speed: 2.0, ..SpeakOptions::default() });
    assert!(fast < usual * 3 / 4, "{fast} of {usual}");
    let wrong = SpeakOptions { speaker: 1, ..SpeakOptions::default() };
    let refused = Arc::clone(&voice).begin("Yes.", &wrong);
    assert!(matches!(refused, Err(VoiceError::Option { name: "speaker", .. })));
}

#[test]
fn any_text_can_be_spoken() {
    let voice = tiny_voice();
    for text in ["", " ", "...", "你好", "😀", "\0", "(", "«»"] {
        let (samples, timing, _) = speak(&voice, text, &SpeakOptions::default());
        assert!(samples.is_empty() && timing.words.is_empty(), "{text:?}");
    }
    // Of each block of Unicode, some characters.
    let blocks: String = (0..0x11_0000).step_by(127).filter_map(char::from_u32).collect();
    let (samples, ..) = speak(&voice, &blocks, &SpeakOptions::default());
    assert!(samples.iter().all(|sample| sample.is_finite()));
    // Without a space, a sentence is divided all the same.
    speak(&voice, &"ab".repeat(3000), &SpeakOptions::default());
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::voice(folder.path());
    let config = folder.path().join("tiny.onnx.json");
    let load = || Piper::load(&path, PiperOptions::default());
    let (network, settings) = (tiny::network(), tiny::settings());
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    let mut loaded = 0;
    for round in 0..200 {
        let mut bytes = if round % 2 == 0 { network.clone() } else { settings.clone().into_bytes() };
        for _ in 0..=next(4) {
            let at = next(bytes.len());
            match next(3) {
                0 => bytes[at] = next(256) as u8,
                1 => bytes.truncate(at),
                _ => _ = bytes.drain(at..(at + next(20)).min(bytes.len())),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let [of_network, of_settings] =
            if round % 2 == 0 { [&bytes[..], settings.as_bytes()] } else { [&network[..], &bytes[..]] };
        std::fs::write(&path, of_network).unwrap();
        std::fs::write(&config, of_settings).unwrap();
        let Ok(voice) = load() else { continue };
        loaded += 1;
        let mut utterance = voice.begin(TEXTS[0], &SpeakOptions::default()).unwrap();
        let mut samples = Vec::new();
        // It ends, with samples or an error.
        while !matches!(utterance.step(&mut samples), Ok(walla_voice::Step::Ended) | Err(_)) {}
        assert!(samples.iter().all(|sample| sample.is_finite()));
    }
    assert!(loaded > 0, "some damages are harmless");
    std::fs::remove_file(&config).unwrap();
    assert!(matches!(load(), Err(VoiceError::File { path, .. }) if path == config));
}
