//! Names of models, and names of their files.

use super::PullError;

/// Maximum bytes of an owner or model, and of a tag: a file name of both has at most 255.
const MAX_NAME_BYTES: usize = 96;
const MAX_TAG_BYTES: usize = 128;

/// Windows opens devices by these names, with any ending.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "com", "lpt"];

/// A checked name: no part of it can leave a folder or an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub owner: String,
    pub model: String,
    pub tag: String,
    /// Name of the file without its ending.
    pub stem: String,
}

impl Name {
    pub fn parse(name: &str) -> Result<Self, PullError> {
        let refused = |reason| PullError::Name { name: name.to_owned(), reason };
        let (path, tag) = name.split_once(':').unwrap_or((name, "latest"));
        let (owner, model) = path.split_once('/').unwrap_or(("library", path));
        if model.contains('/') {
            return Err(refused("it has too many parts; a host belongs in the registry's address"));
        }
        let parts = [(owner, MAX_NAME_BYTES), (model, MAX_NAME_BYTES), (tag, MAX_TAG_BYTES)];
        for (part, max_bytes) in parts {
            if part.is_empty() {
                return Err(refused("a part is empty"));
            }
            if part.len() > max_bytes {
                return Err(refused("a part is too long"));
            }
            if part.starts_with(['.', '-']) || part.contains("..") {
                return Err(refused("a part begins with . or -, or has two dots"));
            }
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if !part.bytes().all(is_known) {
                return Err(refused(
                    "a part has other characters than letters, digits, -, . and _",
                ));
            }
        }
        let first = model.split('.').next().unwrap_or_default().to_ascii_lowercase();
        if model.contains('.') && DEVICES.contains(&first.trim_end_matches(char::is_numeric)) {
            return Err(refused("Windows has a device of this name"));
        }
        // A tag of Hugging Face may be the name of a file.
        let of_tag = tag.strip_suffix(".gguf").unwrap_or(tag);
        let stem = format!("{model}-{of_tag}");
        Ok(Self { owner: owner.to_owned(), model: model.to_owned(), tag: tag.to_owned(), stem })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}:{}", self.owner, self.model, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_tag_have_defaults() {
        for (name, full, stem) in [
            ("a/m:Q8_0", "a/m:Q8_0", "m-Q8_0"),
            ("a/m", "a/m:latest", "m-latest"),
            ("qwen3:0.6b", "library/qwen3:0.6b", "qwen3-0.6b"),
            ("a/M.1:M.1-Q8_0.gguf", "a/M.1:M.1-Q8_0.gguf", "M.1-M.1-Q8_0"),
            ("a/console.2", "a/console.2:latest", "console.2-latest"),
        ] {
            let found = Name::parse(name).unwrap();
            assert_eq!((found.to_string().as_str(), found.stem.as_str()), (full, stem));
        }
        let longest = format!("{0}/{0}:{1}", "n".repeat(96), "t".repeat(128));
        assert!(Name::parse(&longest).unwrap().stem.len() + ".license.txt".len() <= 255);
    }

    #[test]
    fn no_name_leaves_the_folder_or_the_address() {
        let long = "n".repeat(97);
        for name in [
            "",
            "/",
            "a/",
            "/m",
            "a/m:",
            "../../x",
            "../x",
            "a/..",
            "a/m:..",
            "a/m:x/y",
            "a/b/c",
            ".",
            "a/.m",
            "a/m:.t",
            "a\\m",
            "a/m\\x",
            "a/m:x:y",
            "a/m?x",
            "a/m#x",
            "a/m%2fx",
            "a/m x",
            "a/m\n",
            "a/é",
            "-m",
            "a/-m",
            "a/m\0",
            "nul.x",
            "a/COM1.x",
            "hf.co/a/m",
            "https://a/m",
            &long,
            "C:m/x",
        ] {
            let error = Name::parse(name).unwrap_err();
            assert!(matches!(error, PullError::Name { .. }), "{name}: {error}");
        }
    }
}
