//! Storage of a GGUF file's bytes.

use std::sync::Arc;

use super::{
    GgufError,
    cursor::MAX_HEADER_BYTES,
    file::{ModelFile, grow},
    parse::{self, Header, Parsed},
};

/// Size of the first read of a header. Vocabularies of 32,000 tokens fit; for larger headers the
/// size doubles with each read.
const HEADER_BYTES_FIRST: u64 = 1 << 20;

#[derive(Clone)]
pub(super) enum Bytes {
    /// The header is in memory, tensors are read from the file.
    File {
        header: Vec<u8>,
        file: Arc<ModelFile>,
        /// Length of the file when its header was read.
        len: u64,
    },
    Shared(Arc<[u8]>),
    Static(&'static [u8]),
}

impl Bytes {
    /// Reads and checks the header of a file.
    pub fn read_header(file: Arc<ModelFile>) -> Result<(Self, Header), GgufError> {
        let len = file.len()?;
        let mut bytes = Vec::new();
        let mut wanted = HEADER_BYTES_FIRST.min(len);
        let header = loop {
            let have = bytes.len();
            grow(&mut bytes, wanted as usize).map_err(|source| file.io(source))?;
            let missing = bytes.get_mut(have..).unwrap_or_default();
            file.read_unchanged(len, have as u64, missing)?;
            match parse::parse_start(&bytes, len)? {
                Parsed::Header(header) => break header,
                // `end` is greater than `wanted`, and at most `len` and the maximum.
                Parsed::Needs(end) => {
                    wanted = end.max(2 * wanted).min(len).min(MAX_HEADER_BYTES);
                }
            }
        };
        parse::check_placement(&header, &bytes, len)?;
        let after = file.len()?;
        if after != len {
            let path = file.path().to_owned();
            return Err(GgufError::Changed { path, before: len, after });
        }
        bytes.truncate(header.data_start.min(len) as usize);
        bytes.shrink_to_fit();
        Ok((Self::File { header: bytes, file, len }, header))
    }

    /// The bytes in memory: at least the header.
    pub fn header(&self) -> &[u8] {
        match self {
            Self::File { header, .. } => header,
            Self::Shared(bytes) => bytes,
            Self::Static(bytes) => bytes,
        }
    }

    /// Length of the whole file.
    pub fn len(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            all => all.header().len() as u64,
        }
    }
}
