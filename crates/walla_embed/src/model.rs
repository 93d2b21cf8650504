//! A loaded model: tokens and vectors, in the calling thread.

use walla_cpu::encoder::CpuEncoder;
use walla_exec::LastHidden;
use walla_model::embedding::Pooling;
use walla_model::tokenizer::{EncodeOptions, Tokenizer};
use walla_types::TokenId;

use crate::error::EmbedError;
use crate::options::{EmbedderOptions, LongTexts, Purpose};
use crate::text;

/// The network.
#[derive(Debug)]
pub(crate) enum Network {
    Encoder(CpuEncoder),
    Decoder(LastHidden),
}

/// A model with its settings.
#[derive(Debug)]
pub(crate) struct Model {
    pub tokenizer: Tokenizer,
    pub network: Network,
    pub width: usize,
    pub pooling: Pooling,
    /// Tokens of the longest text.
    pub max_tokens: usize,
    pub options: EmbedderOptions,
}

/// A text that can be computed.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub ids: Vec<TokenId>,
    pub is_cut: bool,
}

impl Model {
    /// Bytes of the memory that the model holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let memory = match &self.network {
            Network::Encoder(encoder) => encoder.memory(),
            Network::Decoder(decoder) => decoder.sequences().executor.device().memory(),
        };
        memory.weight_bytes + memory.cache_bytes + memory.workspace_bytes + memory.host_bytes
    }

    /// The tokens of text `index` of a request.
    pub(crate) fn tokens(
        &self,
        index: usize,
        text: &str,
        purpose: Purpose,
    ) -> Result<Tokens, EmbedError> {
        let text = [self.options.prefix(purpose), text].concat();
        // The tokenizer's limit: some 250,000 tokens, many times any model's context.
        let bytes = text.floor_char_boundary(Tokenizer::MAX_TEXT_BYTES);
        let options = EncodeOptions { add_special: true, parse_special: false };
        let whole = text.get(..bytes).unwrap_or_default();
        let mut ids = self.tokenizer.encode(whole, options).unwrap_or_default();
        let (tokens, max_tokens) = (ids.len(), self.max_tokens);
        let is_cut = tokens > max_tokens || bytes < text.len();
        if is_cut && self.options.long_texts == LongTexts::Refuse {
            return Err(EmbedError::TooLong { text: index, tokens, max_tokens });
        }
        if tokens > max_tokens {
            // The token that ends every text stays at the end.
            let last = self.tokenizer.eos().filter(|_| self.tokenizer.adds_eos());
            ids.truncate(max_tokens.saturating_sub(usize::from(last.is_some())));
            ids.extend(last);
        }
        if ids.is_empty() {
            return Err(EmbedError::Empty { text: index });
        }
        Ok(Tokens { ids, is_cut })
    }

    /// The vectors of texts; `None` where a vector is not finite.
    pub(crate) fn run(&mut self, texts: &[&[TokenId]]) -> Result<Vec<Option<Vec<f32>>>, String> {
        let (width, pooling) = (self.width, self.pooling);
        match &mut self.network {
            Network::Encoder(encoder) => {
                let ids: Vec<Vec<u32>> =
                    texts.iter().map(|text| text.iter().map(|id| id.0).collect()).collect();
                let texts: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
                let mut states = encoder.run(&texts).map_err(|error| error.to_string())?;
                let vectors = texts.iter().map(|text| {
                    let (own, rest) = states.split_at_checked(text.len() * width)?;
                    states = rest;
                    text::pool(own, width, pooling)
                });
                Ok(vectors.collect())
            }
            Network::Decoder(decoder) => {
                let mut vectors = vec![None; texts.len()];
                let mut store = |index: usize, state: &[f32]| {
                    if let Some(vector) = vectors.get_mut(index) {
                        *vector = text::pool(state, width, Pooling::Last);
                    }
                };
                decoder.run(texts, &mut store).map_err(|error| error.to_string())?;
                Ok(vectors)
            }
        }
    }
}
