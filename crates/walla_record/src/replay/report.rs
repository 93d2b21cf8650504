//! The comparison of two sessions, and its result.

use std::fmt;

use walla_runtime::{AgentId, FinishReason, ReplyId};
use walla_types::TokenId;

use crate::session::{RecordedAsk, ReplyText};
use crate::timeline::Ending;

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// Replies that were repeated.
    pub replies: u64,
    /// Asks that never began, and were left out.
    pub left_out: u64,
    /// Tokens that were compared. Without ids in the recording, by the counts of its deltas.
    pub tokens: u64,
    /// Whether ids were compared. Otherwise the texts were.
    pub has_ids: bool,
    /// Replies that differ. A reply behind a difference of the same agent can differ as its
    /// consequence.
    pub different: u64,
    /// The first difference, in the order of the recorded asks.
    pub first: Option<Difference>,
}

impl ReplayReport {
    /// Whether all replies are equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.different == 0
    }
}

/// A reply that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Number of the agent in the recording.
    pub agent: AgentId,
    /// Number of the reply in the recording.
    pub reply_id: ReplyId,
    /// Content of the ask, shortened.
    pub ask: String,
    /// Index of the token at which it differs, from 0.
    pub token: u32,
    /// The recorded value.
    pub expected: Differing,
    /// The value of the replay.
    pub got: Differing,
}

/// What differs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Differing {
    /// A token; `None`: the reply has no further one.
    Token(Option<TokenId>),
    /// Text from the difference on, shortened.
    Text(String),
    /// The calls.
    Calls(Vec<String>),
    /// The end, in words.
    End(String),
}

impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(Some(token)) => write!(f, "token {token}"),
            Self::Token(None) => f.write_str("no token"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Calls(calls) => write!(f, "calls [{}]", calls.join(", ")),
            Self::End(end) => f.write_str(end),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent, reply_id, ask, token, expected, got } = self;
        let (agent, reply) = (agent.0, reply_id.0);
        write!(
            f,
            "agent {agent}, reply {reply} to {ask:?}, token {token}: recorded {expected}, now {got}"
        )
    }
}

/// Index of the token, the recorded value, the value of the replay.
pub(super) type Unequal = (u32, Differing, Differing);

/// Compares a reply. Returns the number of equal tokens.
pub(super) fn compare(ask: &RecordedAsk, got: &ReplyText, ending: Ending) -> Result<u32, Unequal> {
    let expected = &ask.reply;
    let tokens = compare_tokens(expected, got)?;
    let is_cut = ending != Ending::Natural;
    // The last run of tokens of a reply without an end is missing.
    let has_end = expected.end.is_some();
    for (expected, got) in [(&expected.reasoning, &got.reasoning), (&expected.speech, &got.speech)]
    {
        // Behind a cut, held text may follow.
        let is_equal = if has_end { expected == got } else { got.starts_with(expected.as_str()) };
        if !is_equal {
            let at = expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
            return Err((tokens, text_at(expected, at), text_at(got, at)));
        }
    }
    let calls = got.calls.get(..expected.calls.len()).filter(|_| !has_end).unwrap_or(&got.calls);
    if calls != expected.calls {
        let calls = [&expected.calls, &got.calls].map(|calls| Differing::Calls(calls.clone()));
        let [expected, got] = calls;
        return Err((tokens, expected, got));
    }
    if !is_cut && end_of(expected) != end_of(got) {
        let [expected, got] = [expected, got].map(|reply| Differing::End(end_of(reply)));
        return Err((tokens, expected, got));
    }
    Ok(tokens)
}

fn compare_tokens(expected: &ReplyText, got: &ReplyText) -> Result<u32, Unequal> {
    if expected.tokens.is_empty() || got.tokens.is_empty() {
        return Ok(expected.token_count().min(got.token_count()));
    }
    let pairs = expected.tokens.iter().zip(&got.tokens);
    let equal = pairs.take_while(|(expected, got)| expected == got).count();
    let is_prefix = equal == expected.tokens.len() && expected.end.is_none();
    if equal == expected.tokens.len().max(got.tokens.len()) || is_prefix {
        return Ok(equal as u32);
    }
    let [expected, got] =
        [expected, got].map(|reply| Differing::Token(reply.tokens.get(equal).copied()));
    Err((equal as u32, expected, got))
}

/// Maximum bytes of a text in a difference.
const MAX_SHOWN_BYTES: usize = 60;

fn text_at(text: &str, at: usize) -> Differing {
    let rest = text.get(text.floor_char_boundary(at)..).unwrap_or_default();
    Differing::Text(
        rest.get(..rest.floor_char_boundary(MAX_SHOWN_BYTES)).unwrap_or_default().into(),
    )
}

/// The end of a reply in words.
fn end_of(reply: &ReplyText) -> String {
    match &reply.end {
        None => "no end".to_owned(),
        Some(Ok((FinishReason::Stop { index }, _))) => format!("stop string {index}"),
        Some(Ok((reason, _))) => format!("{reason:?}"),
        Some(Err(error)) => format!("failed: {error}"),
    }
}
