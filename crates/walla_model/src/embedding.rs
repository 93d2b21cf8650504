//! Models that compute a vector for a text: [`EmbeddingSpec`].

use crate::gguf::Gguf;
use crate::names::named;
use crate::spec::{Linear, Matrix, ModelSpec, Vector};

named! {
    /// How the vectors of a text's tokens become one vector: `ARCHITECTURE.pooling_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Pooling {
        /// The mean of all tokens, with the two at the ends (Reimers and Gurevych 2019, section 3).
        Mean = "mean",
        /// The first token, `[CLS]`.
        First = "first",
        /// The last token.
        Last = "last",
    }
}

impl Pooling {
    /// The pooling with this number in a file.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Mean),
            2 => Some(Self::First),
            3 => Some(Self::Last),
            _ => None,
        }
    }
}

/// `y[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * weight[i] + bias[i]` (Ba, Kiros and Hinton
/// 2016).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[width]`.
    pub weight: Vector,
    /// `[width]`.
    pub bias: Vector,
    /// Added to the variance.
    pub eps: f32,
}

/// A layer of an [`EncoderSpec`]: `x = norm(x + attention(x)); x = norm(x + down(gelu(up x)))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderLayer {
    /// `[width, width]` each: query, key and value.
    pub attention: [Linear; 3],
    /// `[width, width]`.
    pub output: Linear,
    /// Applied after the attention is added.
    pub attention_norm: LayerNorm,
    /// `[hidden, width]`.
    pub up: Linear,
    /// `[width, hidden]`.
    pub down: Linear,
    /// Applied after the network is added.
    pub output_norm: LayerNorm,
}

/// A bidirectional encoder: BERT (Devlin et al. 2018).
///
/// ```text
/// x = norm(tokens[token] + types[0] + positions[position])
/// ```
///
/// Then the layers. Every token attends to all tokens of its text, with scores divided by the
/// square root of the heads' size. GELU is `x / 2 (1 + erf(x / sqrt(2)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Width of the hidden state.
    pub width: usize,
    /// Number of tokens in the vocabulary.
    pub vocab: usize,
    /// Tokens of the longest text: rows of the positions.
    pub context: u32,
    /// Heads; divides `width`.
    pub heads: usize,
    /// Width of the feed-forward networks.
    pub hidden: usize,
    /// `[vocab, width]`.
    pub tokens: Matrix,
    /// `[types, width]`: only the first row is used.
    pub types: Option<Matrix>,
    /// `[context, width]`.
    pub positions: Matrix,
    /// Applied to the sum of the three.
    pub norm: LayerNorm,
    /// In order.
    pub layers: Vec<EncoderLayer>,
}

/// A model that computes a vector for a text.
#[derive(Clone, Debug, PartialEq)]
pub enum EmbeddingModel {
    /// Every token sees the whole text.
    Encoder(EncoderSpec),
    /// Every token sees the tokens before it: the network of a model that generates text, without
    /// its head.
    Decoder(ModelSpec),
}

/// A model with the pooling of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// The network.
    pub model: EmbeddingModel,
    /// `None` if the file names none.
    pub pooling: Option<Pooling>,
}

impl EmbeddingSpec {
    /// Numbers of a vector.
    #[must_use]
    pub const fn width(&self) -> usize {
        match &self.model {
            EmbeddingModel::Encoder(encoder) => encoder.width,
            EmbeddingModel::Decoder(decoder) => decoder.width,
        }
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub const fn vocab(&self) -> usize {
        match &self.model {
            EmbeddingModel::Encoder(encoder) => encoder.vocab,
            EmbeddingModel::Decoder(decoder) => decoder.vocab,
        }
    }

    /// Tokens of the longest text that the model was trained for.
    #[must_use]
    pub const fn context(&self) -> u32 {
        match &self.model {
            EmbeddingModel::Encoder(encoder) => encoder.context,
            EmbeddingModel::Decoder(decoder) => decoder.context_train,
        }
    }

    /// `general.name`, if the file has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.model {
            EmbeddingModel::Encoder(encoder) => encoder.name.as_deref(),
            EmbeddingModel::Decoder(decoder) => decoder.name.as_deref(),
        }
    }
}

/// Whether a file is an embedding model: an encoder, or a network with a pooling.
#[must_use]
pub fn is_embedding_model(gguf: &Gguf) -> bool {
    let architecture = gguf.find::<&str>("general.architecture").ok().flatten().unwrap_or_default();
    let pooling = gguf.find::<u32>(&format!("{architecture}.pooling_type")).ok().flatten();
    architecture == "bert" || pooling.is_some_and(|code| code > 0)
}
