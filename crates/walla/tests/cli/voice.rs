//! `walla speak` and `walla transcribe`, with tiny networks; with real ones on request.

use std::f32::consts::TAU;
use std::io::{BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;

use hound::{SampleFormat, WavReader, WavSpec, WavWriter};
use serde_json::Value;

use crate::command::{folder, json_line, run, run_with_input, scratch, succeed, walla};
use crate::refusals::refused;

#[path = "../../../walla_voice/tests/voice/tiny.rs"]
mod tiny;
#[path = "../../../walla_voice/tests/voice/tiny_whisper.rs"]
mod whisper;

const TEXT: &str = "The gate closes at dusk. Who goes there?";

/// A voice of noise, with 16,000 samples a second.
fn voice() -> &'static str {
    static VOICE: OnceLock<String> = OnceLock::new();
    VOICE.get_or_init(|| tiny::voice(folder()).to_str().unwrap().to_owned())
}

/// A recogniser that understands "Who goes there?".
fn model() -> &'static str {
    static MODEL: OnceLock<String> = OnceLock::new();
    MODEL.get_or_init(|| whisper::whisper(folder()).to_str().unwrap().to_owned())
}

/// Writes a WAV file and returns its path.
fn wav(name: &str, spec: WavSpec, samples: impl Iterator<Item = f32>) -> String {
    let path = scratch(name);
    let mut writer = WavWriter::create(&path, spec).unwrap();
    for sample in samples {
        for _ in 0..spec.channels {
            match spec.sample_format {
                SampleFormat::Float => writer.write_sample(sample).unwrap(),
                SampleFormat::Int => writer.write_sample((sample * 32_767.0) as i16).unwrap(),
            }
        }
    }
    writer.finalize().unwrap();
    path
}

const MONO: WavSpec = WavSpec {
    channels: 1,
    sample_rate: 16_000,
    bits_per_sample: 16,
    sample_format: SampleFormat::Int,
};

/// A hum with the formants and the syllables of a voice, from 0.5 s to 2.1 s of each 3 s.
fn hum(rate: u32, seconds: u32) -> impl Iterator<Item = f32> {
    let formant =
        |hertz: f32, [center, width]: [f32; 2]| 1.0 / (1.0 + ((hertz - center) / width).powi(2));
    (0..rate * seconds).map(move |index| {
        let time = index as f32 / rate as f32;
        if !(0.5..2.1).contains(&(time % 3.0)) {
            return 0.0;
        }
        let phase = TAU * 140.0 * time + 9.0 * (TAU * 2.0 * time).sin();
        let partial = |number: u8| {
            let hertz = 140.0 * f32::from(number);
            let level = formant(hertz, [600.0, 200.0])
                + 0.5 * formant(hertz, [1_200.0, 300.0])
                + 0.2 * formant(hertz, [2_500.0, 400.0]);
            level * (f32::from(number) * phase).sin()
        };
        let syllables = 0.5 - 0.5 * (TAU * 4.0 * time).cos();
        0.12 * syllables * (1..25).map(partial).sum::<f32>()
    })
}

/// Samples of a WAV file of `walla speak`.
fn samples(path: &str) -> Vec<i16> {
    let mut reader = WavReader::open(path).unwrap();
    assert_eq!(reader.spec(), MONO);
    reader.samples().collect::<Result<_, _>>().unwrap()
}

fn speak(text: &str, name: &str, more: &[&str]) -> Vec<i16> {
    let out = scratch(name);
    let arguments = [&["speak", text, "--voice", voice(), "-o", &out], more].concat();
    let ran = run(&arguments);
    assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{}", ran.err);
    assert!(ran.err.contains("s of sound"), "{}", ran.err);
    samples(&out)
}

#[test]
fn a_text_becomes_a_file_with_its_times() {
    let times = scratch("times.json");
    let samples = speak(TEXT, "spoken.wav", &["--visemes", &times]);
    assert!(samples.iter().any(|sample| *sample != 0));
    let times = json_line(&std::fs::read_to_string(times).unwrap());
    assert_eq!((&times["sample_rate"], &times["samples"]), (&16_000.into(), &samples.len().into()));
    let list = |name: &str| times[name].as_array().unwrap().clone();
    let spans = |name: &str| -> Vec<[f64; 2]> {
        let span = |of: &Value| ["start", "end"].map(|key| of[key].as_f64().unwrap());
        list(name).iter().map(span).collect()
    };
    let length = samples.len() as f64 / 16_000.0;
    for name in ["visemes", "phonemes"] {
        let spans = spans(name);
        assert!(spans[0][0] == 0.0 && (spans[spans.len() - 1][1] - length).abs() < 1e-5);
        assert!(spans.windows(2).all(|pair| pair[0][1] == pair[1][0]), "{name} have no gap");
    }
    let words: Vec<_> = list("words").iter().map(|word| word["text"].clone()).collect();
    assert_eq!(words, ["The", "gate", "closes", "at", "dusk", "Who", "goes", "there"]);
    assert!(spans("words").is_sorted_by(|a, b| a[1] <= b[0]));
    assert!(list("visemes").iter().any(|viseme| viseme["viseme"] == "kk"));
    assert!(list("phonemes").iter().any(|phoneme| phoneme["phoneme"] == "ʊ"));
}

#[test]
fn options_change_the_sound_and_nothing_else_does() {
    let usual = speak(TEXT, "usual.wav", &[]);
    assert!(usual == speak(TEXT, "again.wav", &["--seed", "0", "--speed", "1"]));
    assert!(usual != speak(TEXT, "seed.wav", &["--seed", "1"]));
    assert!(speak(TEXT, "fast.wav", &["--speed", "2"]).len() < usual.len() * 3 / 4);
    let out = scratch("input.wav");
    let arguments = ["speak", "-", "--voice", voice(), "--out", &out];
    let ran = run_with_input(&arguments, format!("\u{feff}{TEXT}\n"));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(usual == samples(&out));
}

/// Sound goes from program to program by pipes, in WAV files of unknown length.
#[test]
fn sound_is_a_stream() {
    let usual = speak(TEXT, "streamed.wav", &[]);
    let speak = ["speak", TEXT, "--voice", voice()];
    let ran = walla(&[&speak[..], &["-o", "-"]].concat()).output().unwrap();
    assert!(ran.status.success());
    let (header, sound) = ran.stdout.split_at(44);
    let (sound, _) = sound.as_chunks::<2>();
    let sound: Vec<i16> = sound.iter().map(|bytes| i16::from_le_bytes(*bytes)).collect();
    assert!(usual == sound);
    let bytes = |rate: u32| hum(rate, 6).flat_map(|it| ((it * 32_767.0) as i16).to_le_bytes());
    let stream: Vec<u8> = header.iter().copied().chain(bytes(16_000)).collect();
    let ran = run_with_input(&["transcribe", "-", "--model", model()], stream);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let file = wav("stream.wav", MONO, hum(16_000, 6));
    assert_eq!(ran.out, succeed(&["transcribe", &file, "--model", model()]));
    let (out, times) = (scratch("with-times.wav"), scratch("with-times.json"));
    succeed(&[&speak[..], &["-o", &out, "--visemes", &times]].concat());
    let written = succeed(&[&speak[..], &["-o", &out, "--visemes", "-"]].concat());
    assert_eq!(written, std::fs::read_to_string(times).unwrap());
    refused(&[&speak[..], &["-o", "-", "--visemes", "-"]].concat(), &["same file"]);
}

/// A FIFO has no place for a header that is completed at the end.
#[test]
#[cfg(unix)]
fn a_fifo_receives_a_stream() {
    let fifo = scratch("voice.fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let arguments = ["speak", TEXT, "--voice", voice(), "-o", &fifo];
    let speaks = walla(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let sound = std::fs::read(&fifo).unwrap();
    let ran = speaks.wait_with_output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(sound.len(), 44 + 2 * speak(TEXT, "not-a-fifo.wav", &[]).len());
}

#[test]
fn what_cannot_be_spoken_is_refused() {
    let out = scratch("refused.wav");
    let speak = |text, more: &[&str], words: &[&str]| {
        refused(&[&["speak", text, "--voice", voice(), "-o", &out], more].concat(), words);
        assert!(!Path::new(&out).exists());
    };
    speak("...", &[], &["no word"]);
    speak(TEXT, &["--speed", "5"], &["speed is 5", "0.25 to 4"]);
    speak(TEXT, &["--speed", "nan"], &["speed is NaN"]);
    speak(TEXT, &["--speaker", "1"], &["speaker is 1"]);
    speak(TEXT, &["--visemes", &out], &["same file"]);
    speak(TEXT, &["--visemes", voice()], &["overwrite", voice()]);
    speak(TEXT, &["--visemes", "/no/such/folder/f"], &["/no/such/folder/f"]);
    refused(&["speak", TEXT, "--voice", "/no/such/voice", "-o", &out], &["/no/such/voice: "]);
    let no_folder = scratch("no-folder/out.wav");
    refused(&["speak", TEXT, "--voice", voice(), "-o", &no_folder], &["out.wav: No such file"]);
    refused(&["speak", TEXT, "--voice", voice(), "-o", voice()], &["overwrite", voice()]);
    refused(&["speak", TEXT, "--voice", voice()], &["--out"]);
    refused(&["speak", TEXT, "--model", voice(), "-o", &out], &["calls it --voice"]);
    refused(&["speak", "--text", TEXT], &["walla speak TEXT"]);
    let arguments = ["speak", "-", "--voice", voice(), "-o", &out];
    for (input, words) in [(vec![b'a'; (1 << 20) + 1], "longer than"), (vec![255], "not UTF-8")] {
        let ran = run_with_input(&arguments, input);
        assert_eq!(ran.code, Some(1));
        assert!(ran.err.contains("standard input") && ran.err.contains(words), "{}", ran.err);
    }
}

#[test]
fn utterances_are_lines_with_their_times() {
    let file = wav("hum.wav", MONO, hum(16_000, 12));
    let out = succeed(&["transcribe", &file, "--model", model()]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    for (line, begin) in lines.iter().zip(["[0:00.", "[0:03.", "[0:06.", "[0:09."]) {
        assert!(line.starts_with(begin) && line.ends_with("] Who goes there?"), "{line}");
    }
    let out = succeed(&["transcribe", &file, "--model", model(), "--json", "--language", "de"]);
    let lines: Vec<Value> = out.lines().map(json_line).collect();
    assert_eq!(lines.len(), 4, "{out}");
    for (line, begin) in lines.iter().zip([0.0, 3.0, 6.0, 9.0]) {
        assert_eq!((&line["text"], &line["language"]), (&"Who goes there?".into(), &"de".into()));
        let [start, end] = ["start", "end"].map(|key| line[key].as_f64().unwrap() - begin);
        // 300 ms before the speech and 500 ms behind it belong to it.
        assert!((0.1..0.6).contains(&start) && (2.0..3.0).contains(&end), "{line}");
        assert!(line["log_probability"].as_f64().unwrap() > -0.1);
    }
}

#[test]
fn files_of_any_rate_and_number_of_channels_are_heard() {
    let spec = |channels, sample_rate, is_float| WavSpec {
        channels,
        sample_rate,
        bits_per_sample: if is_float { 32 } else { 16 },
        sample_format: if is_float { SampleFormat::Float } else { SampleFormat::Int },
    };
    for (channels, rate, is_float) in
        [(2, 48_000, false), (1, 22_050, true), (6, 44_100, false), (1, 8_000, false)]
    {
        let spec = spec(channels, rate, is_float);
        let file = wav(&format!("hum-{rate}.wav"), spec, hum(rate, 6));
        let out = succeed(&["transcribe", &file, "--model", model()]);
        assert_eq!(out.lines().count(), 2, "{spec:?}: {out}");
    }
    let silence = wav("silence.wav", MONO, (0..100_000).map(|_| 0.0));
    let ran = run(&["transcribe", &silence, "--model", model()]);
    assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{}", ran.err);
    assert!(ran.err.contains("0 utterances"), "{}", ran.err);
}

#[test]
fn what_cannot_be_transcribed_is_refused() {
    let refuse = |file: &str, words: &[&str]| {
        let arguments = ["transcribe", file, "--model", model()];
        assert_eq!(run(&arguments).code, Some(1));
        refused(&arguments, words);
    };
    refuse("/no/such/file.wav", &["/no/such/file.wav"]);
    refuse(folder().to_str().unwrap(), &[folder().to_str().unwrap()]);
    let whole = std::fs::read(wav("whole.wav", MONO, hum(16_000, 1))).unwrap();
    let file = scratch("damaged.wav");
    let write = |bytes: &[u8]| std::fs::write(&file, bytes).unwrap();
    for (bytes, words) in [
        (&b""[..], "ends in its header"),
        (b"OggS and more", "no RIFF"),
        (&whole[..43], "ends in its header"),
        (&whole[..1_044], "ends after 500 of its 16000 samples"),
    ] {
        write(bytes);
        refuse(&file, &[&file, words]);
    }
    refuse(&wav("empty.wav", MONO, std::iter::empty()), &["no sound"]);
    let file = wav("hum-1.wav", MONO, hum(16_000, 1));
    refused(&["transcribe", &file], &["--model"]);
    refused(&["transcribe", &file, "--model", "/no/such/model"], &["/no/such/model"]);
    let language = ["transcribe", &file, "--model", model(), "--language", "fr"];
    refused(&language, &["--language fr", "en, de"]);
}

/// The ear keeps few utterances, and the command sends no more.
#[test]
#[ignore = "half a minute"]
fn nothing_of_a_long_file_is_lost() {
    let period: Vec<f32> = hum(16_000, 6).collect();
    let file = wav("hour.wav", MONO, period.iter().copied().cycle().take(3_600 * 16_000));
    let out = succeed(&["transcribe", &file, "--model", model()]);
    assert_eq!(out.lines().count(), 1_200);
    assert!(out.lines().last().unwrap().starts_with("[59:57."), "{out}");
}

/// A file of the parts that `cargo xtask voice` fetches.
fn part(name: &str) -> String {
    format!("{}/../../target/voice/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
#[ignore = "needs the voice and Whisper of `cargo xtask voice`"]
fn a_real_voice_is_understood() {
    let out = scratch("real.wav");
    let voice = part("en_US-joe-medium.onnx");
    succeed(&["speak", "The gate closes at dusk.", "--voice", &voice, "-o", &out]);
    for model in ["tiny.en", "base"] {
        let text = succeed(&["transcribe", &out, "--model", &part(model)]);
        assert!(text.trim_end().ends_with("] The gate closes at dusk."), "{model}: {text}");
    }
}

#[test]
#[ignore = "needs the recording and Whisper of `cargo xtask voice`"]
fn a_recording_is_understood() {
    let out = succeed(&["transcribe", &part("two_cities.wav"), "--model", &part("tiny.en")]);
    for words in ["It was the best of times, it was the worst of times", "degree of comparison"] {
        assert!(out.contains(words), "{out}");
    }
}

/// The recogniser always understands the same, and the demo model answers it.
#[test]
fn a_conversation_by_voice_has_a_track_of_its_length() {
    let input = wav("talk.wav", MONO, hum(16_000, 3));
    let out = scratch("answers.wav");
    let persona = "You are Greta, the smith of Emberfall.";
    let talk = ["talk", &input, "--voice", voice(), "--hear", model(), "--persona", persona];
    let ran = run(&[&talk[..], &["-n", "12", "--times", "-o", &out]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let mut lines = ran.out.lines();
    assert_eq!(lines.next(), Some("> Who goes there?"), "{}", ran.out);
    assert!(lines.next().is_some_and(|line| !line.is_empty()), "{}", ran.out);
    assert!(ran.err.contains("first sound"), "{}", ran.err);
    let track = samples(&out);
    let seconds = track.len() as f32 / 16_000.0;
    assert!(seconds > 2.5, "{seconds} s");
    let first = track.iter().position(|sample| *sample != 0);
    assert!(
        first.is_some_and(|first| first > 2 * 16_000),
        "the answer follows the words: {first:?}"
    );
}

/// Samples in, samples out, for the programs of the system; texts are on standard error.
#[test]
fn a_conversation_by_voice_is_a_filter() {
    let bytes: Vec<u8> =
        hum(16_000, 3).flat_map(|sample| ((sample * 32_767.0) as i16).to_le_bytes()).collect();
    let talk = ["talk", "-", "--voice", voice(), "--hear", model(), "-n", "8", "-o", "-"];
    let mut command = walla(&talk);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let texts = String::from_utf8_lossy(&ran.stderr);
    assert!(texts.contains("> Who goes there?"), "{texts}");
    assert!(ran.stdout.len().is_multiple_of(2) && ran.stdout.iter().any(|byte| *byte != 0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_conversation_ends_when_its_output_fails() {
    // A minute of the player: it would go on.
    let input = wav("long.wav", MONO, hum(16_000, 60));
    let talk = ["talk", &input, "--voice", voice(), "--hear", model(), "-n", "8"];
    let begin = std::time::Instant::now();
    refused(&[&talk[..], &["-o", "/dev/full"]].concat(), &["No space left"]);
    let mut command = walla(&[&talk[..], &["-o", "-"]].concat());
    let mut talks = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(talks.stdout.take());
    assert!(!talks.wait().unwrap().success());
    assert!(begin.elapsed().as_secs() < 55, "{:?}", begin.elapsed());
}

/// Ctrl-C, and a closed output of the texts, end a conversation and lose no sound.
#[test]
#[cfg(unix)]
fn a_conversation_that_is_ended_has_its_sound() {
    let input = wav("minute.wav", MONO, hum(16_000, 60));
    for is_signal in [true, false] {
        let out = scratch(&format!("ended-{is_signal}.wav"));
        let talk = ["talk", &input, "--voice", voice(), "--hear", model(), "-n", "8", "-o", &out];
        let mut talks = walla(&talk).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut texts = BufReader::new(talks.stdout.take().unwrap());
        let mut line = String::new();
        texts.read_line(&mut line).unwrap();
        assert_eq!(line, "> Who goes there?\n");
        if is_signal {
            crate::signals::interrupt(&talks);
        } else {
            drop(texts);
        }
        let ran = talks.wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let seconds = samples(&out).len() / 16_000;
        assert!((2..50).contains(&seconds), "{seconds} s");
    }
}

#[test]
fn a_conversation_by_voice_refuses_wrong_files() {
    let (input, out) = (wav("talk2.wav", MONO, hum(16_000, 1)), scratch("refused2.wav"));
    let talk = |input: &str, voice: &str, model: &str, words: &[&str]| {
        refused(&["talk", input, "--voice", voice, "--hear", model, "-o", &out], words);
        assert!(!Path::new(&out).exists());
    };
    talk("no.wav", voice(), model(), &["no.wav"]);
    talk(&input, "no.onnx", model(), &["no.onnx"]);
    talk(&input, voice(), "no-model", &["no-model"]);
    talk(&out, voice(), model(), &["refused2.wav"]);
    let refused_option = |more: &[&str], words: &[&str]| {
        let talk = ["talk", &input, "--voice", voice(), "--hear", model(), "-o", &out];
        refused(&[&talk[..], more].concat(), words);
    };
    refused_option(&["--language", "fr"], &["--language fr", "en, de"]);
    refused_option(&["--rate", "8000"], &["--rate", "standard input"]);
    refused_option(&["--speed", "9"], &["speed is 9"]);
    refused_option(&["--style", "no.bin"], &["no.bin"]);
}
