use walla_device::DeviceError;
use walla_exec::{ExecError, StepError};
use walla_model::tokenizer::VocabularyError;
use walla_model::{GgufError, SpecError, TensorError};

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read: check the path, or download the file again.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The file is no model that walla can run: use another one.
    #[error(transparent)]
    Model(#[from] SpecError),
    /// The file's tokenizer is not usable: use another file.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The tokenizer and the network have different vocabularies.
    #[error("the tokenizer has {tokens} tokens, the embedding {rows} rows")]
    Vocabularies {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// The file names no pooling: it is no embedding model, or set
    /// [`EmbedderOptions::pooling`](crate::EmbedderOptions::pooling).
    #[error(
        "the file names no pooling, so it may be a model that generates text; if it computes \
         embeddings, name its pooling in the options"
    )]
    NoPooling,
    /// The network does not compute this pooling.
    #[error("pooling {pooling:?} of a model that generates text is not supported, only the last")]
    Pooling {
        /// The pooling.
        pooling: walla_model::embedding::Pooling,
    },
    /// A setting is out of range.
    #[error("{0}")]
    Options(String),
    /// Weights cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The CPU cannot run the model, or its memory is too small.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// As above, for a model that generates text.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// As above.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The system starts no thread.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// The thread ended while it loaded: a bug.
    #[error("the loading thread ended early")]
    Ended,
}

/// Why a request has no vectors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// A text has more tokens than the model reads: shorten it, or let it be
    /// [cut](crate::LongTexts::Cut).
    #[error("text {text} has {tokens} tokens, at most {max_tokens}")]
    TooLong {
        /// Index of the text.
        text: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens of the longest text.
        max_tokens: usize,
    },
    /// The model adds no tokens to a text, and this text has none.
    #[error("text {text} has no tokens")]
    Empty {
        /// Index of the text.
        text: usize,
    },
    /// The vector has numbers that are not finite: the weights are damaged.
    #[error("the vector of text {text} is not finite: the model file may be damaged")]
    NotFinite {
        /// Index of the text.
        text: usize,
    },
    /// The request is larger than the queue can ever hold: divide it.
    #[error(transparent)]
    TooLarge(#[from] Refused),
    /// The device failed.
    #[error("{0}")]
    Failed(String),
    /// The embedder was dropped.
    #[error("the embedder has ended")]
    Stopped,
    /// The engine has no embedding model: set one.
    #[error("no embedding model is set")]
    NoModel,
}

impl EmbedError {
    /// The same error in a list in which `first` texts precede the request's.
    #[must_use]
    pub fn behind(self, first: usize) -> Self {
        match self {
            Self::TooLong { text, tokens, max_tokens } => {
                Self::TooLong { text: text + first, tokens, max_tokens }
            }
            Self::Empty { text } => Self::Empty { text: text + first },
            Self::NotFinite { text } => Self::NotFinite { text: text + first },
            other => other,
        }
    }
}

/// Sizes of a request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of {texts} texts and {bytes} bytes, at most {max_texts} and {max_bytes}")]
pub struct Refused {
    /// Texts of the request.
    pub texts: usize,
    /// Bytes of its texts.
    pub bytes: usize,
    /// Texts of all requests together.
    pub max_texts: usize,
    /// Bytes of all requests together.
    pub max_bytes: usize,
}

/// Why a request was not queued. It returns the texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySubmitError {
    /// Other requests fill the queue: try again later.
    #[error("the queue is full")]
    Full(Vec<String>),
    /// The request never fits: divide it.
    #[error("{1}")]
    TooLarge(Vec<String>, Refused),
    /// The thread has ended.
    #[error("the embedder has ended")]
    Stopped(Vec<String>),
}
