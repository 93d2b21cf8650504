//! Files built byte by byte, with any defect that a test needs.

/// Codes of metadata types.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// A tensor description in the file.
#[derive(Clone)]
pub struct RawTensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub code: u32,
    pub offset: u64,
}

impl RawTensor {
    pub fn new(name: &str, dims: &[u64], code: u32, offset: u64) -> Self {
        Self { name: name.into(), dims: dims.to_vec(), code, offset }
    }
}

/// A whole file. Counts follow from the lists unless they are set.
#[derive(Clone)]
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub entry_count: Option<u64>,
    /// Key, type and value.
    pub entries: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<RawTensor>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Raw {
    /// A valid file: metadata of every kind and two tensors of 32 bytes each.
    pub fn good() -> Self {
        let strings = array(STRING, 2, &[text(b"one"), text("zwölf".as_bytes())].concat());
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            entries: vec![
                (b"general.name".to_vec(), STRING, text(b"good")),
                (b"count".to_vec(), U32, 7_u32.to_le_bytes().to_vec()),
                (b"flag".to_vec(), BOOL, vec![1]),
                (b"words".to_vec(), ARRAY, strings),
                (b"bytes".to_vec(), ARRAY, array(U8, 3, &[1, 2, 3])),
            ],
            tensors: vec![RawTensor::new("a", &[8], 0, 0), RawTensor::new("b", &[4, 2], 0, 32)],
            alignment: 32,
            data: vec![0x11; 64],
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Vec<u8> {
        change(&mut self);
        self.bytes()
    }

    pub fn entry(&mut self, key: &[u8], code: u32, value: &[u8]) {
        self.entries.push((key.to_vec(), code, value.to_vec()));
    }

    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for (key, code, value) in &self.entries {
            out.extend(text(key));
            out.extend(code.to_le_bytes());
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.code.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// A length and text.
pub fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// The value of an array.
pub fn array(code: u32, len: u64, payload: &[u8]) -> Vec<u8> {
    [&code.to_le_bytes()[..], &len.to_le_bytes(), payload].concat()
}
