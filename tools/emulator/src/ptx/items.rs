//! Kernels, functions and variables of a file.

use std::collections::HashMap;

use super::tokens::{Token, tokens};

/// A parameter, or a return value of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Param {
    pub(super) name: String,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) is_entry: bool,
    /// Blocks per cluster, if declared.
    pub(super) cluster: Option<u32>,
    /// Maximum threads per block, if declared.
    pub(super) max_threads: Option<u32>,
    pub(super) returns: Vec<Param>,
    pub(super) params: Vec<Param>,
    /// Text between its braces.
    pub(super) body: String,
    pub(super) line: u32,
}

impl Item {
    pub(super) fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |last| (last.offset + last.bytes) as usize)
    }
}

/// A module's variables.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    /// Name, and byte offset in `words`.
    global: HashMap<String, usize>,
    /// Words of eight bytes, so that every variable is aligned.
    words: Vec<u64>,
    /// Shared variables of the file: name, offset and bytes. Variables of open size start at the
    /// end of the kernel's own shared memory.
    pub(super) shared: Vec<SharedVariable>,
}

/// A variable in shared memory.
#[derive(Clone, Debug)]
pub(super) struct SharedVariable {
    pub(super) name: String,
    pub(super) align: u32,
    /// 0: determined by the launch.
    pub(super) bytes: u32,
}

impl Globals {
    /// Host address of a variable.
    pub(super) fn address(&self, name: &str) -> Option<u64> {
        self.global.get(name).map(|offset| self.range().start + *offset as u64)
    }

    /// Address range of all variables.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        let start = self.words.as_ptr() as u64;
        start..start + 8 * self.words.len() as u64
    }
}

/// Contents of a file.
pub(super) struct File {
    pub(super) target: u32,
    pub(super) items: HashMap<String, Item>,
    pub(super) globals: Globals,
}

/// Splits a text into items. Bodies remain text.
pub(super) fn split(text: &str) -> Result<File, String> {
    let mut file = File { target: 0, items: HashMap::new(), globals: Globals::default() };
    let (mut rest, mut line) = (text, 1);
    loop {
        let begin = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
        line += newlines(&rest[..begin]);
        rest = &rest[begin..];
        if rest.is_empty() {
            return if file.target > 0 { Ok(file) } else { Err("no .target".to_owned()) };
        }
        let taken = if rest.starts_with("//") || is_line_directive(rest) {
            let end = rest.find('\n').unwrap_or(rest.len());
            if let Some(target) = rest[..end].strip_prefix(".target") {
                let name = target.trim().trim_start_matches("sm_");
                let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
                file.target = digits.parse().map_err(|_| format!("line {line}: {target}"))?;
            }
            end
        } else {
            item(rest, line, &mut file).map_err(|why| format!("line {line}: {why}"))?
        };
        line += newlines(&rest[..taken]);
        rest = &rest[taken..];
    }
}

fn newlines(text: &str) -> u32 {
    text.bytes().filter(|b| *b == b'\n').count() as u32
}

fn is_line_directive(rest: &str) -> bool {
    [".version", ".target", ".address_size"].iter().any(|word| rest.starts_with(word))
}

/// Parses a kernel, a function or a variable at the beginning of `rest`; returns its length in
/// bytes.
fn item(rest: &str, line: u32, file: &mut File) -> Result<usize, String> {
    let head_end = rest.find(['{', ';', '=']).ok_or("no end")?;
    let head = tokens(&rest[..head_end], line);
    let is_entry = head.iter().any(|token| token.text == ".entry");
    if !is_entry && !head.iter().any(|token| token.text == ".func") {
        let end = rest.find(';').ok_or("no end")?;
        variable(&tokens(&rest[..end], line), &mut file.globals)?;
        return Ok(end + 1);
    }
    let open = rest.find(['{', ';']).ok_or("no body")?;
    if rest.as_bytes().get(open) == Some(&b';') {
        return Ok(open + 1); // a declaration
    }
    let end = open + end_of_braces(&rest[open..]).ok_or("a brace is open")?;
    let at = head.iter().position(|t| matches!(t.text, ".entry" | ".func")).unwrap_or_default() + 1;
    let (returns, at) = match head.get(at) {
        Some(Token { text: "(", .. }) => params(&head, at)?,
        _ => (Vec::new(), at),
    };
    let name = head.get(at).ok_or("no name")?.text.to_owned();
    let params = match head.get(at + 1) {
        Some(Token { text: "(", .. }) => params(&head, at + 1)?.0,
        _ => Vec::new(),
    };
    let said = |word: &str| {
        let at = head.iter().position(|token| token.text == word)?;
        let numbers =
            head[at + 1..].iter().step_by(2).map_while(|token| token.text.parse::<u32>().ok());
        Some(numbers.take(3).product())
    };
    let (cluster, max_threads) = (said(".reqnctapercluster"), said(".maxntid"));
    let body = rest[open + 1..end - 1].to_owned();
    let line = line + newlines(&rest[..open]);
    file.items.insert(name, Item { is_entry, cluster, max_threads, returns, params, body, line });
    Ok(end)
}

fn end_of_braces(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(at + 1),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Parses the parenthesised list that begins at `at`; returns it and the index of its end.
fn params(head: &[Token<'_>], at: usize) -> Result<(Vec<Param>, usize), String> {
    let length = head[at..].iter().position(|t| t.text == ")").ok_or("a parenthesis is open")?;
    let mut found = Vec::new();
    let mut end = 0_u32;
    for tokens in head[at + 1..at + length].split(|t| t.text == ",") {
        if tokens.is_empty() {
            continue;
        }
        let declared = declared(tokens)?;
        let offset = end.next_multiple_of(declared.align);
        end = offset + declared.bytes;
        found.push(Param { name: declared.name, offset, bytes: declared.bytes });
    }
    Ok((found, at + length + 1))
}

/// A declaration such as `.align 8 .b8 name[120]`; other directives before it are ignored.
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) align: u32,
    pub(super) bytes: u32,
}

pub(super) fn declared(tokens: &[Token<'_>]) -> Result<Declared, String> {
    let words: Vec<&str> = tokens.iter().map(|token| token.text).collect();
    let number = |text: &&str| text.parse::<u32>().ok();
    let align =
        words.iter().position(|w| *w == ".align").and_then(|i| words.get(i + 1)).and_then(number);
    let (at, unit) =
        words.iter().enumerate().find_map(|(i, w)| Some((i, unit_bytes(w)?))).ok_or("no type")?;
    let name = (*words.get(at + 1).ok_or("no name")?).to_owned();
    let count = match words.get(at + 2) {
        Some(&"[") => words.get(at + 3).and_then(number).unwrap_or(0),
        _ => 1,
    };
    Ok(Declared { name, align: align.unwrap_or(unit), bytes: unit * count })
}

fn unit_bytes(word: &str) -> Option<u32> {
    let kind = word.strip_prefix(['.'])?;
    let bits = kind.strip_prefix(['b', 'u', 's', 'f'])?;
    matches!(bits, "8" | "16" | "32" | "64")
        .then(|| bits.parse::<u32>().ok().map(|bits| bits / 8))
        .flatten()
}

fn variable(tokens: &[Token<'_>], globals: &mut Globals) -> Result<(), String> {
    let is = |word: &str| tokens.iter().any(|token| token.text == word);
    let declared = declared(tokens)?;
    if is(".shared") {
        let Declared { name, align, bytes } = declared;
        globals.shared.push(SharedVariable { name, align, bytes });
        return Ok(());
    }
    if !is(".global") && !is(".const") {
        return Err("a variable that is neither global nor shared".to_owned());
    }
    let offset = 8 * globals.words.len();
    let mut bytes = vec![0_u8; (declared.bytes as usize).next_multiple_of(8)];
    let values = tokens
        .iter()
        .skip_while(|token| token.text != "{")
        .filter_map(|t| t.text.parse::<u8>().ok());
    bytes.iter_mut().zip(values).for_each(|(byte, value)| *byte = value);
    let words =
        bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
    globals.words.extend(words);
    globals.global.insert(declared.name, offset);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_split() {
        let text = ".version 8.3\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n\
            .global .align 4 .b8 table[6] = {1, 2, 3, 4, 5, 6};\n\
            .func (.param .b64 back) f(.param .align 8 .b8 a[12], .param .b32 b) { ret; }\n\
            .visible .entry k(\n.param .u64 k_param_0,\n.param .u32 k_param_1)\n.maxntid 128, 2, 1\n.reqnctapercluster 4, 1, 1\n{ { ret; } }\n";
        let file = split(text).unwrap();
        assert_eq!(file.target, 90);
        let (f, k) = (&file.items["f"], &file.items["k"]);
        assert!(k.is_entry && !f.is_entry);
        assert_eq!((k.param_bytes(), f.param_bytes(), f.returns.len()), (12, 16, 1));
        assert_eq!((k.max_threads, k.cluster, f.cluster), (Some(256), Some(4), None));
        assert_eq!(k.body.trim(), "{ ret; }");
        assert_eq!(file.globals.shared[0].name, "dynamic");
        assert_eq!(file.globals.words[0], 0x0605_0403_0201);
        assert!(file.globals.address("table").is_some());
    }
}
