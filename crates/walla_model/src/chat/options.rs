//! Options of rendering.

use super::Tools;

/// A date, for templates that print one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Gregorian year.
    pub year: u32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
}

/// Options of [`ChatTemplate::render`](super::ChatTemplate::render).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// Whether the prompt ends with the start of the model's turn.
    pub add_generation_prompt: bool,
    /// Whether models with a reasoning switch (`enable_thinking`, `thinking`) reason before they
    /// speak. Default: `false`, because reasoning is not speech
    /// ([`ReasoningMarkers`](super::ReasoningMarkers)) and takes seconds.
    pub enable_thinking: bool,
    /// The date of `strftime_now`. The default is fixed: a game world has its own calendar, and a
    /// reply must not change overnight.
    pub date: Date,
    /// The actions that the model may call. Default: none.
    pub tools: Option<Tools>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: false,
            enable_thinking: false,
            date: Date { year: 2024, month: 7, day: 26 },
            tools: None,
        }
    }
}
