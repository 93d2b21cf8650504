//! Hostile files and sounds for the recogniser.

use std::sync::Arc;

use walla_voice::{
    RecognizeOptions, SpeechRecognizer, Transcript, VoiceError, Whisper, WhisperOptions,
};

use crate::common::Damage;
use crate::tiny_whisper;

/// Steps of the longest text, with the encoder and the language.
const MAX_STEPS: usize = 512;

fn recognize(whisper: &Arc<Whisper>, samples: &[f32]) -> Result<Transcript, VoiceError> {
    let mut recognition = Arc::clone(whisper).begin(samples, &RecognizeOptions::default())?;
    for _ in 0..MAX_STEPS {
        if let Some(transcript) = recognition.step()? {
            return Ok(transcript);
        }
    }
    panic!("the text does not end");
}

#[test]
fn any_sound_has_a_text_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = tiny_whisper::whisper(folder.path());
    let whisper = Whisper::load(folder, WhisperOptions::default()).unwrap();
    let second = 16_000;
    for samples in [
        vec![],
        vec![0.1],
        vec![f32::NAN; second],
        vec![f32::INFINITY; second],
        vec![f32::MAX; second],
        vec![-1e30; 29 * second],
    ] {
        assert_eq!(recognize(&whisper, &samples).unwrap().text, "Who goes there?");
    }
    let ten_minutes = vec![0.0; 600 * second];
    let refused = recognize(&whisper, &ten_minutes);
    assert!(matches!(refused, Err(VoiceError::TooLong { .. })), "{refused:?}");
}

#[test]
fn damaged_models_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let folder = tiny_whisper::whisper(folder.path());
    let mut damage = Damage::new();
    let mut loaded = 0;
    for name in ["encoder.onnx", "decoder.onnx", "tokenizer.json"] {
        let path = folder.join(name);
        let whole = std::fs::read(&path).unwrap();
        for _ in 0..700 {
            std::fs::write(&path, damage.of(&whole, 0)).unwrap();
            let Ok(whisper) = Whisper::load(&folder, WhisperOptions::default()) else { continue };
            loaded += 1;
            let _ = recognize(&whisper, &[0.1; 16_000]);
        }
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(loaded > 100, "{loaded} damages were harmless");
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let missing = Whisper::load(&folder, WhisperOptions::default());
    assert!(matches!(missing, Err(VoiceError::File { .. })));
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = tiny_whisper::whisper(folder.path());
    let path = folder.join("tokenizer.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let id = json["model"]["vocab"].as_object().unwrap().len();
    json["model"]["vocab"]["more"] = id.into();
    std::fs::write(&path, json.to_string()).unwrap();
    let whisper = Whisper::load(&folder, WhisperOptions::default()).unwrap();
    let error = recognize(&whisper, &[0.1; 16_000]).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
}
