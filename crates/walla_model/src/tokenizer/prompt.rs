//! Encodes prompts.

use walla_types::TokenId;

use super::{
    Tokenizer,
    error::TokenizerError,
    partition::{Fragment, Trust},
};
use crate::chat::{Prompt, Segment};

impl Tokenizer {
    /// The tokens of a prompt: only markers in template text become control tokens.
    ///
    /// For ordinary text the result equals that of encoding the whole text with special tokens
    /// parsed and added. Segments are concatenated before the text is split and
    /// merged, so words and merges may cross the border between template text and untrusted text,
    /// as in the model's training. A marker may not cross it: a control token, and a user-defined
    /// token that [looks like one](Self::is_reserved), must be within a single template segment.
    /// Other user-defined tokens (line breaks, runs of spaces) are matched anywhere.
    ///
    /// BOS is added if the file requests it, unless the template has already printed it. EOS is not
    /// added, because the model continues the prompt.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] if the prompt is longer than
    /// [allowed](Self::with_max_text_bytes).
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>, TokenizerError> {
        self.check_length(prompt.bytes())?;
        let mut text = String::with_capacity(prompt.bytes());
        let mut trusted = Vec::with_capacity(prompt.segments.len());
        for segment in &prompt.segments {
            let start = text.len();
            text.push_str(segment.text());
            if matches!(segment, Segment::Template(_)) && start < text.len() {
                trusted.push(start..text.len());
            }
        }
        let fragments = self.partition.cut(&text, Trust { parse_special: true, trusted: &trusted });
        let has_bos = match fragments.first() {
            Some(Fragment::Token(token)) => Some(*token) == self.bos,
            _ => false,
        };
        let mut encoding = self.begin(false);
        encoding.tokens.extend(self.bos.filter(|_| self.adds_bos && !has_bos));
        self.encode_fragments(&text, &fragments, true, &mut encoding);
        Ok(encoding.tokens)
    }
}
