//! The text side of a model: tokenizer and chat template, loaded together.

use walla_types::TokenId;

use super::{ChatTemplate, TemplateChoice, TemplateError, TemplateState};
use crate::gguf::Gguf;
use crate::tokenizer::{Tokenizer, Vocabulary, VocabularyError, markers_in};

/// A model's tokenizer and chat template.
///
/// They are loaded together because each needs the other: some files store a template marker as an
/// ordinary token. Encoded as text, the marker would become several tokens that the model has never
/// seen in this position, and a player could type it. Here the tokens of all markers that the
/// template prints are control tokens ([`Vocabulary::reserve_markers`]).
#[derive(Clone, Debug)]
pub struct LoadedText {
    /// The tokenizer, with the template's markers reserved.
    pub tokenizer: Tokenizer,
    /// The template, if one works.
    pub template: Option<ChatTemplate>,
    /// The origin of the template, or why none works.
    pub state: TemplateState,
    /// Markers that the file stores as ordinary tokens, ascending.
    pub reserved_markers: Vec<TokenId>,
    /// Defects of the file that did not prevent loading, one sentence each: defects of its
    /// [metadata](Gguf::warnings), of its [vocabulary](Tokenizer::warnings) and of the template.
    pub warnings: Vec<String>,
}

/// Why a model's text side cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file's tokenizer cannot be used.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The chosen template does not work: choose another.
    #[error("the chosen chat template {template} does not work: {reason}")]
    Template {
        /// Its name or path.
        template: String,
        /// Why.
        reason: TemplateError,
    },
}

impl LoadedText {
    /// Loads tokenizer and template. A `choice` replaces the file's template, `pre` the name of its
    /// pre-tokenizer ([`Vocabulary::from_gguf_with`]).
    ///
    /// A file whose template is absent or does not work can still be loaded: see [`Self::state`].
    ///
    /// # Errors
    /// [`LoadError`] if the vocabulary cannot be used or the chosen template does not work.
    pub fn from_gguf(
        file: &Gguf,
        choice: Option<&TemplateChoice>,
        pre: Option<&str>,
    ) -> Result<Self, LoadError> {
        let mut vocabulary = Vocabulary::from_gguf_with(file, pre)?;
        let (template, state) = ChatTemplate::resolve(file, choice).map_err(|reason| {
            let template = choice.map(ToString::to_string).unwrap_or_default();
            LoadError::Template { template, reason }
        })?;
        let mut of_template = Vec::new();
        let mut reserved_markers = Vec::new();
        if let Some(template) = &template {
            of_template.extend_from_slice(template.warnings());
            let printed = template.printed();
            let printed = || printed.iter().map(String::as_str);
            let of_actions = template.printed_of_actions();
            let all = printed().chain(of_actions.iter().map(String::as_str));
            reserved_markers = vocabulary.reserve_markers(all);
            let text = |token: &TokenId| vocabulary.tokens.get(token.index()).copied();
            of_template.extend(list(reserved_markers.iter().filter_map(text)).map(|texts| {
                format!(
                    "the chat template prints {texts} as markers, which the file stores as \
                     ordinary tokens: they are control tokens here"
                )
            }));
            if let TemplateState::Chosen(name) = &state {
                let is_absent = |marker: &&str| !vocabulary.tokens.contains(marker);
                let absent: Vec<_> = printed().flat_map(markers_in).filter(is_absent).collect();
                of_template.extend(list(absent).map(|texts| {
                    format!(
                        "the vocabulary has no tokens for the markers {texts} of the chosen chat \
                         template {name}: is it the template of this model?"
                    )
                }));
            }
        }
        let tokenizer = Tokenizer::new(&vocabulary)?;
        let warnings = [&file.warnings(), tokenizer.warnings(), &of_template].concat();
        Ok(Self { tokenizer, template, state, reserved_markers, warnings })
    }
}

/// Quoted texts without duplicates; `None` for an empty list.
fn list<'t>(texts: impl IntoIterator<Item = &'t str>) -> Option<String> {
    let mut texts: Vec<String> = texts.into_iter().map(|text| format!("{text:?}")).collect();
    texts.sort_unstable();
    texts.dedup();
    (!texts.is_empty()).then(|| texts.join(", "))
}
