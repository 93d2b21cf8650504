//! The files next to a Kokoro network: its vocabulary, and styles of speakers.

use std::path::Path;

use serde_json::Value;

use crate::error::VoiceError;
use crate::onnx;
use crate::parts::Symbols;

/// Numbers of a row of a style.
pub(super) const STYLE_WIDTH: usize = 256;
/// Rows of a style: one for each length of a part.
pub(super) const STYLE_ROWS: usize = 510;
/// The largest files that are read.
const MAX_VOCABULARY_BYTES: u64 = 16 << 20;
const MAX_STYLE_BYTES: u64 = 1 << 20;
/// Bound of an id. The network has 178.
const MAX_ID: u64 = 1 << 16;

/// The vocabulary at `path`, or else next to the network.
pub(super) fn vocabulary(path: Option<&Path>, network: &Path) -> Result<Symbols, VoiceError> {
    if let Some(path) = path {
        return read_vocabulary(path);
    }
    let mut first = None;
    for name in ["vocab.json", "config.json", "tokenizer.json"] {
        let path = network.with_file_name(name);
        match read_vocabulary(&path) {
            // A `config.json` may be that of another program.
            Err(error) if name == "config.json" || !path.exists() => {
                first.get_or_insert(error);
            }
            result => return result,
        }
    }
    Err(first.unwrap_or_else(|| VoiceError::model(network, "it has no vocabulary")))
}

fn read_vocabulary(path: &Path) -> Result<Symbols, VoiceError> {
    onnx::read_json(path, MAX_VOCABULARY_BYTES, parse_vocabulary)
}

fn parse_vocabulary(json: &Value) -> Result<Symbols, String> {
    let inner = json.get("vocab").or_else(|| json.pointer("/model/vocab"));
    let map = inner.unwrap_or(json).as_object().ok_or("it is no vocabulary")?;
    let mut symbols = Symbols::new();
    for (symbol, id) in map {
        let mut chars = symbol.chars();
        // A symbol of several characters has no place in a list of them.
        let (Some(symbol), None) = (chars.next(), chars.next()) else { continue };
        let id = id.as_u64().filter(|id| *id < MAX_ID);
        let id = id.ok_or_else(|| format!("{symbol:?} has no id below {MAX_ID}"))?;
        symbols.insert(symbol, vec![id as i32]);
    }
    if !symbols.keys().any(|symbol| symbol.is_alphabetic()) {
        return Err("it is no vocabulary: it has no letter".to_owned());
    }
    // Id 0 is before the first symbol and behind the last one, and not between them.
    symbols.insert('^', vec![0]);
    symbols.insert('$', vec![0]);
    symbols.remove(&'_');
    Ok(symbols)
}

/// The rows of a style.
pub(super) fn style(path: &Path) -> Result<Vec<f32>, VoiceError> {
    let bytes = onnx::read(path, MAX_STYLE_BYTES)?;
    parse_style(&bytes).map_err(|reason| VoiceError::model(path, reason))
}

fn parse_style(bytes: &[u8]) -> Result<Vec<f32>, String> {
    let numbers = if bytes.starts_with(b"\x93NUMPY") { numpy_data(bytes)? } else { bytes };
    if numbers.len() != STYLE_ROWS * STYLE_WIDTH * 4 {
        let length = numbers.len();
        return Err(format!("{length} bytes are no {STYLE_ROWS} rows of {STYLE_WIDTH} numbers"));
    }
    let (numbers, _) = numbers.as_chunks::<4>();
    let numbers: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match numbers.iter().all(|number| number.is_finite()) {
        true => Ok(numbers),
        false => Err("a number of the style is not finite".to_owned()),
    }
}

/// The numbers of a file of numpy.
///
/// Source: `numpy.lib.format`, versions 1 to 3.
fn numpy_data(bytes: &[u8]) -> Result<&[u8], String> {
    let wrong = || "the header of the numpy file is damaged".to_owned();
    let rest = bytes.get(6..).unwrap_or_default();
    let ([version, _], rest) = rest.split_first_chunk().ok_or_else(wrong)?;
    let (length, rest) = if *version == 1 {
        let (length, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
        (u32::from(u16::from_le_bytes(*length)), rest)
    } else {
        let (length, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
        (u32::from_le_bytes(*length), rest)
    };
    let (header, numbers) = rest.split_at_checked(length as usize).ok_or_else(wrong)?;
    let header: Vec<u8> = header.iter().copied().filter(|byte| *byte != b' ').collect();
    let header = str::from_utf8(&header).map_err(|_| wrong())?;
    let is_right = header.contains("'descr':'<f4'") && header.contains("'fortran_order':False");
    let shapes = ["'shape':(510,1,256)", "'shape':(510,256)"];
    if !is_right || !shapes.iter().any(|shape| header.contains(shape)) {
        return Err(format!("no style: the numpy file has {header:.200}"));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vocabularies_have_several_forms() {
        let parse = |json: &str| parse_vocabulary(&serde_json::from_str(json).unwrap());
        for json in [
            r#"{"a": 43, "_": 7, "$": 9, "ab": "-"}"#,
            r#"{"n_token": 178, "vocab": {"a": 43}}"#,
            r#"{"model": {"vocab": {"$": 0, "a": 43}}}"#,
        ] {
            let symbols = parse(json).unwrap();
            assert_eq!(
                (&symbols[&'a'], &symbols[&'^'], &symbols[&'$']),
                (&vec![43], &vec![0], &vec![0])
            );
            assert_eq!(symbols.len(), 3);
        }
        for json in ["{}", "[]", "7", r#"{"a": -1}"#, r#"{"a": 1e9}"#, r#"{"vocab": 3}"#] {
            assert!(parse(json).is_err(), "{json}");
        }
    }

    #[test]
    fn styles_have_two_forms() {
        let numbers: Vec<f32> = (0..STYLE_ROWS * STYLE_WIDTH).map(|index| index as f32).collect();
        let mut raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(parse_style(&raw).as_ref(), Ok(&numbers));
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (510, 1, 256), }   \n";
        let file = |version: u8, length: &[u8], header: &str| {
            [b"\x93NUMPY", &[version, 0][..], length, header.as_bytes(), &raw].concat()
        };
        let length = header.len() as u8;
        assert_eq!(parse_style(&file(1, &[length, 0], header)).as_ref(), Ok(&numbers));
        assert_eq!(parse_style(&file(2, &[length, 0, 0, 0], header)).as_ref(), Ok(&numbers));
        for wrong in [
            file(1, &[length, 0], &header.replace("<f4", "<f8")),
            file(1, &[length, 0], &header.replace("False", "True ")),
            file(1, &[length, 0], &header.replace("510", "512")),
            file(1, &[255, 255], ""),
            file(2, &[255; 4], header),
            b"\x93NUMPY\x01".to_vec(),
            b"\x93NUMPY\x01\0\x01".to_vec(),
            raw[4..].to_vec(),
            Vec::new(),
        ] {
            assert!(parse_style(&wrong).is_err());
        }
        raw[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(parse_style(&raw).unwrap_err().contains("finite"));
    }
}
