//! Actions of agents and their calls.

use std::sync::Arc;

use serde_json::{Map, Value};
#[cfg(feature = "actions")]
use walla_grammar::Action;
use walla_grammar::{ActionError, ActionSet, MalformedCall, UnmarkedCalls, call_json};

use super::{ReplyId, Speaker, Turn};

/// When an agent may call its actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub enum ActionPolicy {
    /// The model decides. From the opening delimiter of a call on, its text is constrained to valid
    /// calls.
    #[default]
    Auto,
    /// Each reply begins with a valid call. If no action is possible, the ask fails with
    /// [`ActionError::NoAction`]. A reply to results of actions is as with [`Auto`](Self::Auto):
    /// the agent speaks about them, except if its ask
    /// [requires](crate::AskOptions::actions) a call. A constraint excludes calls: an ask that
    /// requires one fails with [`ActionError::Constrained`]. If the ask has the constraint and the
    /// agent the policy, the ask counts: it has no call.
    Required,
    /// No call is valid. The model still knows the actions, so that the beginning of its prompts
    /// stays in the cache. If a special token opens calls, it cannot be sampled. Otherwise a call
    /// is reported as [malformed](crate::ReplyEvent::CallRefused).
    Off,
}

/// The actions that an agent can call, and limits for its calls.
///
/// The model knows them from its prompt: as a list of tools if its chat template prints one,
/// otherwise as text behind the persona. So a change of the actions, or of the choices in them,
/// changes the beginning of the prompt, which is evaluated again in the background or at the next
/// ask.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Actions {
    /// The actions.
    pub set: ActionSet,
    /// When they may be called. [`AskOptions::actions`](crate::AskOptions::actions) replaces it for
    /// one ask. Default: [`ActionPolicy::Auto`].
    pub policy: ActionPolicy,
    /// Maximum number of calls in one reply, which ends with the last one
    /// ([`FinishReason::CallLimit`](crate::FinishReason::CallLimit)). 0: none may be called.
    /// Default: 4.
    pub max_calls: u32,
    /// Maximum number of consecutive replies to results, without another new turn, that may call
    /// actions; the next one has words. So a program that answers each call, and a model that calls
    /// again each time, do not continue for ever. 0: no reply to a result may call. Default: 8.
    pub max_rounds: u32,
    /// Maximum bytes of the text of a call. A longer one is malformed and ends the reply. Default:
    /// 4,096.
    pub max_call_bytes: u32,
    /// The treatment of calls that the model writes without the markers of its format. Default:
    /// [`UnmarkedCalls::Call`].
    pub unmarked: UnmarkedCalls,
    /// A defect of the actions, found before the agent was made: its asks fail with
    /// [`ReplyError::Actions`](crate::ReplyError::Actions). Default: none.
    pub fault: Option<Arc<ActionError>>,
}

impl Actions {
    /// These actions, with the defaults.
    #[must_use]
    pub fn new(set: ActionSet) -> Self {
        Self {
            set,
            policy: ActionPolicy::Auto,
            max_calls: 4,
            max_rounds: 8,
            max_call_bytes: MAX_CALL_BYTES,
            unmarked: UnmarkedCalls::default(),
            fault: None,
        }
    }
}

/// Default of [`Actions::max_call_bytes`].
pub(crate) const MAX_CALL_BYTES: u32 = 4_096;

/// Id of a call, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub struct CallId {
    /// The reply that made the call.
    pub reply_id: ReplyId,
    /// Its index among the calls of the reply.
    pub index: u32,
}

impl CallId {
    /// The id as one number.
    #[must_use]
    pub fn number(self) -> u128 {
        u128::from(self.reply_id.0) << 32 | u128::from(self.index)
    }
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CallResult {
    /// The call.
    pub id: CallId,
    /// The outcome, in words for the model: "The horseshoe is sold.". Untrusted.
    pub text: String,
}

/// Why the result of a call is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub enum ResultError {
    /// The agent's conversation has no such call: another agent made it, or it was removed.
    #[error("the conversation has no such call (call {} of its reply)", .0.index)]
    Unknown(CallId),
    /// The call has a result.
    #[error("call {} has a result already", .0.index)]
    Repeated(CallId),
    /// This call of the same reply has no result yet: answer all calls together, or continue
    /// without the rest ([`Prompt::Continue`](crate::Prompt::Continue)).
    #[error("call {} of the same reply has no result yet", .0.index)]
    Missing(CallId),
    /// The reply with the call was cancelled before it ended.
    #[error("the reply with call {} was cancelled", .0.index)]
    Cancelled(CallId),
}

/// A valid call of an action.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Call {
    /// The id.
    pub id: CallId,
    /// Name of the action.
    pub name: String,
    /// The arguments, valid by the schema of the action and in its order.
    #[cfg_attr(feature = "serde", serde(serialize_with = "walla_grammar::json_text"))]
    pub arguments: Map<String, Value>,
}

impl Call {
    /// A call with these arguments, a JSON object: for engines that are not a model.
    ///
    /// # Errors
    /// The defect of the JSON text, in words.
    pub fn new(id: CallId, name: impl Into<String>, arguments: &str) -> Result<Self, String> {
        let arguments = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        Ok(Self { id, name: name.into(), arguments })
    }

    /// The call as a turn of a conversation ([`Speaker::Action`](crate::Speaker::Action)).
    #[must_use]
    pub fn turn(&self) -> Turn {
        Turn { call: Some(self.id), ..Turn::new(Speaker::Action, self.text()) }
    }

    /// The text of the call in a conversation: JSON with the white space that templates print, so
    /// that later prompts have the tokens of the reply.
    #[must_use]
    pub fn text(&self) -> String {
        call_json(&self.name, &self.arguments)
    }

    /// The action as the game's type.
    ///
    /// # Errors
    /// The defect, in words: the type refuses a value that its schema allows, or it has another
    /// schema than the action.
    #[cfg(feature = "actions")]
    pub fn parse<T: Action>(&self) -> Result<T, String> {
        walla_grammar::from_arguments(&self.arguments).map_err(|error| error.to_string())
    }
}

/// A call that was not delivered: it is not of the model's format, or not valid by the schema of
/// its action, or its reply ended within it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RefusedCall {
    /// The id.
    pub id: CallId,
    /// The text of the call, and the reason.
    pub call: MalformedCall,
}
