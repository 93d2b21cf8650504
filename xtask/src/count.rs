//! Lines of Rust sources by kind, and names that each crate exports.
//!
//! A line with code and a comment counts as code. Tests are files in folders `tests` and
//! `models`, files `tests.rs`, and items with `#[cfg(test)]`. Names are the ones that a user can
//! write: items with `pub` and names of `pub use` in the crate's root and its public modules,
//! without methods, fields and variants; a `*` counts as one.

use std::collections::BTreeMap;
use std::path::Path;

/// Prints a table of all crates in `crates/`, and their sum.
///
/// # Errors
/// A file cannot be read.
pub fn print() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut crates: BTreeMap<String, Lines> = BTreeMap::new();
    for path in crate::width::files(&root) {
        if path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let inside = path.strip_prefix(&root).map_err(|e| e.to_string())?;
        let parts: Vec<_> = inside.iter().filter_map(|part| part.to_str()).collect();
        let [name, folders @ .., file] = parts.as_slice() else { continue };
        let is_test = folders.iter().any(|folder| matches!(*folder, "tests" | "models"));
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", inside.display()))?;
        let lines = crates.entry((*name).to_owned()).or_default();
        lines.add(&text, is_test || matches!(*file, "tests.rs" | "test_support.rs"));
    }
    println!("| crate | code | docs | comments | tests | names |\n|---|---|---|---|---|---|");
    let (mut sum, mut names_sum) = (Lines::default(), 0);
    for (name, lines) in &crates {
        let names = names(&root.join(name).join("src"), "lib");
        names_sum += names;
        println!("| {name} | {lines} | {names} |");
        sum = sum + *lines;
    }
    println!("| {} crates | {sum} | {names_sum} |", crates.len());
    Ok(())
}

/// Lines of one kind each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    docs: usize,
    comments: usize,
    tests: usize,
}

impl Lines {
    /// Adds the lines of a file.
    fn add(&mut self, text: &str, is_test_file: bool) {
        let lines = scanned(text);
        let tests = test_items(&lines);
        for (line, is_test) in lines.iter().zip(tests) {
            match line {
                Line::Code(_) if is_test || is_test_file => self.tests += 1,
                Line::Doc | Line::Comment | Line::Blank if is_test || is_test_file => {}
                Line::Code(_) => self.code += 1,
                Line::Doc => self.docs += 1,
                Line::Comment => self.comments += 1,
                Line::Blank => {}
            }
        }
    }
}

impl std::ops::Add for Lines {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            code: self.code + other.code,
            docs: self.docs + other.docs,
            comments: self.comments + other.comments,
            tests: self.tests + other.tests,
        }
    }
}

impl std::fmt::Display for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, docs, comments, tests } = self;
        write!(f, "{code} | {docs} | {comments} | {tests}")
    }
}

/// A line, with its code if it has any: without comments and the contents of literals.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Code(String),
    Doc,
    Comment,
    Blank,
}

/// The part of a source that a scanned character belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Code,
    /// With the depth of nested comments.
    BlockComment(usize),
    Text,
    /// With the number of `#`.
    RawText(usize),
}

/// The lines of a source.
fn scanned(text: &str) -> Vec<Line> {
    let mut place = Place::Code;
    text.lines().map(|line| scanned_line(line, &mut place)).collect()
}

fn scanned_line(line: &str, place: &mut Place) -> Line {
    let mut code = String::new();
    let (mut has_code, mut has_comment) = (false, false);
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        let mut taken = next.len_utf8();
        match *place {
            Place::Code if rest.starts_with("//") => {
                let is_doc = rest.starts_with("//!")
                    || (rest.starts_with("///") && !rest.starts_with("////"));
                return match (has_code, is_doc) {
                    (true, _) => Line::Code(code),
                    (false, true) => Line::Doc,
                    (false, false) => Line::Comment,
                };
            }
            Place::Code if rest.starts_with("/*") => (*place, taken) = (Place::BlockComment(1), 2),
            Place::Code => {
                has_code |= !next.is_whitespace();
                let is_name = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
                if let Some((length, hashes)) = raw_text(rest).filter(|_| !is_name) {
                    (*place, taken) = (Place::RawText(hashes), length);
                } else if let Some(length) = character(rest) {
                    taken = length;
                } else if next == '"' {
                    *place = Place::Text;
                } else {
                    code.push(next);
                }
            }
            Place::BlockComment(depth) => {
                has_comment = true;
                if rest.starts_with("/*") {
                    (*place, taken) = (Place::BlockComment(depth + 1), 2);
                } else if rest.starts_with("*/") {
                    let outer =
                        if depth == 1 { Place::Code } else { Place::BlockComment(depth - 1) };
                    (*place, taken) = (outer, 2);
                }
            }
            Place::Text => {
                has_code = true;
                if next == '\\' {
                    taken += rest[taken..].chars().next().map_or(0, char::len_utf8);
                } else if next == '"' {
                    *place = Place::Code;
                }
            }
            Place::RawText(hashes) => {
                has_code = true;
                if next == '"' && rest[1..].starts_with(&"#".repeat(hashes)) {
                    (*place, taken) = (Place::Code, 1 + hashes);
                }
            }
        }
        rest = &rest[taken..];
    }
    // An empty line of a literal belongs to it.
    if has_code || matches!(place, Place::Text | Place::RawText(_)) {
        Line::Code(code)
    } else if has_comment {
        Line::Comment
    } else {
        Line::Blank
    }
}

/// Length of the beginning of a raw literal, and the number of its `#`.
fn raw_text(rest: &str) -> Option<(usize, usize)> {
    let behind = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    behind[hashes..].starts_with('"').then(|| (rest.len() - behind.len() + hashes + 1, hashes))
}

/// Length of a character literal: a quote without a closing one is a lifetime.
fn character(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let length = match inner.strip_prefix('\\') {
        Some(escape) => 1 + escape.char_indices().skip(1).find(|(_, c)| *c == '\'')?.0,
        None => inner.chars().next()?.len_utf8(),
    };
    inner[length..].starts_with('\'').then_some(length + 2)
}

/// Code outside of items with `#[cfg(test)]`, without comments and the contents of literals: the
/// number of each line, from 1, and its code.
pub fn production(text: &str) -> Vec<(usize, String)> {
    let lines = scanned(text);
    let tests = test_items(&lines);
    let code = (1..).zip(lines).zip(tests).filter_map(|((number, line), is_test)| match line {
        Line::Code(code) if !is_test => Some((number, code)),
        _ => None,
    });
    code.collect()
}

/// For each line whether it belongs to an item with `#[cfg(test)]`.
fn test_items(lines: &[Line]) -> Vec<bool> {
    let mut is_test = Vec::with_capacity(lines.len());
    // Depth of brackets in the item, and whether the outermost is a brace.
    let mut item: Option<(usize, bool)> = None;
    for line in lines {
        let code = if let Line::Code(code) = line { code.trim_start() } else { "" };
        let attribute = ["#[cfg(test)]", "#[cfg(all(test"]
            .into_iter()
            .find(|attribute| item.is_none() && code.starts_with(attribute));
        if attribute.is_some() {
            item = Some((0, false));
        }
        is_test.push(item.is_some());
        let behind =
            attribute.and_then(|_| code.split_once(']')).map_or(code, |(_, behind)| behind);
        for c in behind.chars() {
            item = match (item, c) {
                (Some((0, _)), '{' | '(' | '[') => Some((1, c == '{')),
                (Some((depth, is_brace)), '{' | '(' | '[') => Some((depth + 1, is_brace)),
                (Some((1, true)), '}') | (Some((0, _)), ';' | ',' | '}') => None,
                (Some((depth, is_brace)), '}' | ')' | ']') => Some((depth - 1, is_brace)),
                _ => item,
            };
        }
    }
    is_test
}

/// Names that a module exports, with its public modules: `folder` has the module's file.
fn names(folder: &Path, module: &str) -> usize {
    let path = [format!("{module}.rs"), format!("{module}/mod.rs")].map(|name| folder.join(name));
    let Some(text) = path.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
        return 0;
    };
    let inner = if module == "lib" { folder.to_owned() } else { folder.join(module) };
    let lines = scanned(&text);
    let tests = test_items(&lines);
    let production = lines.iter().zip(tests).filter(|(_, is_test)| !is_test);
    let code: Vec<&str> = production
        .filter_map(
            |(line, _)| if let Line::Code(code) = line { Some(code.as_str()) } else { None },
        )
        .collect();
    exported(&code.join("\n"), &|name| names(&inner, name))
}

/// Names that the code of a module exports. `names_of` counts the names of a module in another
/// file.
fn exported(code: &str, names_of: &dyn Fn(&str) -> usize) -> usize {
    let (mut count, mut depth) = (0, 0_usize);
    let mut rest = code;
    while let Some(at) = rest.find(['{', '}', 'p']) {
        let is_start = !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let behind = &rest[at..];
        rest = &behind[1..];
        let item = behind.strip_prefix("pub ").filter(|_| is_start && depth == 0);
        let Some(item) = item else {
            match behind.as_bytes()[0] {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            continue;
        };
        if let Some((tree, after)) = item.strip_prefix("use ").and_then(|tree| tree.split_once(';'))
        {
            count += leaves(tree);
            rest = after;
            continue;
        }
        count += 1;
        let Some(module) = item.strip_prefix("mod ") else { continue };
        let end = module.find([';', '{']).unwrap_or(module.len());
        if module[end..].starts_with('{') {
            let (inner, after) = split_block(&module[end + 1..]);
            count += exported(inner, names_of);
            rest = after;
        } else {
            count += names_of(module[..end].trim_end());
        }
    }
    count
}

/// The code up to the brace that closes a block, and the code behind it.
fn split_block(code: &str) -> (&str, &str) {
    let mut depth = 0_usize;
    for (at, c) in code.match_indices(['{', '}']) {
        match c {
            "{" => depth += 1,
            _ if depth == 0 => return (&code[..at], &code[at + 1..]),
            _ => depth -= 1,
        }
    }
    (code, "")
}

/// Names of a `use` tree: its parts between commas, without the groups.
fn leaves(tree: &str) -> usize {
    tree.split(['{', '}', ','])
        .filter(|part| !part.trim().is_empty() && !part.trim_end().ends_with("::"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_kind() {
        let text = "//! Docs.\n\n/// Docs.\nfn f() { // comment\n    /* a\n    b */ let x = '\"';\n    \
                    let y = r#\"\n// text\n\"#;\n    // comment\n}\n\n#[cfg(test)]\nmod tests {\n    \
                    // comment\n    fn g<'a>() {}\n}\nconst A: &str = \"{\";\n";
        let mut lines = Lines::default();
        lines.add(text, false);
        assert_eq!(lines, Lines { code: 7, docs: 2, comments: 2, tests: 4 });
        let mut lines = Lines::default();
        lines.add(text, true);
        assert_eq!(lines, Lines { tests: 11, ..Lines::default() });
    }

    #[test]
    fn a_test_only_item_ends() {
        let mut lines = Lines::default();
        lines.add("#[cfg(test)]\nmod tests;\nfn f() {}\n", false);
        lines.add("struct S {\n#[cfg(test)]\na: u8,\nb: u8,\n}\n", false);
        lines.add("#[cfg(test)]\nfn f(a: [u8; 2],\nb: u8) {\nf({});\n}\nfn g() {}", false);
        assert_eq!(lines, Lines { code: 5, tests: 9, ..Lines::default() });
    }

    #[test]
    fn exported_names_are_counted() {
        let code = "mod a;\npub mod b;\npub use a::{A, B as C, d::{E, F}};\npub use g::G;\n\
                    pub struct S { pub x: u32 }\nimpl S { pub fn f(&self) {} }\npub(crate) fn g() {}\n\
                    pub mod inner { pub fn h() {} fn i() {} }\npub const fn j() {}\n";
        // b, its 5, A, C, E, F, G, S, inner, h, j
        let names_of = |name: &str| if name == "b" { 5 } else { 0 };
        assert_eq!(exported(code, &names_of), 15);
    }
}
