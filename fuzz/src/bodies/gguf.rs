//! Arbitrary bytes as a model file: every result is a value or an error.

use walla_model::chat::{ChatTemplate, LoadedText, Message, RenderOptions, Role};
use walla_model::gguf::Strings;
use walla_model::spec::{
    Attention, DenseFeedForward, FeedForward, Keys, Linear, Matrix, Mixer, RmsNorm, Vector,
};
use walla_model::tokenizer::{EncodeOptions, Tokenizer};
use walla_model::{Gguf, ModelSpec, Value};
use walla_types::TokenId;

/// Text that covers every path of an encoder: words, digits, spaces, line breaks, several scripts,
/// a marker, unusual code points.
const TEXT: &str = "Hello  wörld's 1234,\n\n\t猫🙂<|im_end|></s>\u{a0}\u{202e}x";

/// Reads `bytes` with the calls that load a model.
///
/// # Panics
/// If results are inconsistent.
pub fn check(bytes: &[u8]) {
    let Ok(file) = Gguf::from_bytes(bytes) else { return };
    metadata(&file);
    tensors(&file);
    for context_tokens in [1, 4_096, u32::MAX] {
        if let Ok(spec) = ModelSpec::from_gguf(&file, context_tokens) {
            weights(&file, &spec);
        }
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
        tokenize(&tokenizer);
    }
    if let Ok(Some(template)) = ChatTemplate::from_gguf(&file) {
        let messages = [Message::new(Role::User, TEXT)];
        let _ = template.render(&messages, &RenderOptions::default());
    }
    if let Ok(loaded) = LoadedText::from_gguf(&file, None, None) {
        let is_reserved = |token: &TokenId| loaded.tokenizer.is_reserved(*token);
        assert!(loaded.reserved_markers.iter().all(is_reserved), "{:?}", loaded.reserved_markers);
    }
}

fn metadata(file: &Gguf) {
    for (key, value) in file.metadata() {
        assert!(file.get(key).is_some(), "{key:?} is listed and not found");
        assert!(!value.to_string().is_empty() || matches!(value, Value::String(_)));
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len(), "{key:?}");
        }
        let _ = (file.find::<u32>(key), file.find::<&str>(key), file.find::<f32>(key));
        if let Ok(Some(texts)) = file.find::<Strings<'_>>(key) {
            assert_eq!(texts.iter().map(str::len).count(), texts.len(), "{key:?}");
        }
    }
    let warnings = file.warnings();
    assert!(
        warnings.len() <= 17 && warnings.iter().all(|warning| warning.to_string().len() < 2_000)
    );
}

fn tensors(file: &Gguf) {
    for (index, tensor) in file.tensors().enumerate() {
        assert_eq!(file.find_tensor(tensor.name), Some(index), "{:?}", tensor.name);
        let Ok(ty) = tensor.ty else { continue };
        let elements = tensor.shape.elements();
        let bytes = file.tensor_bytes(index).expect("a usable type");
        let expected = elements / ty.block_elements() as u64 * ty.block_bytes() as u64;
        assert_eq!(bytes.len() as u64, expected, "{:?}", tensor.name);
    }
}

/// An accepted specification has all its weights.
fn weights(file: &Gguf, spec: &ModelSpec) {
    matrix(file, &spec.embedding);
    linear(file, &spec.head);
    norm(file, &spec.output_norm);
    assert!(spec.soft_cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()));
    assert!(spec.suppressed.iter().all(|token| (*token as usize) < spec.vocab));
    if let Some(inputs) = &spec.layer_inputs {
        matrix(file, &inputs.table);
        linear(file, &inputs.projection);
        norm(file, &inputs.norm);
        assert_eq!(inputs.table.cols, inputs.width * spec.layers.len());
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        let norms = [
            Some(layer.mixer_norm),
            layer.mixer_post_norm,
            Some(layer.feed_forward_norm),
            layer.feed_forward_post_norm,
        ];
        norms.iter().flatten().for_each(|weight| norm(file, weight));
        assert_eq!(layer.input.is_some(), spec.layer_inputs.is_some());
        if let Some(input) = &layer.input {
            [input.gate, input.output].iter().for_each(|part| linear(file, part));
            norm(file, &input.post_norm);
        }
        assert!(layer.scale > 0.0 && layer.scale.is_finite());
        match &layer.feed_forward {
            FeedForward::Dense(parts) => {
                dense(file, parts);
            }
            FeedForward::Experts(parts) => {
                let all = [parts.router, parts.gate, parts.up, parts.down];
                all.iter().for_each(|part| matrix(file, part));
                parts.selection_bias.iter().for_each(|bias| vector(file, bias));
                if let Some(shared) = &parts.shared {
                    dense(file, &shared.network);
                    shared.weight.iter().for_each(|weight| linear(file, weight));
                }
            }
        }
        match &layer.mixer {
            Mixer::Attention(parts) => {
                let all = [parts.query, parts.output];
                all.iter().chain(&parts.gate).for_each(|part| linear(file, part));
                parts.query_norm.iter().for_each(|weight| norm(file, weight));
                match &parts.keys {
                    Keys::Own(own) => {
                        [own.key, own.value].iter().for_each(|part| linear(file, part));
                        own.key_norm.iter().for_each(|weight| norm(file, weight));
                    }
                    Keys::Of(owner) => shared(spec, index, *owner, parts),
                }
                assert!(parts.rope.is_none_or(|rope| rope < spec.ropes.len()));
            }
            Mixer::ShortConv(parts) => {
                parts.input.iter().chain([&parts.output]).for_each(|part| linear(file, part));
                vector(file, &parts.kernel);
            }
            Mixer::DeltaNet(parts) => {
                let all = [parts.input, parts.alpha, parts.beta, parts.gate, parts.output];
                all.iter().for_each(|part| linear(file, part));
                let all = [parts.kernel, parts.decay, parts.step_bias, parts.norm.weight];
                all.iter().for_each(|part| vector(file, part));
            }
        }
    }
}

/// A layer without keys reads the keys of an earlier layer of the same shape.
fn shared(spec: &ModelSpec, index: usize, owner: usize, parts: &Attention) {
    assert!(owner < index);
    let Mixer::Attention(earlier) = &spec.layers[owner].mixer else { panic!("no attention") };
    assert!(earlier.own_keys().is_some());
    assert_eq!((earlier.kv_heads, earlier.head_dim), (parts.kv_heads, parts.head_dim));
    assert_eq!(earlier.rope, parts.rope);
}

fn dense(file: &Gguf, network: &DenseFeedForward) {
    [network.gate, network.up, network.down].iter().for_each(|part| linear(file, part));
}

fn matrix(file: &Gguf, matrix: &Matrix) {
    let bytes = file.matrix_bytes(matrix).expect("every matrix is in the file");
    let elements = matrix.rows * matrix.cols;
    let expected = elements / matrix.ty.block_elements() * matrix.ty.block_bytes();
    assert_eq!(bytes.len(), expected, "{matrix:?}");
}

fn vector(file: &Gguf, vector: &Vector) {
    let numbers = file.vector(vector).expect("every vector is in the file");
    assert_eq!(numbers.len(), vector.len, "{vector:?}");
}

fn linear(file: &Gguf, linear: &Linear) {
    matrix(file, &linear.matrix);
    linear.bias.iter().for_each(|bias| vector(file, bias));
}

fn norm(file: &Gguf, norm: &RmsNorm) {
    vector(file, &norm.weight);
}

fn tokenize(tokenizer: &Tokenizer) {
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let options = EncodeOptions { add_special, parse_special };
        let tokens = tokenizer.encode(TEXT, options).expect("a short text");
        assert!(tokens.iter().all(|token| token.index() < tokenizer.vocab_size()));
        tokenizer.decode(&tokens).expect("tokens of this vocabulary");
    }
    let some: Vec<TokenId> = (0..tokenizer.vocab_size().min(64) as u32).map(TokenId).collect();
    tokenizer.decode(&some).expect("tokens of this vocabulary");
}
