//! Recognises files of other formats by their first bytes.

/// The first bytes of a GGUF file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// Number of bytes of a file that are examined.
pub(super) const HEAD_BYTES: u64 = 1_024;
/// Maximum number of characters of a text that a message quotes.
const MAX_QUOTED: usize = 60;

/// Advice for weights in another format.
const CONVERT: &str =
    "convert it with llama.cpp's convert_hf_to_gguf.py, or download the model as GGUF";

/// Format of a file that is not GGUF, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Foreign {
    /// The file is empty.
    #[error("an empty file: download it again")]
    Empty,
    /// Zeros: space that a downloader has reserved.
    #[error("a file that begins with zeros: the download is not complete, or the file is damaged")]
    Zeros,
    /// A Git LFS pointer file.
    #[error("a Git LFS pointer: run `git lfs pull` in its repository, or download the file itself")]
    LfsPointer,
    /// A web page.
    #[error("a web page (HTML): download the file itself, not the page that describes it")]
    Html,
    /// JSON or XML: a configuration, an index, or a server's error message.
    #[error("{0}: download the model file itself (a server may have sent an error instead)")]
    Markup(&'static str),
    /// Weights in safetensors format.
    #[error("a safetensors file: {CONVERT}")]
    Safetensors,
    /// A PyTorch checkpoint.
    #[error("a PyTorch checkpoint: {CONVERT}")]
    PyTorch,
    /// An archive or compressed file, with the name of its format.
    #[error("a {0} file: unpack it first")]
    Archive(&'static str),
    /// A model in a predecessor format of GGUF.
    #[error("a model in a format older than GGUF: convert it again, or download the model as GGUF")]
    OldGgml,
    /// Weights in HDF5 format (Keras).
    #[error("an HDF5 file: {CONVERT}")]
    Hdf5,
    /// A program.
    #[error("a program (perhaps a llamafile): download the model as GGUF")]
    Executable,
    /// Other text, with its beginning.
    #[error("text ({0:?}): download the model file itself")]
    Text(String),
}

/// Formats with a fixed magic number. For zip archives see [`zip`].
const BEGINNINGS: &[(&[u8], Foreign)] = &[
    (b"version https://git-lfs", Foreign::LfsPointer),
    (b"\x1f\x8b", Foreign::Archive("gzip")),
    (b"\x28\xb5\x2f\xfd", Foreign::Archive("Zstandard")),
    (b"\xfd7zXZ\0", Foreign::Archive("xz")),
    (b"BZh", Foreign::Archive("bzip2")),
    (b"7z\xbc\xaf\x27\x1c", Foreign::Archive("7-Zip")),
    (b"Rar!\x1a\x07", Foreign::Archive("RAR")),
    // "ggml", "ggmf", "ggjt" and "ggla" as 32-bit numbers.
    (b"lmgg", Foreign::OldGgml),
    (b"fmgg", Foreign::OldGgml),
    (b"tjgg", Foreign::OldGgml),
    (b"algg", Foreign::OldGgml),
    (b"\x89HDF\r\n\x1a\n", Foreign::Hdf5),
    (b"\x7fELF", Foreign::Executable),
    (b"MZ", Foreign::Executable),
    // Pickles of protocols 2 to 5.
    (b"\x80\x02", Foreign::PyTorch),
    (b"\x80\x03", Foreign::PyTorch),
    (b"\x80\x04", Foreign::PyTorch),
    (b"\x80\x05", Foreign::PyTorch),
];

/// The format of a file that does not start with GGUF's magic number. `None` for GGUF and for
/// unknown formats.
pub(super) fn recognize(file: &[u8]) -> Option<Foreign> {
    let head = file.get(..HEAD_BYTES as usize).unwrap_or(file);
    if head.is_empty() {
        return Some(Foreign::Empty);
    }
    if head.starts_with(&MAGIC) {
        return None;
    }
    if is_safetensors(head) {
        return Some(Foreign::Safetensors);
    }
    if let Some((_, format)) = BEGINNINGS.iter().find(|(bytes, _)| head.starts_with(bytes)) {
        return Some(format.clone());
    }
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Some(zip(head));
    }
    if head.get(257..262) == Some(b"ustar") {
        return Some(Foreign::Archive("tar"));
    }
    if head.len() >= 4 && head.iter().all(|&byte| byte == 0) {
        return Some(Foreign::Zeros);
    }
    text(head).map(markup)
}

/// Eight bytes with the length of a JSON object, and the object.
fn is_safetensors(head: &[u8]) -> bool {
    const MAX_HEADER_BYTES: u64 = 100 << 20;
    let Some((length, json)) = head.split_first_chunk() else { return false };
    let length = u64::from_le_bytes(*length);
    json.starts_with(b"{\"") && (2..=MAX_HEADER_BYTES).contains(&length)
}

/// PyTorch stores checkpoints as zip archives, whose first entry is `data.pkl` in a folder.
fn zip(head: &[u8]) -> Foreign {
    let is_pickle = head.windows(9).any(|name| name == b"/data.pkl");
    if is_pickle { Foreign::PyTorch } else { Foreign::Archive("zip") }
}

/// The head as text without a byte order mark, if it is text: UTF-8, possibly truncated in the last
/// character, without control characters except white space.
fn text(head: &[u8]) -> Option<&str> {
    let text = match core::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            core::str::from_utf8(head.get(..error.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let is_text = |c: char| !c.is_control() || c.is_whitespace();
    (!text.is_empty() && text.chars().all(is_text)).then_some(text)
}

fn markup(text: &str) -> Foreign {
    let begins =
        |with: &str| text.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with));
    if ["<!doctype html", "<html", "<head", "<body", "<!--"].into_iter().any(begins) {
        return Foreign::Html;
    }
    if begins("<?xml") {
        return Foreign::Markup("XML");
    }
    if text.starts_with('{') {
        return Foreign::Markup("JSON");
    }
    let line = text.lines().next().unwrap_or_default();
    Foreign::Text(line.chars().take(MAX_QUOTED).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_other_formats_are_recognized() {
        let safetensors = [&64_u64.to_le_bytes()[..], b"{\"weight\":{"].concat();
        let checkpoint = [&b"PK\x03\x04"[..], &[0; 22], b"archive/data.pkl"].concat();
        let tar = [&[b'm'; 257][..], b"ustar\0"].concat();
        let cases: &[(&[u8], Foreign)] = &[
            (b"", Foreign::Empty),
            (&[0; 64], Foreign::Zeros),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", Foreign::LfsPointer),
            (b"<!DOCTYPE html>\n<html>", Foreign::Html),
            (b"\xef\xbb\xbf \n<HTML lang=\"en\">", Foreign::Html),
            (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied", Foreign::Markup("XML")),
            (b"{\"error\":\"Not found\"}", Foreign::Markup("JSON")),
            (&safetensors, Foreign::Safetensors),
            (&checkpoint, Foreign::PyTorch),
            (b"\x80\x02\x8a\x0a", Foreign::PyTorch),
            (b"PK\x03\x04model", Foreign::Archive("zip")),
            (b"\x1f\x8b\x08\0", Foreign::Archive("gzip")),
            (b"\x28\xb5\x2f\xfd\0", Foreign::Archive("Zstandard")),
            (&tar, Foreign::Archive("tar")),
            (b"tjgg\x03\0\0\0", Foreign::OldGgml),
            (b"\x7fELF\x02", Foreign::Executable),
            (b"Entry not found\n", Foreign::Text("Entry not found".into())),
        ];
        for (head, expected) in cases {
            assert_eq!(recognize(head).as_ref(), Some(expected), "{:?}", head.escape_ascii());
        }
    }

    #[test]
    fn unknown_bytes_and_gguf_itself_are_no_other_format() {
        for head in [&b"GGUF\x03\0\0\0"[..], b"\x01\x02\xff\xfe", b"ab\0cd", b"\0\0\0", b"\xc3"] {
            assert_eq!(recognize(head), None, "{:?}", head.escape_ascii());
        }
    }

    #[test]
    fn a_quote_is_short_and_may_end_within_a_character() {
        let long = "é".repeat(HEAD_BYTES as usize);
        let Some(Foreign::Text(quoted)) = recognize(&long.as_bytes()[..HEAD_BYTES as usize - 1])
        else {
            panic!("text");
        };
        assert_eq!(quoted, "é".repeat(MAX_QUOTED));
    }
}
