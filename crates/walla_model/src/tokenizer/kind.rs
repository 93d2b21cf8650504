//! Properties of tokens.

/// Properties of a token; several can apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind(u16);

impl Kind {
    pub(super) const NORMAL: Self = Self(1);
    /// Represents text that the vocabulary cannot spell.
    pub(super) const UNKNOWN: Self = Self(1 << 1);
    /// Belongs to the chat format. Players cannot type it.
    pub(super) const CONTROL: Self = Self(1 << 2);
    /// Matched in any text before it is split.
    pub(super) const USER_DEFINED: Self = Self(1 << 3);
    /// Represents one byte.
    pub(super) const BYTE: Self = Self(1 << 4);
    /// Reserved; has no text.
    pub(super) const UNUSED: Self = Self(1 << 5);
    /// Ends a generation.
    pub(super) const END_OF_GENERATION: Self = Self(1 << 6);
    /// Also consumes the white space that follows it.
    pub(super) const STRIPS_RIGHT: Self = Self(1 << 7);
    /// A user-defined token that looks like a marker of the chat format: not matched in untrusted
    /// text.
    pub(super) const MARKER: Self = Self(1 << 8);
    /// A user-defined token that consists of white space.
    pub(super) const BLANK: Self = Self(1 << 9);

    /// Control, unknown and user-defined tokens are matched as whole texts, before splitting.
    pub(super) const SPECIAL: Self = Self(Self::CONTROL.0 | Self::UNKNOWN.0 | Self::USER_DEFINED.0);
    /// Tokens that untrusted text may not become.
    pub(super) const RESERVED: Self = Self(Self::CONTROL.0 | Self::UNKNOWN.0 | Self::MARKER.0);
    /// Properties that a token shares with every later token of the same text. Both tokens must end
    /// and be hidden from a reply, and neither may be spelled.
    pub(super) const OF_TEXT: Self =
        Self(Self::CONTROL.0 | Self::UNKNOWN.0 | Self::MARKER.0 | Self::END_OF_GENERATION.0);

    /// The kind for a code of `tokenizer.ggml.token_type`.
    pub(super) const fn from_code(code: i64) -> Option<Self> {
        Some(match code {
            0 => Self(0), // undefined
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            5 => Self::UNUSED,
            6 => Self::BYTE,
            _ => return None,
        })
    }

    /// Whether any property of `other` applies.
    pub(super) const fn is_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether [untrusted text](super::Tokenizer::encode_untrusted) may not become this token.
    pub(super) const fn is_trusted_only(self) -> bool {
        let is_marker = self.is_any(Self::USER_DEFINED) && !self.is_any(Self::BLANK);
        is_marker || self.is_any(Self::OF_TEXT)
    }

    /// The properties that both have.
    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether splitting and merging may produce this token.
    ///
    /// They never produce control tokens, unknown tokens or markers, because a player could then
    /// spell one. Nor byte tokens (typing `<0x41>` is not typing `A`), nor unused tokens, whose
    /// text would be lost.
    pub(super) const fn is_spellable(self) -> bool {
        self.is_any(Self(Self::NORMAL.0 | Self::USER_DEFINED.0)) && !self.is_any(Self::RESERVED)
    }
}

/// Whether a token's text is only white space; SentencePiece writes a space as `▁`.
pub(super) fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c == '▁')
}

/// Whether a user-defined token looks like a marker of the chat format. `<think>` and
/// `[TOOL_CALLS]` do; line breaks, runs of spaces, letters and a single `<` do not.
pub(super) fn looks_like_marker(text: &str) -> bool {
    text.contains(['<', '>', '[', ']', '|', '｜']) && text.chars().nth(1).is_some()
}
