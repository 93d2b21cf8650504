use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use super::{Binding, Contents, FIXED_BYTES, KvFileError, MAGIC, VERSION, code};
use crate::replace::replace;

/// Header of a file, and its length.
fn header(contents: &Contents, binding: &Binding) -> (Vec<u8>, u64) {
    let names = [&*binding.architecture, binding.image.layout];
    let names_bytes: usize = names.iter().map(|name| 4 + name.len()).sum();
    let header_bytes = FIXED_BYTES + names_bytes;
    let file_bytes = (header_bytes + contents.body.len() + 4) as u64;
    let mut header = Vec::with_capacity(header_bytes);
    let mut put = |bytes: &[u8]| header.extend_from_slice(bytes);
    put(MAGIC);
    put(&VERSION.to_le_bytes());
    put(&(header_bytes as u32).to_le_bytes());
    put(&file_bytes.to_le_bytes());
    put(&binding.model.to_le_bytes());
    put(&binding.rotation.to_le_bytes());
    put(&(contents.tokens.len() as u32).to_le_bytes());
    put(&binding.image.page_tokens.to_le_bytes());
    put(&(binding.image.page_bytes() as u64).to_le_bytes());
    put(&(binding.image.state_bytes() as u64).to_le_bytes());
    put(&contents.chunk_pages.to_le_bytes());
    put(&code(binding.kv_type).to_le_bytes());
    for name in names {
        put(&(name.len() as u32).to_le_bytes());
        put(name.as_bytes());
    }
    let checksum = crc32fast::hash(&header);
    header.extend_from_slice(&checksum.to_le_bytes());
    debug_assert_eq!(header.len(), header_bytes);
    (header, file_bytes)
}

/// Writes a file. Returns its length.
fn write(
    mut contents: Contents,
    binding: &Binding,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<io::Result<u64>, KvFileError> {
    if Some(contents.body.len()) != binding.body_bytes(contents.tokens.len()) {
        return Err(KvFileError::Invalid("length of the contents"));
    }
    contents.clear_unused(binding);
    if !contents.is_valid(binding) {
        return Err(KvFileError::NotFinite);
    }
    let (header, file_bytes) = header(&contents, binding);
    let checksum = crc32fast::hash(&contents.body).to_le_bytes();
    let mut parts = [&header[..], &contents.body, &checksum].into_iter();
    Ok(parts.try_for_each(write).map(|()| file_bytes))
}

/// A file in memory.
pub(crate) fn to_bytes(contents: Contents, binding: &Binding) -> Result<Vec<u8>, KvFileError> {
    let mut bytes = Vec::new();
    let written = write(contents, binding, &mut |part| {
        bytes.try_reserve(part.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    let max_bytes = bytes.len();
    written.map_err(|_| KvFileError::NoMemory { bytes: max_bytes })?;
    Ok(bytes)
}

/// Checks that nothing else than a cache file is replaced. It may be incomplete or zeroed, as a
/// power cut leaves a copy of it.
fn check_replaced(path: &Path, io: &dyn Fn(io::Error) -> KvFileError) -> Result<(), KvFileError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata if !metadata.as_ref().is_ok_and(fs::Metadata::is_file) => {
            metadata.map_err(io)?;
            return Err(KvFileError::NotAFile { path: path.to_owned() });
        }
        _ => {}
    }
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut begin));
    read.map_err(io)?;
    let is_zeroed = begin.iter().all(|byte| *byte == 0);
    if is_zeroed || MAGIC.starts_with(&begin) { Ok(()) } else { Err(KvFileError::NotACacheFile) }
}

/// Writes a file next to `path`, and renames it: a crash or a power failure leaves the old or the
/// new file. Only a cache file is replaced. Returns its length.
pub(crate) fn write_file(
    path: &Path,
    contents: Contents,
    binding: &Binding,
) -> Result<u64, KvFileError> {
    let io = |error: io::Error| KvFileError::Io {
        path: path.to_owned(),
        kind: error.kind(),
        message: error.to_string(),
    };
    check_replaced(path, &io)?;
    let written =
        |file: &mut File| write(contents, binding, &mut |part| file.write_all(part))?.map_err(&io);
    replace(path, written, io)
}
