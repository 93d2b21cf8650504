//! Models with random weights whose vocabularies can spell calls in one token.

use std::error::Error;

use walla_doubles::synth::{self, Dialect, Mixture, Model};
use walla_runtime::ModelSource;

/// Delimiters of calls in the formats `HermesJson` and `Plain`.
pub const MARKERS: [&str; 2] = ["<tool_call>", "</tool_call>"];

const TEMPLATE: &str = "{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A tiny model. Its calls have the format `HermesJson`, or `Plain` if `is_plain`: then the
/// delimiters are ordinary words of the vocabulary.
pub fn tiny(is_plain: bool) -> Result<ModelSource, Box<dyn Error>> {
    let shape = Model { context_train: 4_096, ..Model::TINY };
    let dialect = Dialect { template: TEMPLATE, special: &MARKERS };
    let mut file = synth::write_dialect(&shape, Mixture::Q8_0, 7, &dialect, Vec::new())?;
    if is_plain {
        make_ordinary(&mut file, shape.vocab as usize)?;
    }
    Ok(ModelSource::Static(Vec::leak(file)))
}

/// Changes the type of the [`MARKERS`], which precede three control tokens at the end of the
/// vocabulary, from user-defined to normal.
fn make_ordinary(file: &mut [u8], vocab: usize) -> Result<(), Box<dyn Error>> {
    const KEY: &[u8] = b"tokenizer.ggml.token_type";
    const CONTROLS: usize = 3;
    let at = file.windows(KEY.len()).position(|bytes| bytes == KEY).ok_or("no token types")?;
    // The type of the value, the type of the items, their number.
    let types = at + KEY.len() + 4 + 4 + 8;
    for index in vocab - CONTROLS - MARKERS.len()..vocab - CONTROLS {
        let place = types + 4 * index;
        let kind = file.get_mut(place..place + 4).ok_or("the file is too short")?;
        if kind != 4_i32.to_le_bytes() {
            return Err("another vocabulary than expected".into());
        }
        kind.copy_from_slice(&1_i32.to_le_bytes());
    }
    Ok(())
}
