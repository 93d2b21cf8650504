//! Text to speech to text.

use std::sync::Arc;

use walla_voice::{
    HEARING_RATE, Piper, PiperOptions, RecognizeOptions, Resampler, SpeakOptions, SpeechRecognizer,
    SpeechSynthesizer, Transcript, Whisper, WhisperOptions,
};

use crate::common::{part, speak};

const SENTENCES: &str = include_str!("sentences.txt");

#[test]
#[ignore = "needs the voice and Whisper of `cargo xtask voice`; a minute"]
fn sentences_are_understood() {
    let voice = Piper::load(part("en_US-joe-medium.onnx"), PiperOptions::default()).unwrap();
    let whisper = Whisper::load(part("tiny.en"), WhisperOptions::default()).unwrap();
    let (mut words, mut clean, mut noisy) = (0, 0, 0);
    for (seed, sentence) in (1..).zip(SENTENCES.lines()) {
        let (samples, ..) = speak(&voice, sentence, &SpeakOptions::default());
        let mut heard = Vec::new();
        Resampler::new(voice.sample_rate(), HEARING_RATE).push(&samples, &mut heard);
        let transcript = recognize(&whisper, &heard);
        add_pink_noise(&mut heard, 10.0, seed);
        let in_noise = recognize(&whisper, &heard);
        let expected = words_of(sentence);
        words += expected.len();
        clean += errors(&expected, &words_of(&transcript.text));
        noisy += errors(&expected, &words_of(&in_noise.text));
        println!("{sentence}\n    {}\n    {}", transcript.text, in_noise.text);
    }
    let rate = |errors: usize| errors as f64 / words as f64;
    println!("{words} words; {clean} errors ({:.3}), in noise {noisy}", rate(clean));
    assert!(rate(clean) <= 0.06 && rate(noisy) <= 0.08, "{clean} and {noisy} of {words}");
}

fn recognize(whisper: &Arc<Whisper>, samples: &[f32]) -> Transcript {
    let options = RecognizeOptions::default();
    let mut recognition = Arc::clone(whisper).begin(samples, &options).unwrap();
    loop {
        if let Some(transcript) = recognition.step().unwrap() {
            return transcript;
        }
    }
}

/// Adds pink noise, `decibels` below the sound.
fn add_pink_noise(samples: &mut [f32], decibels: f32, seed: u64) {
    let mut state = seed;
    let mut rows = [0.0_f32; 16];
    let noise: Vec<f32> = (1..=samples.len())
        .map(|index| {
            // Each row changes half as often as the one before (Voss and McCartney).
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let white = (state >> 40) as f32 / (1_u32 << 23) as f32 - 1.0;
            rows[index.trailing_zeros().min(15) as usize] = white;
            rows.iter().sum()
        })
        .collect();
    let power = |sound: &[f32]| sound.iter().map(|sample| sample * sample).sum::<f32>();
    let gain = (power(samples) / power(&noise)).sqrt() * 10_f32.powf(-decibels / 20.0);
    samples.iter_mut().zip(&noise).for_each(|(sample, noise)| *sample += gain * noise);
}

/// Words without case and punctuation; numbers as digits.
pub fn words_of(text: &str) -> Vec<String> {
    let text = text.to_lowercase().replace('%', " percent").replace("doctor", "dr");
    let text = text.replace("one hundred and twenty", "120").replace("forty", "40");
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Least number of words to insert, remove and replace.
pub fn errors(expected: &[String], heard: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (i, word) in expected.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in heard.iter().enumerate() {
            let replaced = before + usize::from(word != other);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[heard.len()]
}
