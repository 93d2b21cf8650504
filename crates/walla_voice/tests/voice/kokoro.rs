//! Kokoro: a tiny network of its structure, and the real one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten_onnx::onnx::{ModelProto, OperatorSetIdProto, ValueInfoProto};
use walla_voice::{
    Dialect, English, HEARING_RATE, Kokoro, KokoroOptions, RecognizeOptions, Resampler,
    SpeakOptions, SpeechRecognizer, SpeechSynthesizer, Step, Timing, Viseme, VoiceError, Whisper,
    WhisperOptions,
};

use crate::common::{Damage, part, say_all, speak, speak_if_possible};
use crate::tiny::{Builder, weights};

const TEXTS: [&str; 3] = [
    "Yes.",
    "The guard at the gate asks for your name.",
    "Well, when the sun had gone down behind the mountains, and the last of the merchants had \
     left the market, we walked along the river.",
];

/// Numbers of the features of a symbol.
const CHANNELS: usize = 4;
const SYMBOLS: &str = "$;:,.!?—…\"() AIOQSTWYᵊabcdefhijklmnopqrstuvwxyzɑɐɒæɔəɛɜɡɪŋɹɾʃʊʌʒʤʧˈˌːθðᵻ";

/// Features of symbols and a style, durations that a speed divides, their expansion to frames by a
/// fused product, and 600 samples of each frame.
fn network() -> Vec<u8> {
    let mut net = Builder::default();
    let value = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..Default::default() };
    net.0.input = ["tokens", "style", "speed"].map(value).to_vec();
    // Features: [1, symbols, CHANNELS].
    let table = net.floats("table", &[128, CHANNELS], weights(128 * CHANNELS, 1.0));
    let text = net.node("Gather", &[table, "tokens"], &[("axis", &[0])]);
    let project = net.floats("project", &[256, CHANNELS], weights(256 * CHANNELS, 0.1));
    let style = net.node("MatMul", &["style", project], &[]);
    let text = net.node("Add", &[&text, &style], &[]);
    // Durations: 2 to 4 frames, at least one.
    let lengths =
        net.floats("lengths", &[128], weights(128, 1.0).iter().map(|w| 3.0 + w).collect());
    let lengths = net.node("Gather", &[lengths, "tokens"], &[("axis", &[0])]);
    let lengths = net.node("Div", &[&lengths, "speed"], &[]);
    let lengths = net.node("Round", &[&lengths], &[]);
    let least = net.floats("least", &[], vec![1.0]);
    let frames = net.node("Clip", &[&lengths, least], &[]);
    // Which frame belongs to which symbol: [1, symbols, frames].
    let (zero, one) = (net.ints("zero", &[], &[0]), net.ints("one", &[], &[1]));
    let axis = net.ints("axis", &[], &[1]);
    let last_axis = net.ints("last_axis", &[1], &[2]);
    let ends = net.node("CumSum", &[&frames, axis], &[]);
    let starts = net.node("Sub", &[&ends, &frames], &[]);
    let count = net.node("ReduceSum", &[&frames], &[("keepdims", &[0])]);
    let count = net.node("Cast", &[&count], &[("to", &[7])]);
    let places = net.node("Range", &[zero, &count, one], &[]);
    let places = net.node("Cast", &[&places], &[("to", &[1])]);
    let masks = [&ends, &starts].map(|bound| {
        let bound = net.node("Unsqueeze", &[bound, last_axis], &[]);
        let mask = net.node("Less", &[&places, &bound], &[]);
        net.node("Cast", &[&mask], &[("to", &[1])])
    });
    let path = net.node("Sub", &[&masks[0], &masks[1]], &[]);
    let attributes: &[(&str, &[i64])] = &[("transA", &[1]), ("transB", &[0])];
    let sound = net.node("FusedMatMul", &[&text, &path], attributes);
    // Twice 300 samples of each frame, and a mean over the whole.
    let scales = net.floats("scales", &[3], vec![1.0, 1.0, 2.0]);
    let sound = net.node("Resize", &[&sound, "", scales], &[]);
    let mean = net.node("ReduceMean", &[&sound, last_axis], &[("keepdims", &[1])]);
    let sound = net.node("Sub", &[&sound, &mean], &[]);
    let up = net.floats("up", &[CHANNELS, 1, 300], weights(CHANNELS * 300, 0.2));
    let attributes: &[(&str, &[i64])] = &[("kernel_shape*", &[300]), ("strides*", &[300])];
    let sound = net.node("ConvTranspose", &[&sound, up], attributes);
    let sound = net.node("Tanh", &[&sound], &[]);
    let shape = net.ints("shape", &[1], &[-1]);
    let audio = net.node("Reshape", &[&sound, shape], &[]);
    net.0.output = vec![value(&audio)];
    let model = ModelProto {
        ir_version: Some(9),
        graph: Some(net.0),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        ..ModelProto::default()
    };
    model.write_buf().unwrap()
}

fn vocabulary() -> String {
    let id = |(id, symbol): (usize, char)| (symbol.to_string(), id.into());
    let map: serde_json::Map<_, _> = SYMBOLS.chars().enumerate().map(id).collect();
    serde_json::json!({ "vocab": map }).to_string()
}

fn style() -> Vec<u8> {
    weights(510 * 256, 1.0).iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Writes the tiny voice to a folder.
fn write(folder: &Path) -> PathBuf {
    std::fs::write(folder.join("kokoro.onnx"), network()).unwrap();
    std::fs::write(folder.join("vocab.json"), vocabulary()).unwrap();
    std::fs::write(folder.join("af_tiny.bin"), style()).unwrap();
    folder.join("kokoro.onnx")
}

fn tiny_voice() -> Arc<Kokoro> {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path());
    Kokoro::load(path, KokoroOptions::new(folder.path().join("af_tiny.bin"))).unwrap()
}

fn real_voice(threads: u32) -> Arc<Kokoro> {
    let options = KokoroOptions::new(part("kokoro/jf_alpha.bin"));
    Kokoro::load(part("kokoro/kokoro.onnx"), KokoroOptions { threads, ..options }).unwrap()
}

/// A voice has the same samples each time, with any number of threads, seeds and sizes of pieces.
fn check_bits(one: &Arc<Kokoro>, two: &Arc<Kokoro>) {
    for text in TEXTS {
        let (samples, timing, _) = speak(one, text, &SpeakOptions::default());
        assert_eq!(timing.samples, 0..samples.len() as u64);
        let other = SpeakOptions { seed: 7, piece_frames: 1, ..SpeakOptions::default() };
        assert!(speak(one, text, &other).0 == samples, "again");
        assert!(speak(two, text, &other).0 == samples, "two threads");
    }
}

#[test]
fn runs_and_threads_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path());
    let options = KokoroOptions::new(folder.path().join("af_tiny.bin"));
    let two = Kokoro::load(path, KokoroOptions { threads: 2, ..options }).unwrap();
    check_bits(&tiny_voice(), &two);
}

#[test]
#[ignore = "needs the voices of `cargo xtask voice`; a minute, `--release`"]
fn runs_and_threads_of_a_real_voice_have_the_same_bits() {
    check_bits(&real_voice(1), &real_voice(2));
}

/// Times of phonemes and visemes cover the sound, and the words are the text's.
fn check_times(voice: &Arc<Kokoro>) {
    for text in TEXTS {
        let (samples, timing, _) = speak(voice, text, &SpeakOptions::default());
        let length = samples.len() as u64;
        assert_eq!(timing.samples, 0..length);
        assert_eq!(length % 600, 0);
        let of = |start, end, at: &mut u64| {
            assert!(start == *at && end >= start, "{start} at {at}");
            *at = end;
        };
        let (mut phonemes, mut visemes) = (0, 0);
        timing.phonemes.iter().for_each(|entry| of(entry.start, entry.end, &mut phonemes));
        timing.visemes.iter().for_each(|entry| of(entry.start, entry.end, &mut visemes));
        assert_eq!((phonemes, visemes), (length, length));
        let words: Vec<&str> = timing.words.iter().map(|word| &text[word.value.clone()]).collect();
        let is_mark = |c: char| !c.is_alphanumeric();
        let expected: Vec<&str> =
            text.split_whitespace().map(|word| word.trim_matches(is_mark)).collect();
        assert_eq!(words, expected);
        assert_eq!(timing.viseme_at(0), Viseme::Silence);
        assert_eq!(timing.heard_bytes(length), text.trim_end_matches('.').len());
    }
}

#[test]
fn times_follow_each_other() {
    check_times(&tiny_voice());
}

#[test]
#[ignore = "needs the voices of `cargo xtask voice`; a minute, `--release`"]
fn times_of_a_real_voice_follow_each_other() {
    check_times(&real_voice(1));
}

#[test]
fn a_diphthong_has_two_visemes() {
    let (_, timing, _) = speak(&tiny_voice(), "My gate.", &SpeakOptions::default());
    let visemes: Vec<Viseme> = timing.visemes.iter().map(|viseme| viseme.value).collect();
    let [closed, my, gate] = [
        vec![Viseme::Silence],
        vec![Viseme::Pp, Viseme::Aa, Viseme::I],
        vec![Viseme::Kk, Viseme::E, Viseme::I, Viseme::Dd],
    ];
    assert_eq!(visemes, [&closed[..], &my, &gate, &closed].concat());
}

#[test]
fn times_of_a_part_precede_its_samples() {
    let voice = tiny_voice();
    let mut utterance = voice.begin(TEXTS[2], &SpeakOptions::default()).unwrap();
    let (mut samples, mut timing, mut parts) = (Vec::new(), Timing::default(), 0);
    loop {
        match utterance.step(&mut samples).unwrap() {
            Step::Planned(part) => {
                assert_eq!(part.samples.start, samples.len() as u64);
                timing.append(part);
                parts += 1;
            }
            Step::Working => {}
            Step::Ended => break,
        }
        assert!(samples.len() as u64 <= timing.samples.end);
    }
    assert_eq!(parts, 3, "the text is divided at its commas");
}

#[test]
fn speed_changes_the_durations_and_there_is_one_speaker() {
    let voice = tiny_voice();
    let length =
        |speed| speak(&voice, TEXTS[1], &SpeakOptions { speed, ..Default::default() }).0.len();
    let [slow, usual, fast] = [0.25, 1.0, 2.0].map(length);
    assert!(fast < usual * 3 / 4 && slow > 3 * usual, "{slow}, {usual}, {fast}");
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
    let slow = SpeakOptions { speed: 0.25, ..SpeakOptions::default() };
    let (samples, ..) = speak(&voice, &blocks, &slow);
    assert!(samples.iter().all(|sample| sample.is_finite()));
    // Without a space, a sentence is divided all the same.
    let long = "ab".repeat(3000);
    speak(&voice, &long, &SpeakOptions::default());
    let numbers = "On May 3rd, 1999, I paid $5.50 for a “naïve” café — \"100%\"!";
    say_all(voice, &[TEXTS[0], TEXTS[2], &blocks, &long, numbers, "", "😀"]);
}

#[test]
fn damaged_files_are_errors() {
    let loaded = damage(&network(), &vocabulary(), &style(), 0, 500);
    assert!(loaded > 100, "{loaded} damages were harmless");
}

#[test]
#[ignore = "needs the voices of `cargo xtask voice`; minutes, `--release`"]
fn damaged_files_of_a_real_voice_are_errors() {
    let read = |name| std::fs::read(part("kokoro").join(name)).unwrap();
    let vocabulary = String::from_utf8(read("vocab.json")).unwrap();
    // The operators precede the weights, whose damages are of one kind.
    let loaded = damage(&read("kokoro.onnx"), &vocabulary, &read("jf_alpha.bin"), 400_000, 100);
    assert!(loaded > 10, "{loaded} damages were harmless");
}

/// Damages the first `limit` bytes (0: all) of a network, the vocabulary and the style, this often
/// each. Each is an error, or speaks. Returns the number of voices that speak.
fn damage(network: &[u8], vocabulary: &str, style: &[u8], limit: usize, rounds: usize) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["kokoro.onnx", "vocab.json", "af_tiny.bin"].map(|name| folder.path().join(name));
    let files = [network, vocabulary.as_bytes(), style];
    for (path, file) in paths.iter().zip(files) {
        std::fs::write(path, file).unwrap();
    }
    // Kept: its dictionaries would be loaded with each voice.
    let english = English::new(Dialect::American).unwrap().with_misaki_symbols();
    let english = Arc::new(english);
    let options =
        || KokoroOptions { phonemizer: Some(english.clone()), ..KokoroOptions::new(&paths[2]) };
    let mut damage = Damage::new();
    let mut loaded = 0;
    for round in 0..files.len() * rounds {
        let (file, path) = (files[round % 3], &paths[round % 3]);
        let bytes = damage.of(file, if round % 3 == 0 { limit } else { 0 });
        std::fs::write(path, bytes).unwrap();
        if let Ok(voice) = Kokoro::load(&paths[0], options()) {
            loaded += 1;
            speak_if_possible(voice, TEXTS[0]);
        }
        std::fs::write(path, file).unwrap();
    }
    for path in &paths {
        std::fs::remove_file(path).unwrap();
        let missing = Kokoro::load(&paths[0], options());
        let is_named = |missing: &Path| missing == path;
        assert!(matches!(missing, Err(VoiceError::File { path, .. }) if is_named(&path)));
        std::fs::write(path, files[paths.iter().position(|p| p == path).unwrap()]).unwrap();
    }
    loaded
}

#[test]
#[ignore = "needs the voices and Whisper of `cargo xtask voice`; a minute, `--release`"]
fn sentences_are_understood() {
    let voice = real_voice(1);
    let whisper = Whisper::load(part("tiny.en"), WhisperOptions::default()).unwrap();
    let (mut words, mut wrong) = (0, 0);
    for sentence in include_str!("sentences.txt").lines().take(6) {
        let (samples, ..) = speak(&voice, sentence, &SpeakOptions::default());
        let mut heard = Vec::new();
        Resampler::new(voice.sample_rate(), HEARING_RATE).push(&samples, &mut heard);
        let options = RecognizeOptions::default();
        let mut recognition = Arc::clone(&whisper).begin(&heard, &options).unwrap();
        let transcript = loop {
            if let Some(transcript) = recognition.step().unwrap() {
                break transcript;
            }
        };
        let expected = crate::round_trip::words_of(sentence);
        words += expected.len();
        wrong +=
            crate::round_trip::errors(&expected, &crate::round_trip::words_of(&transcript.text));
        println!("{sentence}\n    {}", transcript.text);
    }
    println!("{words} words; {wrong} errors");
    assert!(20 * wrong <= words, "{wrong} of {words}");
}
