//! Text to speech to text.

use std::sync::Arc;

use walla_voice::{
    HEARING_RATE, Piper, PiperOptions, RecognizeOptions, Resampler, SpeakOptions, SpeechRecognizer,
    SpeechSynthesizer, Transcript, Whisper, WhisperOptions,
};

use crate::common::{part, speak};

fn recognize(whisper: &Arc<Whisper>, samples: &[f32]) -> Transcript {
    let options = RecognizeOptions::default();
    let mut recognition = Arc::clone(whisper).begin(samples, &options).unwrap();
    loop {
        if let Some(transcript) = recognition.step().unwrap() {
            return transcript;
        }
    }
}

const SENTENCES: &str = include_str!("sentences.txt");

#[test]
#[ignore = "needs the voice and Whisper of `cargo xtask voice`"]
fn sentences_are_understood() {
    let voice = Piper::load(part("en_US-joe-medium.onnx"), PiperOptions::default()).unwrap();
    let whisper = Whisper::load(part("tiny.en"), WhisperOptions::default()).unwrap();
    for sentence in SENTENCES.lines() {
        let (samples, ..) = speak(&voice, sentence, &SpeakOptions::default());
        let mut heard = Vec::new();
        Resampler::new(voice.sample_rate(), HEARING_RATE).push(&samples, &mut heard);
        let transcript = recognize(&whisper, &heard);
        println!("{sentence}\n    {} ({})", transcript.text, transcript.log_probability);
    }
}
