//! Line widths: at most 100 columns in Rust and CUDA sources, 120 in Markdown.
//!
//! Exempt are lines that cannot be broken: string literals, URLs, tables, code blocks of Markdown
//! and of doc comments, and data after `#[rustfmt::skip]`.

use std::path::{Path, PathBuf};

/// Maximum columns of source files.
const SOURCE_COLUMNS: usize = 100;

/// Maximum columns of Markdown.
const MARKDOWN_COLUMNS: usize = 120;

/// Folders that are searched.
const FOLDERS: &[&str] = &[
    "benches", "crates", "docs", "examples", "fuzz", "kernels", "tests", "tools", "windowed",
    "xtask",
];

/// Checks all sources and Markdown pages of the repository.
///
/// # Errors
/// Lists all lines that are too long.
pub fn check() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    let mut checked = 0;
    for path in all_files(&root)? {
        let Some(is_markdown) = kind(&path) else { continue };
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        checked += 1;
        let lines = long_lines(&text, is_markdown);
        found.extend(lines.into_iter().map(|line| format!("{}:{line}", path.display())));
    }
    if found.is_empty() {
        eprintln!("xtask: {checked} files keep to the line widths");
        return Ok(());
    }
    Err(format!("{} lines are too long:\n{}", found.len(), found.join("\n")))
}

/// All files of the repository that people wrote, sorted.
///
/// # Errors
/// The root cannot be read.
pub fn all_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut all: Vec<PathBuf> = FOLDERS.iter().flat_map(|name| files(&root.join(name))).collect();
    let pages = std::fs::read_dir(root).map_err(|e| e.to_string())?.flatten();
    all.extend(pages.map(|entry| entry.path()).filter(|path| path.is_file()));
    all.sort();
    Ok(all)
}

/// All files in a folder and its subfolders, without build folders.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_build = path.file_name().is_some_and(|name| name == "target");
        if path.is_dir() && !is_build {
            all.extend(files(&path));
        } else if path.is_file() {
            all.push(path);
        }
    }
    all
}

/// Whether a file is Markdown; `None` if it is not checked.
fn kind(path: &Path) -> Option<bool> {
    match path.extension()?.to_str()? {
        "md" => Some(true),
        "rs" | "cu" | "cuh" => Some(false),
        _ => None,
    }
}

/// Numbers of the lines that are too long, from 1.
fn long_lines(text: &str, is_markdown: bool) -> Vec<usize> {
    let most = if is_markdown { MARKDOWN_COLUMNS } else { SOURCE_COLUMNS };
    let (mut is_code_block, mut is_data) = (false, false);
    let mut long = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let prose = comment_text(line).unwrap_or(line).trim_start();
        if (is_markdown || comment_text(line).is_some()) && prose.starts_with("```") {
            is_code_block = !is_code_block;
        } else if !is_markdown && comment_text(line).is_none() {
            is_code_block = false;
        }
        is_data = (is_data || line.trim() == "#[rustfmt::skip]") && line != "];";
        let is_table = prose.starts_with('|');
        let is_exempt = is_code_block || is_table || line.contains("://");
        let has_literal = line.contains('"') || line.ends_with('\\');
        let is_literal = !is_markdown && comment_text(line).is_none() && has_literal;
        if line.chars().count() > most && !is_exempt && !is_literal && !is_data {
            long.push(index + 1);
        }
    }
    long
}

/// The text of a line that is a comment.
fn comment_text(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.strip_prefix(['/', '!']).unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_code_and_prose_are_found_except_unbreakable_lines() {
        let long = "x ".repeat(60);
        for line in [format!("let a = {long};"), format!("// {long}"), format!("/// {long}")] {
            assert_eq!(long_lines(&line, false), [1], "{line}");
        }
        let url = format!("// https://example.com/{}", "x".repeat(100));
        let literal = format!("let a = \"{long}\";");
        let table = format!("/// | {long} |");
        let block = format!("/// ```\n/// {long}\n/// ```");
        let data = format!("#[rustfmt::skip]\nconst X: [u32; 60] = [\n{long}\n];");
        for line in [url, literal, table, block, data] {
            assert_eq!(long_lines(&line, false), [0; 0], "{line}");
        }
    }

    #[test]
    fn a_code_block_ends() {
        let long = "x ".repeat(70);
        assert_eq!(long_lines(&format!("```\n{long}\n```\n{long}"), true), [4]);
        assert_eq!(long_lines(&format!("/// ```\nfn f() {{}}\n/// {long}"), false), [3]);
        assert_eq!(long_lines(&"x".repeat(110), true), [0; 0]);
    }
}
