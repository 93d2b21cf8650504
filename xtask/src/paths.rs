//! Paths in Markdown: every file that a page names in backticks exists.
//!
//! A path is checked if it has the ending of a source file. It may begin in any folder
//! (`core/pages.rs`) and list alternatives (`gguf/{file,split}.rs`).

use std::path::Path;

/// Endings of paths that are checked.
const ENDINGS: &[&str] = &[".rs", ".cu", ".cuh", ".py"];

/// Pages about earlier states.
const HISTORY: &[&str] = &["CHANGELOG.md", "results"];

/// Checks all Markdown pages of the repository.
///
/// # Errors
/// Lists all paths that name no file.
pub fn check() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files: Vec<String> = crate::width::all_files(&root)?
        .iter()
        .filter_map(|path| Some(format!("/{}", path.strip_prefix(&root).ok()?.to_str()?)))
        .collect();
    let is_page = |file: &&String| {
        file.ends_with(".md")
            && !HISTORY.iter().any(|name| file.split('/').any(|part| part == *name))
    };
    let (mut checked, mut missing) = (0, Vec::new());
    for page in files.iter().filter(is_page) {
        let text = std::fs::read_to_string(root.join(&page[1..]));
        for path in paths(&text.map_err(|error| format!("{page}: {error}"))?) {
            checked += 1;
            let ending = format!("/{path}");
            if !files.iter().any(|file| file.ends_with(&ending)) {
                missing.push(format!("{}: {path}", &page[1..]));
            }
        }
    }
    if missing.is_empty() {
        eprintln!("xtask: {checked} paths in Markdown name a file");
        return Ok(());
    }
    Err(format!("{} paths name no file:\n{}", missing.len(), missing.join("\n")))
}

/// The paths of a page, with each alternative.
fn paths(text: &str) -> Vec<String> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |span: &&str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./{},".contains(c);
        // Not `.cuh` alone, and not a placeholder.
        let is_name = !span.starts_with('.') || span.starts_with("../");
        let is_name = is_name && !span.contains("NAME");
        is_name && ENDINGS.iter().any(|ending| span.ends_with(ending)) && span.chars().all(is_plain)
    };
    spans.filter(is_path).flat_map(|span| alternatives(span.trim_start_matches("../"))).collect()
}

/// All paths of `a/{b,c}.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((list, behind)) = rest.split_once('}') else { return vec![path.to_owned()] };
    let each = |name| alternatives(&format!("{before}{name}{behind}"));
    list.split(',').flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_are_found_with_their_alternatives() {
        let text = "See `core/{pages,fork}.rs`, `a b.rs`, `--out x.rs`, `.rs`, `a/NAME.rs`\nand `../kernels/step.cu`, not y.rs";
        assert_eq!(super::paths(text), ["core/pages.rs", "core/fork.rs", "kernels/step.cu"]);
    }
}
