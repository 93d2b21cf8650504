use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use walla_types::TokenId;

use super::{
    Binding, Contents, FIXED_BYTES, KvFileError, MAGIC, MAX_HEADER_BYTES, VERSION, code, name_of,
};

/// Numbers of a header, in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], KvFileError> {
        let (bytes, rest) =
            self.0.split_at_checked(count).ok_or(KvFileError::Invalid("length of the header"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], KvFileError> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| KvFileError::Invalid("length of the header"))
    }

    fn u32(&mut self) -> Result<u32, KvFileError> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, KvFileError> {
        self.number().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<String, KvFileError> {
        let count = self.u32()? as usize;
        Ok(String::from_utf8_lossy(self.bytes(count)?).into_owned())
    }
}

/// Number of tokens and pages per chunk, if the file can be used.
fn check_header(
    header: &[u8],
    file_bytes: u64,
    binding: &Binding,
) -> Result<(usize, u32), KvFileError> {
    let (fields, checksum) =
        header.split_last_chunk::<4>().ok_or(KvFileError::Invalid("length of the header"))?;
    if crc32fast::hash(fields) != u32::from_le_bytes(*checksum) {
        return Err(KvFileError::Checksum { part: "header" });
    }
    let mut fields = Fields(fields.get(16..).unwrap_or_default());
    let expected_bytes = fields.u64()?;
    let (model, rotation) = (fields.u64()?, fields.u64()?);
    let (tokens, page_tokens) = (fields.u32()?, fields.u32()?);
    let (page_bytes, state_bytes) = (fields.u64()?, fields.u64()?);
    let (chunk_pages, kv_type) = (fields.u32()?, fields.u32()?);
    let (architecture, layout) = (fields.name()?, fields.name()?);
    if !fields.0.is_empty() {
        return Err(KvFileError::Invalid("length of the header"));
    }
    if file_bytes != expected_bytes {
        return Err(KvFileError::Length { found: file_bytes, expected: expected_bytes });
    }
    if architecture != binding.architecture {
        let expected = binding.architecture.clone();
        return Err(KvFileError::OtherArchitecture { found: architecture, expected });
    }
    if model != binding.model {
        return Err(KvFileError::OtherModel { found: model, expected: binding.model });
    }
    if rotation != binding.rotation {
        return Err(KvFileError::OtherRotation);
    }
    if kv_type != code(binding.kv_type) {
        let (found, expected) = (name_of(kv_type), name_of(code(binding.kv_type)));
        return Err(KvFileError::OtherKvType { found, expected });
    }
    let image = &binding.image;
    let geometry = (image.page_tokens, image.page_bytes() as u64, image.state_bytes() as u64);
    if layout != image.layout || (page_tokens, page_bytes, state_bytes) != geometry {
        let describe = |layout: &str, (tokens, page, state): (u32, u64, u64)| {
            format!("{layout}, {tokens} tokens in {page} bytes and {state} bytes of states")
        };
        return Err(KvFileError::OtherLayout {
            found: describe(&layout, (page_tokens, page_bytes, state_bytes)),
            expected: describe(image.layout, geometry),
        });
    }
    if tokens > binding.context_tokens {
        let context_tokens = binding.context_tokens;
        return Err(KvFileError::TooManyTokens { tokens, context_tokens });
    }
    if tokens == 0 {
        return Err(KvFileError::Invalid("number of tokens"));
    }
    if !(1..=binding.chunk_pages).contains(&chunk_pages) {
        return Err(KvFileError::Invalid("number of pages per chunk"));
    }
    Ok((tokens as usize, chunk_pages))
}

/// Reads a file of `file_bytes` bytes. `bad` makes the error of a failed read.
fn read(
    file: &mut dyn Read,
    file_bytes: u64,
    binding: &Binding,
    bad: &dyn Fn(io::Error) -> KvFileError,
) -> Result<Contents, KvFileError> {
    let mut header = [0; MAX_HEADER_BYTES];
    let short = |expected| KvFileError::Length { found: file_bytes, expected };
    if file_bytes < 16 {
        return Err(short(16));
    }
    // The length was checked before, but another process can shorten the file.
    let bad = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => KvFileError::Length { found: 0, expected: file_bytes },
        _ => bad(error),
    };
    file.read_exact(&mut header[..16]).map_err(bad)?;
    let mut start = Fields(&header[..16]);
    let (magic, version, header_bytes) = (start.number()?, start.u32()?, start.u32()? as usize);
    if &magic != MAGIC {
        return Err(KvFileError::NotACacheFile);
    }
    if version != VERSION {
        return Err(KvFileError::OtherVersion { found: version, expected: VERSION });
    }
    if !(FIXED_BYTES..=MAX_HEADER_BYTES).contains(&header_bytes) {
        return Err(KvFileError::Invalid("length of the header"));
    }
    if file_bytes < header_bytes as u64 {
        return Err(short(header_bytes as u64));
    }
    file.read_exact(&mut header[16..header_bytes]).map_err(bad)?;
    let (tokens, chunk_pages) = check_header(&header[..header_bytes], file_bytes, binding)?;
    let body_bytes = binding.body_bytes(tokens).ok_or(KvFileError::Invalid("number of tokens"))?;
    if file_bytes != (header_bytes + body_bytes + 4) as u64 {
        return Err(KvFileError::Invalid("length of the contents"));
    }
    let mut body = Vec::new();
    body.try_reserve_exact(body_bytes).map_err(|_| KvFileError::NoMemory { bytes: body_bytes })?;
    // `read_to_end` does not zero the memory first.
    let read = (&mut *file).take(body_bytes as u64).read_to_end(&mut body).map_err(bad)?;
    if read < body_bytes {
        return Err(short(file_bytes));
    }
    let mut checksum = [0; 4];
    file.read_exact(&mut checksum).map_err(bad)?;
    if crc32fast::hash(&body) != u32::from_le_bytes(checksum) {
        return Err(KvFileError::Checksum { part: "contents" });
    }
    let ids = body[..4 * tokens].chunks_exact(4);
    let tokens: Vec<_> =
        ids.map(|id| TokenId(u32::from_le_bytes([id[0], id[1], id[2], id[3]]))).collect();
    if tokens.iter().any(|token| token.0 >= binding.vocab) {
        return Err(KvFileError::Invalid("token"));
    }
    let contents = Contents { tokens, chunk_pages, body };
    if !contents.is_valid(binding) {
        return Err(KvFileError::NotFinite);
    }
    Ok(contents)
}

/// Reads the bytes of a file.
pub(crate) fn read_bytes(mut bytes: &[u8], binding: &Binding) -> Result<Contents, KvFileError> {
    let file_bytes = bytes.len() as u64;
    let bad = |_| KvFileError::Length { found: file_bytes, expected: file_bytes };
    read(&mut bytes, file_bytes, binding, &bad)
}

/// Reads a file. Returns its contents and its length.
pub(crate) fn read_file(path: &Path, binding: &Binding) -> Result<(Contents, u64), KvFileError> {
    let io = |error: io::Error| KvFileError::Io {
        path: path.to_owned(),
        kind: error.kind(),
        message: error.to_string(),
    };
    // Before it is opened: to open a FIFO waits for a writer.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(KvFileError::NotAFile { path: path.to_owned() });
    }
    let mut file = File::open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    Ok((read(&mut file, file_bytes, binding, &io)?, file_bytes))
}
