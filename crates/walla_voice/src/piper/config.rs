//! The settings of a voice: the JSON file next to its network.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::error::VoiceError;
use crate::onnx;
use crate::parts::Symbols;
use crate::synthesizer::Variation;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Ids of one symbol: some voices have two for a tone.
const MAX_IDS: usize = 8;

#[derive(Debug)]
pub(super) struct Config {
    pub sample_rate: u32,
    pub symbols: Symbols,
    pub speakers: u32,
    pub variation: Variation,
    /// Factor of all durations.
    pub length: f32,
    /// As espeak names it.
    pub language: String,
    /// The symbols are letters of texts.
    pub has_letters: bool,
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Self, VoiceError> {
        onnx::read_json(path, MAX_FILE_BYTES, Self::parse)
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64);
        let sample_rate = json.pointer("/audio/sample_rate").and_then(Value::as_u64);
        let sample_rate = sample_rate.filter(|rate| (4_000..=192_000).contains(rate));
        let sample_rate =
            sample_rate.ok_or("audio.sample_rate is no rate from 4,000 to 192,000")?;
        let map = json.get("phoneme_id_map").and_then(Value::as_object);
        let map = map.ok_or("it has no phoneme_id_map: is it the settings of a Piper voice?")?;
        let mut symbols = HashMap::new();
        for (symbol, ids) in map {
            let mut chars = symbol.chars();
            // A symbol of several characters has no place in a list of them.
            let (Some(symbol), None) = (chars.next(), chars.next()) else { continue };
            symbols.insert(symbol, self::ids(ids).ok_or_else(|| wrong_ids(symbol))?);
        }
        for symbol in ['^', '_', '$'] {
            if !symbols.contains_key(&symbol) {
                return Err(format!("phoneme_id_map has no {symbol:?}"));
            }
        }
        let scale = |name: &str, default: f32, max: f32| {
            let scale = number(&format!("/inference/{name}")).map_or(default, |scale| scale as f32);
            if (0.0..=max).contains(&scale) { Ok(scale) } else { Err(format!("{name} is {scale}")) }
        };
        let text = |pointer| json.pointer(pointer).and_then(Value::as_str);
        Ok(Self {
            sample_rate: sample_rate as u32, // In the range above.
            symbols,
            speakers: number("/num_speakers").unwrap_or(1.0).clamp(1.0, 65_536.0) as u32,
            variation: Variation {
                sound: scale("noise_scale", 0.667, 2.0)?,
                durations: scale("noise_w", 0.8, 2.0)?,
            },
            length: Some(scale("length_scale", 1.0, 4.0)?)
                .filter(|length| *length >= 0.1)
                .ok_or("length_scale is less than 0.1")?,
            language: text("/espeak/voice").unwrap_or_default().to_owned(),
            has_letters: text("/phoneme_type") == Some("text"),
        })
    }
}

fn ids(ids: &Value) -> Option<Vec<i32>> {
    let ids = ids.as_array().filter(|ids| (1..=MAX_IDS).contains(&ids.len()))?;
    let id = |id: &Value| id.as_u64().filter(|id| *id < 1 << 20).map(|id| id as i32);
    ids.iter().map(id).collect()
}

fn wrong_ids(symbol: char) -> String {
    format!("phoneme_id_map: {symbol:?} has no list of ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Config, String> {
        Config::parse(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn settings_have_defaults_and_ranges() {
        let map = r#"{"^": [1], "_": [0], "$": [2], "a": [14, 15], "ab": [3]}"#;
        let json = |rest: &str| {
            format!(r#"{{"audio": {{"sample_rate": 22050}}, "phoneme_id_map": {map}{rest}}}"#)
        };
        let config = parse(&json("")).unwrap();
        assert_eq!((config.sample_rate, config.speakers, config.length), (22_050, 1, 1.0));
        assert_eq!((config.symbols.len(), &config.symbols[&'a'][..]), (4, &[14, 15][..]));
        let config = parse(&json(r#", "num_speakers": 4, "phoneme_type": "text""#)).unwrap();
        assert!(config.speakers == 4 && config.has_letters);
        for (wrong, reason) in [
            ("{}".to_owned(), "sample_rate"),
            (r#"{"audio": {"sample_rate": 22050}}"#.to_owned(), "phoneme_id_map"),
            (json("").replace(r#""^": [1],"#, ""), "'^'"),
            (json("").replace("[14, 15]", "[-1]"), "'a'"),
            (json("").replace("[14, 15]", "7"), "'a'"),
            (json(r#", "inference": {"noise_w": -1}"#), "noise_w"),
            (json(r#", "inference": {"length_scale": 1e30}"#), "length_scale"),
            (json(r#", "inference": {"length_scale": 0}"#), "length_scale"),
        ] {
            let error = parse(&wrong).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
