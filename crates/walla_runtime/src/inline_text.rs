use core::fmt;
use core::ops::Deref;

/// A string of at most `N` bytes stored inline, so that events with text need no allocation.
///
/// Its size is a multiple of 8 bytes. A compiler copies other sizes with two overlapping stores at
/// the end. A processor cannot forward two stores to one load, so a second copy waits until both
/// stores and all earlier ones have reached the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(opaque, Clone, Debug, PartialEq)
)]
pub struct InlineText<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> InlineText<N> {
    /// The empty string.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N >= 4 && N <= u16::MAX as usize, "room for one character, length in 16 bits") };
        Self { len: 0, bytes: [0; N] }
    }

    /// Appends as many whole characters as fit and returns the rest.
    pub fn push<'a>(&mut self, text: &'a str) -> &'a str {
        let start = usize::from(self.len);
        let fits = text.floor_char_boundary(N - start);
        let (now, rest) = text.split_at(fits);
        if let Some(room) = self.bytes.get_mut(start..start + fits) {
            room.copy_from_slice(now.as_bytes());
            self.len += fits as u16;
        }
        rest
    }

    /// A text as parts of at most `N` bytes, in order.
    pub fn parts(text: &str) -> impl Iterator<Item = Self> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let mut part = Self::new();
            rest = (!rest.is_empty()).then(|| part.push(rest))?;
            Some(part)
        })
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only whole characters are pushed, so the default is never used.
        self.bytes
            .get(..usize::from(self.len))
            .and_then(|b| str::from_utf8(b).ok())
            .unwrap_or_default()
    }
}

impl<const N: usize> Default for InlineText<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for InlineText<N> {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<const N: usize> fmt::Display for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(feature = "serde")]
impl<const N: usize> serde::Serialize for InlineText<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de, const N: usize> serde::Deserialize<'de> for InlineText<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: String = serde::Deserialize::deserialize(deserializer)?;
        let mut inline = Self::new();
        let rest = inline.push(&text);
        if rest.is_empty() {
            Ok(inline)
        } else {
            Err(serde::de::Error::custom("a text is too long"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_characters_are_stored() {
        let mut text = InlineText::<5>::new();
        assert_eq!(text.push("aéé!"), "!");
        assert_eq!(text.as_str(), "aéé");
        let mut text = InlineText::<4>::new();
        assert_eq!(text.push("aéé"), "é");
        assert_eq!(text.as_str(), "aé");
    }
}
