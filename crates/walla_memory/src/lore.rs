//! Lore files: entries that authors of a game write.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use unicode_normalization::UnicodeNormalization as _;

use crate::{Entry, EntryError, LoreError, Store, StoreLimits, Tags};

impl Store {
    /// A store with the entries of a lore text, in their order: the id of an entry is its index.
    /// The limits are [`StoreLimits::lore`].
    ///
    /// ```text
    /// # The village. Lines that begin with # are comments.
    /// Emberfall has forty houses
    /// and one well.
    ///
    /// [tags: mill, river; visible_to: millers, guards; importance: 0.8]
    /// The mill wheel broke in spring.
    /// ```
    ///
    /// Blank lines divide paragraphs; the lines of a paragraph are joined by spaces. A first line
    /// that begins with `[` is a header, with each field at most once; a later one is an error, so
    /// that no secret becomes text for everyone. A backslash before `[` or `#` at the start of a
    /// line is removed, and the line is text. Comments divide nothing. Lines may end as on any
    /// system; invisible characters around a line do not count. Brackets and signs of Chinese and
    /// Japanese input methods (`［tags：a、b］`, `【…】`, `〔…〕`, `＃`) are equal to the ones of ASCII.
    ///
    /// # Errors
    /// [`LoreError`], which names the line. Nothing is ever evicted: too many entries are an error.
    pub fn from_lore_text(text: &str) -> Result<Self, LoreError> {
        let mut store = Self::unindexed_lore_text(text, StoreLimits::lore())?;
        store.build_index();
        Ok(store)
    }

    /// As [`from_lore_text`](Self::from_lore_text), with other limits and
    /// [without an index of words](Self::without_index).
    ///
    /// # Errors
    /// [`LoreError`].
    pub fn unindexed_lore_text(text: &str, limits: StoreLimits) -> Result<Self, LoreError> {
        let mut store = Self::without_index(limits);
        let mut paragraph: Option<Paragraph> = None;
        for (line, content) in (1..).zip(lines(text)) {
            let content = content.trim_matches(is_blank);
            if content.is_empty() {
                if let Some(paragraph) = paragraph.take() {
                    paragraph.finish(&mut store)?;
                }
            } else if !content.starts_with(is_hash) {
                match &mut paragraph {
                    Some(_) if content.starts_with(is_open) => {
                        return Err(LoreError::HeaderInside { line });
                    }
                    Some(paragraph) => paragraph.push(content),
                    None => paragraph = Some(Paragraph::begin(line, content)?),
                }
            }
        }
        if let Some(paragraph) = paragraph {
            paragraph.finish(&mut store)?;
        }
        Ok(store)
    }

    /// A store with the entries of a JSON array, in their order; a byte order mark before it is
    /// ignored. The limits are [`StoreLimits::lore`]. An entry is an object with `text`, and
    /// optionally `tags`, `visible_to`, `importance` and `time_seconds`.
    ///
    /// # Errors
    /// [`LoreError`], which names the line of a syntax error, or the index of an entry from 1.
    pub fn from_lore_json(json: &str) -> Result<Self, LoreError> {
        let mut store = Self::unindexed_lore_json(json, StoreLimits::lore())?;
        store.build_index();
        Ok(store)
    }

    /// As [`from_lore_json`](Self::from_lore_json), with other limits and
    /// [without an index of words](Self::without_index).
    ///
    /// # Errors
    /// [`LoreError`].
    pub fn unindexed_lore_json(json: &str, limits: StoreLimits) -> Result<Self, LoreError> {
        let json = json.strip_prefix('\u{feff}').unwrap_or(json);
        let entries: Vec<JsonEntry> = serde_json::from_str(json)?;
        let mut store = Self::without_index(limits);
        for (number, of) in (1..).zip(entries) {
            let entry = Entry {
                text: of.text,
                time: Duration::from_secs(of.time_seconds),
                importance: of.importance.unwrap_or(Entry::IMPORTANCE),
                tags: of.tags,
                visible_to: of.visible_to,
            };
            add(&mut store, entry, number)?;
        }
        Ok(store)
    }
}

/// Lines that end with a line feed, a carriage return, both, or a line separator of Unicode.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let by_feed = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    by_feed.flat_map(|line| line.split(['\r', '\u{85}', '\u{2028}', '\u{2029}']))
}

/// White space, and characters without width that editors and web pages leave around a line: byte
/// order marks, joiners, marks of direction.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The begin of a header, also as input methods of Chinese and Japanese write it: a header that is
/// taken as text would show its secret to everyone.
fn is_open(c: char) -> bool {
    matches!(c, '[' | '［' | '【' | '〔' | '〖' | '〚' | '﹇')
}

fn is_close(c: char) -> bool {
    matches!(c, ']' | '］' | '】' | '〕' | '〗' | '〛' | '﹈')
}

/// The begin of a comment.
fn is_hash(c: char) -> bool {
    matches!(c, '#' | '＃' | '﹟')
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    text: Arc<str>,
    #[serde(default)]
    time_seconds: u64,
    importance: Option<f32>,
    #[serde(default)]
    tags: Tags,
    #[serde(default)]
    visible_to: Tags,
}

fn add(store: &mut Store, entry: Entry, line: usize) -> Result<(), LoreError> {
    let wrong = |error: EntryError| LoreError::Entry { line, error };
    entry.check(store.limits()).map_err(wrong)?;
    let StoreLimits { max_entries, max_bytes, .. } = *store.limits();
    let is_full = store.len() >= max_entries as usize || store.bytes() + entry.bytes() > max_bytes;
    if is_full {
        return Err(LoreError::Full { line, max_entries, max_bytes });
    }
    store.add(entry).map(drop).map_err(wrong)
}

struct Paragraph {
    line: usize,
    header: Header,
    text: String,
}

impl Paragraph {
    fn begin(line: usize, content: &str) -> Result<Self, LoreError> {
        if content.starts_with(is_open) {
            return Ok(Self { line, header: Header::parse(line, content)?, text: String::new() });
        }
        let mut paragraph = Self { line, header: Header::default(), text: String::new() };
        paragraph.push(content);
        Ok(paragraph)
    }

    fn push(&mut self, content: &str) {
        let escaped = content.strip_prefix('\\');
        let content = escaped
            .filter(|text| text.starts_with(|c| is_open(c) || is_hash(c)))
            .unwrap_or(content);
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(content);
    }

    fn finish(self, store: &mut Store) -> Result<(), LoreError> {
        if self.text.is_empty() {
            return Err(LoreError::NoText { line: self.line });
        }
        let entry = Entry {
            text: self.text.into(),
            time: Duration::ZERO,
            importance: self.header.importance.unwrap_or(Entry::IMPORTANCE),
            tags: self.header.tags.unwrap_or_default(),
            visible_to: self.header.visible_to.unwrap_or_default(),
        };
        add(store, entry, self.line)
    }
}

#[derive(Default)]
struct Header {
    tags: Option<Tags>,
    visible_to: Option<Tags>,
    importance: Option<f32>,
}

impl Header {
    fn parse(line: usize, content: &str) -> Result<Self, LoreError> {
        let wrong = || LoreError::Header { line };
        let fields = content.strip_prefix(is_open).and_then(|rest| rest.strip_suffix(is_close));
        let mut header = Self::default();
        for field in fields.ok_or_else(wrong)?.split([';', '；', '﹔']) {
            let (name, value) = field.split_once([':', '：', '﹕', '︰']).ok_or_else(wrong)?;
            let is_doubled = match name.nfkc().collect::<String>().trim() {
                "tags" => header.tags.replace(names(value)).is_some(),
                "visible_to" | "visible to" => header.visible_to.replace(names(value)).is_some(),
                "importance" => {
                    let value: String = value.nfkc().collect();
                    let number = value.trim().parse().map_err(|_| LoreError::Number { line })?;
                    header.importance.replace(number).is_some()
                }
                other => {
                    let field = other.chars().take(40).collect();
                    return Err(LoreError::UnknownField { line, field });
                }
            };
            if is_doubled {
                return Err(wrong());
            }
        }
        Ok(header)
    }
}

/// Names between commas. An empty one is an error of the entry.
fn names(value: &str) -> Tags {
    value.split([',', '，', '、', '﹐', '﹑']).map(str::trim).collect()
}
