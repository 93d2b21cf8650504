//! Values as Python, JSON and Gemma write them.

use serde_json::{Map, Value};

use super::QUOTE;
use crate::schema::is_of_name;

/// Maximum nesting depth of values.
const MAX_DEPTH: usize = 32;

/// Reads values from a text.
pub(super) struct Reader<'t> {
    rest: &'t [u8],
}

type Read<T> = Result<T, &'static str>;

impl<'t> Reader<'t> {
    pub fn new(text: &'t [u8]) -> Self {
        Self { rest: text }
    }

    /// The next byte that is not white space.
    pub fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        if is_next {
            self.rest = self.rest.get(1..).unwrap_or_default();
        }
        is_next
    }

    pub fn expect(&mut self, byte: u8, reason: &'static str) -> Read<()> {
        if self.take(byte) { Ok(()) } else { Err(reason) }
    }

    /// The unread text.
    pub fn rest(&self) -> &'t [u8] {
        self.rest
    }

    /// A run of letters, digits, `_` and `-`.
    pub fn name(&mut self) -> Read<&'t str> {
        self.peek();
        self.run(is_of_name, "no name")
    }

    fn run(&mut self, is_part: impl Fn(u8) -> bool, reason: &'static str) -> Read<&'t str> {
        let end = self.rest.iter().position(|&byte| !is_part(byte)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at_checked(end).unwrap_or_default();
        self.rest = rest;
        match std::str::from_utf8(run) {
            Ok(run) if !run.is_empty() => Ok(run),
            _ => Err(reason),
        }
    }

    /// A value.
    pub fn value(&mut self, depth: usize) -> Read<Value> {
        if depth > MAX_DEPTH {
            return Err("a value is nested too deeply");
        }
        match self.peek() {
            Some(QUOTE | b'"' | b'\'') => self.text().map(Value::String),
            Some(b'[') => self.list(b']', depth),
            Some(b'(') => self.list(b')', depth),
            Some(b'{') => self.object(depth).map(Value::Object),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => match self.name()? {
                "true" | "True" => Ok(Value::Bool(true)),
                "false" | "False" => Ok(Value::Bool(false)),
                "null" | "None" | "none" => Ok(Value::Null),
                _ => Err("a text without quotes"),
            },
        }
    }

    fn number(&mut self) -> Read<Value> {
        let is_part = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
        let number = self.run(is_part, "no number")?;
        let value: Value = serde_json::from_str(number).map_err(|_| "not a number")?;
        Ok(value)
    }

    fn list(&mut self, end: u8, depth: usize) -> Read<Value> {
        self.rest = self.rest.get(1..).unwrap_or_default();
        let mut items = Vec::new();
        self.until(end, "a list is not closed", |reader| {
            items.push(reader.value(depth + 1)?);
            Ok(())
        })?;
        Ok(Value::Array(items))
    }

    /// Reads parts with commas between them, up to and including a byte.
    pub fn until(
        &mut self,
        end: u8,
        reason: &'static str,
        mut part: impl FnMut(&mut Self) -> Read<()>,
    ) -> Read<()> {
        while !self.take(end) {
            part(self)?;
            if !self.take(b',') {
                return self.expect(end, reason);
            }
        }
        Ok(())
    }

    /// `{…}` with names in quotes or without.
    pub fn object(&mut self, depth: usize) -> Read<Map<String, Value>> {
        self.expect(b'{', "no object")?;
        let mut fields = Map::new();
        self.until(b'}', "an object is not closed", |reader| {
            let name = match reader.peek() {
                Some(QUOTE | b'"' | b'\'') => reader.text()?,
                _ => reader.name()?.to_owned(),
            };
            reader.expect(b':', "no colon behind a name")?;
            match fields.insert(name, reader.value(depth + 1)?) {
                Some(_) => Err("a name occurs twice"),
                None => Ok(()),
            }
        })?;
        Ok(fields)
    }

    /// A text in quotes. Gemma's quotes have no escapes.
    fn text(&mut self) -> Read<String> {
        let (&mark, rest) = self.rest.split_first().ok_or("no text")?;
        self.rest = rest;
        let mut bytes = Vec::new();
        loop {
            let (&byte, rest) = self.rest.split_first().ok_or("a text is not closed")?;
            self.rest = rest;
            match byte {
                _ if byte == mark => break,
                b'\\' if mark != QUOTE => self.escape(&mut bytes)?,
                _ => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).map_err(|_| "a text is not UTF-8")
    }

    /// The character behind a backslash. An unknown escape is the backslash, as in Python.
    fn escape(&mut self, bytes: &mut Vec<u8>) -> Read<()> {
        let (&byte, rest) = self.rest.split_first().ok_or("a text is not closed")?;
        self.rest = rest;
        match byte {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'b' => bytes.push(8),
            b'f' => bytes.push(12),
            b'\\' | b'"' | b'\'' | b'/' => bytes.push(byte),
            b'u' | b'x' => {
                let mut code = self.hexadecimal(if byte == b'u' { 4 } else { 2 })?;
                if (0xd800..0xdc00).contains(&code) {
                    self.rest = self.rest.strip_prefix(b"\\u").ok_or("half a character")?;
                    let low = self.hexadecimal(4)?;
                    let low = low.checked_sub(0xdc00).filter(|&low| low < 0x400);
                    code = 0x10000 + ((code - 0xd800) << 10) + low.ok_or("half a character")?;
                }
                let character = char::from_u32(code).ok_or("half a character")?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => bytes.extend([b'\\', byte]),
        }
        Ok(())
    }

    fn hexadecimal(&mut self, digits: usize) -> Read<u32> {
        let (text, rest) = self.rest.split_at_checked(digits).ok_or("not an escape")?;
        self.rest = rest;
        let text = std::str::from_utf8(text).map_err(|_| "not an escape")?;
        let is_valid = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|_| is_valid).ok_or("not an escape")
    }
}
