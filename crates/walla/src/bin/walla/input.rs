//! Text from files and standard input, with bounds.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufRead, AsyncBufReadExt};
use walla_model::tokenizer::Tokenizer;

/// Maximum bytes of a text: the default limit of a tokenizer, 1 MiB.
pub const MAX_BYTES: usize = Tokenizer::MAX_TEXT_BYTES;

/// Editors and shells of Windows write it before a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A text that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("{path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: longer than {MAX_BYTES} bytes, the limit of a text", path = path.display())]
    TooLong { path: PathBuf },
    #[error("{path}: not UTF-8 at byte {at}", path = path.display())]
    NotUtf8 { path: PathBuf, at: usize },
}

/// Reads a text of at most [`MAX_BYTES`] bytes, without a byte order mark. The file may be endless,
/// such as a device.
pub fn text(path: &Path) -> Result<String, TextError> {
    let file = File::open(path);
    text_of(file.map_err(|source| TextError::Read { path: path.to_owned(), source })?, path)
}

/// As [`text`], of standard input.
#[cfg(feature = "voice")]
pub fn standard_input() -> Result<String, TextError> {
    text_of(io::stdin().lock(), Path::new("standard input"))
}

fn text_of(input: impl Read, path: &Path) -> Result<String, TextError> {
    let failed = |source| TextError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    input.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_BYTES {
        return Err(TextError::TooLong { path: path.to_owned() });
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        TextError::NotUtf8 { path: path.to_owned(), at }
    })?;
    Ok(without_mark(text))
}

/// A text without a byte order mark before it.
fn without_mark(mut text: String) -> String {
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    text
}

/// A line of input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Without its end and a byte order mark before it. Bytes that are not UTF-8 are replacement
    /// characters.
    Text(String),
    /// It had more than the maximum of bytes and was skipped.
    TooLong,
}

/// Reads the next line; `None` at the end of input. Holds at most `max_bytes` bytes of it.
pub async fn line(
    input: &mut (impl AsyncBufRead + Unpin),
    max_bytes: usize,
) -> io::Result<Option<Line>> {
    let (mut line, mut is_too_long, mut is_empty) = (Vec::new(), false, true);
    loop {
        let found = input.fill_buf().await?;
        if found.is_empty() {
            break;
        }
        is_empty = false;
        let end = found.iter().position(|byte| *byte == b'\n');
        let part = &found[..end.unwrap_or(found.len())];
        is_too_long |= line.len() + part.len() > max_bytes;
        if !is_too_long {
            line.extend_from_slice(part);
        }
        let bytes = part.len() + usize::from(end.is_some());
        input.consume(bytes);
        if end.is_some() {
            break;
        }
    }
    if is_empty {
        return Ok(None);
    }
    if is_too_long {
        return Ok(Some(Line::TooLong));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(Some(Line::Text(without_mark(String::from_utf8_lossy(&line).into_owned()))))
}

/// The next line; a line of more than [`MAX_BYTES`] bytes is an error.
pub async fn whole_line(
    input: &mut (impl AsyncBufRead + Unpin),
) -> Result<Option<String>, crate::Failure> {
    match line(input, MAX_BYTES).await? {
        Some(Line::TooLong) => Err(format!("a line is longer than {MAX_BYTES} bytes").into()),
        Some(Line::Text(line)) => Ok(Some(line)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], capacity: usize) -> Vec<Line> {
        let mut input = tokio::io::BufReader::with_capacity(capacity, input);
        let mut lines = Vec::new();
        while let Some(line) = line(&mut input, 4).await.unwrap() {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn lines_are_bounded_and_may_contain_any_bytes() {
        let text = |text: &str| Line::Text(text.into());
        for capacity in [1, 3, 64] {
            let found = lines(b"abcd\nabcde\n\r\n\xff\xfeb\nend", capacity).await;
            let expected =
                [text("abcd"), Line::TooLong, text(""), text("\u{fffd}\u{fffd}b"), text("end")];
            assert_eq!(found, expected, "{capacity}");
            assert_eq!(lines(b"", capacity).await, []);
        }
    }

    /// The first line of a pipe from a shell of Windows, or of files that are written together.
    #[tokio::test]
    async fn a_byte_order_mark_is_no_text() {
        for capacity in [1, 2, 64] {
            let found = lines("\u{feff}a\n\u{feff}\n\u{feff}".as_bytes(), capacity).await;
            assert_eq!(found, ["a", "", ""].map(|line| Line::Text(line.into())), "{capacity}");
        }
    }
}
