//! Checks the encoding of an ONNX file before it is parsed: a parser of whole files believes
//! lengths, and a damaged one can make it allocate any amount or read for ever.
//!
//! The file is a [protocol buffer](https://protobuf.dev/programming-guides/encoding). Field
//! numbers are in [`onnx.proto`](https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).

/// Messages inside of messages: subgraphs have five for each level.
const MAX_DEPTH: usize = 32;

/// Kinds of messages, as far as their fields contain others.
#[derive(Clone, Copy, Debug)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    /// Numbers and texts.
    Plain,
}

/// Content of a field with a length.
enum Content {
    Message(Message),
    Varints,
    /// Numbers of this many bytes.
    Numbers(usize),
    Bytes,
    /// Data in another file.
    External,
}

impl Message {
    fn content(self, field: u64) -> Content {
        let message = match (self, field) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Graph, 1) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) => Self::Tensor,
            (Self::Graph, 11..=13) => Self::ValueInfo,
            (Self::Node, 5) => Self::Attribute,
            (Self::ValueInfo, 2) | (Self::Type, 4) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Model, 8 | 14) | (Self::Shape, 1) => Self::Plain,
            (Self::Attribute, 8) | (Self::Tensor, 1 | 5 | 7) => return Content::Varints,
            (Self::Attribute, 7) | (Self::Tensor, 4) => return Content::Numbers(4),
            (Self::Tensor, 10) => return Content::Numbers(8),
            (Self::Tensor, 13) => return Content::External,
            _ => return Content::Bytes,
        };
        Content::Message(message)
    }
}

/// Checks that all lengths are inside of the file, and that all numbers are complete.
pub(super) fn check(file: &[u8]) -> Result<(), String> {
    message(file, Message::Model, 0).ok_or_else(|| "it is no ONNX file, or damaged".to_owned())?
}

/// `None`: damaged.
fn message(mut bytes: &[u8], kind: Message, depth: usize) -> Option<Result<(), String>> {
    if depth > MAX_DEPTH {
        return None;
    }
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag & 7 {
            0 => _ = varint(&mut bytes)?,
            1 => _ = take(&mut bytes, 8)?,
            5 => _ = take(&mut bytes, 4)?,
            2 => {
                let length = varint(&mut bytes)?;
                let mut content = take(&mut bytes, usize::try_from(length).ok()?)?;
                match kind.content(tag >> 3) {
                    Content::Message(kind) => {
                        if let Err(error) = message(content, kind, depth + 1)? {
                            return Some(Err(error));
                        }
                    }
                    Content::Varints => {
                        while !content.is_empty() {
                            varint(&mut content)?;
                        }
                    }
                    Content::Numbers(size) if content.len() % size != 0 => return None,
                    Content::External => {
                        return Some(Err("its weights are in another file".to_owned()));
                    }
                    Content::Numbers(_) | Content::Bytes => {}
                }
            }
            _ => return None,
        }
    }
    Some(Ok(()))
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// A number of at most 64 bits, seven in each byte.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return (index < 9 || byte <= 1).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_numbers_are_checked() {
        // A model with a graph (7) with an initializer (5) with dims (1) 2 and 300.
        let file = [0x3a, 7, 0x2a, 5, 0x0a, 3, 2, 0xac, 2];
        assert_eq!(check(&file), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        for (at, wrong) in [(1, 6), (1, 8), (3, 4), (3, 200), (5, 2), (5, 4), (8, 0x82), (0, 0x3f)]
        {
            let mut file = file;
            file[at] = wrong;
            assert!(check(&file).is_err(), "byte {at} is {wrong}");
        }
        assert!(check(&file[..8]).is_err());
        // Deep, and a file that names another one.
        // A graph (6) of an attribute (5) of a node (1), and so on.
        let mut deep = Vec::new();
        for field in [6, 5, 1].into_iter().cycle().take(36) {
            deep.splice(0..0, [field << 3 | 2, deep.len() as u8]);
        }
        deep.splice(0..0, [0x3a, deep.len() as u8]);
        assert!(check(&deep).is_err());
        assert_eq!(check(&[&[0x3a, 12], &deep[62..]].concat()), Ok(()));
        let external = [0x3a, 6, 0x2a, 4, 0x6a, 2, 0x0a, 0];
        assert!(check(&external).unwrap_err().contains("another file"));
    }
}
