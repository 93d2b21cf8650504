//! BERT (Devlin et al. 2018): an encoder with norms after each sum, biases, and learned positions.
//!
//! Keys and tensors have llama.cpp's names.

use super::{
    SpecError,
    source::Source,
    transformer::{MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH},
};
use crate::embedding::{EncoderLayer, EncoderSpec, LayerNorm};
use crate::gguf::Strings;

/// Longest text in tokens: all of its rows are in memory at once. Published models have 512.
const MAX_CONTEXT: usize = 1 << 16;

pub(super) fn build(source: &Source<'_>) -> Result<EncoderSpec, SpecError> {
    let layers = source.size("block_count", 1..=MAX_LAYERS)?;
    let width = source.size("embedding_length", 1..=MAX_WIDTH)?;
    let hidden = source.size("feed_forward_length", 1..=MAX_HIDDEN)?;
    let context = source.size("context_length", 1..=MAX_CONTEXT)?;
    let heads = heads(source, width)?;
    if let Some(kv_heads) = source.find::<u32>("attention.head_count_kv")?
        && kv_heads as usize != heads
    {
        return Err(source.wrong("attention.head_count_kv", kv_heads, heads.to_string()));
    }
    if source.find("attention.causal")? == Some(true) {
        return Err(source.unsupported("attention.causal", true, "an encoder that looks back is"));
    }
    let eps = source.eps("attention.layer_norm_epsilon")?;
    let vocab = source.gguf.require::<Strings<'_>>("tokenizer.ggml.tokens")?.len();
    source.within("vocab_size", vocab, &(1..=MAX_VOCAB))?;
    let encoder = Encoder { source, width, hidden, eps };
    let types = match source.shape("token_types.weight") {
        Some(_) => {
            let count: u32 = source.gguf.require("tokenizer.ggml.token_type_count")?;
            Some(source.matrix("token_types.weight", count as usize, width)?)
        }
        None => None,
    };
    let spec = EncoderSpec {
        name: source.gguf.find::<&str>("general.name").ok().flatten().map(str::to_owned),
        width,
        vocab,
        context: context as u32, // At most `MAX_CONTEXT`.
        heads,
        hidden,
        tokens: source.matrix("token_embd.weight", vocab, width)?,
        types,
        positions: source.matrix("position_embd.weight", context, width)?,
        norm: encoder.norm("token_embd_norm")?,
        layers: (0..layers).map(|index| encoder.layer(index)).collect::<Result<_, _>>()?,
    };
    source.check_all_used()?;
    Ok(spec)
}

fn heads(source: &Source<'_>, width: usize) -> Result<usize, SpecError> {
    let heads = source.size("attention.head_count", 1..=MAX_HEADS)?;
    let head_dim = width.checked_div(heads).unwrap_or(0);
    if !width.is_multiple_of(heads) || !(1..=MAX_HEAD_DIM).contains(&head_dim) {
        let expected = format!("a divisor of the embedding's length {width}");
        return Err(source.wrong("attention.head_count", heads, expected));
    }
    Ok(heads)
}

struct Encoder<'s, 'a> {
    source: &'s Source<'a>,
    width: usize,
    hidden: usize,
    eps: f32,
}

impl Encoder<'_, '_> {
    fn norm(&self, name: &str) -> Result<LayerNorm, SpecError> {
        let vector = |part| self.source.vector(&format!("{name}.{part}"), &[self.width]);
        Ok(LayerNorm { weight: vector("weight")?, bias: vector("bias")?, eps: self.eps })
    }

    fn layer(&self, index: usize) -> Result<EncoderLayer, SpecError> {
        let (width, hidden) = (self.width, self.hidden);
        let linear = |suffix: &str, rows, cols| {
            self.source.linear(&format!("blk.{index}.{suffix}"), rows, cols)
        };
        let norm = |suffix: &str| self.norm(&format!("blk.{index}.{suffix}"));
        Ok(EncoderLayer {
            attention: self.source.projections(index, width, [width; 2])?,
            output: linear("attn_output", width, width)?,
            attention_norm: norm("attn_output_norm")?,
            up: linear("ffn_up", hidden, width)?,
            down: linear("ffn_down", width, hidden)?,
            output_norm: norm("layer_output_norm")?,
        })
    }
}
