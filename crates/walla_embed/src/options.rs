use std::time::Duration;

use walla_model::embedding::Pooling;

/// What to do with a text that has more tokens than the model reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LongTexts {
    /// The tokens behind the limit are dropped, and [`Embedding::is_cut`](crate::Embedding::is_cut)
    /// is set.
    #[default]
    Cut,
    /// The request fails with [`EmbedError::TooLong`](crate::EmbedError::TooLong).
    Refuse,
}

/// Use of a text: selects the [prefix](EmbedderOptions::query_prefix).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The text alone.
    #[default]
    Plain,
    /// A question for which documents are searched.
    Query,
    /// A text that is found.
    Document,
}

/// Settings of an [`Embedder`](crate::Embedder).
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedderOptions {
    /// Threads that compute, with the embedder's own. Default 1: the host and the engine need the
    /// others. At least 1; more than the machine has are lowered to them.
    pub threads: u32,
    /// Whether the threads have a lower priority than other threads, on Linux. Default `true`;
    /// `false` for tools that do nothing else.
    pub low_priority: bool,
    /// Ceiling of the model's memory, in bytes. Default `None`: 15/16 of the available memory, on
    /// Linux.
    pub max_memory_bytes: Option<u64>,
    /// Tokens of one batch: more are faster together, but a batch is not interrupted. A longer text
    /// of an encoder is a separate batch. Default 512; from 1 to 65,536, and at most 512 for
    /// models that generate text.
    pub max_batch_tokens: u32,
    /// Tokens of the longest text, with the tokens at its ends; longer than the model's context has
    /// no effect. Default `None`: the model's context, and 2,048 at most for models that generate
    /// text, whose cache grows with it.
    pub max_context_tokens: Option<u32>,
    /// Texts with more tokens. Default: they are cut.
    pub long_texts: LongTexts,
    /// Precedes the text of a [`Purpose::Query`]; some models need it (bge: `Represent this
    /// sentence for searching relevant passages: `; Qwen3-Embedding: `Instruct: …\nQuery:`).
    /// Default: nothing.
    pub query_prefix: String,
    /// Precedes the text of a [`Purpose::Document`]. Default: nothing.
    pub document_prefix: String,
    /// Replaces the pooling of the file. Default `None`: the file's, and an error if it has none.
    pub pooling: Option<Pooling>,
    /// Texts of all requests that have not ended. Default 16,384.
    pub max_texts: usize,
    /// Bytes of these texts. Default 16 MiB.
    pub max_text_bytes: usize,
    /// Requests that have not ended. Default 256.
    pub max_requests: usize,
    /// Computing time for each [frame](crate::Embedder::frame): see
    /// [`set_budget`](crate::Embedder::set_budget). Default `None`: no limit.
    pub budget: Option<Duration>,
}

impl Default for EmbedderOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            low_priority: true,
            max_memory_bytes: None,
            max_batch_tokens: 512,
            max_context_tokens: None,
            long_texts: LongTexts::Cut,
            query_prefix: String::new(),
            document_prefix: String::new(),
            pooling: None,
            max_texts: 16_384,
            max_text_bytes: 16 << 20,
            max_requests: 256,
            budget: None,
        }
    }
}

impl EmbedderOptions {
    /// The prefix of texts for a purpose.
    pub(crate) fn prefix(&self, purpose: Purpose) -> &str {
        match purpose {
            Purpose::Plain => "",
            Purpose::Query => &self.query_prefix,
            Purpose::Document => &self.document_prefix,
        }
    }

    /// The name and range of a setting that is out of range.
    pub(crate) fn wrong(&self) -> Option<String> {
        let settings = [
            ("threads", self.threads as usize, 1..=65_536),
            ("max_batch_tokens", self.max_batch_tokens as usize, 1..=65_536),
            ("max_context_tokens", self.max_context_tokens.unwrap_or(4) as usize, 4..=1 << 20),
            ("max_texts", self.max_texts, 1..=1 << 24),
            ("max_text_bytes", self.max_text_bytes, 1..=1 << 32),
            ("max_requests", self.max_requests, 1..=65_536),
        ];
        let mut wrong = settings.into_iter().filter(|(_, value, range)| !range.contains(value));
        wrong.next().map(|(name, value, range)| format!("{name} is {value}, expected {range:?}"))
    }
}
