use std::path::Path;
use std::sync::Arc;

use walla_voice::{
    Dialect, English, Piper, PiperOptions, SpeakOptions, SpeechSynthesizer, Viseme, VoiceError,
};

use crate::common::{Damage, part, say_all, speak, speak_if_possible};
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
    let long = "ab".repeat(3000);
    speak(&voice, &long, &SpeakOptions::default());
    let numbers = "On May 3rd, 1999, I paid $5.50 for a “naïve” café — \"100%\"!";
    say_all(voice, &[TEXTS[0], TEXTS[2], &blocks, &long, numbers, "", "😀"]);
}

#[test]
fn settings_of_another_voice_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::voice(folder.path());
    for (from, to, reason) in [
        ("[3]", "[128]", "128 symbols, and phoneme_id_map has 128"),
        ("{\"audio\"", "{\"num_speakers\": 2, \"audio\"", "1 speakers, and num_speakers is 2"),
    ] {
        let settings = tiny::settings();
        assert!(settings.contains(from));
        let settings = settings.replace(from, to);
        std::fs::write(path.with_added_extension("json"), settings).unwrap();
        let error = Piper::load(&path, PiperOptions::default()).unwrap_err();
        assert!(matches!(&error, VoiceError::Model { .. }));
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn damaged_files_are_errors() {
    let loaded = damage(&tiny::network(), &tiny::settings(), 0, 2000);
    assert!(loaded > 100, "{loaded} damages were harmless");
}

#[test]
#[ignore = "needs the voice of `cargo xtask voice`; minutes"]
fn damaged_files_of_a_real_voice_are_errors() {
    let path = part("en_US-joe-medium.onnx");
    let network = std::fs::read(&path).unwrap();
    let settings = std::fs::read_to_string(path.with_added_extension("json")).unwrap();
    // The operators precede the weights, whose damages are of one kind.
    let loaded = damage(&network, &settings, 400_000, 300);
    assert!(loaded > 10, "{loaded} damages were harmless");
}

/// Damages the first `limit` bytes (0: all) of a network, and the settings, this often each. Each
/// is an error, or speaks. Returns the number of voices that speak.
fn damage(network: &[u8], settings: &str, limit: usize, rounds: usize) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("voice.onnx");
    let config = folder.path().join("voice.onnx.json");
    // Kept: its dictionaries would be loaded with each voice.
    let english = English::shared(Dialect::American).unwrap();
    let options = || PiperOptions { phonemizer: Some(english.clone()), ..PiperOptions::default() };
    let mut damage = Damage::new();
    let mut loaded = 0;
    for round in 0..2 * rounds {
        let is_network = round % 2 == 0;
        let (file, limit) = if is_network { (network, limit) } else { (settings.as_bytes(), 0) };
        let bytes = damage.of(file, limit);
        let settings = if is_network { settings.as_bytes() } else { &bytes };
        std::fs::write(&path, if is_network { &bytes } else { network }).unwrap();
        std::fs::write(&config, settings).unwrap();
        let Ok(voice) = Piper::load(&path, options()) else { continue };
        loaded += 1;
        speak_if_possible(voice, TEXTS[0]);
    }
    std::fs::remove_file(&config).unwrap();
    let missing = Piper::load(&path, options());
    assert!(matches!(missing, Err(VoiceError::File { path, .. }) if path == config));
    loaded
}

/// The times fit the sound: of all test sentences, pauses are silent, vowels are loud, and stops
/// are between them.
#[test]
#[ignore = "needs the voice of `cargo xtask voice`; half a minute"]
fn times_of_a_real_voice_fit_the_sound() {
    let voice = Piper::load(part("en_US-joe-medium.onnx"), PiperOptions::default()).unwrap();
    let mut levels: [Vec<f32>; 3] = Default::default();
    for sentence in include_str!("sentences.txt").lines() {
        let (samples, timing, _) = speak(&voice, sentence, &SpeakOptions::default());
        let level = |start: u64, end: u64| {
            let span = &samples[start as usize..end as usize];
            let power = span.iter().map(|sample| sample * sample).sum::<f32>() / span.len() as f32;
            10.0 * power.max(1e-10).log10()
        };
        let mut of_sentence: [Vec<f32>; 3] = Default::default();
        for phoneme in timing.phonemes.iter().filter(|its| its.end > its.start) {
            let kind = match phoneme.value {
                '.' | ',' | '?' | '!' | ';' => 0,
                'p' | 't' | 'k' | 'b' | 'd' | 'ɡ' => 1,
                'a' | 'ɑ' | 'æ' | 'ɛ' | 'e' | 'ɪ' | 'i' | 'ɔ' | 'o' | 'ʌ' | 'ʊ' | 'u' | 'ɚ' => {
                    2
                }
                _ => continue,
            };
            of_sentence[kind].push(level(phoneme.start, phoneme.end));
        }
        let [pause, _, vowel] = of_sentence.each_mut().map(|levels| median(levels));
        assert!(pause < vowel - 20.0, "{sentence}: pauses {pause} dB, vowels {vowel} dB");
        for (all, more) in levels.iter_mut().zip(of_sentence) {
            all.extend(more);
        }
    }
    let [pause, stop, vowel] = levels.each_mut().map(|levels| median(levels));
    println!("median level: pauses {pause:.1} dB, stops {stop:.1} dB, vowels {vowel:.1} dB");
    assert!(pause < stop - 20.0 && stop < vowel - 6.0, "{pause} {stop} {vowel}");
}

fn median(levels: &mut [f32]) -> f32 {
    levels.sort_by(f32::total_cmp);
    levels.get(levels.len() / 2).copied().unwrap_or(-100.0)
}
